// One workgroup a head of a row.
${DECLARATIONS}
//#include reduce
//#include activation

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    if (row >= step.header.n_rows) {
        return;
    }
    let at = row * STRIDE + group.x * HEAD_DIM;
    let gate_at = row * GATE_STRIDE + GATE_FIRST + group.x * HEAD_DIM;
    var squares = 0.0;
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
        squares = fma(input[at + i], input[at + i], squares);
    }
    let scale = 1.0 / sqrt(workgroup_sum(squares, lane) / f32(HEAD_DIM) + EPS);
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
//#if SUM
        output[at + i] = input[at + i] * scale * head_norm[i] + second[gate_at + i];
//#else
        output[at + i] = input[at + i] * scale * head_norm[i] * activate(second[gate_at + i]);
//#endif
    }
}
