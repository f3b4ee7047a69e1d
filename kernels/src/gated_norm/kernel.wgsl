// One workgroup a head of a row. A lane has quads of four elements, WORKGROUP apart, numbered i.
${DECLARATIONS}
//#include reduce
//#include activation
//#if COUNTER_SYNC
//#include counter_sync
//#endif
//#if ENCODE
//#include encode
//#include encode_row
//#endif

//#macro load_quad(i, name, place)
    var ${name}_${i} = vec4<f32>(0.0);
//#for d in 0..4
    if (element_${i} + ${d}u < HEAD_DIM) {
        ${name}_${i}.${"xyzw"[d]} = ${place}element_${i} + ${d}u];
    }
//#end
//#end

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    if (row >= step.header.n_rows) {
//#if COUNTER_SYNC
        count_workgroup(lane);
//#endif
        return;
    }
    let at = row * STRIDE + group.x * HEAD_DIM;
    let gate_at = row * GATE_STRIDE + GATE_FIRST + group.x * HEAD_DIM;
//#for i in 0..SLOTS
    let element_${i} = 4u * (lane + ${i * WORKGROUP}u);
//#expand load_quad(i, "weight", "head_norm[")
//#end
//#if COUNTER_SYNC
    await_dispatch(lane);
//#endif
//#for i in 0..SLOTS
//#expand load_quad(i, "x", "input[at + ")
//#expand load_quad(i, "gate", "second[gate_at + ")
//#end
    let squares = workgroup_sum(
//#for i in 0..SLOTS join +
        dot(x_${i}, x_${i})
//#end
    , lane);
    let scale = 1.0 / sqrt(squares / f32(HEAD_DIM) + EPS);
//#for i in 0..SLOTS
//#if SUM
    let y_${i} = x_${i} * scale * weight_${i} + gate_${i};
//#else
    let activated_${i} = vec4<f32>(activate(gate_${i}.x), activate(gate_${i}.y), activate(gate_${i}.z), activate(gate_${i}.w));
    let y_${i} = x_${i} * scale * weight_${i} * activated_${i};
//#endif
//#if ENCODE
    store_quad(row * STRIDE, select(STORED_QUADS, (group.x * HEAD_DIM + element_${i}) / 4u, element_${i} < HEAD_DIM), y_${i}, lane);
//#else
//#for d in 0..4
    if (element_${i} + ${d}u < HEAD_DIM) {
        output[at + element_${i} + ${d}u] = y_${i}.${"xyzw"[d]};
    }
//#end
//#endif
//#end
//#if COUNTER_SYNC
    count_workgroup(lane);
//#endif
}
