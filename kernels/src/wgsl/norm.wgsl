// One workgroup a row: sum with the residual, then RMS norm.
${DECLARATIONS}
//#include reduce

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if (group.x >= step.header.n_rows) {
        return;
    }
    let at = group.x * STRIDE;
//#if POST_NORM
    var delta_squares = 0.0;
    for (var i = lane; i < WIDTH; i += WORKGROUP) {
        delta_squares += input[at + i] * input[at + i];
    }
    let delta_scale = inverseSqrt(workgroup_sum(delta_squares, lane) / f32(WIDTH) + EPS);
//#endif
    var squares = 0.0;
    for (var i = lane; i < WIDTH; i += WORKGROUP) {
        var x = input[at + i];
//#if POST_NORM
        x *= delta_scale * post_norm_weight[i];
//#endif
//#if ADD
        x += residual[at + i];
        sum[at + i] = x;
//#endif
        squares += x * x;
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(WIDTH) + EPS);
    // Each lane reads back only what it wrote itself.
    for (var i = lane; i < WIDTH; i += WORKGROUP) {
//#if ADD
        output[at + i] = sum[at + i] * scale * norm_weight[i];
//#else
        output[at + i] = input[at + i] * scale * norm_weight[i];
//#endif
    }
}
