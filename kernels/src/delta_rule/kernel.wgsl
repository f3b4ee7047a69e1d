// One lane a column of a head's state, which stays in its registers for all rows of a sequence.
${DECLARATIONS}
//#include recurrent_state

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(min(-x, 80.0)));
}

// log(1 + e^x), which is x where e^x is all that counts.
fn softplus(x: f32) -> f32 {
    return select(log(1.0 + exp(min(x, 20.0))), x, x > 20.0);
}

@compute @workgroup_size(${COLUMNS})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.y;
    let head = group.x / BLOCKS;
    let column = group.x % BLOCKS * COLUMNS + lane;
    if (first >= step.header.n_rows || column >= VALUE_DIM) {
        return;
    }
//#if ALONE
    let end = first + 1u;
//#else
    let end = step.header.n_rows;
//#endif
    let is_low = head < LOW_HEADS;
    let at = state_of(first) + select(head - LOW_HEADS, head, is_low) * HEAD_WORDS + column;
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
    let query_at = head / HEADS_OF_KEY * QUADS;
    let value_at = VALUES_AT + head * VALUE_DIM + column;
    for (var row = first; row < end; row++) {
        let row_at = row * (INPUT_STRIDE / 4u);
        let of_head = row * GATE_STRIDE + head;
        let fading = exp(-rate * softplus(decay[of_head] + bias[head]));
        var recalled = vec4<f32>();
        var key_squares = vec4<f32>();
//#for i in 0..QUADS
        let k_${i} = input[row_at + query_at + KEYS_AT + ${i}u];
        s_${i} *= fading;
        recalled = fma(s_${i}, k_${i}, recalled);
        key_squares = fma(k_${i}, k_${i}, key_squares);
//#end
        let key_factor = 1.0 / sqrt(dot(key_squares, vec4(1.0)) + EPS);
        let value = input[row_at + value_at / 4u][value_at % 4u];
        let error = value - key_factor * dot(recalled, vec4(1.0));
        let correction = key_factor * sigmoid(strength[of_head]) * error;
        var result = vec4<f32>();
        var query_squares = vec4<f32>();
//#for i in 0..QUADS
        s_${i} = fma(k_${i}, vec4(correction), s_${i});
        let q_${i} = input[row_at + query_at + ${i}u];
        result = fma(s_${i}, q_${i}, result);
        query_squares = fma(q_${i}, q_${i}, query_squares);
//#end
        let query_factor = SCALE / sqrt(dot(query_squares, vec4(1.0)) + EPS);
        output[row * OUTPUT_STRIDE + head * VALUE_DIM + column] = query_factor * dot(result, vec4(1.0));
    }
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
