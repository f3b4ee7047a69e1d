// output[row of the step][matrix row] = dot(matrix row, input row), for TOKENS_PER_LANE rows of the step at a time.
//
// Lane = (matrix row in its tile, slice of the blocks, tile): eight neighbouring lanes read 128 consecutive bytes. Where
// SPLIT_K is 1, block and activation indices are the same in all lanes, which a CPU's subgroup loads once.
${DECLARATIONS}
//#include weights
//#include reduce
//#if PROLOGUE
//#include norm_row
//#endif
//#if CODES
//#include group_weights
//#else if OWN_LOADS && MATRIX_INT4
//#include int4_differences
//#endif
//#if COUNTER_SYNC
//#include counter_sync
//#endif
//#if CLEARS
//#include clear_fixed_sums
//#endif
//#if ACT_MUL
//#include activation
//#endif
//#if SOFTCAP
//#include tanh
//#endif
//#if BY_EXPERT
//#include expert_of_workgroup
//#endif

//#if ENCODE
//#include encode
//#endif
//#if FUSED_TAIL
//#include fused_tail
//#else
//#if ENCODED_OUTPUT || ENCODED_INPUT
//#include encode_row
//#endif
//#endif
//#if CHOICE
//#include choose_experts

//#if EXPERTS
fn router_logit(row: u32, expert: u32) -> f32 {
    return router_logits[row * ${ROUTER_LOGITS_STRIDE}u + expert];
}
//#else
//#include completion

fn router_logit(row: u32, expert: u32) -> f32 {
    return output[row * OUTPUT_STRIDE + expert];
}
//#endif
//#endif

//#if PROLOGUE
//#if CODES
var<workgroup> codes: array<vec4<u32>, INPUT_GROUPS * 2u * INPUT_PLANES>;
var<workgroup> group_words: array<u32, INPUT_GROUPS>;

fn keep_quad(quad: u32, x: vec4<f32>, lane: u32) {
    let quantised = quantise(x, lane);
    let words = code_words(quantised);
    let of_group = group_word(quantised, lane);
    if (quad < INPUT_GROUPS * 8u) {
        let at = code_word_at(quad);
        codes[at / 4u][at % 4u] = words.x;
//#if INT11
        codes[at / 4u + 2u][at % 4u] = words.y;
//#endif
        if (quad % 8u == 0u) {
            group_words[quad / 8u] = of_group;
        }
    }
}
//#else
var<workgroup> normed: array<vec4<f32>, PADDED_COLS / 4u>;

fn keep_quad(quad: u32, x: vec4<f32>, lane: u32) {
    if (quad < PADDED_COLS / 4u) {
        normed[quad] = x;
    }
}
//#endif

// x' = x + [post norm](delta), written once; x' / rms(x') * weight is kept, and written once as integers where others read those.
fn prologue(lane: u32, first: bool, row: u32) {
    let at = row * (INPUT_STRIDE / 4u);
//#expand norm_row()
//#for i in 0..SLOTS
    keep_quad(quad_${i}, x_${i}, lane);
//#end
//#if ENCODED_INPUT
    if (first) {
//#for i in 0..SLOTS
        store_quad(row * INPUT_STRIDE, quad_${i}, x_${i}, lane);
//#end
    }
//#endif
    workgroupBarrier();
}
//#endif

//#if CODES
// Sixteen codes of row `row` of the step.
fn code_quads(row: u32, index: u32) -> vec4<u32> {
//#if PROLOGUE
    return codes[index];
//#else
    return codes[row * (INPUT_STRIDE / 4u) + index];
//#endif
}

