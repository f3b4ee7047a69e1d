// output[row of the step][matrix row] = dot(matrix row, input row), for COLUMNS rows of the step at a time.
//
// Lane = (matrix row in its tile, slice of the blocks, tile): eight neighbouring lanes read 128 consecutive bytes. Where
// K_SLICES is 1, block and activation indices are the same in all lanes, which a CPU's subgroup loads once.
${DECLARATIONS}
//#include weights
//#include reduce
//#if ACT_MUL
//#include activation
//#endif
//#if SOFTCAP
//#include tanh
//#endif

//#if PROLOGUE
var<workgroup> normed: array<vec4<f32>, PADDED_COLS / 4u>;

// x' = x + [post norm](delta), written once; normed = x' / rms(x') * weight.
fn prologue(lane: u32, first: bool, row: u32) {
    let at = row * INPUT_STRIDE;
//#if PROLOGUE_POST_NORM
    var delta_squares = 0.0;
    for (var i = lane; i < COLS; i += WORKGROUP) {
        delta_squares += input[at + i] * input[at + i];
    }
    let delta_scale = inverseSqrt(workgroup_sum(delta_squares, lane) / f32(COLS) + EPS);
//#endif
    var squares = 0.0;
    for (var i = lane; i < PADDED_COLS; i += WORKGROUP) {
        var x = 0.0;
        if (i < COLS) {
//#if PROLOGUE_ADD
//#if PROLOGUE_POST_NORM
            x = residual[at + i] + input[at + i] * delta_scale * post_norm_weight[i];
//#else
            x = residual[at + i] + input[at + i];
//#endif
            if (first) {
                sum[at + i] = x;
            }
//#else
            x = input[at + i];
//#endif
        }
        normed[i / 4u][i % 4u] = x;
        squares += x * x;
    }
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(COLS) + EPS);
    for (var i = lane; i < COLS; i += WORKGROUP) {
        normed[i / 4u][i % 4u] *= scale * norm_weight[i];
    }
    workgroupBarrier();
}
//#endif

//#if BROADCAST
// The activation of row `row` of the step in column `column`.
fn activation(row: u32, column: u32) -> f32 {
//#if PROLOGUE
    return normed[column / 4u][column % 4u];
//#else
    let at = row * INPUT_STRIDE + column;
//#if TAIL
    let inside = min(at / 4u, arrayLength(&columns) - 1u);
    return select(0.0, columns[inside][at % 4u], column < COLS);
//#else
    return columns[at / 4u][at % 4u];
//#endif
//#endif
}
//#else
// Four activations of row `row` of the step, from column 4 * `quad`.
fn activations(row: u32, quad: u32) -> vec4<f32> {
//#if PROLOGUE
    return normed[quad];
//#else
//#if TAIL
    let column = 4u * quad;
    let at = min(row * (INPUT_STRIDE / 4u) + quad, arrayLength(&columns) - 1u);
    return select(vec4<f32>(0.0), columns[at], vec4<u32>(column, column + 1u, column + 2u, column + 3u) < vec4<u32>(COLS));
//#else
    return columns[row * (INPUT_STRIDE / 4u) + quad];
//#endif
//#endif
}
//#endif

//#if SPLIT
var<workgroup> partial: array<f32, WORKGROUP>;

// The sum over the K_SLICES lanes that share a tile and a row; valid in the lanes of slice 0.
fn slice_sum(value: f32, lane: u32, slice: u32) -> f32 {
    partial[lane] = value;
    workgroupBarrier();
    var total = value;
    if (slice == 0u) {
        for (var i = 1u; i < K_SLICES; i++) {
            total += partial[lane + 8u * i];
        }
    }
    workgroupBarrier();
    return total;
}
//#endif

fn store(step_row: u32, matrix_row: u32, value: f32) {
    var result = value;
//#if SOFTCAP
    result = CAP * bounded_tanh(result / CAP);
//#endif
    if (matrix_row < OUTPUT_ROWS) {
        output[step_row * OUTPUT_STRIDE + OUTPUT_FIRST + matrix_row] = result;
    }
}

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
//#if ROW_FROM_STEP
    let input_row = step.header.logits_row;
    let output_row = 0u;
//#else
    let input_row = group.y * COLUMNS;
    let output_row = input_row;
    if (input_row >= step.header.n_rows) {
        return;
    }
//#endif
//#if PROLOGUE
    prologue(lane, group.x == 0u, input_row);
//#endif
    let row = lane % 8u;
//#if SPLIT
    let slice = (lane / 8u) % K_SLICES;
    let group_tile = group.x * GROUP_TILES + lane / (8u * K_SLICES);
//#else
    const slice = 0u;
    let group_tile = group.x * GROUP_TILES + lane / 8u;
//#endif
    let first_tile = group_tile * TILES_PER_LANE;
${BODY}
}
