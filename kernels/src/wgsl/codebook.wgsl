// Levels of the codes of a codebook, four in a word, one a byte.

// Those of a word's eight codes: of the low halves of its bytes, and of the high ones.
struct Levels {
    low: u32,
    high: u32,
}

//#if IQ4
// Levels of IQ4_NL and IQ4_XS, see artifacts/src/codebook.rs. Bit n of a level is a function of the four bits of its code; it is
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

// Signed bytes.
fn iq4_levels(word: u32) -> Levels {
    let low_halves = iq4_half(
        iq4_bit_0(word, word >> 1u, word >> 2u, word >> 3u),
        iq4_bit_1(word << 1u, word, word >> 1u, word >> 2u),
        iq4_bit_2(word << 2u, word << 1u, word, word >> 1u),
        iq4_bit_3(word << 3u, word << 2u, word << 1u, word),
    );
    let high_halves = iq4_half(
        iq4_bit_4(word, word >> 1u, word >> 2u, word >> 3u),
        iq4_bit_5(word << 1u, word, word >> 1u, word >> 2u),
        iq4_bit_6(word << 2u, word << 1u, word, word >> 1u),
        ~word,
    );
    return Levels(
        iq4_select(0x0f0f0f0fu, low_halves, high_halves << 4u),
        iq4_select(0x0f0f0f0fu, low_halves >> 4u, high_halves),
    );
}

// Levels as products of signed bytes take them.
fn dot_levels(word: u32) -> Levels {
    return iq4_levels(word);
}

// Levels + ${CODEBOOK_ZERO}.
fn lifted_levels(word: u32) -> Levels {
    let levels = iq4_levels(word);
    return Levels(levels.low ^ 0x80808080u, levels.high ^ 0x80808080u);
}
//#else
// MXFP4's codes as levels, 0 1 2 3 4 6 8 12 and the same negated, see artifacts/src/fp4.rs.

// Levels + ${CODEBOOK_ZERO} of the codes in the low halves of the bytes: no byte borrows from the next.
fn fp4_levels(word: u32) -> u32 {
    let ones = 0x01010101u;
    let of_four = (word >> 2u) & ones;
    let of_six = (word >> 1u) & of_four;
    let odd = word & of_four;
    // 5 stands for one more than itself, 6 for two more, 7 for five more.
    let magnitudes = (word & 0x07070707u) + odd + ((of_six + (of_six & odd)) << 1u);
    let negative = magnitudes & (((word >> 3u) & ones) * 15u);
    return ${CODEBOOK_ZERO}u * ones + magnitudes - (negative << 1u);
}

// Levels + ${CODEBOOK_ZERO}.
fn lifted_levels(word: u32) -> Levels {
    return Levels(fp4_levels(word), fp4_levels(word >> 4u));
}

// Levels as products of signed bytes take them, ${CODEBOOK_ZERO} too much.
fn dot_levels(word: u32) -> Levels {
    return lifted_levels(word);
}
//#endif