// Scale and sum of a group of row `row`.
fn group_word_of(row: u32, group: u32) -> u32 {
//#if PROLOGUE
    return group_words[group];
//#else
    let at = INPUT_GROUP_WORDS_AT + group;
    return codes[row * (INPUT_STRIDE / 4u) + at / 4u][at % 4u];
//#endif
}
//#else
//#if !OWN_LOADS
// The activation of row `row` of the step in column `column`.
fn activation(row: u32, column: u32) -> f32 {
//#if PROLOGUE
    return normed[column / 4u][column % 4u];
//#else
    let at = row * INPUT_STRIDE + column;
//#if TAIL
    let inside = min(at / 4u, arrayLength(&input) - 1u);
    return select(0.0, input[inside][at % 4u], column < COLS);
//#else
    return input[at / 4u][at % 4u];
//#endif
//#endif
}
//#else
// Four activations of row `row` of the step, from column 4 * `quad`.
fn activations(row: u32, quad: u32) -> vec4<f32> {
//#if PROLOGUE
    return normed[quad];
//#else
//#if TAIL
    let column = 4u * quad;
    let at = min(row * (INPUT_STRIDE / 4u) + quad, arrayLength(&input) - 1u);
    return select(vec4<f32>(0.0), input[at], vec4<u32>(column, column + 1u, column + 2u, column + 3u) < vec4<u32>(COLS));
//#else
    return input[row * (INPUT_STRIDE / 4u) + quad];
//#endif
//#endif
}
//#endif
//#endif

//#if MANY_PARTS
var<workgroup> partial: array<f32, PARTIALS>;

// Where accumulator `index` of a part's eight rows is left for the lanes of slice 0.
fn partial_at(index: u32, part: u32) -> u32 {
    return (index * (PARTIALS / (8u * TOKENS_PER_LANE * TILES_PER_LANE)) + part_of_group_tile + part) * 8u;
}

var<private> part_of_group_tile: u32;
//#endif

//#if ENCODED_OUTPUT
var<workgroup> staged: array<f32, TOKENS_PER_LANE * GROUP_ROWS>;
//#endif

//#if BY_EXPERT
// Rows of the workgroup, of TOKENS_PER_LANE: the others are computed as the last one again, and not written.
var<private> own_rows: u32;

//#endif
// `token` counts the rows of the step from `first_row` on; of experts, `first_row` is its row.
fn store(token: u32, first_row: u32, matrix_row: u32, value: f32) {
    var result = value;
//#if SOFTCAP
    result = CAP * bounded_tanh(result / CAP);
//#endif
//#if ENCODED_OUTPUT
    staged[token * GROUP_ROWS + matrix_row % GROUP_ROWS] = select(0.0, result, matrix_row < OUTPUT_ROWS);
//#else
//#if BY_EXPERT
    if (matrix_row < OUTPUT_ROWS && token < own_rows) {
        output[first_row * OUTPUT_STRIDE + matrix_row] = result;
    }
//#else
    if (matrix_row < OUTPUT_ROWS) {
        output[(first_row + token) * OUTPUT_STRIDE + OUTPUT_FIRST + matrix_row] = result;
    }
//#endif
//#endif
}

// Accumulators are named variables, acc_TILE_TOKEN, because some drivers keep an array in memory instead of registers: for
// each tile of the lane and each of its rows of the step.

// Where each tile of a lane begins, of which `first` is the first. `declare` is `let `, `var `, or nothing where they change.
//#macro place_tiles(declare, first)
//#for tile in 0..TILES_PER_LANE
    // A lane past the last tile computes the last one again and stores nothing.
//#if EXPERTS
    ${declare}base_${tile} = (matrix * TILES + min(${first} + ${tile}u, TILES - 1u)) * BLOCKS * BLOCK_WORDS;
//#else
    ${declare}base_${tile} = min(${first} + ${tile}u, TILES - 1u) * BLOCKS * BLOCK_WORDS;
//#endif
//#end
//#end

//#if CODES
// The loop of integer activations: groups of 32 columns, UNROLL of which a lane has in flight, in ROUNDS rounds. Loads come in one of two
// orders:
//
//   without a prologue     load a b, wait, multiply a b, load c d, multiply c d
//   behind one             load a b, wait and norm, multiply a, load c, multiply b, load d, multiply c d, load the next pass's a b, sums
//
// Whether a driver leaves the first loads in front of the wait is a matter of `MatMulTile::early`.

