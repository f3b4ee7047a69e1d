// One workgroup a head of a row: load it, norm it, turn it, put it where attention finds it.
${DECLARATIONS}
//#include reduce
//#if CACHE
//#include cache
//#endif
//#include vectors

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let row = group.y;
    if (row >= step.header.n_rows) {
        return;
    }
    let position = step.rows[row].position;
    fetch_vectors(0u, 1u, row * INPUT_STRIDE + head * HEAD_DIM, lane);
//#if ROPE
    fetch_turns(row, lane);
//#endif
    workgroupBarrier();
${PARTS}
}
