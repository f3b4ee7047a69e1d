// output[row of the step][matrix row] = dot(matrix row, input row) on matrix units, for programs of many rows.
//
// A workgroup makes STEP_ROWS x MATRIX_ROWS results, K columns a stage. In workgroup memory both operands lie row by row along
// the columns, as f16, eight a word. Each subgroup owns a rectangle of fragments.
${DECLARATIONS}
//#include row_param

// A word of the rows of the step.
fn code_word(at: u32) -> u32 {
    return codes[at / 4u][at % 4u];
}

// What the codes of a group are to be multiplied by.
fn group_scale(group_word: u32) -> f32 {
    return bitcast<f32>(group_word & 0xffff0000u);
}

//#if BY_EXPERT
//#include expert_tile_rows
//#endif
//#include gemm_halves

//#include gemm_results

// A stage's words of weights and of activations, into registers.
//#macro fetch(stage)
//#for i in 0..WEIGHT_LOADS
    let column_${i} = min(${stage} * ${STAGE_CHUNKS}u + chunk_${i}, ${LAST_CHUNK}u);
    let block_${i} = base_${i} + column_${i} / ${BLOCK_CHUNKS}u * ${BLOCK_WORDS}u;
    word_${i} = weights[block_${i} + column_${i} % ${BLOCK_CHUNKS}u * 8u + lane % 8u];
//#if !F16
//#if WIDE
    param_${i} = weights[block_${i} + ${BLOCK_WORDS - 2}u + lane % 8u / 4u][lane % 4u];
//#else
    param_${i} = row_param(weights[block_${i} + ${BLOCK_WORDS - 1}u][lane % 8u / 2u], lane % 8u);
//#endif
//#endif
//#end
//#for i in 0..ACTIVATION_LOADS
//#if ROW_SIXTEENS % STAGE_SIXTEENS == 0
    let sixteen_${i} = ${stage} * ${STAGE_SIXTEENS}u + place_${i};
//#else
    // Behind the last column lies what is no number: zeros instead.
    let sixteen_${i} = min(${stage} * ${STAGE_SIXTEENS}u + place_${i}, ${ROW_SIXTEENS - 1}u);
//#endif
//#for plane in 0..PLANES
//#if ROW_SIXTEENS % STAGE_SIXTEENS == 0
    codes_${plane}_${i} = codes[from_${i} / 4u + sixteen_${i} / 2u * ${2 * PLANES}u + sixteen_${i} % 2u + ${2 * plane}u];
//#else
    codes_${plane}_${i} = select(vec4<u32>(0u), codes[from_${i} / 4u + sixteen_${i} / 2u * ${2 * PLANES}u + sixteen_${i} % 2u + ${2 * plane}u], ${stage} * ${STAGE_SIXTEENS}u + place_${i} < ${ROW_SIXTEENS}u);
//#endif
//#end
    group_${i} = code_word(from_${i} + GROUP_WORDS_AT + sixteen_${i} / 2u);
//#end
//#end

// The same unpacked to f16, into a buffer of workgroup memory.
//#macro put(buffer)
//#for i in 0..WEIGHT_LOADS
//#for n in 0..CHUNK_WORDS / WEIGHT_PARTS
//#let word = "xyzw"[n]
//#if F16
    weight_tile[(${buffer}) * MATRIX_ROWS * ROW_WORDS + put_${i} + ${n}u] = word_${i};
//#else if INT4 && WEIGHT_PARTS == 1
    weight_tile[(${buffer}) * MATRIX_ROWS * ROW_WORDS + put_${i} + ${n}u] = eight_weights(word_${i}.${word}, param_${i});
//#else if INT4 && WEIGHT_PARTS == 2
    weight_tile[(${buffer}) * MATRIX_ROWS * ROW_WORDS + put_${i} + ${n}u] = eight_weights(select(word_${i}.${word}, word_${i}.${"xyzw"[n + 2]}, part_${i} == 1u), param_${i});
//#else if INT4
    weight_tile[(${buffer}) * MATRIX_ROWS * ROW_WORDS + put_${i} + ${n}u] = eight_weights(word_${i}[part_${i}], param_${i});
//#else if WEIGHT_PARTS == 1
    weight_tile[(${buffer}) * MATRIX_ROWS * ROW_WORDS + put_${i} + ${n}u] = eight_weights(vec2<u32>(word_${i}.${"xyzw"[2 * n]}, word_${i}.${"xyzw"[2 * n + 1]}), param_${i});
//#else
    weight_tile[(${buffer}) * MATRIX_ROWS * ROW_WORDS + put_${i} + ${n}u] = eight_weights(vec2<u32>(select(word_${i}.x, word_${i}.z, part_${i} == 1u), select(word_${i}.y, word_${i}.w, part_${i} == 1u)), param_${i});
//#endif
//#end
//#end
//#for i in 0..ACTIVATION_LOADS
    let scale_${i} = group_scale(group_${i}) * inverse_${i};
//#for n in 0..2 / ACTIVATION_PARTS
    activation_tile[((${buffer}) * STEP_ROWS + row_${i}) * ROW_WORDS + (place_${i} * ${ACTIVATION_PARTS}u + given_part_${i}) * ${2 / ACTIVATION_PARTS}u + ${n}u] = eight_activations(
//#for plane in 0..PLANES
//#if ACTIVATION_PARTS == 1
        codes_${plane}_${i}.${"xz"[n]}${"yw"[n]},
//#else
        select(codes_${plane}_${i}.xy, codes_${plane}_${i}.zw, given_part_${i} == 1u),
//#endif
//#end
        scale_${i});
