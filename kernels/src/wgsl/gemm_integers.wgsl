// Operands of a GEMM as int8, and what groups of 32 columns are to be multiplied by.

var<workgroup> activation_tile: array<${TILE_WORD}<i32>, BUFFERS * ACTIVATION_ROWS * ROW_WORDS>;
var<workgroup> weight_tile: array<${TILE_WORD}<i32>, BUFFERS * MATRIX_ROWS * ROW_WORDS>;
var<workgroup> step_scales: array<f32, BUFFERS * STAGE_GROUPS * STEP_ROWS>;
var<workgroup> weight_scales: array<f32, BUFFERS * STAGE_GROUPS * MATRIX_ROWS>;

//#if INT4
// Eight codes of a word, less their zero point: the first four, then the others.
fn eight_codes(codes: u32, param: u32) -> vec2<i32> {
    let lift = vec2<u32>(0x80808080u);
    let zeros = vec2<u32>((param >> ${INT4_ZERO_SHIFT}u) * 0x01010101u);
    // With 128 on top, no byte borrows from its neighbour.
    let lifted = (vec2<u32>(codes, codes >> 4u) & vec2<u32>(0x0f0f0f0fu)) | lift;
    return bitcast<vec2<i32>>((lifted - zeros) ^ lift);
}

fn weight_scale(param: u32) -> f32 {
    return unpack2x16float((param & ${INT4_SCALE_MASK}u) << ${INT4_SCALE_SHIFT}u).x;
}
//#endif

//#if INT8
fn weight_scale(param: u32) -> f32 {
    return unpack2x16float(param).x;
}
//#endif

// Results are what they are.
fn row_factor(step_row: u32) -> f32 {
    return 1.0;
}
