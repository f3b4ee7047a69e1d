// output[row of the step][matrix row] = dot(matrix row, input row), for COLUMNS rows of the step at a time.
//
// Lane = (matrix row in its tile, slice of the blocks, tile): eight neighbouring lanes read 128 consecutive bytes. Where
// K_SLICES is 1, block and activation indices are the same in all lanes, which a CPU's subgroup loads once.
${DECLARATIONS}
//#include weights
//#include reduce
//#if CHAINED
//#include chain
//#endif
//#if CLEARS
//#include clear_sums
//#endif
//#if ACT_MUL
//#include activation
//#endif
//#if SOFTCAP
//#include tanh
//#endif

//#if ENCODE
//#include encode
//#endif
//#if NEXT
//#include next
//#else
//#if ENCODED_OUTPUT
//#include encode_row
//#endif
//#endif

//#if PROLOGUE
//#if CODES
var<workgroup> codes: array<vec4<u32>, INPUT_GROUPS * 2u * INPUT_PLANES>;
var<workgroup> group_words: array<u32, INPUT_GROUPS>;

fn keep_quad(quad: u32, x: vec4<f32>, lane: u32) {
    let quantised = quantise(x, lane);
    let words = code_words(quantised);
    let of_group = group_word(quantised, lane);
    if (quad < INPUT_GROUPS * 8u) {
        let at = code_word_at(quad);
        codes[at / 4u][at % 4u] = words.x;
//#if INT11
        codes[at / 4u + 2u][at % 4u] = words.y;
//#endif
        if (quad % 8u == 0u) {
            group_words[quad / 8u] = of_group;
        }
    }
}
//#else
var<workgroup> normed: array<vec4<f32>, PADDED_COLS / 4u>;

fn keep_quad(quad: u32, x: vec4<f32>, lane: u32) {
    if (quad < PADDED_COLS / 4u) {
        normed[quad] = x;
    }
}
//#endif

// x' = x + [post norm](delta), written once; x' / rms(x') * weight is kept.
fn prologue(lane: u32, first: bool, row: u32) {
    let at = row * (INPUT_STRIDE / 4u);
${NORM_ROW}
    workgroupBarrier();
}
//#endif

//#if CODES
// Sixteen codes of row `row` of the step.
fn code_quads(row: u32, index: u32) -> vec4<u32> {
//#if PROLOGUE
    return codes[index];
//#else
    return codes[row * (INPUT_STRIDE / 4u) + index];
//#endif
}

// Scale and sum of a group of row `row`.
fn group_word_of(row: u32, group: u32) -> u32 {
//#if PROLOGUE
    return group_words[group];
//#else
    let at = INPUT_GROUP_WORDS_AT + group;
    return codes[row * (INPUT_STRIDE / 4u) + at / 4u][at % 4u];
//#endif
}
//#else
//#if !OWN_LOADS
// The activation of row `row` of the step in column `column`.
fn activation(row: u32, column: u32) -> f32 {
//#if PROLOGUE
    return normed[column / 4u][column % 4u];
//#else
    let at = row * INPUT_STRIDE + column;
//#if TAIL
    let inside = min(at / 4u, arrayLength(&input) - 1u);
    return select(0.0, input[inside][at % 4u], column < COLS);
//#else
    return input[at / 4u][at % 4u];
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
    let at = min(row * (INPUT_STRIDE / 4u) + quad, arrayLength(&input) - 1u);
    return select(vec4<f32>(0.0), input[at], vec4<u32>(column, column + 1u, column + 2u, column + 3u) < vec4<u32>(COLS));
//#else
    return input[row * (INPUT_STRIDE / 4u) + quad];
//#endif
//#endif
}
//#endif
//#endif

//#if MANY_PARTS
var<workgroup> partial: array<f32, PARTIALS>;

// Where accumulator `index` of a part's eight rows is left for the lanes of slice 0.
fn partial_at(index: u32, part: u32) -> u32 {
    return (index * (PARTIALS / (8u * COLUMNS * TILES_PER_LANE)) + part_of_group_tile + part) * 8u;
}

var<private> part_of_group_tile: u32;
//#endif

//#if ENCODED_OUTPUT
var<workgroup> staged: array<f32, COLUMNS * GROUP_ROWS>;
//#endif

// `column` counts the rows of the step from `first_row` on.
fn store(column: u32, first_row: u32, matrix_row: u32, value: f32) {
    var result = value;
//#if SOFTCAP
    result = CAP * bounded_tanh(result / CAP);
//#endif
//#if ENCODED_OUTPUT
    staged[column * GROUP_ROWS + matrix_row % GROUP_ROWS] = select(0.0, result, matrix_row < OUTPUT_ROWS);
//#else
    if (matrix_row < OUTPUT_ROWS) {
        output[(first_row + column) * OUTPUT_STRIDE + OUTPUT_FIRST + matrix_row] = result;
    }
//#endif
}

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
//#if ROW_FROM_STEP
    let input_row = step.header.logits_row;
    let output_row = 0u;
//#else
    let input_row = group.x * COLUMNS;
    let output_row = input_row;
    if (input_row >= step.header.n_rows) {
//#if CHAINED
        count_workgroup(lane);
//#endif
        return;
    }
//#endif
    let row = lane % 8u;
//#if SPLIT
    let slice = (lane / 8u) % K_SLICES;
//#else
    const slice = 0u;
//#endif
${NEXT_LOADS}
${BEFORE_PASSES}
//#if MANY_PASSES
    for (var turn = 0u; turn < PASSES; turn++) {
    let rows_of = group.y * PASSES + turn;
//#else
    let rows_of = group.y;
//#endif
//#if SPLIT
    let group_tile = rows_of * GROUP_TILES + lane / (8u * K_SLICES);
//#if MANY_PARTS
    // Lanes of a part have added up among themselves.
    let part = slice / (K_SLICES / PARTS);
    let in_part = slice % (K_SLICES / PARTS);
    part_of_group_tile = lane / (8u * K_SLICES) * PARTS;
//#endif
//#else
    let group_tile = rows_of * GROUP_TILES + lane / 8u;
//#endif
    let first_tile = group_tile * TILES_PER_LANE;
${PASS}
//#if ENCODED_OUTPUT
    workgroupBarrier();
    for (var first = 0u; first < COLUMNS * GROUP_ROWS / 4u; first += WORKGROUP) {
        let quad = min(first + lane, COLUMNS * GROUP_ROWS / 4u - 1u);
        let x = vec4<f32>(staged[4u * quad], staged[4u * quad + 1u], staged[4u * quad + 2u], staged[4u * quad + 3u]);
        // A lane without a quad of its own stores none.
//#if NEXT
        keep_next(select(8u * NEXT_GROUPS, quad, quad == first + lane), x, lane);
//#else
        let row_at = (output_row + quad / (GROUP_ROWS / 4u)) * OUTPUT_STRIDE;
        let row_quad = rows_of * (GROUP_ROWS / 4u) + quad % (GROUP_ROWS / 4u);
        store_quad(row_at, select(STORED_QUADS, row_quad, quad == first + lane), x, lane);
//#endif
    }
//#endif
//#if NEXT
    workgroupBarrier();
${NEXT_PRODUCTS}
//#endif
//#if MANY_PASSES
    // What the pass left in workgroup memory has been read.
    workgroupBarrier();
    }
//#endif
//#if CLEARS
    if (group.x + group.y == 0u) {
        clear_sums(lane);
    }
//#endif
//#if CHAINED
    count_workgroup(lane);
//#endif
}
