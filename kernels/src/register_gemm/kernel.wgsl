// output[row of the step][matrix row] = dot(matrix row, input row) on matrix units, weights straight from registers.
//
// A workgroup makes STEP_ROWS x MATRIX_ROWS results, 128 columns a stage. Activations lie in workgroup memory, a panel of columns at a
// time; each subgroup has matrix rows of its own, and all rows of the step.
${DECLARATIONS}
//#include row_param
//#include halves
//#intrinsic coop_load_half_a
//#if LANES_HOLD_FRAGMENTS
//#intrinsic coop_half_b_from_lanes
//#else
//#intrinsic coop_load_half_b_u32
//#endif
//#if BY_EXPERT
//#include expert_tile_rows
//#endif
//#include gemm_results
//#if SPLIT
//#include completion
//#endif

var<workgroup> activation_tile: array<vec4<u32>, STEP_ROWS * ROW_WORDS>;
//#if !LANES_HOLD_FRAGMENTS
// A fragment of each subgroup, row by row, as the lanes that have it store it.
var<workgroup> lane_words: array<u32, SUBGROUPS * FRAGMENT_WORDS>;

//#endif
// The factors of the rows of the step: what their values are divided by while they are f16, and results multiplied.
var<workgroup> factors: array<f32, STEP_ROWS>;

fn row_factor(step_row: u32) -> f32 {
    return factors[step_row % STEP_ROWS];
}

// A parameter in either half of a word.
fn doubled(param: u32) -> u32 {
    return param | (param << 16u);
}

//#if CODEBOOK
//#include codebook

fn scale_of(params: u32) -> vec2<f16> {
    return bitcast_half2(params);
}

// 1024 + zero, the argument of `weights_of`.
fn zero_of(params: u32) -> vec2<f16> {
    return vec2<f16>(1152.0h);
}
//#else if INT4 && WIDE
fn scale_of(param: u32) -> vec2<f16> {
    return bitcast_half2(doubled(param & 0xffffu));
}

// 1024 + zero, the argument of `weights_of`.
fn zero_of(param: u32) -> vec2<f16> {
    return bitcast_half2(doubled(param >> 16u) | 0x64006400u);
}
//#else if INT4
fn scale_of(params: u32) -> vec2<f16> {
    return bitcast_half2((params << ${INT4_SCALE_SHIFT}u) & (${INT4_SCALE_MASK}u << ${INT4_SCALE_SHIFT}u) * 0x10001u);
}

// 1024 + zero, the argument of `weights_of`.
fn zero_of(params: u32) -> vec2<f16> {
    return bitcast_half2(((params >> ${INT4_ZERO_SHIFT}u) & 0x000f000fu) | 0x64006400u);
}
//#endif

//#if INT8
fn scale_of(params: u32) -> vec2<f16> {
    return bitcast_half2(params);
}

// With its sign bit flipped a code is code + 128.
fn zero_of(params: u32) -> vec2<f16> {
    return vec2<f16>(1152.0h);
}
//#endif

// Words of a lane's rows in a stage.
//#macro fetch_weights(stage)
    {
//#for chunk in 0..ROW_CHUNKS
        let column_${chunk} = min(((${stage}) * 4u + place) * ${ROW_CHUNKS}u + ${chunk}u, ${LAST_CHUNK}u);
        let block_${chunk} = column_${chunk} / ${BLOCK_CHUNKS}u * ${BLOCK_WORDS}u;
        let chunk_${chunk} = block_${chunk} + column_${chunk} % ${BLOCK_CHUNKS}u * 8u;
//#end
//#for row in 0..LANE_ROWS
//#for chunk in 0..ROW_CHUNKS
        next_${row}_${chunk} = weights[tile_${row} + chunk_${chunk} + row_${row} % 8u];
//#end
//#if !F16
//#if WIDE
        next_params_${row} = weights[tile_${row} + block_0 + ${BLOCK_WORDS - 2}u + row_${row} % 8u / 4u][row_${row} % 4u];
//#else
        next_params_${row} = weights[tile_${row} + block_0 + ${BLOCK_WORDS - 1}u][row_${row} % 8u / 2u];
//#endif
//#endif
//#end
    }
