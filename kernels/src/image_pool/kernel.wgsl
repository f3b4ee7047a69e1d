// One lane an element of a row of the output.
${DECLARATIONS}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    let column = group.x * WORKGROUP + lane;
    if (row >= step.header.n_rows || column >= WIDTH) {
        return;
    }
    let first = (row / ACROSS * SIDE * ACROSS + row % ACROSS) * SIDE;
    var sum = 0.0;
    for (var down = 0u; down < SIDE; down++) {
        for (var right = 0u; right < SIDE; right++) {
            sum += input[(first + down * ACROSS * SIDE + right) * STRIDE + column];
        }
    }
    output[row * STRIDE + column] = sum / f32(SIDE * SIDE);
}
