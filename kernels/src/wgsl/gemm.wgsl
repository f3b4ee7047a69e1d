// output[row of the step][matrix row] = dot(matrix row, input row) on 16x16x16 matrix units, for programs of many rows.
//
// A workgroup makes STEP_ROWS x MATRIX_ROWS results, K columns a stage: weights become f16 on their way into workgroup
// memory, where both operands lie row by row along the columns. Each subgroup owns a rectangle of 16x16 fragments.
${DECLARATIONS}
//#if ACT_MUL
//#include activation
//#endif

// Rows are 16 bytes longer than their columns, so that eight of them lie in different banks.
const ROW_QUADS: u32 = (K + 8u) / 4u;
const LAST_HALVES: u32 = GROUPS * 4u - 1u;

var<workgroup> activation_tile: array<vec4<f16>, BUFFERS * STEP_ROWS * ROW_QUADS>;
var<workgroup> weight_tile: array<vec4<f16>, BUFFERS * MATRIX_ROWS * ROW_QUADS>;
// One fragment of each subgroup, on its way out.
var<workgroup> fragments: array<f32, SUBGROUPS * 256u>;

fn halves_of(word: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(word));
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

//#if INT4
// Eight weights of a word.
fn put_weights(at: u32, word: u32, param: u32) {
    let scale = twice((param & ${INT4_SCALE_MASK}u) << ${INT4_SCALE_SHIFT}u);
    let zero = twice((param >> ${INT4_ZERO_SHIFT}u) | 0x6400u);
    let q02 = halves_of((word & 0x000f000fu) | 0x64006400u);
    let q13 = halves_of(((word >> 8u) & 0x000f000fu) | 0x64006400u);
    let q46 = halves_of(((word >> 4u) & 0x000f000fu) | 0x64006400u);
    let q57 = halves_of(((word >> 12u) & 0x000f000fu) | 0x64006400u);
    weight_tile[at] = vec4<f16>((q02 - zero) * scale, (q13 - zero) * scale);
    weight_tile[at + 1u] = vec4<f16>((q46 - zero) * scale, (q57 - zero) * scale);
}
//#endif

//#if INT8
// Four weights of a word. With its sign bit flipped a code is code + 128.
fn put_weights(at: u32, word: u32, param: u32) {
    let scale = twice(param);
    let zero = twice(0x6480u);
    let lifted = word ^ 0x80808080u;
    let q02 = halves_of((lifted & 0x00ff00ffu) | 0x64006400u);
    let q13 = halves_of(((lifted >> 8u) & 0x00ff00ffu) | 0x64006400u);
    weight_tile[at] = vec4<f16>((q02 - zero) * scale, (q13 - zero) * scale);
}
//#endif

// Eight activations.
fn put_activations(at: u32, words: vec4<u32>) {
//#if INTERLEAVED
    let evens = (words.xz & vec2<u32>(0xffffu)) | (words.yw << vec2<u32>(16u));
    let odds = (words.xz >> vec2<u32>(16u)) | (words.yw & vec2<u32>(0xffff0000u));
    activation_tile[at] = vec4<f16>(halves_of(evens.x), halves_of(odds.x));
    activation_tile[at + 1u] = vec4<f16>(halves_of(evens.y), halves_of(odds.y));
//#else
    activation_tile[at] = vec4<f16>(halves_of(words.x), halves_of(words.y));
    activation_tile[at + 1u] = vec4<f16>(halves_of(words.z), halves_of(words.w));
//#endif
}

//#if F16
// Eight weights.
fn put_weights(at: u32, words: vec4<u32>) {
    weight_tile[at] = vec4<f16>(halves_of(words.x), halves_of(words.y));
    weight_tile[at + 1u] = vec4<f16>(halves_of(words.z), halves_of(words.w));
}
//#endif

// What the values of a row of the step are to be multiplied by.
fn row_factor(step_row: u32) -> f32 {
    return bitcast<f32>(halves[step_row * (INPUT_STRIDE / 4u) + GROUPS * 4u].x);
}

// Finishes and writes the subgroup's fragment of 16 rows of the step and 16 matrix rows.
fn write_fragment(first_step_row: u32, first_matrix_row: u32, subgroup: u32, subgroup_lane: u32) {
    subgroupBarrier();
    for (var i = subgroup_lane; i < 16u * WRITTEN; i += SUBGROUP) {
        let step_row = first_step_row + i / WRITTEN;
        let column = i % WRITTEN;
        let at = subgroup * 256u + i / WRITTEN * 16u + column;
//#if ACT_MUL
        let matrix_row = first_matrix_row / 2u + column;
//#else
        let matrix_row = first_matrix_row + column;
//#endif
        if (step_row < step.header.n_rows && matrix_row < OUTPUT_ROWS) {
            let factor = row_factor(step_row);
            var value = fragments[at] * factor;
//#if BIAS
            value += bias[first_matrix_row + column];
//#endif
//#if ACT_MUL
            var up = fragments[at + 8u] * factor;
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
