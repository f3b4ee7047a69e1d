// Unpacking of packed weights; the layout is drawn in kernels/src/layout.rs, the numbers in artifacts/src/int4.rs.

//#include row_param

//#if INT4
const ZERO_SHIFT: u32 = ${INT4_ZERO_SHIFT}u;

fn int4_scale(param: u32) -> f32 {
    return unpack2x16float((param & ${INT4_SCALE_MASK}u) << ${INT4_SCALE_SHIFT}u).x;
}

//#if CODEBOOK
//#include codebook

// Levels are counted from -128, and codes of 4 bits are levels in all that follows.
fn int4_zero(param: u32) -> f32 {
    return 128.0;
}

fn four_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u) & vec4<u32>(255u));
}

fn int4_low(word: u32) -> vec4<f32> {
    return four_bytes(lifted_levels(word).low);
}

fn int4_high(word: u32) -> vec4<f32> {
    return four_bytes(lifted_levels(word).high);
}
//#else
fn int4_zero(param: u32) -> f32 {
    return f32(param >> ZERO_SHIFT);
}

// Codes 0..4 of a word of eight.
fn int4_low(word: u32) -> vec4<f32> {
    return vec4<f32>(vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u) & vec4<u32>(15u));
}

// Codes 4..8.
fn int4_high(word: u32) -> vec4<f32> {
    return vec4<f32>(vec4<u32>(word >> 4u, word >> 12u, word >> 20u, word >> 28u) & vec4<u32>(15u));
}
//#endif
//#endif

//#if INT8
//#include int8

fn int8_scale(param: u32) -> f32 {
    return unpack2x16float(param).x;
}
//#endif

//#if F16
fn f16_weights(low: u32, high: u32) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(low), unpack2x16float(high));
}
//#endif
