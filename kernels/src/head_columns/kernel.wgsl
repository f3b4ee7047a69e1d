// One lane an element of the result.
${DECLARATIONS}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y;
    let at = group.x * WORKGROUP + lane;
    if (row >= step.header.n_rows || at >= COLUMNS) {
        return;
    }
    let head = at / WIDTH;
    let column = at % WIDTH;
    var value = 0.0;
//#for i in 0..PIECES
//#let head = PIECE_${i}_HEAD
//#let heads_end = PIECE_${i}_HEADS_END
//#let begin = PIECE_${i}_BEGIN
//#let end = PIECE_${i}_END
//#let row = PIECE_${i}_ROW
//#let stride = PIECE_${i}_STRIDE
//#let first = PIECE_${i}_FIRST
//#let source = PIECE_${i}_SOURCE
    if (head >= ${head}u && head < ${heads_end}u && column >= ${begin}u && column < ${end}u) {
        value = ${source}[row * ${row}u + (head - ${head}u) * ${stride}u + ${first}u + column - ${begin}u];
    }
//#end
    output[row * OUTPUT_STRIDE + head * HEAD_STRIDE + column] = value;
}
