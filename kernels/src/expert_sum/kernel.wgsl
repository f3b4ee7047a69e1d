// One lane an element.
${DECLARATIONS}
//#if COUNTER_SYNC
//#include counter_sync
//#endif

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    let column = group.x * WORKGROUP + lane;
//#if COUNTER_SYNC
    await_dispatch(lane);
//#endif
    // Lanes without an element compute the last one again: loads that no branch guards are issued together.
    let at = min(column, WIDTH - 1u);
    var sum = 0.0;
//#if CHOSEN <= 16
//#for place in 0..CHOSEN
    let weight_${place} = bitcast<f32>(routes[row * ROUTES_STRIDE + CHOSEN + ${place}u]);
    let x_${place} = input[(row * CHOSEN + ${place}u) * STRIDE + at];
//#end
//#for place in 0..CHOSEN
    sum = fma(weight_${place}, x_${place}, sum);
//#end
//#else
    for (var place = 0u; place < CHOSEN; place++) {
        let weight = bitcast<f32>(routes[row * ROUTES_STRIDE + CHOSEN + place]);
        sum = fma(weight, input[(row * CHOSEN + place) * STRIDE + at], sum);
    }
//#endif
    if (row < step.header.n_rows && column < WIDTH) {
        output[row * STRIDE + column] = sum;
    }
//#if COUNTER_SYNC
    count_workgroup(lane);
//#endif
}
