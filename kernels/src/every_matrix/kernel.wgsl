// One lane a matrix.
${DECLARATIONS}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let matrix = group.x * WORKGROUP + lane;
    if (group.y >= step.header.n_rows || matrix >= MATRICES) {
        return;
    }
    routes[group.y * OUTPUT_STRIDE + matrix] = matrix;
    routes[group.y * OUTPUT_STRIDE + MATRICES + matrix] = bitcast<u32>(1.0);
}
