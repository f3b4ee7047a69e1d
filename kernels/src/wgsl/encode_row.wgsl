// Stores quads of a row as `encode` makes them, in the words of `encoded` from `row_at` on.

fn largest(x: vec4<f32>) -> f32 {
    let size = abs(x);
    return max(max(size.x, size.y), max(size.z, size.w));
}

//#if GIVEN_FACTOR
const inverse_factor = 1.0 / FACTOR;

//#else
//#if ENCODE_FACTOR
//#if HALVES
var<private> inverse_factor: f32;

//#endif
// Stores the factor of a row of this largest magnitude; before the row's quads.
fn store_factor(row_at: u32, most: f32, lane: u32) {
    let factor = bitcast<u32>(row_factor(most));
//#if HALVES
    // A power of two's inverse is made by its exponent alone.
    inverse_factor = bitcast<f32>((254u << 23u) - factor);
//#endif
    if (lane == 0u) {
        encoded[row_at + FACTOR_AT] = factor;
    }
}
//#endif
//#endif

fn store_quad(row_at: u32, quad: u32, x: vec4<f32>, lane: u32) {
    let quantised = quantise(x, lane);
//#if GIVEN_FACTOR
    if (quad == 0u) {
        encoded[row_at + FACTOR_AT] = bitcast<u32>(FACTOR);
    }
//#endif
//#if HALVES
    if (quad < STORED_QUADS) {
        let values = quantised.codes * (quantised.scale * inverse_factor);
        // Quads of a block of 128 elements: t and d of the drawing.
        let at = row_at + quad / 32u * 64u + quad % 8u * 8u + quad / 8u % 4u;
        encoded[at] = pack2x16float(values.xz);
        encoded[at + 4u] = pack2x16float(values.yw);
    }
//#else
    let words = code_words(quantised);
    let of_group = group_word(quantised, lane);
    if (quad < STORED_QUADS) {
        encoded[row_at + code_word_at(quad)] = words.x;
//#if INT11
        encoded[row_at + code_word_at(quad) + 8u] = words.y;
//#endif
        if (quad % 8u == 0u) {
            encoded[row_at + GROUP_WORDS_AT + quad / 8u] = of_group;
        }
    }
//#endif
}
