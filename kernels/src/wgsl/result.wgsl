// One head of attention's result, four elements a lane. Called by all lanes of a workgroup together.
//#if ENCODE
//#include encode
//#include encode_row

fn store_result(row: u32, head: u32, quad: u32, value: vec4<f32>, lane: u32) {
    // Lanes past the head's end have nothing to store.
    let at = select(0xffffffffu, head * HEAD_QUADS + quad, quad < HEAD_QUADS);
    store_quad(row * OUTPUT_STRIDE, at, value, lane);
}
//#else
fn store_result(row: u32, head: u32, quad: u32, value: vec4<f32>, lane: u32) {
    let at = row * OUTPUT_STRIDE + head * RESULT_STRIDE;
    for (var i = 0u; i < 4u; i++) {
        if (4u * quad + i < RESULT_DIM) {
            output[at + 4u * quad + i] = value[i];
        }
    }
}
//#endif
