// Quantises activations, four a lane, eight neighbouring lanes a group of 32; formats are drawn in kernels/src/activation_format.rs.
// Called by all lanes of a workgroup together.

//#if SUBGROUPS
fn octet_max(value: f32, lane: u32) -> f32 {
    var most = max(value, subgroupShuffleXor(value, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    return max(most, subgroupShuffleXor(most, 4u));
}

fn octet_sum(value: f32, lane: u32) -> f32 {
    var total = value + subgroupShuffleXor(value, 1u);
    total += subgroupShuffleXor(total, 2u);
    return total + subgroupShuffleXor(total, 4u);
}
//#else
var<workgroup> octet_parts: array<f32, WORKGROUP>;

fn octet_max(value: f32, lane: u32) -> f32 {
    octet_parts[lane] = value;
    workgroupBarrier();
    var most = value;
    for (var i = 0u; i < 8u; i++) {
        most = max(most, octet_parts[(lane & ~7u) + i]);
    }
    workgroupBarrier();
    return most;
}

fn octet_sum(value: f32, lane: u32) -> f32 {
    octet_parts[lane] = value;
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < 8u; i++) {
        total += octet_parts[(lane & ~7u) + i];
    }
    workgroupBarrier();
    return total;
}
//#endif

struct Quantised {
    codes: vec4<f32>,
    scale: f32,
}

fn quantise(x: vec4<f32>, lane: u32) -> Quantised {
    let size = abs(x);
    let most = octet_max(max(max(size.x, size.y), max(size.z, size.w)), lane);
    let exact = bitcast<u32>(max(most, 1e-30) / CODE_MAX);
    let scale = bitcast<f32>((exact + ~SCALE_MASK) & SCALE_MASK);
    return Quantised(clamp(round(x * (1.0 / scale)), vec4<f32>(-CODE_MAX), vec4<f32>(CODE_MAX)), scale);
}

//#include int8

//#if INT11
// Words of the high and the low plane.
fn code_words(quantised: Quantised) -> vec2<u32> {
    let codes = vec4<i32>(quantised.codes);
    let high = (codes + 8) >> vec4<u32>(4u);
    return vec2<u32>(int8_word(high), int8_word(codes - 16 * high));
}
//#else
fn code_words(quantised: Quantised) -> vec2<u32> {
    return vec2<u32>(int8_word(vec4<i32>(quantised.codes)), 0u);
}
//#endif

// The word of a group: bf16 scale and the sum of its codes; the same in its eight lanes.
fn group_word(quantised: Quantised, lane: u32) -> u32 {
    let sum = octet_sum(dot(quantised.codes, vec4<f32>(1.0)), lane);
    return bitcast<u32>(quantised.scale) | (bitcast<u32>(i32(sum)) & 0xffffu);
}

// Place of the word of four codes, in a row's words, of plane 0; the low plane's lies 8 words on.
fn code_word_at(quad: u32) -> u32 {
    return (quad / 8u) * 8u * PLANES + quad % 8u;
}

//#if ENCODE_FACTOR
// The power of two by which f16 values of a row of this largest magnitude are to be multiplied.
fn row_factor(most: f32) -> f32 {
    return bitcast<f32>(((bitcast<u32>(max(most, 1e-30)) >> 23u) - 13u) << 23u);
}
//#endif
