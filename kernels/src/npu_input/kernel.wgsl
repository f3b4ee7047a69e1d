// One workgroup for rows that share multipliers: SHARING rows of the NPU program, APART from each other.
${DECLARATIONS}
//#include reduce

// The largest value of a group, of the largest of its row, in any of the rows: bits of an f32, whose order is that of the numbers.
var<workgroup> parts: array<atomic<u32>, CHUNKS>;

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

fn largest(four: vec4<f32>) -> f32 {
    let sizes = abs(four);
    return max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
}

fn multiplier_of(chunk: u32) -> f32 {
    return clamp(ceil(bitcast<f32>(atomicLoad(&parts[chunk])) * MULTIPLIER_MAX), 1.0, MULTIPLIER_MAX);
}

// The first array row whose activations enter through an array column.
fn first_array_row(column: u32) -> u32 {
    return (column * ARRAY_ROWS + COLUMNS - 1u) / COLUMNS;
}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = group.x * SHARING * APART + group.y;
    for (var chunk = lane; chunk < CHUNKS; chunk += WORKGROUP) {
        atomicStore(&parts[chunk], 0u);
    }
    // Of each row; 0: the step has no such row.
    var most: array<f32, SHARING>;
    for (var i = 0u; i < SHARING; i++) {
        let row = first_row + i * APART;
        var of_lane = 0.0;
        if (row < step.header.n_rows) {
            for (var block = lane; block < BLOCKS; block += WORKGROUP) {
                let values = rotated_block(row * STRIDE, ROTATED * block);
                for (var quad = 0u; quad < QUADS; quad++) {
                    of_lane = max(of_lane, largest(values[quad]));
                }
            }
        }
        most[i] = workgroup_max(of_lane, lane);
    }
    for (var item = lane; item < SHARING * BLOCKS; item += WORKGROUP) {
        let i = item / BLOCKS;
        let block = item % BLOCKS;
        if (most[i] > 0.0) {
            let values = rotated_block((first_row + i * APART) * STRIDE, ROTATED * block);
            // A group is whole halves of blocks.
            for (var half = 0u; half < 2u; half++) {
                var of_half = 0.0;
                for (var quad = 0u; quad < QUADS / 2u; quad++) {
                    of_half = max(of_half, largest(values[half * QUADS / 2u + quad]));
                }
                atomicMax(&parts[(ROTATED * block + half * ROTATED / 2u) / CORE_DEPTH], bitcast<u32>(of_half / most[i]));
            }
        }
    }
    workgroupBarrier();

    // Row blocks alternate between the rows of the array; the rows here are all of one.
    let within = first_row % BLOCK_ROWS;
    let array_row = first_row / BLOCK_ROWS % ARRAY_ROWS;
    let first_block = first_row % TILE_ROWS / (BLOCK_ROWS * ARRAY_ROWS);
    let array_column = array_row * COLUMNS / ARRAY_ROWS;
    let first = first_array_row(array_column);
    let objects = first_array_row(array_column + 1u) - first;
    let begin = (first_row / TILE_ROWS * ARRAY_ROWS + first) * CHUNKS + array_row - first;
    for (var item = lane; item < SHARING * BLOCKS; item += WORKGROUP) {
        let i = item / BLOCKS;
        let block = item % BLOCKS;
        var values: array<vec4<f32>, QUADS>;
        if (most[i] > 0.0) {
            values = rotated_block((first_row + i * APART) * STRIDE, ROTATED * block);
        }
        for (var quad = 0u; quad < QUADS; quad++) {
            let column = ROTATED * block + 4u * quad;
            let chunk = column / CORE_DEPTH;
            let inner = column % CORE_DEPTH;
            let place = ((first_block + i) * (CORE_DEPTH / BLOCK_DEPTH) + inner / BLOCK_DEPTH) * BLOCK_ROWS + within;
            var codes = 0u;
            if (most[i] > 0.0) {
                let scale = most[i] / (CODE_MAX * MULTIPLIER_MAX) * multiplier_of(chunk);
                let four = values[quad];
                codes = code(four.x, scale) | code(four.y, scale) << 8u | code(four.z, scale) << 16u | code(four.w, scale) << 24u;
            }
            encoded[(begin + chunk * objects) * OBJECT_WORDS + place * (BLOCK_DEPTH / 4u) + inner % BLOCK_DEPTH / 4u] = codes;
        }
    }
    for (var chunk = lane; chunk < CHUNKS; chunk += WORKGROUP) {
        let object = (begin + chunk * objects) * OBJECT_WORDS;
        // Once for each of the 8 columns of a block.
        let four_times = u32(multiplier_of(chunk)) * 0x01010101u;
        let at = object + MULTIPLIERS_AT + (first_block / SHARING * BLOCK_ROWS + within) * 2u;
        encoded[at] = four_times;
        encoded[at + 1u] = four_times;
        for (var i = 0u; i < SHARING; i++) {
            encoded[object + SCALES_AT + (first_block + i) * BLOCK_ROWS + within] = bitcast<u32>(most[i] / (CODE_MAX * MULTIPLIER_MAX));
        }
    }
}
