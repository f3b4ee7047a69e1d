// Four int8 codes in a word, the first in its lowest byte.

fn int8_codes(word: u32) -> vec4<f32> {
    let lifted = bitcast<vec4<i32>>(vec4<u32>(word << 24u, word << 16u, word << 8u, word));
    return vec4<f32>(lifted >> vec4<u32>(24u));
}

fn int8_word(codes: vec4<i32>) -> u32 {
    let bytes = bitcast<vec4<u32>>(codes) & vec4<u32>(255u);
    return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
}
