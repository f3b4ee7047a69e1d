// One workgroup for rows that share multipliers: SHARING rows of the NPU program, APART from each other. A lane has four values of k, a quad, and eight lanes a block.
${DECLARATIONS}
//#include reduce

// The largest value of a group, of the largest of its row, in any of the rows: bits of an f32, whose order is that of the numbers.
var<workgroup> parts: array<atomic<u32>, CHUNKS>;
// Each lane's quad, rotated within itself.
var<workgroup> quads: array<vec4<f32>, WORKGROUP>;

// The code of a value, in the low byte.
fn code(value: f32, scale: f32) -> u32 {
    return u32(i32(clamp(round(value / scale), -CODE_MAX, CODE_MAX))) & 0xffu;
}

// Zeros where the step has no such row. Rows are padded with whatever was there before.
fn four_values(row: u32, quad: u32) -> vec4<f32> {
    if (row >= step.header.n_rows) {
        return vec4<f32>(0.0);
    }
    let four = input[row * (STRIDE / 4u) + min(quad, STRIDE / 4u - 1u)];
    return select(vec4<f32>(0.0), four, vec4<u32>(4u * quad) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(WIDTH));
}

// The lane's quad of its block, as `npu::rotation` rotates that; `before`: of the row, or of the row before its norm, without the norm's weights. Called in uniform
// control flow.
fn rotated(before: vec4<f32>, quad: u32, lane: u32) -> vec4<f32> {
//#if NORM
    let values = before * norm_weight[min(quad, ${div_ceil(WIDTH, 4) - 1}u)];
//#else
    let values = before;
//#endif
    let pairs = vec4(values.x + values.y, values.x - values.y, values.z + values.w, values.z - values.w);
    quads[lane] = vec4(pairs.xy + pairs.zw, pairs.xy - pairs.zw);
    workgroupBarrier();
    let first = lane / 8u * 8u;
    let sign = select(vec3<f32>(1.0), vec3<f32>(-1.0), (vec3<u32>(lane) & vec3<u32>(1u, 2u, 4u)) != vec3<u32>(0u));
//#for i in 0..4
    let pair_${i} = quads[first + ${2 * i}u] + sign.x * quads[first + ${2 * i + 1}u];
//#end
    workgroupBarrier();
    return FACTOR * (pair_0 + sign.y * pair_1 + sign.z * (pair_2 + sign.y * pair_3));
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
    var row_scale: array<f32, SHARING>;
    for (var i = 0u; i < SHARING; i++) {
        let row = first_row + i * APART;
        var of_lane = 0.0;
//#if NORM
        var squares = 0.0;
//#endif
        for (var quad = lane; quad - lane < ROW_QUADS; quad += WORKGROUP) {
            let before = four_values(row, quad);
//#if NORM
            squares += dot(before, before);
//#endif
            of_lane = max(of_lane, largest(rotated(before, quad, lane)));
        }
        most[i] = workgroup_max(of_lane, lane);
        row_scale[i] = most[i] / (CODE_MAX * MULTIPLIER_MAX);
//#if NORM
        // Codes and multipliers are those of any multiple of a row: the norm changes its scale alone, by which the NPU multiplies its sums.
        row_scale[i] *= inverseSqrt(workgroup_sum(squares, lane) / f32(WIDTH) + EPS);
//#endif
        for (var quad = lane; quad - lane < ROW_QUADS; quad += WORKGROUP) {
            let size = largest(rotated(four_values(row, quad), quad, lane));
            if (quad < ROW_QUADS && most[i] > 0.0) {
                atomicMax(&parts[4u * quad / CORE_DEPTH], bitcast<u32>(size / most[i]));
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
    for (var i = 0u; i < SHARING; i++) {
        for (var quad = lane; quad - lane < ROW_QUADS; quad += WORKGROUP) {
            let four = rotated(four_values(first_row + i * APART, quad), quad, lane);
            if (quad >= ROW_QUADS) {
                continue;
            }
            let column = 4u * quad;
            let chunk = column / CORE_DEPTH;
            let inner = column % CORE_DEPTH;
            let place = ((first_block + i) * (CORE_DEPTH / BLOCK_DEPTH) + inner / BLOCK_DEPTH) * BLOCK_ROWS + within;
            var codes = 0u;
            if (most[i] > 0.0) {
                let scale = most[i] / (CODE_MAX * MULTIPLIER_MAX) * multiplier_of(chunk);
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
            encoded[object + SCALES_AT + (first_block + i) * BLOCK_ROWS + within] = bitcast<u32>(row_scale[i]);
        }
    }
}
