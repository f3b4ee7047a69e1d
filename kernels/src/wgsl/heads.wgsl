// One workgroup a head of a row: load it, norm it, turn it, put it where attention finds it.
${DECLARATIONS}
//#include reduce

var<workgroup> vector: array<f32, HEAD_DIM>;

//#if CACHE
struct Cell {
    page: u32,
    slot: u32,
}

// Where the KV cache holds the token of `row`.
fn cache_cell(row: u32) -> Cell {
    let position = step.rows[row].position;
    let table = (KV_GROUP * step.header.table_slots + step.rows[row].sequence) * step.header.table_stride;
    return Cell(step.tables[table + position / PAGE_TOKENS], position % PAGE_TOKENS);
}

fn packed_pair(pair: u32) -> u32 {
    return pack2x16float(vec2<f32>(vector[2u * pair], vector[2u * pair + 1u]));
}
//#endif

//#if ROPE
fn rope_head(lane: u32, row: u32, position: u32) {
    let variant = step.rows[row].rope_variant * (ROPE_COARSE + ROPE_FINE) * ROTARY_PAIRS;
    for (var i = lane; i < ROTARY_PAIRS; i += WORKGROUP) {
        let coarse = rope_table[variant + (position / ROPE_FINE) * ROTARY_PAIRS + i];
        let fine = rope_table[variant + (ROPE_COARSE + position % ROPE_FINE) * ROTARY_PAIRS + i];
        let turn_cos = coarse.x * fine.x - coarse.y * fine.y;
        let turn_sin = coarse.y * fine.x + coarse.x * fine.y;
        let low = vector[i];
        let high = vector[i + ROTARY_PAIRS];
        vector[i] = low * turn_cos - high * turn_sin;
        vector[i + ROTARY_PAIRS] = high * turn_cos + low * turn_sin;
    }
    workgroupBarrier();
}
//#endif

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let row = group.y;
    if (row >= step.header.n_rows) {
        return;
    }
    let position = step.rows[row].position;
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
        vector[i] = input[row * INPUT_STRIDE + head * HEAD_DIM + i];
    }
    workgroupBarrier();
${PARTS}
