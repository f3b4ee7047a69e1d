// output[row of the step][matrix row] = dot(matrix row, input row) on matrix units, for programs of many rows.
//
// A workgroup makes STEP_ROWS x MATRIX_ROWS results, K columns a stage. In workgroup memory both operands lie row by row along
// the columns, as f16, eight a word. Each subgroup owns a rectangle of fragments.
${DECLARATIONS}
//#include row_param

// A word of the rows of the step.
fn code_word(at: u32) -> u32 {
    return codes[at / 4u][at % 4u];
}

// What the codes of a group are to be multiplied by.
fn group_scale(group_word: u32) -> f32 {
    return bitcast<f32>(group_word & 0xffff0000u);
}

//#include gemm_halves

//#include gemm_results

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
