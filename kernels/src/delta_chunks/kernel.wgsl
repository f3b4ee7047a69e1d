// Rows of one sequence, CHUNK at a time, on matrix units. A workgroup has COLUMNS columns of a head's state, as sums of f32 that its
// subgroups hold for all rows: STATE_FRAGMENTS fragments each. Names that end in numbers are registers of a lane or matrices of a subgroup.
${DECLARATIONS}
//#include recurrent_state
//#include delta_gates
//#intrinsic bitcast_word
//#intrinsic coop_load_half_a
//#intrinsic coop_load_half_a_columns
//#intrinsic coop_load_half_b
//#intrinsic coop_multiply_elements

// Eight f16 a word. A row of K or Q a row of the chunk; a column of the state, of errors E, or of E for the state, a row.
var<workgroup> keys: array<vec4<u32>, CHUNK * KEY_WORDS>;
var<workgroup> queries: array<vec4<u32>, CHUNK * KEY_WORDS>;
var<workgroup> state: array<vec4<u32>, COLUMNS * KEY_WORDS>;
var<workgroup> errors: array<vec4<u32>, COLUMNS * CHUNK_WORDS>;
var<workgroup> state_errors: array<vec4<u32>, COLUMNS * CHUNK_WORDS>;
// What each row's result takes of the errors so far.
var<workgroup> weights: array<vec4<u32>, CHUNK * CHUNK_WORDS>;
// Three planes of CHUNK rows: K·Kᵀ, and later how rows depend on the errors before; Q·Kᵀ; K·S, and later results. Between chunks,
// the first two are columns of the state on their way to f16.
var<workgroup> planes: array<vec4<f32>, 3 * PLANE_QUADS>;
// Logarithms of what each row keeps of the state, then of what all rows up to it keep of it.
var<workgroup> fadings: array<f32, CHUNK>;
var<workgroup> faded: array<f32, CHUNK>;
// e to the power of `faded`, and of its last element, as often as a fragment has rows.
var<workgroup> kept: array<f32, CHUNK>;
var<workgroup> kept_of_all: array<f32, ${FRAGMENT_M}>;
// Of each row: how strongly it corrects, the same times what K·S is to be multiplied by, what its error is multiplied by for the state,
// and what makes its key a unit vector.
var<workgroup> corrections: array<vec4<f32>, CHUNK>;
var<workgroup> query_factors: array<f32, CHUNK>;

fn word_of(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(pair_of(a.xy), pair_of(a.zw), pair_of(b.xy), pair_of(b.zw));
}

fn pair_of(x: vec2<f32>) -> u32 {
    return bitcast_word(vec2<f16>(x));
}

fn squares(word: vec4<u32>) -> f32 {
    let low = vec4<f32>(unpack2x16float(word.x), unpack2x16float(word.y));
    let high = vec4<f32>(unpack2x16float(word.z), unpack2x16float(word.w));
    return dot(low, low) + dot(high, high);
}

// Eight elements of a key or query, of a row that may lie behind the last.
fn fetched(row: u32, end: u32, quad: u32) -> vec4<u32> {
    let at = min(row, end - 1u) * (INPUT_STRIDE / 4u) + quad;
    return select(vec4<u32>(0u), word_of(input[at], input[at + 1u]), row < end);
}

// A chunk's words of K and Q, and for a row's lane its gates: a row behind the last corrects nothing, and all of the state is kept.
//#macro fetch(begin)
//#for i in 0..KEY_LOADS
    key_${i} = fetched(${begin} + row_${i}, end, key_quads + KEYS_AT + 2u * word_${i});
    query_${i} = fetched(${begin} + row_${i}, end, key_quads + 2u * word_${i});
//#end
    let gate_row = ${begin} + lane % CHUNK;
    let gate_at = min(gate_row, end - 1u) * GATE_STRIDE + head;
    fading = select(0.0, -rate * softplus(decay[gate_at + DECAY_FIRST] + bias[head]), gate_row < end);
    correction = select(0.0, sigmoid(strength[gate_at + STRENGTH_FIRST]), gate_row < end);
//#end

// The state as f16, for the products of the next chunk.
//#macro round_state()
//#for first in 0..div_ceil(STATE_FRAGMENTS, ROUND_FRAGMENTS)
//#for i in first * ROUND_FRAGMENTS..min((first + 1) * ROUND_FRAGMENTS, STATE_FRAGMENTS)
    coopStore(state_${i}, &planes[(subgroup * ${ROUND_FRAGMENTS}u + ${i % ROUND_FRAGMENTS}u) * FRAGMENT_QUADS], ${FRAGMENT_M / 4}u);
//#end
    subgroupBarrier();
