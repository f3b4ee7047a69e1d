// One lane a 16-byte chunk of one token's row.
${DECLARATIONS}
//#include weights

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    let chunk = group.x * WORKGROUP + lane;
//#if BEYOND
    let table_row = select(step.rows[row].token, 0u, step.rows[row].token >= ${TABLE_TOKENS}) - FIRST_TOKEN;
//#else
    let table_row = step.rows[row].token - FIRST_TOKEN;
//#endif
//#if IMAGES
    if (row < step.header.n_rows && chunk < CHUNKS && step.rows[row].token >= ${IMAGE_ROW}) {
        for (var column = chunk * CHUNK_COLS; column < min((chunk + 1u) * CHUNK_COLS, COLS); column++) {
            output[row * OUTPUT_STRIDE + column] = input_rows[row * IMAGE_STRIDE + column];
        }
        return;
    }
//#endif
    // A token before FIRST_TOKEN wraps around and is past the end as well.
    if (row >= step.header.n_rows || chunk >= CHUNKS || table_row >= ROWS) {
        return;
    }
    let base = ((table_row / 8u) * BLOCKS + chunk / CHUNKS_PER_BLOCK) * BLOCK_WORDS;
    let word = weights[base + (chunk % CHUNKS_PER_BLOCK) * 8u + table_row % 8u];
    let column = chunk * CHUNK_COLS;
    let at = row * OUTPUT_STRIDE;
//#if F16
    put(at, column, f16_weights(word.x, word.y));
    put(at, column + 4u, f16_weights(word.z, word.w));
//#else
//#if WIDE
    let param = weights[base + BLOCK_WORDS - 2u + (table_row % 8u) / 4u][table_row % 4u];
//#else
    let param = row_param(weights[base + BLOCK_WORDS - 1u][(table_row % 8u) / 2u], table_row % 8u);
//#endif
    for (var i = 0u; i < 4u; i++) {
//#if INT8
        put(at, column + 4u * i, int8_codes(word[i]) * int8_scale(param));
//#else
        let scale = int4_scale(param);
        let zero = int4_zero(param);
        put(at, column + 8u * i, (int4_low(word[i]) - zero) * scale);
        put(at, column + 8u * i + 4u, (int4_high(word[i]) - zero) * scale);
//#endif
    }
//#endif
}

fn put(at: u32, column: u32, values: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if (column + i < COLS) {
            output[at + column + i] = values[i] * SCALE;
        }
    }
}
