// The choice of a row's experts by a workgroup of WORKGROUP lanes, from what `router_logit(row, expert)` of the kernel returns; drawn in
// kernels/src/route/mod.rs. A place is the number of those before: every lane counts for its own experts, and no sorting waits.

// What experts are chosen by, four at a time; behind the last expert stands what is never chosen. Behind those, the same of finalists.
var<workgroup> ranks: array<vec4<f32>, RANK_QUADS>;
//#if ROUTED_BLOCKS > 1
var<workgroup> finalists: array<u32, 4 * (RANK_QUADS - ROUTED_QUADS)>;
//#endif
//#if LOGITS_APART
var<workgroup> logits: array<vec4<f32>, ROUTED_QUADS>;
//#endif
//#if GROUPED
var<workgroup> group_sums: array<f32, ROUTED_GROUPS>;
//#endif
// The experts of the row, shared ones behind those that were chosen.
var<workgroup> chosen_experts: array<u32, ROW_ROUTES>;

//#if SIGMOID || SHARED_GATE
fn score_of(logit: f32) -> f32 {
    return 1.0 / (1.0 + exp(-logit));
}
//#endif

fn chosen_logit(place: u32) -> f32 {
    let expert = chosen_experts[place];
    return ${LOGITS}[expert / 4u][expert % 4u];
}

// 1 for each of the quad's experts whose rank comes before this one; of equal ones, those of earlier quads do.
fn ranked_before(quad: u32, rank: f32, own_quad: u32) -> vec4<u32> {
    let others = ranks[quad];
    return select(vec4<u32>(0u), vec4<u32>(1u), (others > vec4(rank)) | ((others == vec4(rank)) & vec4(quad < own_quad)));
}

// Place of rank number `at` among those of some quads, of which it is one.
fn place_among(first_quad: u32, quads: u32, at: u32) -> u32 {
    let own = ranks[at / 4u];
    let rank = own[at % 4u];
    let is_first = vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(at % 4u);
    var before = select(vec4<u32>(0u), vec4<u32>(1u), (own == vec4(rank)) & is_first);
    for (var quad = first_quad; quad < first_quad + quads; quad += ${ROUTED_TOGETHER}u) {
//#for i in 0..ROUTED_TOGETHER
        before += ranked_before(quad + ${i}u, rank, at / 4u);
//#end
    }
    return before.x + before.y + before.z + before.w;
}

//#if GROUPED
// Lowers the ranks of experts whose group is not kept. A group's place is the number of those before it, as an expert's is.
fn keep_groups(lane: u32) {
    for (var group = lane; group < ROUTED_GROUPS; group += WORKGROUP) {
        var best = LOWEST;
        var second = LOWEST;
        for (var expert = group * GROUP_EXPERTS; expert < (group + 1u) * GROUP_EXPERTS; expert++) {
            let rank = ranks[expert / 4u][expert % 4u];
            second = max(second, min(best, rank));
            best = max(best, rank);
        }
//#if BEST_OF_TWO
        group_sums[group] = best + second;
//#else
        group_sums[group] = best;
//#endif
    }
    workgroupBarrier();
    for (var expert = lane; expert < ROUTED_EXPERTS; expert += WORKGROUP) {
        let group = expert / GROUP_EXPERTS;
        let sum = group_sums[group];
        var before = 0u;
        for (var other = 0u; other < ROUTED_GROUPS; other++) {
            let theirs = group_sums[other];
            before += select(0u, 1u, theirs > sum || (theirs == sum && other < group));
        }
        if (before >= GROUPS_KEPT) {
            ranks[expert / 4u][expert % 4u] = LOWEST;
        }
    }
    workgroupBarrier();
}
//#endif