//#for i in first * ROUND_FRAGMENTS..min((first + 1) * ROUND_FRAGMENTS, STATE_FRAGMENTS)
    for (var item = subgroup_lane; item < FRAGMENT_QUADS / 2u; item += SUBGROUP) {
        let from_quad = (subgroup * ${ROUND_FRAGMENTS}u + ${i % ROUND_FRAGMENTS}u) * FRAGMENT_QUADS + 2u * item;
        let to_column = state_column_${i} + item / ${FRAGMENT_M / 8}u;
        state[to_column * KEY_WORDS + (state_key_${i} / 8u) + item % ${FRAGMENT_M / 8}u] = word_of(planes[from_quad], planes[from_quad + 1u]);
    }
//#end
    subgroupBarrier();
//#end
//#end

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
) {
    let lane = subgroup * SUBGROUP + subgroup_lane;
    let end = step.header.n_rows;
    let head = group.x / BLOCKS;
    let first_column = group.x % BLOCKS * COLUMNS;
    let is_low = head < LOW_HEADS;
    let state_at = state_of(0u) + select(head - LOW_HEADS, head, is_low) * HEAD_WORDS + first_column;
    let key_quads = head / HEADS_OF_KEY * (KEY_DIM / 4u);
    let value_from = VALUES_AT + head * VALUE_DIM + first_column;
    let rate = exp(decay_rate[head]);

    // A subgroup's fragments: of products of a chunk's rows, and of the state.
//#for i in 0..FRAGMENTS
    let part_row_${i} = (subgroup * ${FRAGMENTS}u + ${i}u) / ${FRAGMENTS_ACROSS}u * ${FRAGMENT_M}u;
    let part_column_${i} = (subgroup * ${FRAGMENTS}u + ${i}u) % ${FRAGMENTS_ACROSS}u * ${FRAGMENT_N}u;
//#end
//#for i in 0..STATE_FRAGMENTS
    let state_key_${i} = (subgroup * ${STATE_FRAGMENTS}u + ${i}u) / ${FRAGMENTS_ACROSS}u * ${FRAGMENT_M}u;
    let state_column_${i} = (subgroup * ${STATE_FRAGMENTS}u + ${i}u) % ${FRAGMENTS_ACROSS}u * ${FRAGMENT_N}u;
    var state_${i}: ${MATRIX}<f32, C>;
//#end
    var zeros: ${MATRIX}<f32, C>;
    if (step.rows[0].position > 0u) {
        if (is_low) {
//#for i in 0..STATE_FRAGMENTS
            state_${i} = coopLoadT<${MATRIX}<f32, C>>(&state_low[state_at + state_key_${i} * VALUE_DIM + state_column_${i}], VALUE_DIM);
//#end
        } else {
//#for i in 0..STATE_FRAGMENTS
            state_${i} = coopLoadT<${MATRIX}<f32, C>>(&state_high[state_at + state_key_${i} * VALUE_DIM + state_column_${i}], VALUE_DIM);
//#end
        }
    }
//#expand round_state()

    // A lane's words of K and Q; neighbouring lanes read neighbouring words.
//#for i in 0..KEY_LOADS
    let item_${i} = min(lane + ${i * WORKGROUP}u, ${KEY_ITEMS - 1}u);
    let row_${i} = item_${i} / (KEY_DIM / 8u);
    let word_${i} = item_${i} % (KEY_DIM / 8u);
    var key_${i}: vec4<u32>;
    var query_${i}: vec4<u32>;
//#end
    var fading: f32;
    var correction: f32;
//#expand fetch("0u")
    for (var begin = 0u; begin < end; begin += CHUNK) {
//#for i in 0..KEY_LOADS
        keys[row_${i} * KEY_WORDS + word_${i}] = key_${i};
        queries[row_${i} * KEY_WORDS + word_${i}] = query_${i};
//#end
        if (lane < CHUNK) {
            fadings[lane] = fading;
        }
        workgroupBarrier();

        // The values of a lane's column.
//#for i in 0..CHUNK
        var error_${i} = 0.0;
//#end
        if (lane < COLUMNS) {
//#for i in 0..CHUNK
            let value_at_${i} = min(begin + ${i}u, end - 1u) * INPUT_STRIDE + value_from + lane;
            error_${i} = select(0.0, input[value_at_${i} / 4u][value_at_${i} % 4u], begin + ${i}u < end);
//#end
        }
        // Rows of K, then of Q.
        for (var item = lane; item < 2u * CHUNK; item += WORKGROUP) {
            let row = item % CHUNK;
            var sum = 0.0;
            for (var word = 0u; word < KEY_DIM / 8u; word++) {
                sum += squares(select(queries[row * KEY_WORDS + word], keys[row * KEY_WORDS + word], item < CHUNK));
            }
            let factor = 1.0 / sqrt(sum + EPS);
            if (item < CHUNK) {
                var up_to = 0.0;
                var all = 0.0;
                for (var other = 0u; other < CHUNK; other++) {
                    all += fadings[other];
                    up_to += select(0.0, fadings[other], other <= row);
                }
                faded[row] = up_to;
                kept[row] = exp(up_to);
                corrections[row] = vec4<f32>(correction, correction * exp(up_to) * factor, exp(all - up_to) * factor, factor);
                if (row < ${FRAGMENT_M}u) {
                    kept_of_all[row] = exp(all);
                }
            } else {
                query_factors[row] = SCALE * factor;
            }
        }
        // Products with K and with the state before the chunk. Those of Q with the state stay in registers: results begin with them.
//#for i in 0..FRAGMENTS
//#for d in 0..KEY_FRAGMENTS
        let key_rows_${i}_${d} = coop_load_half_a(keys[part_row_${i} * KEY_WORDS + ${FRAGMENT_K / 8 * d}u], KEY_WORDS);
        let query_rows_${i}_${d} = coop_load_half_a(queries[part_row_${i} * KEY_WORDS + ${FRAGMENT_K / 8 * d}u], KEY_WORDS);
        let key_columns_${i}_${d} = coop_load_half_b(keys[part_column_${i} * KEY_WORDS + ${FRAGMENT_K / 8 * d}u], KEY_WORDS);
        let state_columns_${i}_${d} = coop_load_half_b(state[part_column_${i} * KEY_WORDS + ${FRAGMENT_K / 8 * d}u], KEY_WORDS);
//#if d == 0
        let keys_keys_${i}_0 = coopMultiplyAdd(key_rows_${i}_0, key_columns_${i}_0, zeros);
        let queries_keys_${i}_0 = coopMultiplyAdd(query_rows_${i}_0, key_columns_${i}_0, zeros);
        let keys_state_${i}_0 = coopMultiplyAdd(key_rows_${i}_0, state_columns_${i}_0, zeros);
        let queries_state_${i}_0 = coopMultiplyAdd(query_rows_${i}_0, state_columns_${i}_0, zeros);
//#else
        let keys_keys_${i}_${d} = coopMultiplyAdd(key_rows_${i}_${d}, key_columns_${i}_${d}, keys_keys_${i}_${d - 1});
        let queries_keys_${i}_${d} = coopMultiplyAdd(query_rows_${i}_${d}, key_columns_${i}_${d}, queries_keys_${i}_${d - 1});
        let keys_state_${i}_${d} = coopMultiplyAdd(key_rows_${i}_${d}, state_columns_${i}_${d}, keys_state_${i}_${d - 1});
        let queries_state_${i}_${d} = coopMultiplyAdd(query_rows_${i}_${d}, state_columns_${i}_${d}, queries_state_${i}_${d - 1});
//#endif
//#end
        let place_${i} = part_row_${i} * ROW_QUADS + part_column_${i} / 4u;
        coopStoreT(keys_keys_${i}_${KEY_FRAGMENTS - 1}, &planes[place_${i}], ROW_QUADS);
        coopStoreT(queries_keys_${i}_${KEY_FRAGMENTS - 1}, &planes[PLANE_QUADS + place_${i}], ROW_QUADS);
        coopStoreT(keys_state_${i}_${KEY_FRAGMENTS - 1}, &planes[2u * PLANE_QUADS + place_${i}], ROW_QUADS);
//#end
        workgroupBarrier();

        // How rows depend on the errors of the rows before, and what their results take of errors: eight at a time.
        for (var item = lane; item < CHUNK * (CHUNK / 8u); item += WORKGROUP) {
            let row = item / (CHUNK / 8u);
            let other = item % (CHUNK / 8u) * 8u;
            let own = corrections[row].x * corrections[row].w;
//#for half in 0..2
//#for e in 0..4
            let weight_${4 * half + e} = select(0.0, exp(faded[row] - faded[other + ${4 * half + e}u]) * corrections[other + ${4 * half + e}u].w, other + ${4 * half + e}u <= row);
            let before_${4 * half + e} = select(0.0, own * weight_${4 * half + e}, other + ${4 * half + e}u < row);
//#end
            let weights_${half} = vec4<f32>(weight_${4 * half}, weight_${4 * half + 1}, weight_${4 * half + 2}, weight_${4 * half + 3});
            let quad_${half} = row * ROW_QUADS + other / 4u + ${half}u;
            planes[quad_${half}] *= vec4<f32>(before_${4 * half}, before_${4 * half + 1}, before_${4 * half + 2}, before_${4 * half + 3});
//#end
            weights[row * CHUNK_WORDS + other / 8u] = word_of(weights_0 * planes[PLANE_QUADS + quad_0], weights_1 * planes[PLANE_QUADS + quad_1]);
        }
        workgroupBarrier();

        // Forward substitution, a lane a column; the next chunk's words are loaded meanwhile. The last fetches itself again.
        let next = select(begin, begin + CHUNK, begin + CHUNK < end);
//#expand fetch("next")
        if (lane < COLUMNS) {
//#for i in 0..CHUNK
            error_${i} = corrections[${i}].x * error_${i} - corrections[${i}].y * planes[2u * PLANE_QUADS + ${i}u * ROW_QUADS + lane / 4u][lane % 4u];
//#for q in 0..div_ceil(i, 4)
            let before_${i}_${q} = planes[${i}u * ROW_QUADS + ${q}u];
//#for e in 4 * q..min(4 * q + 4, i)
            error_${i} = fma(-before_${i}_${q}.${"xyzw"[e % 4]}, error_${e}, error_${i});
//#end
//#end
//#end
//#for w in 0..CHUNK / 8
            errors[lane * CHUNK_WORDS + ${w}u] = word_of(vec4<f32>(error_${8 * w}, error_${8 * w + 1}, error_${8 * w + 2}, error_${8 * w + 3}), vec4<f32>(error_${8 * w + 4}, error_${8 * w + 5}, error_${8 * w + 6}, error_${8 * w + 7}));
//#for e in 8 * w..8 * w + 8
            error_${e} *= corrections[${e}].z;
//#end
            state_errors[lane * CHUNK_WORDS + ${w}u] = word_of(vec4<f32>(error_${8 * w}, error_${8 * w + 1}, error_${8 * w + 2}, error_${8 * w + 3}), vec4<f32>(error_${8 * w + 4}, error_${8 * w + 5}, error_${8 * w + 6}, error_${8 * w + 7}));
//#end
        }
        workgroupBarrier();

        // Results. All columns of `kept_by_row` are equal.
//#for i in 0..FRAGMENTS
        let kept_by_row_${i} = coopLoad<${MATRIX}<f32, C>>(&kept[part_row_${i}], 0u);
        var result_${i} = coop_multiply_elements(queries_state_${i}_${KEY_FRAGMENTS - 1}, kept_by_row_${i});
//#for d in 0..CHUNK / FRAGMENT_K
        let weight_rows_${i}_${d} = coop_load_half_a(weights[part_row_${i} * CHUNK_WORDS + ${FRAGMENT_K / 8 * d}u], CHUNK_WORDS);
        let error_columns_${i}_${d} = coop_load_half_b(errors[part_column_${i} * CHUNK_WORDS + ${FRAGMENT_K / 8 * d}u], CHUNK_WORDS);
        result_${i} = coopMultiplyAdd(weight_rows_${i}_${d}, error_columns_${i}_${d}, result_${i});
//#end
        coopStoreT(result_${i}, &planes[2u * PLANE_QUADS + place_${i}], ROW_QUADS);
//#end
        // The state after the chunk.
        let kept_everywhere = coopLoad<${MATRIX}<f32, C>>(&kept_of_all[0], 0u);
//#for i in 0..STATE_FRAGMENTS
        state_${i} = coop_multiply_elements(state_${i}, kept_everywhere);
//#for d in 0..CHUNK / FRAGMENT_K
        let key_errors_${i}_${d} = coop_load_half_a_columns(keys[${FRAGMENT_K * d}u * KEY_WORDS + state_key_${i} / 8u], KEY_WORDS);
        let state_errors_${i}_${d} = coop_load_half_b(state_errors[state_column_${i} * CHUNK_WORDS + ${FRAGMENT_K / 8 * d}u], CHUNK_WORDS);
        state_${i} = coopMultiplyAdd(key_errors_${i}_${d}, state_errors_${i}_${d}, state_${i});
//#end
//#end
//#expand round_state()
        workgroupBarrier();
        for (var item = lane; item < CHUNK * COLUMNS; item += WORKGROUP) {
            let row = item / COLUMNS;
            let column = item % COLUMNS;
            if (begin + row < end) {
                output[(begin + row) * OUTPUT_STRIDE + head * VALUE_DIM + first_column + column] = query_factors[row] * planes[2u * PLANE_QUADS + row * ROW_QUADS + column / 4u][column % 4u];
            }
        }
    }
    if (is_low) {
//#for i in 0..STATE_FRAGMENTS
        coopStoreT(state_${i}, &state_low[state_at + state_key_${i} * VALUE_DIM + state_column_${i}], VALUE_DIM);
//#end
    } else {
//#for i in 0..STATE_FRAGMENTS
        coopStoreT(state_${i}, &state_high[state_at + state_key_${i} * VALUE_DIM + state_column_${i}], VALUE_DIM);
//#end
    }
}
