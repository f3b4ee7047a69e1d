// Operands of a GEMM as f16, eight a word.

var<workgroup> activation_tile: array<vec4<u32>, BUFFERS * ACTIVATION_ROWS * ROW_WORDS>;
var<workgroup> weight_tile: array<vec4<u32>, BUFFERS * MATRIX_ROWS * ROW_WORDS>;

fn halves_of(word: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(word));
}

fn word_of(pair: vec2<f16>) -> u32 {
    return pack2x16float(vec2<f32>(pair));
}

fn twice(half: u32) -> vec2<f16> {
    return halves_of(half | (half << 16u));
}

// Codes become f16 without a conversion: 0x6400 + code is 1024 + code. Taking codes two at a time from a word, 16 bits apart,
// gives columns in the order 0 2 1 3 4 6 5 7; a dot product does not mind, as long as activations lie in the same order.

// Two weights from two codes that stand in the low bits of either half of a word.
fn weights_of(codes: u32, zero: vec2<f16>, scale: vec2<f16>) -> u32 {
    return word_of((halves_of(codes | 0x64006400u) - zero) * scale);
}

//#if INT4
// Eight weights of a word of codes.
fn eight_weights(codes: u32, param: u32) -> vec4<u32> {
    let scale = twice((param & ${INT4_SCALE_MASK}u) << ${INT4_SCALE_SHIFT}u);
    let zero = twice((param >> ${INT4_ZERO_SHIFT}u) | 0x6400u);
    return vec4<u32>(
        weights_of(codes & 0x000f000fu, zero, scale),
        weights_of((codes >> 8u) & 0x000f000fu, zero, scale),
        weights_of((codes >> 4u) & 0x000f000fu, zero, scale),
        weights_of((codes >> 12u) & 0x000f000fu, zero, scale),
    );
}
//#endif

//#if INT8
// Eight weights of two words of codes. With its sign bit flipped a code is code + 128.
fn eight_weights(codes: vec2<u32>, param: u32) -> vec4<u32> {
    let scale = twice(param);
    let zero = twice(0x6480u);
    let lifted = codes ^ vec2<u32>(0x80808080u);
    let even = lifted & vec2<u32>(0x00ff00ffu);
    let odd = (lifted >> vec2<u32>(8u)) & vec2<u32>(0x00ff00ffu);
    return vec4<u32>(
        weights_of(even.x, zero, scale),
        weights_of(odd.x, zero, scale),
        weights_of(even.y, zero, scale),
        weights_of(odd.y, zero, scale),
    );
}
//#endif

// The factor of the row of the step at this word: what its values are divided by while they are f16, and results multiplied.
fn row_factor(row_at: u32) -> f32 {
    return bitcast<f32>(code_word(row_at + FACTOR_AT));
}

// A power of two's inverse is made by its exponent alone.
fn inverse_factor(row_at: u32) -> f32 {
    return bitcast<f32>((254u << 23u) - code_word(row_at + FACTOR_AT));
}

// Exact, because of the few bits that scales have.
fn half_scale(group_word: u32, inverse: f32) -> vec2<f16> {
    return vec2<f16>(f16(group_scale(group_word) * inverse));
}

const LIFT = vec2<f16>(1152.0h);

// Eight codes of two words as LIFT + code, two a word, in the order of the weights.
fn lifted(codes: vec2<u32>) -> vec4<u32> {
    let flipped = codes ^ vec2<u32>(0x80808080u);
//#if INTERLEAVED
    let pairs = vec4<u32>(flipped.x, flipped.x >> 8u, flipped.y, flipped.y >> 8u) & vec4<u32>(0x00ff00ffu);
//#else
    let two = vec4<u32>(flipped.x, flipped.x >> 16u, flipped.y, flipped.y >> 16u);
    let pairs = (two & vec4<u32>(0xffu)) | ((two & vec4<u32>(0xff00u)) << vec4<u32>(8u));
//#endif
    return pairs | vec4<u32>(0x64006400u);
}

//#if INT11
fn two_activations(high: u32, low: u32, scale: vec2<f16>) -> u32 {
    return word_of(((halves_of(high) - LIFT) * 16.0h + (halves_of(low) - LIFT)) * scale);
}

// Eight activations of their codes' high and low planes.
fn eight_activations(high: vec2<u32>, low: vec2<u32>, scale: vec2<f16>) -> vec4<u32> {
    let h = lifted(high);
    let l = lifted(low);
    return vec4<u32>(
        two_activations(h.x, l.x, scale),
        two_activations(h.y, l.y, scale),
        two_activations(h.z, l.z, scale),
        two_activations(h.w, l.w, scale),
    );
}
//#else
fn two_activations(code: u32, scale: vec2<f16>) -> u32 {
    return word_of((halves_of(code) - LIFT) * scale);
}

fn eight_activations(codes: vec2<u32>, scale: vec2<f16>) -> vec4<u32> {
    let c = lifted(codes);
    return vec4<u32>(
        two_activations(c.x, scale),
        two_activations(c.y, scale),
        two_activations(c.z, scale),
        two_activations(c.w, scale),
    );
}
//#endif
