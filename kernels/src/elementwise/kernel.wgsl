// One lane an element.
${DECLARATIONS}
//#if ACTIVATION
//#include activation
//#endif
//#if SOFTCAP
//#include tanh
//#endif

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    let column = group.x * WORKGROUP + lane;
    if (row >= ${ROWS} || column >= WIDTH) {
        return;
    }
    let at = row * INPUT_STRIDE + column;
    let out = row * OUTPUT_STRIDE + column;
//#if COPY
    output[out] = input[at];
//#else if ADD
    output[out] = input[at] + second[at];
//#else if BIAS
    output[out] = input[at] + bias[column];
//#else if ROW_BIAS
    output[out] = input[at] + bias[row * WIDTH + column];
//#else if SCALE
    output[out] = input[at] * bias[0];
//#else if IMAGE_FEATURES
    var value = input[at];
    if (step.rows[row].token >= ${IMAGE_ROW}) {
        value += input_rows[row * SECOND_STRIDE + SECOND_FIRST + column];
    }
    output[out] = value;
//#else if PART
    output[out] = gated(input[at], second[row * SECOND_STRIDE + SECOND_FIRST + column]);
//#else if ACTIVATE
    output[out] = activate(input[at]);
//#else if ACTIVATION
    output[out] = gated(input[at], second[at]);
//#else if GATE
    output[out] = input[at] / (1.0 + exp(-second[row * SECOND_STRIDE]));
//#else if GATE_EACH
    output[out] = input[at] / (1.0 + exp(min(-second[at], 80.0)));
//#else
    output[out] = CAP * bounded_tanh(input[at] / CAP);
//#endif
}
