// Codes of INT4 weights without their zero point, in f32; used beside `weights`.
//#if CODEBOOK
// The numbers of codes 0..4 of a word, and 4..8, without their scale.
fn int4_low_differences(word: u32, zero: f32) -> vec4<f32> {
    return int4_low(word) - vec4<f32>(zero);
}

fn int4_high_differences(word: u32, zero: f32) -> vec4<f32> {
    return int4_high(word) - vec4<f32>(zero);
}
//#else
// Codes 0..4 of a word, and 4..8, without their zero point. In the mantissa of a power of two a code is itself added to it, wherever its bits
// lie, which takes one instruction; a conversion of each takes three. Differences are exact.
fn int4_low_differences(word: u32, zero: f32) -> vec4<f32> {
    let codes = vec4<u32>(word, word, word, word >> 12u) & vec4<u32>(0xfu, 0xf00u, 0xf0000u, 0xf000u);
    let lifted = bitcast<vec4<f32>>(codes | vec4<u32>(0x4b000000u, 0x47000000u, 0x43000000u, 0x45000000u));
    return lifted - (vec4<f32>(8388608.0, 32768.0, 128.0, 2048.0) + vec4<f32>(zero));
}

fn int4_high_differences(word: u32, zero: f32) -> vec4<f32> {
    let codes = vec4<u32>(word, word, word >> 12u, word >> 12u) & vec4<u32>(0xf0u, 0xf000u, 0xf00u, 0xf0000u);
    let lifted = bitcast<vec4<f32>>(codes | vec4<u32>(0x49000000u, 0x45000000u, 0x47000000u, 0x43000000u));
    return lifted - (vec4<f32>(524288.0, 2048.0, 32768.0, 128.0) + vec4<f32>(zero));
}
//#endif
