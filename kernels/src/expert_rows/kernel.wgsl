// One workgroup. As in `route`, an expert's place is worked out from all before it, by the lane that has the expert: no lane waits for another
// but between counting, placing and writing. Pairs of one expert stand in the order in which lanes came, which no result depends on.
${DECLARATIONS}
var<workgroup> counts: array<atomic<u32>, EXPERTS>;
var<workgroup> next_places: array<atomic<u32>, EXPERTS>;

// The pair of a row and an expert that it chose; shared experts, which have all rows, are not counted.
fn pair_of(choice: u32) -> u32 {
    return choice / ROUTED_CHOSEN * CHOSEN + choice % ROUTED_CHOSEN;
}

// `route` names experts that exist; whatever a row holds, nothing is counted outside of the table.
fn expert_of(choice: u32) -> u32 {
    return min(routes[choice / ROUTED_CHOSEN * ROUTES_STRIDE + choice % ROUTED_CHOSEN], ROUTED - 1u);
}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(local_invocation_index) lane: u32) {
    let n_rows = step.header.n_rows;
    let choices = n_rows * ROUTED_CHOSEN;
    for (var expert = lane; expert < EXPERTS; expert += WORKGROUP) {
        atomicStore(&counts[expert], select(0u, n_rows, expert >= ROUTED));
    }
    workgroupBarrier();
    for (var choice = lane; choice < choices; choice += WORKGROUP) {
        atomicAdd(&counts[expert_of(choice)], 1u);
    }
    workgroupBarrier();
    for (var expert = lane; expert < EXPERTS; expert += WORKGROUP) {
        var first = 0u;
        var tile = 0u;
        for (var other = 0u; other < expert; other++) {
            let count = atomicLoad(&counts[other]);
            first += count;
            tile += (count + TILE_ROWS - 1u) / TILE_ROWS;
        }
        atomicStore(&next_places[expert], first);
        let count = atomicLoad(&counts[expert]);
        for (var placed = 0u; placed < count; placed += TILE_ROWS) {
            let at = 4u + 4u * tile;
            expert_rows[at] = expert;
            expert_rows[at + 1u] = first + placed;
            expert_rows[at + 2u] = min(count - placed, TILE_ROWS);
            tile++;
        }
        if (expert == EXPERTS - 1u) {
            expert_rows[0] = tile;
        }
    }
    workgroupBarrier();
    for (var choice = lane; choice < choices; choice += WORKGROUP) {
        let place = atomicAdd(&next_places[expert_of(choice)], 1u);
        expert_rows[${PAIRS_AT}u + place] = pair_of(choice);
    }
//#if SHARED_EXPERTS
    for (var place = choices + lane; place < n_rows * CHOSEN; place += WORKGROUP) {
        let number = (place - choices) / n_rows;
        expert_rows[${PAIRS_AT}u + place] = (place - choices) % n_rows * CHOSEN + ROUTED_CHOSEN + number;
    }
//#endif
}
