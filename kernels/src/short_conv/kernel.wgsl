// One lane a channel: its last inputs stay in registers for all rows of a sequence.
${DECLARATIONS}
//#include recurrent_state
//#include activation

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = group.y;
    let channel = group.x * WORKGROUP + lane;
    if (first >= step.header.n_rows || channel >= CHANNELS) {
        return;
    }
//#if ALONE
    let end = first + 1u;
//#else
    let end = step.header.n_rows;
//#endif
    let is_low = channel < LOW_CHANNELS;
    let at = state_of(first) + CONV_AT + select(channel - LOW_CHANNELS, channel, is_low) * KEPT;
//#for i in 0..KEPT
    var x_${i} = 0.0;
//#end
    if (step.rows[first].position > 0u) {
//#for i in 0..KEPT
        if (is_low) {
            x_${i} = state_low[at + ${i}u];
        } else {
            x_${i} = state_high[at + ${i}u];
        }
//#end
    }
    for (var row = first; row < end; row++) {
        let at_input = row * INPUT_STRIDE + channel;
//#if GATED
        let x_${KEPT} = input[at_input] * input[at_input + 2u * CHANNELS];
//#else
        let x_${KEPT} = input[at_input];
//#endif
        var sum = 0.0;
//#for i in 0..KEPT + 1
        sum = fma(taps[channel * (KEPT + 1u) + ${i}u], x_${i}, sum);
//#end
//#if GATED
        output[row * OUTPUT_STRIDE + channel] = sum * input[at_input + CHANNELS];
//#else
        output[row * OUTPUT_STRIDE + channel] = activate(sum);
//#endif
//#for i in 0..KEPT
        x_${i} = x_${i + 1};
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