// Words and parameters of every tile for the lane's group number `ahead` behind k_group, which is number `part` of those in flight.
//#macro load_part(buffer, declare, ahead, part)
    ${declare}group_${part} = min(k_group + ${ahead * COLUMN_LANES}u, INPUT_GROUPS - 1u);
//#for tile in 0..TILES_PER_LANE
//#expand place_group("MATRIX", "${part}_${tile}", "base_${tile}", "group_${part}")
//#expand load_group("MATRIX", "${part}_${tile}", declare, buffer, "row", "group_${part}")
//#end
//#end

//#macro multiply_part(part)
//#for tile in 0..TILES_PER_LANE
//#expand unpack_group("MATRIX", "${part}_${tile}", "row")
//#end
//#for token in 0..TOKENS_PER_LANE
//#if BY_EXPERT
//#let from = "input_row_${token}"
//#else
//#let from = "input_row + ${token}u"
//#endif
//#expand unpack_activations("MATRIX", "${part}_${token}", "group_word_of(${from}, group_${part})")
//#for i in 0..2 * INPUT_PLANES
    let x_${part}_${token}_${i} = code_quads(${from}, group_${part} * ${2 * INPUT_PLANES}u + ${i}u);
//#end
//#for tile in 0..TILES_PER_LANE
//#expand add_product("MATRIX", "acc_${tile}_${token}", "${part}_${tile}", "${part}_${token}", INPUT_PLANES)
//#end
//#end
//#end

//#if WEIGHT_PARTS > 1
// The groups of a round, from the part of the stack that has the expert. Only their loads are there for each part. All of them are in flight
// before the first group is multiplied: where each part has a loop of its own, NVIDIA's compiler multiplies a group before it loads the next.
//#macro load_round_of_part()
//#for part in 0..UNROLL
        var group_${part} = 0u;
//#for tile in 0..TILES_PER_LANE
//#expand declare_group("MATRIX", "${part}_${tile}")
//#end
//#end
        if (part_of_stack == 0u) {
//#expand load_round("weights", "")
        }
//#for other in 1..WEIGHT_PARTS
        if (part_of_stack == ${other}u) {
//#expand load_round("weights_${other}", "")
        }
//#end
//#end

//#endif
// The groups of a round that begins at k_group.
//#macro load_round(buffer, declare)
//#for part in 0..UNROLL
//#expand load_part(buffer, declare, part, part)
//#end
//#end

// The same, loaded. There are `before` rounds before it at most; lanes past the last group have loaded that, too, and do not multiply it.
//#macro multiply_round(before)
//#for part in 0..UNROLL
//#if (before * UNROLL + part + 1) * COLUMN_LANES <= INPUT_GROUPS
//#expand multiply_part(part)
//#else
    if (k_group + ${part * COLUMN_LANES}u < INPUT_GROUPS) {
//#expand multiply_part(part)
    }
//#endif
//#end
//#end

// A round's groups are loaded before the first is multiplied, those of the first round in front of the wait. It takes fewer registers than
// the other order.
//#macro multiply_groups_in_rounds()
//#expand place_tiles("let ", "first_tile")
    var k_group = ${FIRST_RUN};
//#if COUNTER_SYNC && !EXPERTS
//#expand load_round("weights", "let ")
    await_dispatch(lane);
//#expand multiply_round(0)
    k_group += ${UNROLL * COLUMN_LANES}u;
//#endif
//#if !COUNTER_SYNC || EXPERTS || ROUNDS > 1
    for (; k_group < INPUT_GROUPS; k_group += ${UNROLL * COLUMN_LANES}u) {
//#if WEIGHT_PARTS > 1
//#expand load_round_of_part()
//#else
//#expand load_round("weights", "let ")
//#endif
//#expand multiply_round(ROUNDS - 1)
    }
//#endif
//#end

