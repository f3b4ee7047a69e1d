// One workgroup a row, twice: mean squares, then the sum, an element a lane at a time.
${DECLARATIONS}
//#include reduce

//#macro inverse_rms(name)
    let scale_${name} = inverseSqrt(workgroup_sum(squares_${name}, lane) / f32(WIDTH) + EPS);
//#end

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    if (row >= step.header.n_rows) {
        return;
    }
    let at = row * STRIDE;
    var squares_stream = 0.0;
    var squares_attended = 0.0;
    var squares_laurel = 0.0;
    for (var column = lane; column < WIDTH; column += WORKGROUP) {
        squares_stream += input[at + column] * input[at + column];
        squares_attended += second[at + column] * second[at + column];
        squares_laurel += third[at + column] * third[at + column];
    }
//#expand inverse_rms("stream")
//#expand inverse_rms("attended")
//#expand inverse_rms("laurel")
    for (var column = lane; column < WIDTH; column += WORKGROUP) {
        let x = input[at + column];
        let sum = x
            + x * scale_stream * stream_weights[column]
            + second[at + column] * scale_attended * stream_weights[WIDTH + column]
            + third[at + column] * scale_laurel * stream_weights[2u * WIDTH + column];
        output[at + column] = sum * SHARE;
    }
}
