// One workgroup a row: sum with the residual, then RMS norm, the row in registers from beginning to end.
${DECLARATIONS}
//#include reduce
//#include norm_row
//#if ENCODE
//#include encode
//#include encode_row
//#endif
//#if COUNTER_SYNC
//#include counter_sync
//#endif

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
    let at = row * (STRIDE / 4u);
    const first = true;
//#expand norm_row()
//#if ENCODE_FACTOR
    let row_at = row * STRIDE;
    let max_0 = max(0.0, largest(x_0));
//#for i in 1..SLOTS
    let max_${i} = max(max_${i - 1}, largest(x_${i}));
//#end
    store_factor(row_at, workgroup_max(max_${SLOTS - 1}, lane), lane);
//#endif
//#for i in 0..SLOTS
//#if ENCODE
    store_quad(row * STRIDE, quad_${i}, x_${i}, lane);
//#endif
//#if !ENCODE || ALSO_F32
    if (inside_${i}) {
        output[at + quad_${i}] = x_${i};
    }
//#endif
//#end
//#if COUNTER_SYNC
    count_workgroup(lane);
//#endif
}
