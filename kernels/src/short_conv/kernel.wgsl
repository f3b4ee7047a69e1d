// One lane a channel and ROWS rows: the inputs before a row stay in registers.
${DECLARATIONS}
//#include recurrent_state
//#include activation

fn convolved(row: u32, channel: u32) -> f32 {
    let at = row * INPUT_STRIDE + channel;
//#if GATED
    return input[at] * input[at + 2u * CHANNELS];
//#else
    return input[at];
//#endif
}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.y * ROWS;
    let channel = group.x * WORKGROUP + lane;
    if (first >= step.header.n_rows || channel >= CHANNELS) {
        return;
    }
    let end = min(first + ROWS, step.header.n_rows);
//#if ALONE
    let has_state = true;
    let step_end = end;
//#else
    // The first rows' lane keeps the state: no other reads or writes it.
    let has_state = first == 0u;
    let step_end = step.header.n_rows;
//#endif
    let is_low = channel < LOW_CHANNELS;
    let at = state_of(first) + CONV_AT + select(channel - LOW_CHANNELS, channel, is_low) * KEPT;
//#for i in 0..KEPT
    var x_${i} = 0.0;
//#end
    if (!has_state) {
//#for i in 0..KEPT
        x_${i} = convolved(first - ${KEPT - i}u, channel);
//#end
    } else if (step.rows[first].position > 0u) {
//#for i in 0..KEPT
        if (is_low) {
            x_${i} = state_low[at + ${i}u];
        } else {
            x_${i} = state_high[at + ${i}u];
        }
//#end
    }
    for (var row = first; row < end; row++) {
        let x_${KEPT} = convolved(row, channel);
        var sum = 0.0;
//#for i in 0..KEPT + 1
        sum = fma(taps[channel * (KEPT + 1u) + ${i}u], x_${i}, sum);
//#end
//#if GATED
        output[row * OUTPUT_STRIDE + channel] = sum * input[row * INPUT_STRIDE + channel + CHANNELS];
//#else
        output[row * OUTPUT_STRIDE + channel] = activate(sum);
//#endif
//#for i in 0..KEPT
        x_${i} = x_${i + 1};
//#end
    }
    if (!has_state) {
        return;
    }
    if (end < step_end) {
        // At least ROWS rows, and so more than are kept.
//#for i in 0..KEPT
        x_${i} = convolved(step_end - ${KEPT - i}u, channel);
//#end
    }
//#for i in 0..KEPT
    if (is_low) {
        state_low[at + ${i}u] = x_${i};
    } else {
        state_high[at + ${i}u] = x_${i};
    }
//#end
}