//#end
//#end
//#end

// One stage: every fragment of the activations with every fragment of the weights.
//#macro multiply(buffer)
        let activations_at = ((${buffer}) * STEP_ROWS + subgroup_step_row) * ROW_WORDS;
        let weights_at = ((${buffer}) * MATRIX_ROWS + subgroup_matrix_row) * ROW_WORDS;
//#for depth in 0..K / FRAGMENT_K
//#for i in 0..STEP_FRAGMENTS
        let a_${depth}_${i} = coop_load_half_a(activation_tile[activations_at + ${FRAGMENT_M * i}u * ROW_WORDS + ${FRAGMENT_K / 8 * depth}u], ROW_WORDS);
//#end
//#for j in 0..FRAGMENTS
        let b_${depth}_${j} = coop_load_half_b(weight_tile[weights_at + ${FRAGMENT_N * j}u * ROW_WORDS + ${FRAGMENT_K / 8 * depth}u], ROW_WORDS);
//#for i in 0..STEP_FRAGMENTS
        sum_${i}_${j} = coopMultiplyAdd(a_${depth}_${i}, b_${depth}_${j}, sum_${i}_${j});
//#end
//#end
//#end
//#end

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
) {
    let first_step_row = group.x * STEP_ROWS;
    let first_tile = group.y * (MATRIX_ROWS / 8u);
//#if BY_EXPERT
//#expand take_tile()
//#else
    if (first_step_row >= ${ROWS_IN_USE}) {
        return;
    }
    // Rows past the last are computed as the last one again, and not written.
    let last_step_row = ${ROWS_IN_USE} - 1u;
//#endif
    let subgroup_step_row = subgroup / SUBGROUPS_ACROSS * SUBGROUP_STEP_ROWS;
    let subgroup_matrix_row = subgroup % SUBGROUPS_ACROSS * SUBGROUP_MATRIX_ROWS;
//#for i in 0..STEP_FRAGMENTS
//#for j in 0..FRAGMENTS
    var sum_${i}_${j}: ${MATRIX}<f32, C>;
//#end
//#end

    // A lane's words of weights: lanes count the rows of a tile, then parts of a word, chunks of a stage, tiles. Where there are
    // fewer words than lanes, WEIGHT_PARTS neighbours read one together and unpack a part each.
//#for i in 0..WEIGHT_LOADS
    let item_${i} = lane / 8u + ${i * WORKGROUP / 8}u;
    let part_${i} = item_${i} % ${WEIGHT_PARTS}u;
    let chunk_${i} = item_${i} / ${WEIGHT_PARTS}u % ${STAGE_CHUNKS}u;
    let tile_${i} = item_${i} / ${WEIGHT_PARTS * STAGE_CHUNKS}u;
//#if BY_EXPERT
    let base_${i} = (expert * ${TILES}u + min(first_tile + tile_${i}, ${TILES - 1}u)) * ${TILE_WORDS}u;
//#else
    let base_${i} = min(first_tile + tile_${i}, ${TILES - 1}u) * ${TILE_WORDS}u;
//#endif
    let matrix_row_${i} = tile_${i} * 8u + lane % 8u;
    let put_${i} = matrix_row_${i} * ROW_WORDS + chunk_${i} * ${CHUNK_WORDS}u + part_${i} * ${CHUNK_WORDS / WEIGHT_PARTS}u;
    var word_${i}: vec4<u32>;
    var param_${i}: u32;
//#end
    // Its words of activations, sixteen codes of a row in each plane: lanes count parts of them, then sixteens of a stage, rows.
//#for i in 0..ACTIVATION_LOADS
    let given_${i} = lane + ${i * WORKGROUP}u;
    let place_${i} = given_${i} / ${ACTIVATION_PARTS}u % ${STAGE_SIXTEENS}u;
    let row_${i} = given_${i} / ${ACTIVATION_PARTS * STAGE_SIXTEENS}u;
//#if BY_EXPERT
    let from_${i} = activation_row(expert_rows[min(first_pair + row_${i}, last_pair)]) * INPUT_STRIDE;
//#else
    let from_${i} = min(first_step_row + row_${i}, last_step_row) * INPUT_STRIDE;
//#endif
//#for plane in 0..PLANES
    var codes_${plane}_${i}: vec4<u32>;
//#end
    var group_${i}: u32;
    let given_part_${i} = given_${i} % ${ACTIVATION_PARTS}u;
    let inverse_${i} = inverse_factor(from_${i});
//#end
//#expand fetch("0u")
//#expand put("0u")
    workgroupBarrier();
    for (var stage = 0u; stage < ${STAGES}u; stage++) {
        // While a stage is multiplied, the next is loaded into registers. The last fetches itself again; nothing reads it.
        let next = min(stage + 1u, ${STAGES - 1}u);
//#expand fetch("next")
//#if BUFFERS == 2
//#expand multiply("stage % 2u")
//#expand put("(stage + 1u) % 2u")
        workgroupBarrier();
//#else
//#expand multiply("0u")
        workgroupBarrier();
//#expand put("0u")
        workgroupBarrier();
//#endif
    }
//#expand write_blocks("first_step_row + subgroup_step_row", "first_tile * 8u + subgroup_matrix_row")
}
