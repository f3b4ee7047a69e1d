// One workgroup a row, twice: sums for the router, then the streams, an element a lane at a time.
${DECLARATIONS}
//#include reduce
//#include tanh

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    if (row >= step.header.n_rows) {
        return;
    }
    let at = row * STRIDE;
    let others = row * (${STREAMS - 1}u * STRIDE);
    var squares = 0.0;
//#for k in 0..STREAMS
    var routed_${k} = 0.0;
//#end
    for (var column = lane; column < WIDTH; column += WORKGROUP) {
        let x = input[at + column];
        let weighted = x * stream_weights[column];
        squares += x * x;
//#for k in 0..STREAMS
        routed_${k} += weighted * stream_weights[ROUTER + ${k}u * WIDTH + column];
//#end
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(WIDTH) + EPS);
//#for k in 0..STREAMS
    let modality_${k} = bounded_tanh(workgroup_sum(routed_${k}, lane) * scale);
//#end
//#if PREDICT
//#for j in 0..STREAMS
//#for i in 0..STREAMS
    let coef_${j}_${i} =
//#for k in 0..STREAMS join +
        stream_weights[COEFS + ${STREAMS * (STREAMS * j + i) + k}u] * modality_${k}
//#end
    ;
//#end
//#end
    for (var column = lane; column < WIDTH; column += WORKGROUP) {
        let stream_0 = input[at + column];
//#for i in 1..STREAMS
        let stream_${i} = streams[others + ${i - 1}u * STRIDE + column];
//#end
        output[at + column] = stream_0 + (
//#for i in 0..STREAMS join +
            coef_0_${i} * stream_${i}
//#end
        );
//#for j in 1..STREAMS
        made_streams[others + ${j - 1}u * STRIDE + column] = stream_${j} + (
//#for i in 0..STREAMS join +
            coef_${j}_${i} * stream_${i}
//#end
        );
//#end
    }
//#else
//#for j in 0..STREAMS
    let coef_${j} = 1.0 + (
//#for k in 0..STREAMS join +
        stream_weights[COEFS + ${STREAMS * j + k}u] * modality_${k}
//#end
    );
//#end
    for (var column = lane; column < WIDTH; column += WORKGROUP) {
        let predicted = second[at + column];
        let innovation = input[at + column] - predicted;
        let corrected = predicted + coef_0 * innovation;
        output[at + column] = corrected;
        scaled_output[at + column] = corrected * stream_weights[FACTORS + column];
//#for j in 1..STREAMS
        made_streams[others + ${j - 1}u * STRIDE + column] = streams[others + ${j - 1}u * STRIDE + column] + coef_${j} * innovation;
//#end
    }
//#endif
}
