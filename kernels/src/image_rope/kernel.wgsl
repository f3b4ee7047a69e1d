// One lane a pair of a head of a patch's row.
${DECLARATIONS}
//#include patch_place

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    let i = group.x * WORKGROUP + lane;
    if (row >= ${ROWS} || i >= ALL_PAIRS) {
        return;
    }
    let head = i / PAIRS;
    let pair = i % PAIRS;
    let place = patch_place(row);
    let of_axis = select(place.x, place.y, pair < FREQUENCIES);
    let rotation = rope_table[of_axis * FREQUENCIES + pair % FREQUENCIES];
    let column = head * 2u * PAIRS + pair;
    let low = input[row * INPUT_STRIDE + column];
    let high = input[row * INPUT_STRIDE + column + PAIRS];
    output[row * OUTPUT_STRIDE + column] = low * rotation.x - high * rotation.y;
    output[row * OUTPUT_STRIDE + column + PAIRS] = high * rotation.x + low * rotation.y;
}
