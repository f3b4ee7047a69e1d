// A subgroup's sums, finished and written: a block of rows of the step and matrix rows at a time, through workgroup memory.
//#if ACT_MUL
//#include activation
//#endif

// A block of each subgroup, before it is written.
const RESULTS: u32 = BLOCK * BLOCK;
var<workgroup> results: array<f32, SUBGROUPS * RESULTS>;

//#if HALVES_OUT
var<private> inverse_product_factor: f32;

//#endif
//#if BIAS
// Where the biases begin: of experts, each has its own.
//#if EXPERTS
var<private> biased_expert: u32;

fn first_bias() -> u32 {
    return biased_expert * ${EXPERT_ROWS}u;
}
//#else
fn first_bias() -> u32 {
    return 0u;
}
//#endif

//#endif
// What `results` holds at `at` (gate there, and up behind it), finished.
fn finished(at: u32, step_row: u32, first_matrix_row: u32, column: u32) -> f32 {
    let factor = row_factor(step_row);
    var value = results[at] * factor;
//#if BIAS
    value += bias[first_bias() + first_matrix_row + column];
//#endif
//#if ACT_MUL
    var up = results[at + 8u] * factor;
//#if BIAS
    up += bias[first_bias() + first_matrix_row + column + 8u];
//#endif
    value = gated(value, up);
//#endif
    return value;
}

// Finishes and writes the subgroup's block of rows of the step and as many matrix rows. How many rows there are is an
// argument, because a value from memory would be loaded again after each write.
fn write_block(first_step_row: u32, first_matrix_row: u32, last_step_row: u32, subgroup: u32, subgroup_lane: u32) {
    subgroupBarrier();
//#if HALVES_OUT
    for (var i = subgroup_lane; i < BLOCK * WRITTEN / 2u; i += SUBGROUP) {
        let step_row = first_step_row + i / (WRITTEN / 2u);
        // A word is of two columns two apart.
        let word = i % (WRITTEN / 2u);
        let column = word / 2u * 4u + word % 2u;
        let at = subgroup * RESULTS + i / (WRITTEN / 2u) * BLOCK + column;
        let element = first_matrix_row / 2u + column;
        if (step_row <= last_step_row && element < OUTPUT_ROWS) {
            let first = finished(at, step_row, first_matrix_row, column);
            let second = finished(at + 2u, step_row, first_matrix_row, column + 2u);
            // Block, d, h and t of the drawing in kernels/src/activation_format.rs.
            let place = element / HALVES_BLOCK * (HALVES_BLOCK / 2u) + element % 32u / 4u * 8u + element % 2u * 4u
                + element % HALVES_BLOCK / 32u;
            let pair = vec2<f32>(first, second) * inverse_product_factor;
            encoded[step_row * OUTPUT_STRIDE + place] = pack2x16float(pair);
        }
    }
//#else
    for (var i = subgroup_lane; i < BLOCK * WRITTEN; i += SUBGROUP) {
        let step_row = first_step_row + i / WRITTEN;
        let column = i % WRITTEN;
        let at = subgroup * RESULTS + i / WRITTEN * BLOCK + column;
//#if ACT_MUL
        let matrix_row = first_matrix_row / 2u + column;
//#else
        let matrix_row = first_matrix_row + column;
//#endif
        if (step_row <= last_step_row && matrix_row < OUTPUT_ROWS) {
            let value = finished(at, step_row, first_matrix_row, column);
//#if BY_EXPERT
            output[result_row(step_row) * OUTPUT_STRIDE + matrix_row] = value;
//#else
            output[step_row * OUTPUT_STRIDE + OUTPUT_FIRST + matrix_row] = value;
//#endif
        }
    }
//#endif
    subgroupBarrier();
}

// Writes all blocks of a subgroup's sums, of which the first rows are given.
//#macro write_blocks(first_step_row, first_matrix_row)
//#let down = BLOCK / FRAGMENT_M
//#let across = BLOCK / FRAGMENT_N
//#for down_block in 0..STEP_FRAGMENTS / down
//#for across_block in 0..FRAGMENTS / across
//#for n in 0..down * across
//#let i = n / across
//#let j = n % across
    coopStoreT(sum_${down_block * down + i}_${across_block * across + j}, &results[subgroup * RESULTS + ${BLOCK * FRAGMENT_M * i + FRAGMENT_N * j}u], ${BLOCK}u);
//#end
    write_block(${first_step_row} + ${BLOCK * down_block}u, ${first_matrix_row} + ${BLOCK * across_block}u, last_step_row, subgroup, subgroup_lane);
//#end
//#end
//#end
