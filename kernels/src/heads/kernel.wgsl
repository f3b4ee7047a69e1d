// One workgroup a head of a row: load it, normalise it, rotate it, store it where attention reads it.
${DECLARATIONS}
//#include reduce
//#if CACHE
//#include cache
//#endif
//#include vectors

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let row = group.y;
    if (row >= step.header.n_rows) {
        return;
    }
    let position = step.rows[row].position;
//#if VALUES_ARE_KEYS
    // Heads of values are where those of the keys are, as many before them.
    let source = select(head, head - KV_HEADS, head >= ${VALUES_BEGIN}u);
    fetch_vectors(0u, 1u, row * INPUT_STRIDE + source * HEAD_DIM, lane);
//#else
    fetch_vectors(0u, 1u, row * INPUT_STRIDE + head * HEAD_DIM, lane);
//#endif
//#if ROPE
    fetch_rotations(row, lane);
//#endif
    workgroupBarrier();
    // One branch a part; a workgroup handles one head and takes one of them.
//#for p in 0..PARTS
//#let begin = PART_${p}_BEGIN
//#let end = PART_${p}_END
//#let scale = PART_${p}_SCALE
    if (head >= ${begin}u && head < ${end}u) {
        let part_head = head - ${begin}u;
//#if PART_${p}_QUERY_NORM
        norm_query(0u, lane);
//#else if PART_${p}_KEY_NORM
        norm_key(0u, lane);
//#else if PART_${p}_VALUE_NORM
        norm_value(0u, lane);
//#endif
//#if PART_${p}_ROPE
        rope_vectors(0u, 1u, lane);
//#endif
//#if PART_${p}_KEYS
        store_key(packed(0u, lane), head_of_page(table_of(row), position, part_head), position % PAGE_TOKENS, lane);
//#else if PART_${p}_LATENT
        store_latent(packed(0u, lane), head_of_page(table_of(row), position, part_head), position % PAGE_TOKENS, lane);
//#else if PART_${p}_VALUES
        store_value(packed(0u, lane), head_of_page(table_of(row), position, part_head), position % PAGE_TOKENS, lane);
//#else
        for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
            output[row * OUTPUT_STRIDE + part_head * HEAD_DIM + i] = vectors[i] * ${scale};
        }
//#endif
    }
//#end
}
