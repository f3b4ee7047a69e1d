// MXFP4's codes as levels, 0 1 2 3 4 6 8 12 and the same negated, see artifacts/src/fp4.rs.

// Levels + ${FP4_ZERO} of four codes, one in the low bits of each byte: no byte borrows from the next.
fn fp4_levels(codes: u32) -> u32 {
    let ones = 0x01010101u;
    let of_four = (codes >> 2u) & ones;
    let of_six = (codes >> 1u) & of_four;
    let odd = codes & of_four;
    // 5 stands for one more than itself, 6 for two more, 7 for five more.
    let magnitudes = (codes & 0x07070707u) + odd + ((of_six + (of_six & odd)) << 1u);
    let negative = magnitudes & (((codes >> 3u) & ones) * 15u);
    return ${FP4_ZERO}u * ones + magnitudes - (negative << 1u);
}

fn fp4_levels_of_words(codes: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(fp4_levels(codes.x), fp4_levels(codes.y), fp4_levels(codes.z), fp4_levels(codes.w));
}
