// output[row of the step][matrix row] = dot(matrix row, input row) by packed integer dot products, for programs of many rows.
//
// A workgroup makes STEP_ROWS x MATRIX_ROWS results, a group of 32 columns a stage. In workgroup memory both operands lie row by row: eight
// words of int8 codes in each plane, and a scale. Eight neighbouring lanes read the rows of a tile, in different banks.
${DECLARATIONS}
//#include weights
//#include group_weights
//#include lane_results

var<workgroup> weight_tile: array<vec4<u32>, ${BUFFERS}u * MATRIX_ROWS * WEIGHT_ROW_WORDS>;
var<workgroup> activation_tile: array<vec4<u32>, ${BUFFERS}u * STEP_ROWS * ACTIVATION_ROW_WORDS>;

// A stage's words of weights and of activations, into registers.
//#macro fetch(group)
//#for i in 0..WEIGHT_LOADS
//#expand place_group("MATRIX", "${i}", "base_${i}", group)
//#expand load_group("MATRIX", "${i}", "let ", "weights", "row", group)
//#end
//#for i in 0..ACTIVATION_LOADS
    let codes_${i} = codes[from_${i} + ${group} * ${2 * PLANES}u + part_${i}];
    let scales_${i} = codes[from_${i} + (GROUP_WORDS_AT + ${group}) / 4u][(GROUP_WORDS_AT + ${group}) % 4u];
//#end
//#end

// The same into a buffer of workgroup memory, weights without their zero points.
//#macro put(buffer)
//#for i in 0..WEIGHT_LOADS
//#if MATRIX_ROWS % LANES != 0
    if (matrix_row_${i} < MATRIX_ROWS) {
//#else
    {
//#endif
//#expand unpack_group("MATRIX", "${i}", "row")
        let at = ((${buffer}) * MATRIX_ROWS + matrix_row_${i}) * WEIGHT_ROW_WORDS;
//#if MATRIX_INT8
        weight_tile[at] = first_${i};
        weight_tile[at + 1u] = second_${i};
//#else if MATRIX_SIGNED
        weight_tile[at] = vec4<u32>(low_${i}.x, high_${i}.x, low_${i}.y, high_${i}.y);
        weight_tile[at + 1u] = vec4<u32>(low_${i}.z, high_${i}.z, low_${i}.w, high_${i}.w);
//#else
        // Byte by byte: with the sign bit set, no difference borrows from the next.
        let zeros = vec4<u32>(u32(zero_${i}) * 0x01010101u);
        let signs = vec4<u32>(0x80808080u);
        let low = ((low_${i} | signs) - zeros) ^ signs;
        let high = ((high_${i} | signs) - zeros) ^ signs;
        weight_tile[at] = vec4<u32>(low.x, high.x, low.y, high.y);
        weight_tile[at + 1u] = vec4<u32>(low.z, high.z, low.w, high.w);
//#endif
        weight_tile[at + 2u].x = bitcast<u32>(scale_${i});
    }
//#end
//#for i in 0..ACTIVATION_LOADS
//#if STEP_ROWS * 2 * PLANES % LANES != 0
    if (step_row_${i} < STEP_ROWS) {
//#else
    {
//#endif
        let at = ((${buffer}) * STEP_ROWS + step_row_${i}) * ACTIVATION_ROW_WORDS;
        activation_tile[at + part_${i}] = codes_${i};
        if (part_${i} == 0u) {
            activation_tile[at + ${2 * PLANES}u].x = scales_${i} & 0xffff0000u;
        }
    }
//#end
//#end

// The integer dot product of a tile's row with a row of the step, in one plane.
//#macro dot_of_plane(tile, token, plane)
//#for i in 0..8 join +
    dot4I8Packed(w_${tile}_${i / 4}.${"xyzwxyzw"[i]}, x_${token}_${2 * plane + i / 4}.${"xyzwxyzw"[i]})
//#end
//#end

// One stage: every row of the step that the lane owns with its row of every tile. Activations of two planes are 16 * high + low.
//#macro multiply(buffer)
    let activations_at = ((${buffer}) * STEP_ROWS + lane_step_row) * ACTIVATION_ROW_WORDS;
    let weights_at = ((${buffer}) * MATRIX_ROWS + lane_tile * 8u + row) * WEIGHT_ROW_WORDS;
//#for token in 0..LANE_ROWS
//#for i in 0..2 * PLANES
    let x_${token}_${i} = activation_tile[activations_at + ${token}u * ACTIVATION_ROW_WORDS + ${i}u];
//#end
    let x_scale_${token} = bitcast<f32>(activation_tile[activations_at + ${token}u * ACTIVATION_ROW_WORDS + ${2 * PLANES}u].x);
//#end
//#for tile in 0..LANE_TILES
//#for i in 0..2
    let w_${tile}_${i} = weight_tile[weights_at + ${8 * tile}u * WEIGHT_ROW_WORDS + ${i}u];
//#end
    let w_scale_${tile} = bitcast<f32>(weight_tile[weights_at + ${8 * tile}u * WEIGHT_ROW_WORDS + 2u].x);
//#for token in 0..LANE_ROWS
    sum_${tile}_${token} = fma(w_scale_${tile} * x_scale_${token}, f32(
//#if PLANES == 2
    16 * (
//#expand dot_of_plane(tile, token, 0)
    ) +
//#expand dot_of_plane(tile, token, 1)
//#else
//#expand dot_of_plane(tile, token, 0)
//#endif
    ), sum_${tile}_${token});
//#end
//#end
//#end

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
//#expand place_lane()
//#for tile in 0..LANE_TILES
//#for token in 0..LANE_ROWS
    var sum_${tile}_${token} = 0.0;
//#end
//#end

    // The part of a stage that a lane loads: rows of the matrix, and halves of a plane of rows of the step. Lanes without a part load
    // another lane's part again.
//#for i in 0..WEIGHT_LOADS
    let matrix_row_${i} = lane + ${i * LANES}u;
    let base_${i} = min(first_tile + matrix_row_${i} % MATRIX_ROWS / 8u, ${TILES - 1}u) * ${TILE_WORDS}u;
//#end
//#for i in 0..ACTIVATION_LOADS
    let step_row_${i} = (lane + ${i * LANES}u) / ${2 * PLANES}u;
    let part_${i} = (lane + ${i * LANES}u) % ${2 * PLANES}u;
    let from_${i} = min(first_step_row + step_row_${i} % STEP_ROWS, last_step_row) * (INPUT_STRIDE / 4u);
//#end
    {
        let begin = 0u;
//#expand fetch("begin")
//#expand put("0u")
    }
    workgroupBarrier();
    for (var stage = 0u; stage < ${GROUPS}u; stage++) {
        // While a stage is multiplied, the next is loaded into registers. The last fetches itself again; nothing reads it.
        let next = min(stage + 1u, ${GROUPS - 1}u);
//#expand fetch("next")
//#expand multiply("stage % 2u")
//#expand put("(stage + 1u) % 2u")
        workgroupBarrier();
    }

//#expand write_results()
}
