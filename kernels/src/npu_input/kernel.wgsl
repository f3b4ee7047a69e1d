// One workgroup a row of the NPU program.
${DECLARATIONS}
//#include reduce

// The code of a value, in the low byte.
fn code(value: f32, scale: f32) -> u32 {
    return u32(i32(clamp(round(value / scale), -CODE_MAX, CODE_MAX))) & 0xffu;
}

// Rows are padded with whatever was there before.
fn value(at: u32, column: u32) -> f32 {
    return select(0.0, input[at + min(column, STRIDE - 1u)], column < WIDTH);
}

// Values of k that are rotated together, as `npu::rotation` does.
fn rotated_block(at: u32, first: u32) -> array<vec4<f32>, QUADS> {
    var block: array<vec4<f32>, QUADS>;
    for (var quad = 0u; quad < QUADS; quad++) {
        let column = first + 4u * quad;
        let values = vec4(value(at, column), value(at, column + 1u), value(at, column + 2u), value(at, column + 3u));
        let pairs = vec4(values.x + values.y, values.x - values.y, values.z + values.w, values.z - values.w);
        block[quad] = vec4(pairs.xy + pairs.zw, pairs.xy - pairs.zw);
    }
    for (var half = 1u; half < QUADS; half *= 2u) {
        for (var quad = 0u; quad < QUADS; quad++) {
            if ((quad & half) == 0u) {
                let low = block[quad];
                let high = block[quad | half];
                block[quad] = low + high;
                block[quad | half] = low - high;
            }
        }
    }
    for (var quad = 0u; quad < QUADS; quad++) {
        block[quad] *= FACTOR;
    }
    return block;
}

// The first array row whose activations enter through an array column.
fn first_array_row(column: u32) -> u32 {
    return (column * ARRAY_ROWS + COLUMNS - 1u) / COLUMNS;
}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    let is_there = row < step.header.n_rows;
    let at = row * STRIDE;
    var most = 0.0;
    if (is_there) {
        for (var block = lane; block < BLOCKS; block += WORKGROUP) {
            let values = rotated_block(at, ROTATED * block);
            for (var quad = 0u; quad < QUADS; quad++) {
                let sizes = abs(values[quad]);
                most = max(most, max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)));
            }
        }
    }
    let scale = workgroup_max(most, lane) / CODE_MAX;

    // Row blocks alternate between the rows of the array.
    let within = row % BLOCK_ROWS;
    let array_row = row / BLOCK_ROWS % ARRAY_ROWS;
    let row_block = row % TILE_ROWS / (BLOCK_ROWS * ARRAY_ROWS);
    let array_column = array_row * COLUMNS / ARRAY_ROWS;
    let first = first_array_row(array_column);
    let objects = first_array_row(array_column + 1u) - first;
    let begin = (row / TILE_ROWS * ARRAY_ROWS + first) * CHUNKS;
    for (var block = lane; block < BLOCKS; block += WORKGROUP) {
        var values: array<vec4<f32>, QUADS>;
        if (is_there && scale > 0.0) {
            values = rotated_block(at, ROTATED * block);
        }
        for (var quad = 0u; quad < QUADS; quad++) {
            let column = ROTATED * block + 4u * quad;
            let inner = column % CORE_DEPTH;
            let object = begin + column / CORE_DEPTH * objects + array_row - first;
            let place = (row_block * (CORE_DEPTH / BLOCK_DEPTH) + inner / BLOCK_DEPTH) * BLOCK_ROWS + within;
            var codes = 0u;
            if (is_there && scale > 0.0) {
                let four = values[quad];
                codes = code(four.x, scale) | code(four.y, scale) << 8u | code(four.z, scale) << 16u | code(four.w, scale) << 24u;
            }
            encoded[object * OBJECT_WORDS + place * (BLOCK_DEPTH / 4u) + inner % BLOCK_DEPTH / 4u] = codes;
        }
    }
    for (var chunk = lane; chunk < CHUNKS; chunk += WORKGROUP) {
        let object = begin + chunk * objects + array_row - first;
        encoded[object * OBJECT_WORDS + SCALES_AT + row_block * BLOCK_ROWS + within] = bitcast<u32>(scale);
    }
}
