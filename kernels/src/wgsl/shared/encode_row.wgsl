// Stores quads of a row as `encode` makes them, in the words of `encoded` from `row_at` on.

fn greatest(x: vec4<f32>) -> f32 {
    let size = abs(x);
    return max(max(size.x, size.y), max(size.z, size.w));
}

//#if ENCODE_FACTOR
// Stores the factor of a row of this greatest magnitude.
fn store_factor(row_at: u32, most: f32, lane: u32) {
    if (lane == 0u) {
        encoded[row_at + FACTOR_AT] = bitcast<u32>(row_factor(most));
    }
}
//#endif

fn store_quad(row_at: u32, quad: u32, x: vec4<f32>, lane: u32) {
    let quantised = quantise(x, lane);
    let words = code_words(quantised);
    let of_group = group_word(quantised, lane);
    if (quad < GROUPS * 8u) {
        encoded[row_at + code_word_at(quad)] = words.x;
//#if INT11
        encoded[row_at + code_word_at(quad) + 8u] = words.y;
//#endif
        if (quad % 8u == 0u) {
            encoded[row_at + GROUP_WORDS_AT + quad / 8u] = of_group;
        }
    }
}
