// One workgroup a row.
${DECLARATIONS}
//#if COUNTER_SYNC
//#include counter_sync
//#endif
//#include choose_experts

fn router_logit(row: u32, expert: u32) -> f32 {
    return input[row * INPUT_STRIDE + expert];
}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    if (row >= step.header.n_rows) {
//#if COUNTER_SYNC
        count_workgroup(lane);
//#endif
        return;
    }
//#if COUNTER_SYNC
    await_dispatch(lane);
//#endif
    choose_experts(row, lane, true);
//#if COUNTER_SYNC
    count_workgroup(lane);
//#endif
}
