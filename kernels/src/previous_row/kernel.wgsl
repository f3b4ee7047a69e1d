// One lane an element and ROWS rows. Behind the kept row is its position: as f32, which no two positions of a sequence shorter than 2^24 share.
${DECLARATIONS}
//#include recurrent_state

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.y * ROWS;
    let element = group.x * WORKGROUP + lane;
    if (first >= step.header.n_rows || element >= WIDTH) {
        return;
    }
    let page = state_of(first);
//#if FOLLOW
    let end = min(first + ROWS, step.header.n_rows);
//#if ALONE
    let has_state = true;
    let last = first;
//#else
    // The first rows' lane keeps the state: no other reads or writes it.
    let has_state = first == 0u;
    let last = step.header.n_rows - 1u;
//#endif
    var before = 0.0;
    if (!has_state) {
        before = input[(first - 1u) * INPUT_STRIDE + element];
    } else if (step.rows[first].position > 0u) {
        before = state_low[page + element];
    }
    for (var row = first; row < end; row++) {
        output[row * OUTPUT_STRIDE + element] = before;
        before = input[row * INPUT_STRIDE + element];
    }
    if (has_state) {
        state_low[page + element] = input[last * INPUT_STRIDE + element];
        if (element == 0u) {
            state_low[page + WIDTH] = f32(step.rows[last].position);
        }
    }
//#else if RECALL
    let is_kept = state_low[page + WIDTH] + 1.0 == f32(step.rows[first].position);
    var before = state_high[page + element];
    if (is_kept) {
        before = state_low[page + element];
    }
    output[first * OUTPUT_STRIDE + element] = before;
//#else
    state_high[page + element] = input[first * INPUT_STRIDE + element];
//#endif
}
