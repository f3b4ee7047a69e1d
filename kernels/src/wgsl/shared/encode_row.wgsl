// Stores quads of a row as `encode` makes them, in the words of `encoded` from `row_at` on.

fn greatest(x: vec4<f32>) -> f32 {
    let size = abs(x);
    return max(max(size.x, size.y), max(size.z, size.w));
}

//#if ENCODE_HALF
// The factor for this row's quads; what undoes it is stored with the row.
fn begin_row(row_at: u32, most: f32, lane: u32) -> f32 {
    let factor = row_factor(most);
    if (lane == 0u) {
        encoded[row_at + HALF_FACTOR_AT] = bitcast<u32>(factor.x);
    }
    return factor.y;
}

fn store_quad(row_at: u32, quad: u32, x: vec4<f32>, factor: f32, lane: u32) {
    let words = half_words(quantise(x, lane), factor);
    if (quad < GROUPS * 8u) {
        encoded[row_at + 2u * quad] = words.x;
        encoded[row_at + 2u * quad + 1u] = words.y;
    }
}
//#else
// `factor` is for the other format.
fn store_quad(row_at: u32, quad: u32, x: vec4<f32>, factor: f32, lane: u32) {
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
//#endif
