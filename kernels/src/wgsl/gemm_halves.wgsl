// Operands of a GEMM as f16, eight a word.

var<workgroup> activation_tile: array<vec4<u32>, BUFFERS * STEP_ROWS * ROW_WORDS>;
var<workgroup> weight_tile: array<vec4<u32>, BUFFERS * MATRIX_ROWS * ROW_WORDS>;

//#include halves
//#intrinsic coop_load_half_a
//#intrinsic coop_load_half_b

// Taking codes two at a time from a word, 16 bits apart, gives columns in the order 0 2 1 3 4 6 5 7; a dot product does not depend on the order, as
// long as activations lie in the same order.

//#if CODEBOOK
//#include codebook

// Eight weights of a word of codes.
fn eight_weights(codes: u32, param: u32) -> vec4<u32> {
    let scale = twice(param);
    let zero = twice(0x6480u);
    let levels = lifted_levels(codes);
    let low = levels.low;
    let high = levels.high;
    return vec4<u32>(
        weights_of(low & 0x00ff00ffu, zero, scale),
        weights_of((low >> 8u) & 0x00ff00ffu, zero, scale),
        weights_of(high & 0x00ff00ffu, zero, scale),
        weights_of((high >> 8u) & 0x00ff00ffu, zero, scale),
    );
}
//#else if INT4
// Eight weights of a word of codes.
fn eight_weights(codes: u32, param: u32) -> vec4<u32> {
    let scale = twice((param & ${INT4_SCALE_MASK}u) << ${INT4_SCALE_SHIFT}u);
    let zero = twice((param >> ${INT4_ZERO_SHIFT}u) | 0x6400u);
    let odd = codes >> 8u;
    return vec4<u32>(
        weights_of(codes & 0x000f000fu, zero, scale),
        weights_of(odd & 0x000f000fu, zero, scale),
        weights_of_high(codes & 0x00f000f0u, zero, scale),
        weights_of_high(odd & 0x00f000f0u, zero, scale),
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

// The factor of a row of the step: what its values are divided by while they are f16, and results multiplied.
fn row_factor(step_row: u32) -> f32 {
//#if BY_EXPERT
    return bitcast<f32>(code_word(activation_row(result_row(step_row)) * INPUT_STRIDE + FACTOR_AT));
//#else
    return bitcast<f32>(code_word(step_row * INPUT_STRIDE + FACTOR_AT));
//#endif
}

// A power of two's inverse is made by its exponent alone.
fn inverse_factor(row_at: u32) -> f32 {
    return bitcast<f32>((254u << 23u) - code_word(row_at + FACTOR_AT));
}

// Eight codes of two words as code + 128, two a word and 16 bits apart, in the order of the weights.
fn pairs_of(codes: vec2<u32>) -> vec4<u32> {
    let flipped = codes ^ vec2<u32>(0x80808080u);
//#if INTERLEAVED
    return vec4<u32>(flipped.x, flipped.x >> 8u, flipped.y, flipped.y >> 8u) & vec4<u32>(0x00ff00ffu);
//#else
    let two = vec4<u32>(flipped.x, flipped.x >> 16u, flipped.y, flipped.y >> 16u);
    return (two & vec4<u32>(0xffu)) | ((two & vec4<u32>(0xff00u)) << vec4<u32>(8u));
//#endif
}

//#if INT11
// Two codes from what is 16 * (high + 128) + low + 128 in either half of a word. In f32, because 1024 + code is no f16, and
// drivers that reorder sums of f16 lose the low plane.
fn two_activations(codes: u32, scale: f32) -> u32 {
    let lifted = vec2<f32>(f32(codes & 0xffffu), f32(codes >> 16u));
    return pack2x16float((lifted - vec2<f32>(2176.0)) * scale);
}

// Eight activations of their codes' high and low planes.
fn eight_activations(high: vec2<u32>, low: vec2<u32>, scale: f32) -> vec4<u32> {
    let c = (pairs_of(high) << vec4<u32>(4u)) + pairs_of(low);
    return vec4<u32>(
        two_activations(c.x, scale),
        two_activations(c.y, scale),
        two_activations(c.z, scale),
        two_activations(c.w, scale),
    );
}
//#else
fn two_activations(pair: u32, scale: vec2<f16>) -> u32 {
    return bitcast_word((bitcast_half2(pair | 0x64006400u) - vec2<f16>(1152.0h)) * scale);
}

// Exact, because of the few bits that scales have.
fn eight_activations(codes: vec2<u32>, factor: f32) -> vec4<u32> {
    let c = pairs_of(codes);
    let scale = vec2<f16>(f16(factor));
    return vec4<u32>(
        two_activations(c.x, scale),
        two_activations(c.y, scale),
        two_activations(c.z, scale),
        two_activations(c.w, scale),
    );
}
//#endif
