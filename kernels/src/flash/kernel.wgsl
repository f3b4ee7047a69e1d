// Attention of many rows on matrix units. QUERIES = strips of FRAGMENT vectors; vector q is row q / HEADS and head q % HEADS
// of the workgroup. A subgroup has a strip and a slice of its dimensions. In the text that is generated, names that end in
// numbers are parts of what a lane or a subgroup carries.
${DECLARATIONS}
//#include cache
//#intrinsic bitcast_word
//#intrinsic coop_load_half_a
//#intrinsic coop_load_half_b
//#intrinsic coop_multiply_elements
//#if SOFTCAP
//#include tanh
//#endif

// Eight f16 a word. K: a row a token; V: a row a dimension. Before, a fragment of Q of each subgroup.
var<workgroup> kv_tile: array<vec4<u32>, KV_WORDS>;
// A plane of scores for each slice; at last the result, on its way out.
var<workgroup> scores: array<vec4<f32>, SLICES * QUERIES * SCORE_QUADS>;
var<workgroup> weights: array<vec4<u32>, QUERIES * WEIGHT_WORDS>;
// What each query's sums are multiplied by.
var<workgroup> factors: array<f32, QUERIES>;

fn word_of(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(pair_of(a.xy), pair_of(a.zw), pair_of(b.xy), pair_of(b.zw));
}

fn pair_of(x: vec2<f32>) -> u32 {
    return bitcast_word(vec2<f16>(x));
}

// Eight elements of q, from this quad on.
fn query_word(quad: u32) -> vec4<u32> {
    return word_of(input[quad], input[quad + 1u]);
}

// Two tokens' eight dimensions, the even ones in `low`, the odd ones in `high`: the tokens are neighbours now.
struct Pairs {
    low: vec4<u32>,
    high: vec4<u32>,
}

fn pairs(a: vec4<u32>, b: vec4<u32>) -> Pairs {
    let low = (a & vec4<u32>(0xffffu)) | (b << vec4<u32>(16u));
    let high = (a >> vec4<u32>(16u)) | (b & vec4<u32>(0xffff0000u));
    return Pairs(low, high);
}

// Place of the first dimension of a chunk of V.
fn value_row(chunk: u32) -> u32 {
    let dim = 8u * chunk;
    return dim / FRAGMENT * VALUE_WORDS + dim % FRAGMENT * WEIGHT_WORDS;
}

//#if SOFTCAP
fn capped(score: vec4<f32>) -> vec4<f32> {
    let part = score / CAP;
    return CAP * vec4<f32>(bounded_tanh(part.x), bounded_tanh(part.y), bounded_tanh(part.z), bounded_tanh(part.w));
}
//#else
fn capped(score: vec4<f32>) -> vec4<f32> {
    return score;
}
//#endif

// Scores of four tokens, where the row sees them.
fn masked(score: vec4<f32>, position: u32, first_token: u32) -> vec4<f32> {
    let token = vec4<u32>(first_token) + vec4<u32>(0u, 1u, 2u, 3u);
    let seen = select(vec4<f32>(MASKED), score, token <= vec4<u32>(position));
//#if WINDOWED
    return select(vec4<f32>(MASKED), seen, token + vec4<u32>(WINDOW) > vec4<u32>(position));
//#else
    return seen;
//#endif
}

// A row that sees nothing yet has MASKED as its maximum, and weighs nothing.
fn weights_of(score: vec4<f32>, greatest: f32) -> vec4<f32> {
    return select(exp(score - vec4<f32>(greatest - LIFT)), vec4<f32>(0.0), score == vec4<f32>(MASKED));
}

// Of the neighbouring lanes that share a query.
fn query_max(score: vec4<f32>) -> f32 {
    var most = max(max(score.x, score.y), max(score.z, score.w));
    for (var step = 1u; step < LANES_PER_QUERY; step *= 2u) {
        most = max(most, subgroupShuffleXor(most, step));
    }
    return most;
}

fn query_sum(value: f32) -> f32 {
    var total = value;
    for (var step = 1u; step < LANES_PER_QUERY; step *= 2u) {
        total += subgroupShuffleXor(total, step);
    }
    return total;
}

//#if ENCODE
//#include encode
//#include encode_row

