// Levels of the codes of a codebook. A word has eight codes: four in the low halves of its bytes, four in the high ones.
//#if IQ4
// Levels of IQ4_NL and IQ4_XS as signed bytes, see artifacts/src/codebook.rs. Bit n of a level is a function of the four bits of its code; it is
// computed for the eight codes of a word at once, in the place of bit n % 4 of the codes. Each function is two or three of three inputs,
// an instruction each where a GPU has such.

fn iq4_select(mask: u32, if_set: u32, otherwise: u32) -> u32 {
    return otherwise ^ (mask & (if_set ^ otherwise));
}

// Puts bits 0 to 3 of eight half bytes together.
fn iq4_half(bit_0: u32, bit_1: u32, bit_2: u32, bit_3: u32) -> u32 {
    return iq4_select(0x33333333u, iq4_select(0x55555555u, bit_0, bit_1), iq4_select(0x55555555u, bit_2, bit_3));
}

fn iq4_bit_0(b0: u32, b1: u32, b2: u32, b3: u32) -> u32 {
    let h = b3 ^ (b1 | (b2 & b3));
    return (h ^ b2) | ~(h | b0);
}

fn iq4_bit_1(b0: u32, b1: u32, b2: u32, b3: u32) -> u32 {
    let h = b0 & (b1 ^ b2);
    return b2 ^ (h | (b2 & b3));
}

fn iq4_bit_2(b0: u32, b1: u32, b2: u32, b3: u32) -> u32 {
    return iq4_select(b0, (b1 ^ b2) | (b1 ^ b3), b1 ^ (b2 | (b1 & b3)));
}

fn iq4_bit_3(b0: u32, b1: u32, b2: u32, b3: u32) -> u32 {
    return iq4_select(b1, ~(b0 & (b2 | b3)), (b0 | b2) ^ (b2 & b3));
}

fn iq4_bit_4(b0: u32, b1: u32, b2: u32, b3: u32) -> u32 {
    let h = (b0 ^ b1) | (b0 ^ b2);
    return b0 ^ (h & b3);
}

fn iq4_bit_5(b0: u32, b1: u32, b2: u32, b3: u32) -> u32 {
    let h = ~b0 & (b1 | b2);
    return b1 ^ (h & b3);
}

fn iq4_bit_6(b0: u32, b1: u32, b2: u32, b3: u32) -> u32 {
    let h = b0 | b1;
    return b2 & (h | ~b3);
}

// Low halves of the eight levels.
fn iq4_low_halves(word: u32) -> u32 {
    return iq4_half(
        iq4_bit_0(word, word >> 1u, word >> 2u, word >> 3u),
        iq4_bit_1(word << 1u, word, word >> 1u, word >> 2u),
        iq4_bit_2(word << 2u, word << 1u, word, word >> 1u),
        iq4_bit_3(word << 3u, word << 2u, word << 1u, word),
    );
}

fn iq4_high_halves(word: u32) -> u32 {
    return iq4_half(
        iq4_bit_4(word, word >> 1u, word >> 2u, word >> 3u),
        iq4_bit_5(word << 1u, word, word >> 1u, word >> 2u),
        iq4_bit_6(word << 2u, word << 1u, word, word >> 1u),
        ~word,
    );
}

// A driver finds what this and the next have in common.
fn iq4_signed_low_levels(word: u32) -> u32 {
    return iq4_select(0x0f0f0f0fu, iq4_low_halves(word), iq4_high_halves(word) << 4u);
}

fn iq4_signed_high_levels(word: u32) -> u32 {
    return iq4_select(0x0f0f0f0fu, iq4_low_halves(word) >> 4u, iq4_high_halves(word));
}

// Levels + ${CODEBOOK_ZERO} of the codes in the low halves of a word's bytes.
fn iq4_low_levels(word: u32) -> u32 {
    return iq4_signed_low_levels(word) ^ 0x80808080u;
}

// The same of those in the high halves.
fn iq4_high_levels(word: u32) -> u32 {
    return iq4_signed_high_levels(word) ^ 0x80808080u;
}

// Of four words, as products of signed bytes take them: signed.
fn iq4_low_levels_of_words(words: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(
        iq4_signed_low_levels(words.x),
        iq4_signed_low_levels(words.y),
        iq4_signed_low_levels(words.z),
        iq4_signed_low_levels(words.w),
    );
}

fn iq4_high_levels_of_words(words: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(
        iq4_signed_high_levels(words.x),
        iq4_signed_high_levels(words.y),
        iq4_signed_high_levels(words.z),
        iq4_signed_high_levels(words.w),
    );
}
//#else
// MXFP4's codes as levels, 0 1 2 3 4 6 8 12 and the same negated, see artifacts/src/fp4.rs.

// Levels + ${CODEBOOK_ZERO} of the codes in the low halves of a word's bytes: no byte borrows from the next.
fn fp4_low_levels(word: u32) -> u32 {
    let ones = 0x01010101u;
    let of_four = (word >> 2u) & ones;
    let of_six = (word >> 1u) & of_four;
    let odd = word & of_four;
    // 5 stands for one more than itself, 6 for two more, 7 for five more.
    let magnitudes = (word & 0x07070707u) + odd + ((of_six + (of_six & odd)) << 1u);
    let negative = magnitudes & (((word >> 3u) & ones) * 15u);
    return ${CODEBOOK_ZERO}u * ones + magnitudes - (negative << 1u);
}

// The same of those in the high halves.
fn fp4_high_levels(word: u32) -> u32 {
    return fp4_low_levels(word >> 4u);
}

// Of four words.
fn fp4_low_levels_of_words(words: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(fp4_low_levels(words.x), fp4_low_levels(words.y), fp4_low_levels(words.z), fp4_low_levels(words.w));
}

fn fp4_high_levels_of_words(words: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(fp4_high_levels(words.x), fp4_high_levels(words.y), fp4_high_levels(words.z), fp4_high_levels(words.w));
}
//#endif
