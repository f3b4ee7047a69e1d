// output[row of the step][matrix row] = dot(matrix row, input row) on matrix units, for programs of many rows.
//
// A workgroup makes STEP_ROWS x MATRIX_ROWS results, K columns a stage: weights become f16 on their way into workgroup
// memory, where both operands lie row by row along the columns. Each subgroup owns a rectangle of fragments.
${DECLARATIONS}
//#if ACT_MUL
//#include activation
//#endif

// Eight f16 a word. Rows are a word longer than their columns, so that eight of them lie in different banks.
const ROW_WORDS: u32 = K / 8u + 1u;
var<workgroup> activation_tile: array<vec4<u32>, BUFFERS * STEP_ROWS * ROW_WORDS>;
var<workgroup> weight_tile: array<vec4<u32>, BUFFERS * MATRIX_ROWS * ROW_WORDS>;
// A block of each subgroup, on its way out.
const RESULTS: u32 = BLOCK * BLOCK;
var<workgroup> results: array<f32, SUBGROUPS * RESULTS>;

fn halves_of(word: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(word));
}

fn word_of(pair: vec2<f16>) -> u32 {
    return pack2x16float(vec2<f32>(pair));
}

fn twice(half: u32) -> vec2<f16> {
    return halves_of(half | (half << 16u));
}

// The u16 parameter of row `row` of a tile from `pair`, word row / 2 of a block's parameters.
fn row_param(pair: u32, row: u32) -> u32 {
    return (pair >> (16u * (row & 1u))) & 0xffffu;
}

// Codes become f16 without a conversion: 0x6400 + code is 1024 + code. Taking codes two at a time from a word, 16 bits apart,
// gives columns in the order 0 2 1 3 4 6 5 7; a dot product does not mind, as long as activations lie in the same order.

// Two weights from two codes that stand in the low bits of either half of a word.
fn weights_of(codes: u32, zero: vec2<f16>, scale: vec2<f16>) -> u32 {
    return word_of((halves_of(codes | 0x64006400u) - zero) * scale);
}

//#if INT4
// Eight weights of a word of codes.
fn eight_weights(codes: u32, param: u32) -> vec4<u32> {
    let scale = twice((param & ${INT4_SCALE_MASK}u) << ${INT4_SCALE_SHIFT}u);
    let zero = twice((param >> ${INT4_ZERO_SHIFT}u) | 0x6400u);
    return vec4<u32>(
        weights_of(codes & 0x000f000fu, zero, scale),
        weights_of((codes >> 8u) & 0x000f000fu, zero, scale),
        weights_of((codes >> 4u) & 0x000f000fu, zero, scale),
        weights_of((codes >> 12u) & 0x000f000fu, zero, scale),
    );
}
//#endif

//#if INT8
// Eight weights of two words of codes. With its sign bit flipped a code is code + 128.
fn eight_weights(codes: vec2<u32>, param: u32) -> vec4<u32> {
    let scale = twice(param);
    let zero = twice(0x6480u);
    let lifted = codes ^ vec2<u32>(0x80808080u);
    let even = lifted & vec2<u32>(0x00ff00ffu);
    let odd = (lifted >> vec2<u32>(8u)) & vec2<u32>(0x00ff00ffu);
    return vec4<u32>(
        weights_of(even.x, zero, scale),
        weights_of(odd.x, zero, scale),
        weights_of(even.y, zero, scale),
        weights_of(odd.y, zero, scale),
    );
}
//#endif

// Eight activations in the order of the weights.
fn ordered(words: vec4<u32>) -> vec4<u32> {
//#if INTERLEAVED
    let even = (words.xz & vec2<u32>(0xffffu)) | (words.yw << vec2<u32>(16u));
    let odd = (words.xz >> vec2<u32>(16u)) | (words.yw & vec2<u32>(0xffff0000u));
    return vec4<u32>(even.x, odd.x, even.y, odd.y);
//#else
    return words;
//#endif
}

// What the values of a row of the step are to be multiplied by.
fn row_factor(step_row: u32) -> f32 {
    return bitcast<f32>(halves[step_row * (INPUT_STRIDE / 4u) + GROUPS * 4u].x);
}

// Finishes and writes the subgroup's block of so many rows of the step and as many matrix rows.
fn write_block(first_step_row: u32, first_matrix_row: u32, subgroup: u32, subgroup_lane: u32) {
    subgroupBarrier();
    for (var i = subgroup_lane; i < BLOCK * WRITTEN; i += SUBGROUP) {
        let step_row = first_step_row + i / WRITTEN;
        let column = i % WRITTEN;
        let at = subgroup * RESULTS + i / WRITTEN * BLOCK + column;
//#if ACT_MUL
        let matrix_row = first_matrix_row / 2u + column;
//#else
        let matrix_row = first_matrix_row + column;
//#endif
        if (step_row < step.header.n_rows && matrix_row < OUTPUT_ROWS) {
            let factor = row_factor(step_row);
            var value = results[at] * factor;
//#if BIAS
            value += bias[first_matrix_row + column];
//#endif
//#if ACT_MUL
            var up = results[at + 8u] * factor;
//#if BIAS
            up += bias[first_matrix_row + column + 8u];
//#endif
            value = activate(value) * up;
//#endif
            output[step_row * OUTPUT_STRIDE + OUTPUT_FIRST + matrix_row] = value;
        }
    }
    subgroupBarrier();
}

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
) {
    let first_step_row = group.x * STEP_ROWS;
    let first_tile = group.y * (MATRIX_ROWS / 8u);
    if (first_step_row >= step.header.n_rows) {
        return;
    }
    // Rows past the last are computed as the last one again, and not written.
    let last_step_row = step.header.n_rows - 1u;
    let subgroup_step_row = subgroup / SUBGROUPS_ACROSS * SUBGROUP_STEP_ROWS;
    let subgroup_matrix_row = subgroup % SUBGROUPS_ACROSS * SUBGROUP_MATRIX_ROWS;
${BODY}
}
