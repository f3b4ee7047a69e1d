// output[row of the step][matrix row] = dot(matrix row, input row) in f32, for programs of many rows.
//
// A workgroup makes STEP_ROWS x MATRIX_ROWS results. In workgroup memory both operands lie column by column, as vectors of four rows: a lane's
// rows of the step one behind the other, and its matrix rows, one of each tile, in parts of four tiles. It holds two quarters
// of a group, 8 columns each: while one is multiplied, the other is written, so that a barrier after each is enough.
${DECLARATIONS}
//#include weights
//#include group_weights
//#include lane_results
//#if MATRIX_INT8
//#include int8
//#else
//#include int4_differences
//#endif

var<workgroup> weight_tile: array<vec4<f32>, ${2 * QUARTER_COLS * MATRIX_QUADS}u>;
var<workgroup> activation_tile: array<vec4<f32>, ${2 * QUARTER_COLS * STEP_QUADS}u>;

// The words of a group of weights, into registers.
//#macro fetch_weights(group)
//#for i in 0..WEIGHT_LOADS
//#expand place_group("MATRIX", "${i}", "base_${i}", group)
//#expand load_group("MATRIX", "${i}", "", "weights", "load_row", group)
//#end
//#end

// The activations of a quarter, likewise.
//#macro fetch_activations(group, quarter)
//#for i in 0..ACTIVATION_LOADS
    let quad_of_${i} = input[from_${i} + ${group} * 8u + ${2 * quarter}u];
//#end
//#end

// A quarter into workgroup memory.
//#macro put(quarter)
//#for i in 0..WEIGHT_LOADS
//#if MATRIX_ROWS % LANES != 0
    if (matrix_row_${i} < MATRIX_ROWS) {
//#else
    {
//#endif
//#expand unpack_group("MATRIX", "${i}", "load_row")
//#if MATRIX_INT8
//#for quad in 0..2
//#if quarter < 2
        let weights_${quad} = int8_codes(first_${i}.${"xyzw"[2 * quarter + quad]}) * scale_${i};
//#else
        let weights_${quad} = int8_codes(second_${i}.${"xyzw"[2 * quarter - 4 + quad]}) * scale_${i};
//#endif
//#end
//#else
        let zero = int4_zero(param_${i});
        let weights_0 = int4_low_differences(word_${i}.${"xyzw"[quarter]}, zero) * scale_${i};
        let weights_1 = int4_high_differences(word_${i}.${"xyzw"[quarter]}, zero) * scale_${i};
//#endif
//#for column in 0..QUARTER_COLS
        weight_tile[weight_at_${i} + ${(quarter % 2 * QUARTER_COLS + column) * MATRIX_QUADS}u][weight_part_${i}] = weights_${column / 4}.${"xyzw"[column % 4]};
//#end
    }
//#end
//#for i in 0..ACTIVATION_LOADS
//#if STEP_ROWS * 2 % LANES != 0
    if (quad_${i} < 2u) {
//#else
    {
//#endif
        let at = (quad_${i} + ${quarter % 2 * 2}u) * ${4 * STEP_QUADS}u + step_row_${i} / 4u;
//#for c in 0..4
        activation_tile[at + ${c * STEP_QUADS}u][step_row_${i} % 4u] = quad_of_${i}.${"xyzw"[c]};
//#end
    }
//#end
//#end

// The products of a quarter.
//#macro multiply(quarter)
//#for column in quarter % 2 * QUARTER_COLS..(quarter % 2 + 1) * QUARTER_COLS
//#for part in 0..LANE_ROWS / 4
        let x_${column}_${part} = activation_tile[activations_at + ${column * STEP_QUADS + part}u];
//#end
//#for part in 0..LANE_TILES / 4
        let w_${column}_${part} = weight_tile[weights_at + ${column * MATRIX_QUADS + part * 8 * ACROSS}u];
//#for token in 0..LANE_ROWS
        sums_${part}_${token} = fma(w_${column}_${part}, vec4<f32>(x_${column}_${token / 4}.${"xyzw"[token % 4]}), sums_${part}_${token});
//#end
//#end
//#end
//#end

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
//#expand place_lane_in_pairs()
    // The row of the tile whose weights a lane loads.
    let load_row = lane % 8u;
    let activations_at = lane_step_row / 4u;
    let weights_at = lane_tile / ${LANE_TILES}u * 8u + row;
//#for part in 0..LANE_TILES / 4
//#for token in 0..LANE_ROWS
    var sums_${part}_${token} = vec4<f32>(0.0);
//#end
//#end

    // The part of a stage that a lane loads: rows of the matrix, and quads of rows of the step. Lanes without a part load another lane's
    // part again.
//#for i in 0..WEIGHT_LOADS
    let matrix_row_${i} = lane + ${i * LANES}u;
    let tile_${i} = matrix_row_${i} % MATRIX_ROWS / 8u;
    let base_${i} = min(first_tile + tile_${i}, ${TILES - 1}u) * ${TILE_WORDS}u;
    let weight_at_${i} = tile_${i} % ${LANE_TILES}u / 4u * ${8 * ACROSS}u + tile_${i} / ${LANE_TILES}u * 8u + load_row;
    let weight_part_${i} = tile_${i} % 4u;
//#end
//#for i in 0..ACTIVATION_LOADS
    let step_row_${i} = (lane + ${i * LANES}u) % STEP_ROWS;
    let quad_${i} = (lane + ${i * LANES}u) / STEP_ROWS;
    let from_${i} = min(first_step_row + step_row_${i}, last_step_row) * (INPUT_STRIDE / 4u) + quad_${i} % 2u;
//#end
//#for i in 0..WEIGHT_LOADS
//#if MATRIX_INT8
    var first_${i}: vec4<u32>;
    var second_${i}: vec4<u32>;
//#else
    var word_${i}: vec4<u32>;
//#endif
    var pair_${i}: u32;
//#end
    {
        let begin = 0u;
//#expand fetch_weights("begin")
//#expand fetch_activations("begin", 0)
//#expand put(0)
    }
    workgroupBarrier();
    for (var stage = 0u; stage < ${GROUPS}u; stage++) {
//#for quarter in 0..3
        {
//#expand fetch_activations("stage", quarter + 1)
//#expand multiply(quarter)
//#expand put(quarter + 1)
        }
        workgroupBarrier();
//#end
        {
            // The last group is fetched again at the end; nothing reads it.
            let next = min(stage + 1u, ${GROUPS - 1}u);
//#expand fetch_weights("next")
//#expand fetch_activations("next", 0)
//#expand multiply(3)
//#expand put(0)
        }
        workgroupBarrier();
    }

//#for tile in 0..LANE_TILES
//#for token in 0..LANE_ROWS
    var sum_${tile}_${token} = sums_${tile / 4}_${token}.${"xyzw"[tile % 4]};
//#end
//#end
//#expand write_results()
}
