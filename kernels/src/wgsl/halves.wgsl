// Weights that become f16 without a conversion: as the bits of an f16, 0x6400 + code is 1024 + code.
//#intrinsic bitcast_half2
//#intrinsic bitcast_word

fn twice(half: u32) -> vec2<f16> {
    return bitcast_half2(half | (half << 16u));
}

// Two weights from two codes that stand in the low bits of either half of a word; `zero` is 1024 + zero.
fn weights_of(codes: u32, zero: vec2<f16>, scale: vec2<f16>) -> u32 {
    return bitcast_word((bitcast_half2(codes | 0x64006400u) - zero) * scale);
}

// The same from codes four bits further up, where they need not be shifted: 1024 + 16 * code is 16 * (64 + code).
fn weights_of_high(codes: u32, zero: vec2<f16>, scale: vec2<f16>) -> u32 {
    return bitcast_word(fma(bitcast_half2(codes | 0x64006400u), vec2<f16>(0.0625h), vec2<f16>(960.0h) - zero) * scale);
}
