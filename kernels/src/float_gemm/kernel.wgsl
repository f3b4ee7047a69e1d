// output[row of the step][matrix row] = dot(matrix row, input row) in f32, for programs of many rows.
//
// A workgroup makes STEP_ROWS x MATRIX_ROWS results, a group of 32 columns a stage. In workgroup memory both operands lie column by column,
// as vectors of four rows: a lane's rows of the step one behind the other, and its matrix rows, one of each tile, in parts of four tiles.
${DECLARATIONS}
//#include weights
//#include group_weights
//#include lane_results
//#if MATRIX_INT8
//#include int8
//#endif

var<workgroup> weight_tile: array<vec4<f32>, ${STAGE_COLS * MATRIX_QUADS}u>;
var<workgroup> activation_tile: array<vec4<f32>, ${STAGE_COLS * STEP_QUADS}u>;

// A stage's words of weights and of activations, into registers.
//#macro fetch(group)
//#for i in 0..WEIGHT_LOADS
//#expand place_group("MATRIX", "${i}", "base_${i}", group)
//#expand load_group("MATRIX", "${i}", "let ", "weights", "row", group)
//#end
//#for i in 0..ACTIVATION_LOADS
    let quad_of_${i} = input[from_${i} + ${group} * ${STAGE_COLS / 4}u];
//#end
//#end

// One weight of the lane's row `i`.
//#macro put_weight(i, column, weight)
        weight_tile[weight_at_${i} + ${column * MATRIX_QUADS}u][weight_part_${i}] = ${weight};
//#end

// The stage into workgroup memory.
//#macro put()
//#for i in 0..WEIGHT_LOADS
//#if MATRIX_ROWS % LANES != 0
    if (matrix_row_${i} < MATRIX_ROWS) {
//#else
    {
//#endif
//#expand unpack_group("MATRIX", "${i}", "row")
//#if MATRIX_INT8
//#for word in 0..8
//#if word < 4
        let values_${word} = int8_codes(first_${i}.${"xyzw"[word % 4]}) * scale_${i};
//#else
        let values_${word} = int8_codes(second_${i}.${"xyzw"[word % 4]}) * scale_${i};
//#endif
//#end
//#else
        let zero = vec4<f32>(f32(zero_${i}));
//#for word in 0..4
        let values_${2 * word} = (int4_low(word_${i}.${"xyzw"[word]}) - zero) * scale_${i};
        let values_${2 * word + 1} = (int4_high(word_${i}.${"xyzw"[word]}) - zero) * scale_${i};
//#end
//#endif
//#for column in 0..STAGE_COLS
//#expand put_weight(i, column, "values_${column / 4}.${"xyzw"[column % 4]}")
//#end
    }
//#end
//#for i in 0..ACTIVATION_LOADS
//#if STEP_ROWS * 8 % LANES != 0
    if (quad_${i} < ${STAGE_COLS / 4}u) {
//#else
    {
//#endif
        let at = quad_${i} * ${4 * STEP_QUADS}u + step_row_${i} / 4u;
//#for c in 0..4
        activation_tile[at + ${c * STEP_QUADS}u][step_row_${i} % 4u] = quad_of_${i}.${"xyzw"[c]};
//#end
    }
//#end
//#end

// The products of one column.
//#macro multiply_column(column)
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

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
//#expand place_lane()
//#for part in 0..LANE_TILES / 4
//#for token in 0..LANE_ROWS
    var sums_${part}_${token} = vec4<f32>(0.0);
//#end
//#end

    // What a lane brings of a stage: rows of the matrix, and quads of rows of the step. Lanes without some bring others' again.
//#for i in 0..WEIGHT_LOADS
    let matrix_row_${i} = lane + ${i * LANES}u;
    let tile_${i} = matrix_row_${i} % MATRIX_ROWS / 8u;
    let base_${i} = min(first_tile + tile_${i}, ${TILES - 1}u) * ${TILE_WORDS}u;
    let weight_at_${i} = tile_${i} % ${LANE_TILES}u / 4u * ${8 * ACROSS}u + tile_${i} / ${LANE_TILES}u * 8u + row;
    let weight_part_${i} = tile_${i} % 4u;
//#end
//#for i in 0..ACTIVATION_LOADS
    let step_row_${i} = (lane + ${i * LANES}u) % STEP_ROWS;
    let quad_${i} = (lane + ${i * LANES}u) / STEP_ROWS;
    let from_${i} = min(first_step_row + step_row_${i}, last_step_row) * (INPUT_STRIDE / 4u) + quad_${i} % ${STAGE_COLS / 4}u;
//#end
    {
        let begin = 0u;
//#expand fetch("begin")
//#expand put()
    }
    workgroupBarrier();
    for (var stage = 0u; stage < ${STAGES}u; stage++) {
        // While a stage is multiplied, the next is loaded into registers. The last fetches itself again; nothing reads it.
        let next = min(stage + 1u, ${STAGES - 1}u);
//#expand fetch("next")
        for (var first_column = 0u; first_column < ${STAGE_COLS}u; first_column += ${UNROLL}u) {
            let activations_at = first_column * ${STEP_QUADS}u + lane_step_row / 4u;
            let weights_at = first_column * ${MATRIX_QUADS}u + lane_tile / ${LANE_TILES}u * 8u + row;
//#for column in 0..UNROLL
//#expand multiply_column(column)
//#end
        }
        workgroupBarrier();
//#expand put()
        workgroupBarrier();
    }

//#for tile in 0..LANE_TILES
//#for token in 0..LANE_ROWS
    var sum_${tile}_${token} = sums_${tile / 4}_${token}.${"xyzw"[tile % 4]};
//#end
//#end
//#expand write_results()
}
