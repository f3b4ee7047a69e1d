// One lane eight values of a row.
${DECLARATIONS}

fn store(row: u32, column: u32, bits: u32) {
    if (column < WIDTH) {
        output[row * STRIDE + column] = bitcast<f32>(bits);
    }
}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    let quad = group.x * WORKGROUP + lane;
    if (row >= step.header.n_rows || quad >= QUADS) {
        return;
    }
    let words = codes[row * QUADS + quad];
    // A bf16 is the upper half of an f32.
//#for word in 0..4
    store(row, 8u * quad + ${2 * word}u, words[${word}] << 16u);
    store(row, 8u * quad + ${2 * word + 1}u, words[${word}] & 0xffff0000u);
//#end
}