//#endif
// Writes so many quads of the strip's vectors, from dimension `dim` on, from the subgroup's plane.
fn write(plane: u32, strip: u32, first_row: u32, last_row: u32, first_head: u32, dim: u32, quads: u32, subgroup_lane: u32) {
    subgroupBarrier();
    for (var i = subgroup_lane; i < FRAGMENT * quads; i += SUBGROUP) {
        let query = strip * FRAGMENT + i / quads;
        let row = first_row + query / HEADS;
        let quad = ((first_head + query % HEADS) * HEAD_DIM + dim) / 4u + i % quads;
        let value = scores[plane + i / quads * SCORE_QUADS + i % quads];
        // Vectors past the last repeat it; nothing of them is stored.
        let stored = query < ROWS * HEADS && row <= last_row;
//#if ENCODE
        store_quad(row * OUTPUT_STRIDE, select(0xffffffffu, quad, stored), value, subgroup_lane);
//#else
        if (stored) {
            output[row * (OUTPUT_STRIDE / 4u) + quad] = value;
        }
//#endif
    }
    subgroupBarrier();
}

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
) {
    let lane = subgroup * SUBGROUP + subgroup_lane;
    let first_row = group.y * ROWS;
    if (first_row >= step.header.n_rows) {
        return;
    }
    let last_row = min(first_row + ROWS, step.header.n_rows) - 1u;
    let first_position = step.rows[first_row].position;
    let last_position = step.rows[last_row].position;
    let first_head = group.x * HEADS;
    let kv_head = first_head / GQA;
    let table = table_of(first_row);
    let end = last_position + 1u;
//#if WINDOWED
    let first_tile = (max(first_position + 1u, WINDOW) - WINDOW) / TILE * TILE;
//#else
    let first_tile = 0u;
//#endif
    let strip = subgroup / SLICES;
    let slice = subgroup % SLICES;
    // The strip's part of a plane of scores.
    let plane = (slice * QUERIES + strip * FRAGMENT) * SCORE_QUADS;

    // A lane brings a word of each fragment of Q.
    let query_column = subgroup_lane % (FRAGMENT / 8u);
    let query_row = subgroup_lane / (FRAGMENT / 8u) % FRAGMENT;
    let query = min(strip * FRAGMENT + query_row, ROWS * HEADS - 1u);
    let query_at = (min(first_row + query / HEADS, last_row) * INPUT_STRIDE + (first_head + query % HEADS) * HEAD_DIM
        + slice * SLICE_DIM + 8u * query_column) / 4u;
    let query_tile = subgroup * FRAGMENT * QUERY_WORDS;
    let query_put = query_tile + query_row * QUERY_WORDS + query_column;
${QUERIES}
    // While weighing, neighbouring lanes share a query.
    let weighed = lane / LANES_PER_QUERY;
    let share = lane % LANES_PER_QUERY;
    let position = step.rows[min(first_row + weighed / HEADS, last_row)].position;
    let score_at = weighed * SCORE_QUADS + share * (TOKENS / 4u);
    let weight_at = weighed * WEIGHT_WORDS + share * TOKENS / 8u;
    var greatest = MASKED;
    var total = 0.0;

${KEY_VARIABLES}
${FETCH_FIRST_KEYS}
    for (var tile = first_tile; tile < end; tile += TILE) {
        let head = head_of_page(table, tile, kv_head);
        workgroupBarrier();
${PUT_KEYS}
        workgroupBarrier();
        // Slots past the last token may hold anything, even NaNs; 0 times those is no 0.
${FETCH_VALUES}
${SCORE}
//#if SLICED
        workgroupBarrier();
//#else
        subgroupBarrier();
//#endif
        let first_token = tile + share * TOKENS;
//#if WINDOWED
        let whole = tile + TILE <= first_position + 1u && tile + WINDOW > last_position;
//#else
        let whole = tile + TILE <= first_position + 1u;
//#endif
${WEIGH}
        if (share == 0u) {
            factors[weighed] = rescale;
        }
        workgroupBarrier();
${PUT_VALUES}
        // The last tile fetches itself again, for nobody.
        let next = select(tile, tile + TILE, tile + TILE < end);
${FETCH_KEYS}
        workgroupBarrier();
${MIX}
    }
    let sum = query_sum(total);
    workgroupBarrier();
    if (share == 0u) {
        factors[weighed] = 1.0 / sum;
    }
    workgroupBarrier();
${FINISH}
}