//#end

// A lane's words of the activations behind panel `panel` of a stage.
//#macro fetch_next_activations(panel)
//#for item in 0..LANE_ITEMS
        activations_${item} = codes[from_${item} + (min(stage * ${PANELS}u + ${panel + 1}u, end_stage * ${PANELS}u - 1u)) * ${PANEL_WORDS}u];
//#end
//#end

//#macro put_activations()
//#for item in 0..LANE_ITEMS
//#if STEP_ROWS * PANEL_WORDS % WORKGROUP == 0
    activation_tile[given_row_${item} * ROW_WORDS + given_word_${item}] = activations_${item};
//#else
    if (given_row_${item} < STEP_ROWS) {
        activation_tile[given_row_${item} * ROW_WORDS + given_word_${item}] = activations_${item};
    }
//#endif
//#end
//#end

// Pair `pair` of the 16 that a lane has of a row in a stage, columns 4 (pair / 2) + pair % 2 and two further, as f16 in a word.
//#macro unpack_pair(row, pair)
//#let quad = pair / 2
//#if CODEBOOK
//#let word = pair / 4
//#if pair % 4 == 0
        let levels_${row}_${word} = lifted_levels(word_${row}_0.${"xyzw"[word]});
//#endif
//#if quad % 2 == 0
        let pair_${row}_${pair} = weights_of((levels_${row}_${word}.low >> ${pair % 2 * 8}u) & 0x00ff00ffu, zero_${row}, scale_${row});
//#else
        let pair_${row}_${pair} = weights_of((levels_${row}_${word}.high >> ${pair % 2 * 8}u) & 0x00ff00ffu, zero_${row}, scale_${row});
//#endif
//#else if INT4
//#if pair % 4 == 0
        let pair_${row}_${pair} = weights_of(word_${row}_0.${"xyzw"[pair / 4]} & 0x000f000fu, zero_${row}, scale_${row});
//#else if pair % 4 == 1
        let pair_${row}_${pair} = weights_of((word_${row}_0.${"xyzw"[pair / 4]} >> 8u) & 0x000f000fu, zero_${row}, scale_${row});
//#else if pair % 4 == 2
        let pair_${row}_${pair} = weights_of_high(word_${row}_0.${"xyzw"[pair / 4]} & 0x00f000f0u, zero_${row}, scale_${row});
//#else
        let pair_${row}_${pair} = weights_of_high((word_${row}_0.${"xyzw"[pair / 4]} >> 8u) & 0x00f000f0u, zero_${row}, scale_${row});
//#endif
//#else if INT8
//#if pair % 2 == 0
        let pair_${row}_${pair} = weights_of((word_${row}_${quad / 4}.${"xyzw"[quad % 4]} ^ 0x80808080u) & 0x00ff00ffu, zero_${row}, scale_${row});
//#else
        let pair_${row}_${pair} = weights_of(((word_${row}_${quad / 4}.${"xyzw"[quad % 4]} ^ 0x80808080u) >> 8u) & 0x00ff00ffu, zero_${row}, scale_${row});
//#endif
//#else
//#let low = "xyzw"[2 * quad % 4]
//#let high = "xyzw"[(2 * quad + 1) % 4]
//#if pair % 2 == 0
        let pair_${row}_${pair} = (word_${row}_${quad / 2}.${low} & 0xffffu) | (word_${row}_${quad / 2}.${high} << 16u);
//#else
        let pair_${row}_${pair} = (word_${row}_${quad / 2}.${low} >> 16u) | (word_${row}_${quad / 2}.${high} & 0xffff0000u);
//#endif
//#endif
//#end