// Each group that is multiplied makes room for the one UNROLL groups on. The next pass's first groups are loaded before this one's sums are
// put together.
//#macro multiply_groups_rolling()
//#if ROUNDS > 1
    for (var run = 1u; run < ${ROUNDS}u; run++) {
//#for part in 0..UNROLL
//#expand multiply_part(part)
//#expand load_part("weights", "", part + UNROLL, part)
//#end
        k_group += ${UNROLL * COLUMN_LANES}u;
    }
//#endif
//#expand multiply_round(ROUNDS - 1)
//#if MANY_PASSES
    if (pass_index + 1u < PASSES) {
//#expand place_tiles("", "first_tile + GROUP_TILES * TILES_PER_LANE")
        k_group = slice;
//#expand load_round("weights", "")
    }
//#endif
//#end
//#else

// Scale and zero point of this lane's row in the block at at_TILE; lanes that share a block take what to add for the zero point, too.
//#macro unpack_params()
//#if !MATRIX_F16
//#for tile in 0..TILES_PER_LANE
//#if WIDE
        let param_${tile} = weights[at_${tile} + ${BLOCK_WORDS - 2}u + row / 4u][row % 4u];
//#else
        let param_${tile} = row_param(weights[at_${tile} + ${BLOCK_WORDS - 1}u][row / 2u], row);
//#endif
//#if MATRIX_INT4
        let scale_${tile} = int4_scale(param_${tile});
        let zero_${tile} = int4_zero(param_${tile});
//#if !OWN_LOADS
        let shift_${tile} = -zero_${tile} * scale_${tile};
//#endif
//#else
        let scale_${tile} = int8_scale(param_${tile});
//#endif
//#end
//#endif
//#end

//#include multiply_blocks
//#if ACROSS
//#include multiply_across
//#endif
//#endif

//#if SUMMED
// Weighs what a lane has of its expert's product, with the bias in one lane of the row and expert.
//#macro weigh_products()
//#for tile in 0..TILES_PER_LANE
//#if BIAS
    if (first_run == 0u) {
        acc_${tile}_0 += bias[expert * ${MATRIX_ROWS}u + min((first_tile + ${tile}u) * 8u + row, ${MATRIX_ROWS - 1}u)];
    }
//#endif
    acc_${tile}_0 *= expert_weight;
//#end
//#end

//#endif
// Adds up what the lanes of a row have; the sums are right in the lanes of slice 0.
//#macro add_up_slices()
//#for level in 0..SHUFFLES
//#for tile in 0..TILES_PER_LANE
//#for token in 0..TOKENS_PER_LANE
    acc_${tile}_${token} += subgroupShuffleXor(acc_${tile}_${token}, ${8 * pow(2, level)}u);
//#end
//#end
//#end
//#if MANY_PARTS
    // Through workgroup memory, all accumulators between two barriers.
    if (in_part == 0u) {
//#for tile in 0..TILES_PER_LANE
//#for token in 0..TOKENS_PER_LANE
        partial[partial_at(${tile * TOKENS_PER_LANE + token}u, part) + row] = acc_${tile}_${token};
//#end
//#end
    }
    workgroupBarrier();
    if (slice == 0u) {
        for (var other = 1u; other < PARTS; other++) {
//#for tile in 0..TILES_PER_LANE
//#for token in 0..TOKENS_PER_LANE
            acc_${tile}_${token} += partial[partial_at(${tile * TOKENS_PER_LANE + token}u, other) + row];
//#end
//#end
        }
    }
//#endif
//#end

// Bias, and activation·mul of gate and up tiles, which alternate.
//#macro store_results()
//#for tile in 0..TILES_PER_LANE
        let row_${tile} = (first_tile + ${tile}u) * 8u + row;
//#if BIAS && !SUMMED
//#if EXPERTS
        let bias_${tile} = bias[(expert + ${FIRST_EXPERT}u) * ${MATRIX_ROWS}u + min(row_${tile}, ${MATRIX_ROWS - 1}u)];
//#else
        let bias_${tile} = bias[min(row_${tile}, ${MATRIX_ROWS - 1}u)];
//#endif
//#for token in 0..TOKENS_PER_LANE
        acc_${tile}_${token} += bias_${tile};
