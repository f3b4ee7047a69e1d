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
        for (var column = lane; column < WIDTH; column += WORKGROUP) {
            most = max(most, abs(input[at + column]));
        }
    }
    let scale = workgroup_max(most, lane) / CODE_MAX;

    // Row blocks alternate between the rows of the array.
    let within = row % BLOCK_ROWS;
    let array_row = row / BLOCK_ROWS % ARRAY_ROWS;
    let block = row % TILE_ROWS / (BLOCK_ROWS * ARRAY_ROWS);
    let array_column = array_row * COLUMNS / ARRAY_ROWS;
    let first = first_array_row(array_column);
    let objects = first_array_row(array_column + 1u) - first;
    let begin = (row / TILE_ROWS * ARRAY_ROWS + first) * CHUNKS;
    for (var word = lane; word < DEPTH / 4u; word += WORKGROUP) {
        let column = 4u * word;
        let inner = column % CORE_DEPTH;
        let object = begin + column / CORE_DEPTH * objects + array_row - first;
        let place = (block * (CORE_DEPTH / BLOCK_DEPTH) + inner / BLOCK_DEPTH) * BLOCK_ROWS + within;
        var codes = 0u;
        if (is_there && scale > 0.0) {
            codes = code(value(at, column), scale) | code(value(at, column + 1u), scale) << 8u
                | code(value(at, column + 2u), scale) << 16u | code(value(at, column + 3u), scale) << 24u;
        }
        encoded[object * OBJECT_WORDS + place * (BLOCK_DEPTH / 4u) + inner % BLOCK_DEPTH / 4u] = codes;
    }
    for (var chunk = lane; chunk < CHUNKS; chunk += WORKGROUP) {
        let object = begin + chunk * objects + array_row - first;
        encoded[object * OBJECT_WORDS + SCALES_AT + block * BLOCK_ROWS + within] = bitcast<u32>(scale);
    }
}