fn store_routes(row: u32, shared_weight: f32, lane: u32) {
    for (var place = lane; place < ROW_ROUTES; place += WORKGROUP) {
        routes[row * MADE_ROUTES_STRIDE + place] = chosen_experts[place];
    }
    for (var place = lane; place < ROUTED_CHOSEN; place += WORKGROUP) {
//#if SIGMOID
        var weight = score_of(chosen_logit(place));
//#else
        // The first has the highest logit.
        let most = chosen_logit(0u);
        var weight = exp(chosen_logit(place) - most);
//#endif
//#if NORMALIZED
        var total = 0.0;
        for (var other = 0u; other < ROUTED_CHOSEN; other++) {
//#if SIGMOID
            total += score_of(chosen_logit(other));
//#else
            total += exp(chosen_logit(other) - most);
//#endif
        }
        weight /= total;
//#else if !SIGMOID
        var totals = vec4<f32>(0.0);
        for (var quad = 0u; quad < ROUTED_QUADS; quad += ${ROUTED_TOGETHER}u) {
//#for i in 0..ROUTED_TOGETHER
            totals += exp(${LOGITS}[quad + ${i}u] - vec4(most));
//#end
        }
        weight /= totals.x + totals.y + totals.z + totals.w;
//#endif
        weight *= ROUTE_FACTOR;
//#if SCALED
        weight *= expert_scale[chosen_experts[place]];
//#endif
        routes[row * MADE_ROUTES_STRIDE + ROW_ROUTES + place] = bitcast<u32>(weight);
    }
//#if SHARED_EXPERTS
    for (var place = ROUTED_CHOSEN + lane; place < ROW_ROUTES; place += WORKGROUP) {
        routes[row * MADE_ROUTES_STRIDE + ROW_ROUTES + place] = bitcast<u32>(shared_weight);
    }
//#endif
}

// Leaves the row's experts in `chosen_experts`; with `stores`, writes its routes. Called by all lanes together.
fn choose_experts(row: u32, lane: u32, stores: bool) {
//#if SHARED_GATE
    // At the same time as the others.
    let shared_weight = score_of(router_logit(row, ROUTED_EXPERTS));
//#else
    const shared_weight = 1.0;
//#endif
    for (var expert = lane; expert < 4u * ROUTED_QUADS; expert += WORKGROUP) {
        let logit = router_logit(row, min(expert, ROUTED_EXPERTS - 1u));
//#if LOGITS_APART
        logits[expert / 4u][expert % 4u] = select(LOWEST, logit, expert < ROUTED_EXPERTS);
//#endif
//#if CHOICE_BIAS
        let rank = score_of(logit) + choice_bias[min(expert, ROUTED_EXPERTS - 1u)];
//#else
        let rank = logit;
//#endif
        ranks[expert / 4u][expert % 4u] = select(LOWEST, rank, expert < ROUTED_EXPERTS);
    }
    // Logits that are not numbers leave places without an expert: these have any, so that every route names one that exists.
    for (var place = lane; place < ROUTED_CHOSEN; place += WORKGROUP) {
        chosen_experts[place] = place;
    }
//#if SHARED_EXPERTS
    for (var place = ROUTED_CHOSEN + lane; place < ROW_ROUTES; place += WORKGROUP) {
        chosen_experts[place] = ROUTED_EXPERTS + place - ROUTED_CHOSEN;
    }
//#endif
//#if ROUTED_BLOCKS > 1
    for (var at = lane; at < 4u * (RANK_QUADS - ROUTED_QUADS); at += WORKGROUP) {
        ranks[ROUTED_QUADS + at / 4u][at % 4u] = LOWEST;
        finalists[at] = 0u;
    }
//#endif
    workgroupBarrier();
//#if GROUPED
    keep_groups(lane);
//#endif
    for (var expert = lane; expert < ROUTED_EXPERTS; expert += WORKGROUP) {
        let block = expert / ${4 * ROUTED_TOGETHER}u;
        let place = place_among(block * ${ROUTED_TOGETHER}u, ${ROUTED_TOGETHER}u, expert);
//#if ROUTED_BLOCKS > 1
        if (place < ${FINALISTS}u) {
            let at = block * ${FINALISTS}u + place;
            ranks[ROUTED_QUADS + at / 4u][at % 4u] = ranks[expert / 4u][expert % 4u];
            finalists[at] = expert;
        }
    }
    workgroupBarrier();
    for (var at = lane; at < ${ROUTED_BLOCKS * FINALISTS}u; at += WORKGROUP) {
        let place = place_among(ROUTED_QUADS, RANK_QUADS - ROUTED_QUADS, 4u * ROUTED_QUADS + at);
        let expert = finalists[at];
//#endif
        if (place < ROUTED_CHOSEN) {
            chosen_experts[place] = expert;
        }
    }
    workgroupBarrier();
    if (stores) {
        store_routes(row, shared_weight, lane);
    }
}
