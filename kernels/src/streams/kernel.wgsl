// One workgroup a row, twice: mean squares, then what is made, an element a lane at a time.
${DECLARATIONS}
//#include reduce

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    if (row >= step.header.n_rows) {
        return;
    }
    let at = row * STRIDE;
    let others = row * (${OTHERS}u * STRIDE);
    var squares = 0.0;
//#if !ADD
//#for i in 0..OTHERS
    var squares_${i} = 0.0;
//#end
//#endif
    for (var column = lane; column < WIDTH; column += WORKGROUP) {
        let x = input[at + column];
        squares += x * x;
//#if !ADD
//#for i in 0..OTHERS
        let stream_${i} = streams[others + ${i}u * STRIDE + column];
        squares_${i} += stream_${i} * stream_${i};
//#end
//#endif
    }
    let mean_square = workgroup_sum(squares, lane) / f32(WIDTH);
//#if ADD
    let scale = inverseSqrt(mean_square + EPS);
//#else
//#for i in 0..OTHERS
    let factor_${i} = sqrt(mean_square / max(workgroup_sum(squares_${i}, lane) / f32(WIDTH), LEAST_SQUARE));
//#end
//#endif
    for (var column = lane; column < WIDTH; column += WORKGROUP) {
//#if ADD
        let added = input[at + column] * scale * stream_weights[column];
//#for i in 0..OTHERS
        made_streams[others + ${i}u * STRIDE + column] = streams[others + ${i}u * STRIDE + column] + added;
//#end
//#else if END
        let sum = input[at + column] + (
//#for i in 0..OTHERS join +
            factor_${i} * streams[others + ${i}u * STRIDE + column]
//#end
        );
        output[at + column] = sum / f32(${OTHERS + 1}u);
//#else
//#for i in 0..OTHERS
        made_streams[others + ${i}u * STRIDE + column] = factor_${i} * streams[others + ${i}u * STRIDE + column];
//#end
//#endif
    }
}
