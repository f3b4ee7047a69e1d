// One lane a column of a head's state and a slice of its keys, which stays in the lane's registers for all rows of a sequence.
${DECLARATIONS}
//#include recurrent_state
//#include delta_gates
//#if COUNTER_SYNC
//#include counter_sync
//#endif

// A row's sums of each lane's slice, in two buffers that take turns: S·k, k·k, S·q and q·k; and q·q.
var<workgroup> parts: array<vec4<f32>, 2u * LANES>;
var<workgroup> query_parts: array<f32, 2u * LANES>;

@compute @workgroup_size(${LANES})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.y;
    if (first >= step.header.n_rows) {
//#if COUNTER_SYNC
        count_workgroup(lane);
//#endif
        return;
    }
//#if ALONE
    let end = first + 1u;
//#else
    let end = step.header.n_rows;
//#endif
    let head = group.x / BLOCKS;
    // Lanes behind the last column compute it again, and store nothing.
    let wanted = group.x % BLOCKS * COLUMNS + lane % COLUMNS;
    let column = min(wanted, VALUE_DIM - 1u);
    let slice = lane / COLUMNS;
    let is_low = head < LOW_HEADS;
    let at = state_of(first) + select(head - LOW_HEADS, head, is_low) * HEAD_WORDS + slice * (4u * QUADS * VALUE_DIM) + column;
//#for i in 0..QUADS
    var s_${i} = vec4<f32>();
//#end
    if (step.rows[first].position > 0u) {
        if (is_low) {
//#for i in 0..QUADS
//#for d in 0..4
            s_${i}.${"xyzw"[d]} = state_low[at + ${4 * i + d}u * VALUE_DIM];
//#end
//#end
        } else {
//#for i in 0..QUADS
//#for d in 0..4
            s_${i}.${"xyzw"[d]} = state_high[at + ${4 * i + d}u * VALUE_DIM];
//#end
//#end
        }
    }
    let rate = exp(decay_rate[head]);
//#if COUNTER_SYNC
    await_dispatch(lane);
//#endif
    let query_at = head / HEADS_OF_KEY * (SLICES * QUADS) + slice * QUADS;
    let value_at = VALUES_AT + head * VALUE_DIM + column;
    for (var row = first; row < end; row++) {
        let row_at = row * (INPUT_STRIDE / 4u);
        let of_head = row * GATE_STRIDE + head;
        let fading = exp(-rate * softplus(decay[of_head + DECAY_FIRST] + bias[head]));
        let strengthened = sigmoid(strength[of_head + STRENGTH_FIRST]);
        let value = input[row_at + value_at / 4u][value_at % 4u];
        var recalled = vec4<f32>();
        var result = vec4<f32>();
        var key_squares = vec4<f32>();
        var query_squares = vec4<f32>();
        var products = vec4<f32>();
//#for i in 0..QUADS
        let k_${i} = input[row_at + query_at + KEYS_AT + ${i}u];
        let q_${i} = input[row_at + query_at + ${i}u];
        s_${i} *= fading;
        recalled = fma(s_${i}, k_${i}, recalled);
        result = fma(s_${i}, q_${i}, result);
        key_squares = fma(k_${i}, k_${i}, key_squares);
        query_squares = fma(q_${i}, q_${i}, query_squares);
        products = fma(q_${i}, k_${i}, products);
//#end
        let ones = vec4<f32>(1.0);
        let buffer = row % 2u * LANES;
        parts[buffer + lane] = vec4<f32>(dot(recalled, ones), dot(key_squares, ones), dot(result, ones), dot(products, ones));
        query_parts[buffer + lane] = dot(query_squares, ones);
        workgroupBarrier();
        let sums =
//#for i in 0..SLICES join +
            parts[buffer + ${i}u * COLUMNS + lane % COLUMNS]
//#end
            ;
        let query_sum =
//#for i in 0..SLICES join +
            query_parts[buffer + ${i}u * COLUMNS + lane % COLUMNS]
//#end
            ;
        let key_factor = 1.0 / sqrt(sums.y + EPS);
        let correction = key_factor * strengthened * (value - key_factor * sums.x);
//#for i in 0..QUADS
        s_${i} = fma(k_${i}, vec4(correction), s_${i});
//#end
        if (slice == 0u && wanted < VALUE_DIM) {
            output[row * OUTPUT_STRIDE + head * VALUE_DIM + column] = SCALE / sqrt(query_sum + EPS) * fma(correction, sums.w, sums.z);
        }
    }
    if (wanted < VALUE_DIM) {
        if (is_low) {
//#for i in 0..QUADS
//#for d in 0..4
            state_low[at + ${4 * i + d}u * VALUE_DIM] = s_${i}.${"xyzw"[d]};
//#end
//#end
        } else {
//#for i in 0..QUADS
//#for d in 0..4
            state_high[at + ${4 * i + d}u * VALUE_DIM] = s_${i}.${"xyzw"[d]};
//#end
//#end
        }
    }
//#if COUNTER_SYNC
    count_workgroup(lane);
//#endif
}
