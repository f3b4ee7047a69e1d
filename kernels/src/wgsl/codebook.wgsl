// Levels of the codes of a codebook, four in a word, one a signed byte.

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

fn signed_levels(word: u32) -> Levels {
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

//#else
// MXFP4's codes as levels, 0 1 2 3 4 6 8 12 and the same negated, see artifacts/src/fp4.rs; the eight codes of a word at once, in half
// bytes, of which none carries into the next.
fn signed_levels(word: u32) -> Levels {
    let ones = 0x11111111u;
    let half = word >> 1u;
    let quarter = word >> 2u;
    let of_four = quarter & ones;
    // 5 stands for one more than itself, 6 for two more, 7 for five more.
    let magnitudes = (word & 0x77777777u) + (word & (of_four | (of_four << 1u))) + ((word & half & of_four) << 1u);
    // A negated 0 is 0.
    let negative = (word >> 3u) & (word | half | quarter) & ones;
    let signs = (negative << 4u) - negative;
    let halves = (magnitudes ^ signs) + negative;
    return Levels(
        (halves & 0x0f0f0f0fu) | ((signs << 4u) & 0xf0f0f0f0u),
        ((halves >> 4u) & 0x0f0f0f0fu) | (signs & 0xf0f0f0f0u),
    );
}
//#endif

// Levels + 128, as unsigned bytes.
fn lifted_levels(word: u32) -> Levels {
    let levels = signed_levels(word);
    return Levels(levels.low ^ 0x80808080u, levels.high ^ 0x80808080u);
}