//#end
//#endif
//#end
//#for token in 0..TOKENS_PER_LANE
//#if BY_EXPERT
//#let to = "output_row_${token}"
//#else
//#let to = "output_row"
//#endif
//#if ACT_MUL
//#for pair in 0..TILES_PER_LANE / 2
//#let gate = 2 * pair
        store(${token}u, ${to}, ((first_tile + ${gate}u) / 2u) * 8u + row, gated(acc_${gate}_${token}, acc_${gate + 1}_${token}));
//#end
//#else
//#for tile in 0..TILES_PER_LANE
        store(${token}u, ${to}, row_${tile}, acc_${tile}_${token});
//#end
//#endif
//#end
//#end

//#if EXPERTS
// Which of the bound matrices is the expert's.
//#macro place_matrix()
//#if WEIGHT_PARTS > 1
    let part_of_stack = expert / ${PART_EXPERTS}u;
    let matrix = expert % ${PART_EXPERTS}u;
//#else
    let matrix = expert;
//#endif
//#end

//#endif
@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
//#if ROW_FROM_STEP
    let input_row = step.header.logits_row;
    let output_row = 0u;
//#else if BY_EXPERT
//#expand expert_of_workgroup()
//#expand place_matrix()
    own_rows = expert_rows[tile_at + 2u];
    let last_pair = first_pair + own_rows - 1u;
//#for token in 0..TOKENS_PER_LANE
    let output_row_${token} = expert_rows[min(first_pair + ${token}u, last_pair)];
//#if OWN_INPUT
    let input_row_${token} = output_row_${token};
//#else
    let input_row_${token} = output_row_${token} / ${CHOSEN}u;
//#endif
//#end
//#else if EXPERTS
    let output_row = group.x;
//#if SUMMED
    let step_row = output_row;
//#else
    let step_row = output_row / ${CHOSEN}u;
//#endif
//#if COUNTER_SYNC
    await_dispatch(lane);
//#endif
    if (step_row >= step.header.n_rows) {
//#if COUNTER_SYNC
        count_workgroup(lane);
//#endif
        return;
    }
//#if !SUMMED
    let place = output_row % ${CHOSEN}u;
    // Experts before the first of this part wrap to numbers past the last.
//#if CHOICE
    choose_experts(step_row, lane, place == 0u && group.y == 0u);
    let expert = chosen_experts[place] - ${FIRST_EXPERT}u;
//#else
    let expert = routes[step_row * ${ROUTES_STRIDE}u + place] - ${FIRST_EXPERT}u;
//#endif
    if (expert >= ${EXPERTS_HERE}u) {
//#if COUNTER_SYNC
        count_workgroup(lane);
//#endif
        return;
    }
//#expand place_matrix()
//#if OWN_INPUT
    let input_row = output_row;
//#else
    let input_row = step_row;
//#endif
//#endif
//#else
    let input_row = group.x * TOKENS_PER_LANE;
    let output_row = input_row;
    if (input_row >= ${ROWS_IN_USE}) {
//#if COUNTER_SYNC
        count_workgroup(lane);
//#endif
        return;
    }
//#endif
    let row = lane % 8u;
//#if SPLIT
    let slice = (lane / 8u) % SPLIT_K;
//#else
    const slice = 0u;
//#endif
//#if SUMMED
    // The slices are divided evenly between the row's experts; those past the last expert begin behind the last column.
    let place = min(slice / ${COLUMN_LANES}u, ${CHOSEN - 1}u);
    let first_run = select(COLS, slice % ${COLUMN_LANES}u, slice < ${CHOSEN * COLUMN_LANES}u);
    let expert = routes[step_row * ${ROUTES_STRIDE}u + place];
    let expert_weight = bitcast<f32>(routes[step_row * ${ROUTES_STRIDE}u + ${CHOSEN}u + place]);
//#expand place_matrix()
    let input_row = step_row * ${CHOSEN}u + place;
