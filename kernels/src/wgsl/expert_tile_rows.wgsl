// The rows of a workgroup of GEMMs: a tile of one expert's (`expert_rows`).

//#include expert_of_workgroup

// Their pairs, for what comes behind the product.
var<workgroup> tile_pairs: array<u32, STEP_ROWS>;

// The row of the result that a row of the tile becomes.
fn result_row(step_row: u32) -> u32 {
    return tile_pairs[step_row % STEP_ROWS];
}

// The row that a pair's activations are in.
fn activation_row(pair: u32) -> u32 {
//#if OWN_INPUT
    return pair;
//#else
    return pair / ${CHOSEN}u;
//#endif
}

// A workgroup's expert, and where its pairs are. Rows past the last are computed as the last one again, and not written.
//#macro take_tile()
//#expand expert_of_workgroup()
//#if BIAS
    biased_expert = expert + ${FIRST_EXPERT}u;
//#endif
    let last_pair = first_pair + expert_rows[tile_at + 2u] - 1u;
    let last_step_row = first_step_row + last_pair - first_pair;
    for (var row = lane; row < STEP_ROWS; row += ${WORKGROUP_SIZE}u) {
        tile_pairs[row] = expert_rows[min(first_pair + row, last_pair)];
    }
//#end
