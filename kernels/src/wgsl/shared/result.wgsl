// One head of attention's result, four elements a lane. Called by all lanes of a workgroup together.
//#if ENCODE
//#include encode
//#endif

fn put_result(row: u32, head: u32, quad: u32, value: vec4<f32>, lane: u32) {
//#if ENCODE
    // Lanes past the head's end hold another group's zeros, or nobody's.
    let quantised = quantise(value, lane);
    let of_group = group_word(quantised, lane);
    if (quad < HEAD_QUADS) {
        let at = head * HEAD_QUADS + quad;
        encoded[row * OUTPUT_STRIDE + code_word_at(at)] = code_words(quantised).x;
        if (quad % 8u == 0u) {
            encoded[row * OUTPUT_STRIDE + GROUP_WORDS_AT + at / 8u] = of_group;
        }
    }
//#else
    let at = row * OUTPUT_STRIDE + head * HEAD_DIM;
    for (var i = 0u; i < 4u; i++) {
        if (4u * quad + i < HEAD_DIM) {
            output[at + 4u * quad + i] = value[i];
        }
    }
//#endif
}