//#endif
//#if FUSED_TAIL
//#expand load_tail("lane", "group.y * ${TAIL_GROUPS}u")
//#endif
//#if CODES && PROLOGUE
    // The first pass's first groups are loaded before the wait.
//#expand place_tiles("var ", "(group.y * PASSES * GROUP_TILES + lane / (8u * SPLIT_K)) * TILES_PER_LANE")
    var k_group = slice;
//#expand load_round("weights", "var ")
//#endif
//#if PROLOGUE || !CODES
//#if COUNTER_SYNC && !EXPERTS
    await_dispatch(lane);
//#endif
//#if PROLOGUE
    prologue(lane, group.y == 0u, input_row);
//#endif
//#endif
//#if MANY_PASSES
    for (var pass_index = 0u; pass_index < PASSES; pass_index++) {
    let rows_of = group.y * PASSES + pass_index;
//#else
    let rows_of = group.y;
//#endif
//#if SPLIT
    let group_tile = rows_of * GROUP_TILES + lane / (8u * SPLIT_K);
//#if MANY_PARTS
    // Lanes of a part have added up among themselves.
    let part = slice / (SPLIT_K / PARTS);
    let in_part = slice % (SPLIT_K / PARTS);
    part_of_group_tile = lane / (8u * SPLIT_K) * PARTS;
//#endif
//#else
    let group_tile = rows_of * GROUP_TILES + lane / 8u;
//#endif
    let first_tile = group_tile * TILES_PER_LANE;
//#if ACROSS
//#expand multiply_across()
//#else
//#for tile in 0..TILES_PER_LANE
//#for token in 0..TOKENS_PER_LANE
    var acc_${tile}_${token} = 0.0;
//#end
//#end
//#if !CODES
//#expand multiply_blocks()
//#else if PROLOGUE
//#expand multiply_groups_rolling()
//#else
//#expand multiply_groups_in_rounds()
//#endif
//#if SUMMED
//#expand weigh_products()
//#endif
//#expand add_up_slices()
//#endif
    if (slice == 0u) {
//#expand store_results()
    }
//#if ENCODED_OUTPUT
    workgroupBarrier();
    for (var first = 0u; first < TOKENS_PER_LANE * GROUP_ROWS / 4u; first += WORKGROUP) {
        let quad = min(first + lane, TOKENS_PER_LANE * GROUP_ROWS / 4u - 1u);
        let x = vec4<f32>(staged[4u * quad], staged[4u * quad + 1u], staged[4u * quad + 2u], staged[4u * quad + 3u]);
        // A lane without a quad of its own stores none.
//#if FUSED_TAIL
        keep_for_tail(select(8u * TAIL_GROUPS, quad, quad == first + lane), x, lane);
//#else
        let row_quad = rows_of * (GROUP_ROWS / 4u) + quad % (GROUP_ROWS / 4u);
//#if BY_EXPERT
        let token = quad / (GROUP_ROWS / 4u);
        let row_at = expert_rows[min(first_pair + token, last_pair)] * OUTPUT_STRIDE;
        store_quad(row_at, select(STORED_QUADS, row_quad, quad == first + lane && token < own_rows), x, lane);
//#else
        let row_at = (output_row + quad / (GROUP_ROWS / 4u)) * OUTPUT_STRIDE;
        store_quad(row_at, select(STORED_QUADS, row_quad, quad == first + lane), x, lane);
//#endif
//#endif
    }
//#endif
//#if FUSED_TAIL
    workgroupBarrier();
//#expand multiply_tail("lane")
//#endif
//#if MANY_PASSES
    // What the pass left in workgroup memory has been read.
    workgroupBarrier();
    }
//#endif
//#if CLEARS
    if (group.x + group.y == 0u) {
        clear_fixed_sums(lane);
    }
//#endif
//#if CHOICE && !EXPERTS
    if (is_last(0u, ${ROUTER_WORKGROUPS}u, lane)) {
        choose_experts(output_row, lane, true);
    }
//#endif
//#if COUNTER_SYNC
    count_workgroup(lane);
//#endif
}
