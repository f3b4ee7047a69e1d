// One workgroup a row: sum with the residual, then RMS norm, the row in registers from beginning to end.
${DECLARATIONS}
//#include reduce
//#if ENCODE
//#include encode
//#include encode_row
//#endif
//#if CHAINED
//#include chain
//#endif

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    if (row >= step.header.n_rows) {
//#if CHAINED
        count_workgroup(lane);
//#endif
        return;
    }
//#if CHAINED
    await_dispatch(lane);
//#endif
    let at = row * (STRIDE / 4u);
    const first = true;
${NORM_ROW}
//#if ENCODE_FACTOR
    store_factor(row * STRIDE, workgroup_max(${ROW_MAX}, lane), lane);
//#endif
${STORE}
//#if CHAINED
    count_workgroup(lane);
//#endif
}
