// One lane an element.
${DECLARATIONS}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    let column = group.x * WORKGROUP + lane;
    if (row >= step.header.n_rows || column >= WIDTH) {
        return;
    }
    var sum = 0.0;
    for (var place = 0u; place < CHOSEN; place++) {
        let weight = bitcast<f32>(routes[row * ROUTES_STRIDE + CHOSEN + place]);
        sum = fma(weight, input[(row * CHOSEN + place) * STRIDE + column], sum);
    }
    output[row * STRIDE + column] = sum;
}