// Fragment `j` of the stage's columns at `depth`.
//#macro fragment_of_weights(depth, j)
//#for n in 0..LANE_WORDS
//#expand unpack_pair(j * FRAGMENT_ROWS + n / FRAGMENT_PAIRS, depth * FRAGMENT_PAIRS + n % FRAGMENT_PAIRS)
//#if !LANES_HOLD_FRAGMENTS
        lane_words[fragment_at + (lane_row + ${n / FRAGMENT_PAIRS * ROWS_APART}u) * ${FRAGMENT / 2}u + ${n % FRAGMENT_PAIRS * 4}u + place] = pair_${j * FRAGMENT_ROWS + n / FRAGMENT_PAIRS}_${depth * FRAGMENT_PAIRS + n % FRAGMENT_PAIRS};
//#endif
//#end
//#if LANES_HOLD_FRAGMENTS
        let b_${depth}_${j} = coop_half_b_from_lanes(array<u32, LANE_WORDS>(
//#for n in 0..LANE_WORDS join ,
            pair_${j * FRAGMENT_ROWS + n / FRAGMENT_PAIRS}_${depth * FRAGMENT_PAIRS + n % FRAGMENT_PAIRS}
//#end
        ));
//#else
        subgroupBarrier();
        let b_${depth}_${j} = coop_load_half_b_u32(lane_words[fragment_at], ${FRAGMENT / 2}u);
        subgroupBarrier();
