//#if IQ4
// Levels of IQ4_NL and IQ4_XS, see artifacts/src/codebook.rs.

// `if_set` in the bits of `mask` that are set, `otherwise` in the rest.
fn iq4_choice(mask: u32, if_set: u32, otherwise: u32) -> u32 {
    return otherwise ^ (mask & (if_set ^ otherwise));
}

// Levels + 128 of four codes, one in the low bits of each byte. For four codes at a time, each bit of a code halves the levels that it
// may be: first the two constants of each pair, then what is left of the pairs.
fn iq4_levels(codes: u32) -> u32 {
    let ones = vec4<u32>(0x01010101u);
    let bits = (vec4<u32>(codes) >> vec4<u32>(0u, 1u, 2u, 3u)) & ones;
    // Whole bytes of ones where a code has the bit.
    let masks = (bits << vec4<u32>(8u)) - bits;
    let pair_0 = iq4_choice(masks.x, 0x18181818u, 0x01010101u);
    let pair_1 = iq4_choice(masks.x, 0x3f3f3f3fu, 0x2d2d2d2du);
    let pair_2 = iq4_choice(masks.x, 0x5d5d5d5du, 0x4f4f4f4fu);
    let pair_3 = iq4_choice(masks.x, 0x76767676u, 0x6a6a6a6au);
    let pair_4 = iq4_choice(masks.x, 0x8d8d8d8du, 0x81818181u);
    let pair_5 = iq4_choice(masks.x, 0xa6a6a6a6u, 0x99999999u);
    let pair_6 = iq4_choice(masks.x, 0xc5c5c5c5u, 0xb5b5b5b5u);
    let pair_7 = iq4_choice(masks.x, 0xf1f1f1f1u, 0xd9d9d9d9u);
    let below_8 = iq4_choice(masks.z, iq4_choice(masks.y, pair_3, pair_2), iq4_choice(masks.y, pair_1, pair_0));
    let from_8 = iq4_choice(masks.z, iq4_choice(masks.y, pair_7, pair_6), iq4_choice(masks.y, pair_5, pair_4));
    return iq4_choice(masks.w, from_8, below_8);
}

// Levels as signed bytes, which products of signed bytes take: levels + 128 are none.
fn iq4_levels_of_words(codes: vec4<u32>) -> vec4<u32> {
    let lifted = vec4<u32>(iq4_levels(codes.x), iq4_levels(codes.y), iq4_levels(codes.z), iq4_levels(codes.w));
    return lifted ^ vec4<u32>(0x80808080u);
}
//#else
// MXFP4's codes as levels, 0 1 2 3 4 6 8 12 and the same negated, see artifacts/src/fp4.rs.

// Levels + ${CODEBOOK_ZERO} of four codes, one in the low bits of each byte: no byte borrows from the next.
fn fp4_levels(codes: u32) -> u32 {
    let ones = 0x01010101u;
    let of_four = (codes >> 2u) & ones;
    let of_six = (codes >> 1u) & of_four;
    let odd = codes & of_four;
    // 5 stands for one more than itself, 6 for two more, 7 for five more.
    let magnitudes = (codes & 0x07070707u) + odd + ((of_six + (of_six & odd)) << 1u);
    let negative = magnitudes & (((codes >> 3u) & ones) * 15u);
    return ${CODEBOOK_ZERO}u * ones + magnitudes - (negative << 1u);
}

fn fp4_levels_of_words(codes: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(fp4_levels(codes.x), fp4_levels(codes.y), fp4_levels(codes.z), fp4_levels(codes.w));
}
//#endif
