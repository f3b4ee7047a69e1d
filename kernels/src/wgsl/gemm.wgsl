// output[row of the step][matrix row] = dot(matrix row, input row) on matrix units, for programs of many rows.
//
// A workgroup makes STEP_ROWS x MATRIX_ROWS results, K columns a stage. In workgroup memory both operands lie row by row along
// the columns, as f16 or as int8; their words are as wide as lanes store them. Each subgroup owns a rectangle of fragments.
${DECLARATIONS}
//#if ACT_MUL
//#include activation
//#endif

// The u16 parameter of row `row` of a tile from `pair`, word row / 2 of a block's parameters.
fn row_param(pair: u32, row: u32) -> u32 {
    return (pair >> (16u * (row & 1u))) & 0xffffu;
}

// A word of the rows of the step.
fn code_word(at: u32) -> u32 {
    return codes[at / 4u][at % 4u];
}

// What the codes of a group are to be multiplied by.
fn group_scale(group_word: u32) -> f32 {
    return bitcast<f32>(group_word & 0xffff0000u);
}

//#if INTEGERS
//#include gemm_integers
//#else
//#include gemm_halves
//#endif

// A block of each subgroup, on its way out.
const RESULTS: u32 = BLOCK * BLOCK;
var<workgroup> results: array<f32, SUBGROUPS * RESULTS>;

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
            let factor = row_factor(step_row * INPUT_STRIDE);
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