//#endif
//#end

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
) {
    let first_step_row = group.x * STEP_ROWS;
//#if BY_EXPERT
//#expand take_tile()
//#else
    if (first_step_row >= ${ROWS_IN_USE}) {
        return;
    }
//#endif
    let first_stage = STAGES * group.z / SPLITS;
    let end_stage = STAGES * (group.z + 1u) / SPLITS;
//#if !BY_EXPERT
    // Rows past the last are computed as the last one again, and not written.
    let last_step_row = ${ROWS_IN_USE} - 1u;
//#endif
    let first_matrix_row = group.y * MATRIX_ROWS + subgroup * SUBGROUP_MATRIX_ROWS;
//#if !LANES_HOLD_FRAGMENTS
    let fragment_at = subgroup * FRAGMENT_WORDS;
//#endif
    for (var row = lane; row < STEP_ROWS; row += WORKGROUP) {
//#if BY_EXPERT
        let at = activation_row(expert_rows[min(first_pair + row, last_pair)]) * INPUT_STRIDE + FACTOR_AT;
//#else
        let at = min(first_step_row + row, last_step_row) * INPUT_STRIDE + FACTOR_AT;
//#endif
        factors[row] = bitcast<f32>(codes[at / 4u][at % 4u]);
    }
//#for i in 0..STEP_FRAGMENTS
//#for j in 0..FRAGMENTS
    var sum_${i}_${j}: ${MATRIX}<f32, C>;
//#end
//#end

    // Where a lane's rows begin in the packed matrix, and which of their words are in flight.
    let place = subgroup_lane % 4u;
    let lane_row = subgroup_lane / 4u;
//#for row in 0..LANE_ROWS
    let row_${row} = first_matrix_row + ${row / FRAGMENT_ROWS * FRAGMENT + row % FRAGMENT_ROWS * ROWS_APART}u + lane_row;
//#if BY_EXPERT
    let tile_${row} = (expert * ${TILES}u + min(row_${row} / 8u, ${TILES - 1}u)) * ${TILE_WORDS}u;
//#else
    let tile_${row} = min(row_${row} / 8u, ${TILES - 1}u) * ${TILE_WORDS}u;
//#endif
    var next_params_${row}: u32;
//#for chunk in 0..ROW_CHUNKS
    var next_${row}_${chunk}: vec4<u32>;
//#end
//#end
    // Where a lane's words of a panel come from and go to: lanes count words of a row, then rows.
//#for item in 0..LANE_ITEMS
    let given_${item} = lane + ${item * WORKGROUP}u;
    let given_row_${item} = given_${item} / ${PANEL_WORDS}u;
    let given_word_${item} = given_${item} % ${PANEL_WORDS}u;
//#if BY_EXPERT
    let from_${item} = activation_row(expert_rows[min(first_pair + given_row_${item}, last_pair)]) * (INPUT_STRIDE / 4u) + given_word_${item};
//#else
    let from_${item} = min(first_step_row + given_row_${item}, last_step_row) * (INPUT_STRIDE / 4u) + given_word_${item};
//#endif
    var activations_${item}: vec4<u32>;
//#end
//#expand fetch_weights("first_stage")
//#for item in 0..LANE_ITEMS
    activations_${item} = codes[from_${item} + (first_stage * ${PANELS}u) * ${PANEL_WORDS}u];
//#end
//#expand put_activations()
    workgroupBarrier();
    for (var stage = first_stage; stage < end_stage; stage++) {
        // The stage that was in flight is the one to multiply.
//#for row in 0..LANE_ROWS
//#for chunk in 0..ROW_CHUNKS
        let word_${row}_${chunk} = next_${row}_${chunk};
//#end
//#if !F16
//#if WIDE
        let params_${row} = next_params_${row};
//#else
        let params_${row} = doubled(row_param(next_params_${row}, lane_row + ${row / FRAGMENT_ROWS * FRAGMENT + row % FRAGMENT_ROWS * ROWS_APART}u));
//#endif
        let scale_${row} = scale_of(params_${row});
        let zero_${row} = zero_of(params_${row});
//#endif
//#end
        // While it is multiplied, the weights of the next stage and the activations of the next panel are loaded into
        // registers. The last stage fetches itself again; nothing reads it.
//#expand fetch_weights("min(stage + 1u, end_stage - 1u)")
//#for panel in 0..PANELS
//#expand fetch_next_activations(panel)
//#for panel_depth in 0..PANEL / FRAGMENT
//#let depth = panel * (PANEL / FRAGMENT) + panel_depth
//#for j in 0..FRAGMENTS
//#expand fragment_of_weights(depth, j)
//#end
//#for i in 0..STEP_FRAGMENTS
        let a_${depth}_${i} = coop_load_half_a(activation_tile[${i * FRAGMENT}u * ROW_WORDS + ${panel_depth * FRAGMENT / 8}u], ROW_WORDS);
//#for j in 0..FRAGMENTS
        sum_${i}_${j} = coopMultiplyAdd(a_${depth}_${i}, b_${depth}_${j}, sum_${i}_${j});
//#end
//#end
//#end
        workgroupBarrier();
//#expand put_activations()
        workgroupBarrier();
//#end
    }
//#if SPLIT
    let tile = group.y * STEP_TILES + group.x;
    // Splits leave their sums, and the last adds them up in their order: without a loop, so that all parts are in flight
    // before the first is added.
    let parts_at = (tile * SPLITS * SUBGROUPS + subgroup) * SUBGROUP_SUMS;
//#for n in 0..STEP_FRAGMENTS * FRAGMENTS
    coopStoreT(sum_${n / FRAGMENTS}_${n % FRAGMENTS}, &partials[parts_at + group.z * SUBGROUPS * SUBGROUP_SUMS + ${n * FRAGMENT * FRAGMENT}u], ${FRAGMENT}u);
//#end
    if (!is_last(tile, SPLITS, lane)) {
        return;
    }
//#for n in 0..STEP_FRAGMENTS * FRAGMENTS
    sum_${n / FRAGMENTS}_${n % FRAGMENTS} = (
//#for split in 0..SPLITS join +
        coopLoadT<${MATRIX}<f32, C>>(&partials[parts_at + ${split}u * SUBGROUPS * SUBGROUP_SUMS + ${n * FRAGMENT * FRAGMENT}u], ${FRAGMENT}u)
//#end
    );
//#end
//#endif
//#if HALVES_OUT
    inverse_product_factor = 1.0 / product_factor[0];
    if (group.y == 0u) {
        for (var row = first_step_row + lane; row < first_step_row + STEP_ROWS && row <= last_step_row; row += WORKGROUP) {
            encoded[row * OUTPUT_STRIDE + OUTPUT_FACTOR_AT] = bitcast<u32>(product_factor[0]);
        }
    }
//#endif
//#expand write_blocks("first_step_row", "first_matrix_row")
}
