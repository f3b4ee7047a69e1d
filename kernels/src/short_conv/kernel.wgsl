// One lane a channel and ROWS rows: the inputs before a row stay in registers.
${DECLARATIONS}
//#include recurrent_state
//#include activation
//#if COUNTER_SYNC
//#include counter_sync
//#endif

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
    if (first >= step.header.n_rows) {
//#if COUNTER_SYNC
        count_workgroup(lane);
//#endif
        return;
    }
    // Lanes behind the last channel compute it again, and store nothing.
    let wanted = group.x * WORKGROUP + lane;
    let channel = min(wanted, CHANNELS - 1u);
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
    if (has_state && step.rows[first].position > 0u) {
//#for i in 0..KEPT
        if (is_low) {
            x_${i} = state_low[at + ${i}u];
        } else {
            x_${i} = state_high[at + ${i}u];
        }
//#end
    }
//#for i in 0..KEPT + 1
    let tap_${i} = taps[channel * (KEPT + 1u) + ${i}u];
//#end
//#if COUNTER_SYNC
    await_dispatch(lane);
//#endif
    if (!has_state) {
//#for i in 0..KEPT
        x_${i} = convolved(first - ${KEPT - i}u, channel);
//#end
    }
    for (var row = first; row < end; row++) {
        let x_${KEPT} = convolved(row, channel);
        var sum = 0.0;
//#for i in 0..KEPT + 1
        sum = fma(tap_${i}, x_${i}, sum);
//#end
//#if GATED
        let result = sum * input[row * INPUT_STRIDE + channel + CHANNELS];
//#else
        let result = activate(sum);
//#endif
        if (wanted < CHANNELS) {
            output[row * OUTPUT_STRIDE + channel] = result;
        }
//#for i in 0..KEPT
        x_${i} = x_${i + 1};
//#end
    }
    if (has_state && end < step_end) {
        // At least ROWS rows, and so more than are kept.
//#for i in 0..KEPT
        x_${i} = convolved(step_end - ${KEPT - i}u, channel);
//#end
    }
    if (has_state && wanted < CHANNELS) {
//#for i in 0..KEPT
        if (is_low) {
            state_low[at + ${i}u] = x_${i};
        } else {
            state_high[at + ${i}u] = x_${i};
        }
//#end
    }
//#if COUNTER_SYNC
    count_workgroup(lane);
//#endif
}
