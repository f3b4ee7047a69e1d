// output[row of the step][matrix row] = dot(matrix row, input row) on matrix units, weights straight from registers.
//
// A workgroup makes STEP_ROWS x MATRIX_ROWS results, 128 columns a stage. Activations lie in workgroup memory, a panel of columns at a
// time; each subgroup has matrix rows of its own, and all rows of the step.
${DECLARATIONS}
//#include row_param
//#include halves
//#intrinsic coop_load_half_a
//#if LANES_HOLD_FRAGMENTS
//#intrinsic coop_half_b_from_lanes
//#else
//#intrinsic coop_load_half_b_u32
//#endif
//#include gemm_results
//#if SPLIT
//#include arrive
//#endif

var<workgroup> activation_tile: array<vec4<u32>, STEP_ROWS * ROW_WORDS>;
//#if !LANES_HOLD_FRAGMENTS
// A fragment of each subgroup, row by row, on its way from the lanes that have it.
var<workgroup> lane_words: array<u32, SUBGROUPS * FRAGMENT_WORDS>;

//#endif
// The factors of the rows of the step: what their values are divided by while they are f16, and results multiplied.
var<workgroup> factors: array<f32, STEP_ROWS>;

fn row_factor(step_row: u32) -> f32 {
    return factors[step_row % STEP_ROWS];
}

// A parameter in either half of a word.
fn doubled(param: u32) -> u32 {
    return param | (param << 16u);
}

//#if INT4
fn scale_of(params: u32) -> vec2<f16> {
    return bitcast_half2((params << ${INT4_SCALE_SHIFT}u) & (${INT4_SCALE_MASK}u << ${INT4_SCALE_SHIFT}u) * 0x10001u);
}

// 1024 + zero, as `weights_of` wants it.
fn zero_of(params: u32) -> vec2<f16> {
    return bitcast_half2(((params >> ${INT4_ZERO_SHIFT}u) & 0x000f000fu) | 0x64006400u);
}
//#endif

//#if INT8
fn scale_of(params: u32) -> vec2<f16> {
    return bitcast_half2(params);
}

// With its sign bit flipped a code is code + 128.
fn zero_of(params: u32) -> vec2<f16> {
    return vec2<f16>(1152.0h);
}
//#endif

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
) {
    let first_step_row = group.x * STEP_ROWS;
    if (first_step_row >= step.header.n_rows) {
        return;
    }
    let first_stage = STAGES * group.z / SPLITS;
    let end_stage = STAGES * (group.z + 1u) / SPLITS;
    // Rows past the last are computed as the last one again, and not written.
    let last_step_row = step.header.n_rows - 1u;
    let first_matrix_row = group.y * MATRIX_ROWS + subgroup * SUBGROUP_MATRIX_ROWS;
//#if !LANES_HOLD_FRAGMENTS
    let fragment_at = subgroup * FRAGMENT_WORDS;
//#endif
    for (var row = lane; row < STEP_ROWS; row += WORKGROUP) {
        let at = min(first_step_row + row, last_step_row) * INPUT_STRIDE + FACTOR_AT;
        factors[row] = bitcast<f32>(codes[at / 4u][at % 4u]);
    }
${MULTIPLY}
//#if SPLIT
    let tile = group.y * STEP_TILES + group.x;
${EXCHANGE}
//#endif
//#if HALVES_OUT
    inverse_product_factor = 1.0 / product_factor[0];
    if (group.y == 0u) {
        for (var row = first_step_row + lane; row < first_step_row + STEP_ROWS && row <= last_step_row; row += WORKGROUP) {
            encoded[row * OUTPUT_STRIDE + OUTPUT_FACTOR_AT] = bitcast<u32>(product_factor[0]);
        }
    }
//#endif
${RESULTS}
}
