// One workgroup a row: the mean, the deviation from it, then the product, an element a lane at a time.
${DECLARATIONS}
//#include reduce
//#include activation

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    if (row >= step.header.n_rows) {
        return;
    }
    let at = row * STRIDE;
    var sum = 0.0;
    for (var column = lane; column < WIDTH; column += WORKGROUP) {
        sum += input[at + column];
    }
    let mean = workgroup_sum(sum, lane) / f32(WIDTH);
    var squares = 0.0;
    for (var column = lane; column < WIDTH; column += WORKGROUP) {
        let distance = input[at + column] - mean;
        squares += distance * distance;
    }
    let cutoff = mean + DEVIATIONS * sqrt(workgroup_sum(squares, lane) / f32(WIDTH));
    for (var column = lane; column < WIDTH; column += WORKGROUP) {
        output[at + column] = gated(max(input[at + column] - cutoff, 0.0), second[at + column]);
    }
}
