// Attention of many rows on matrix units. QUERIES = strips of STRIP vectors; vector q is row q / HEADS and head q % HEADS
// of the workgroup. A subgroup has a strip and a slice of its dimensions: QUERY_FRAGMENTS fragments of Q, and SUM_FRAGMENTS of the
// result. Names that end in numbers are registers of a lane or matrices of a subgroup.
${DECLARATIONS}
//#if !PATCHES
//#include cache
//#endif
//#intrinsic bitcast_word
//#intrinsic coop_load_half_a
//#intrinsic coop_load_half_b
//#intrinsic coop_multiply_elements
//#include sink
//#if IMAGES
//#include last_seen
//#endif
//#if SOFTCAP
//#include tanh
//#endif

// Eight f16 a word. K: a row a token; V: a row a dimension. Before, a fragment of Q of each subgroup.
var<workgroup> kv_tile: array<vec4<u32>, KV_WORDS>;
// A plane of scores for each slice; at the end the result, before it is written.
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

//#if PATCHES
// `let NAME`: chunk `chunk` of a head, eight elements, whose first quad is number `at` of `rows`. Behind a head's last element are zeros.
//#macro load_patch(name, rows, at, chunk)
    let ${name} = word_of(
        select(vec4<f32>(0.0), ${rows}[${at} + min(2u * ${chunk}, HEAD_ELEMENTS / 4u - 1u)], 8u * ${chunk} < HEAD_ELEMENTS),
        select(vec4<f32>(0.0), ${rows}[${at} + min(2u * ${chunk} + 1u, HEAD_ELEMENTS / 4u - 1u)], 8u * ${chunk} + 4u < HEAD_ELEMENTS),
    );
//#end

fn query_word(head_at: u32, chunk: u32) -> vec4<u32> {
//#expand load_patch("word", "SCALE * input", "head_at", "chunk")
    return word;
}

// Patches past the last repeat it.
fn key_word(patch_row: u32, head: u32, chunk: u32) -> vec4<u32> {
    let head_at = (min(patch_row, ${ALL_ROWS} - 1u) * KEY_STRIDE + KEY_FIRST + head * HEAD_ELEMENTS) / 4u;
//#expand load_patch("word", "patch_keys", "head_at", "chunk")
    return word;
}

fn value_word(patch_row: u32, head: u32, chunk: u32) -> vec4<u32> {
    let head_at = (min(patch_row, ${ALL_ROWS} - 1u) * VALUE_STRIDE + VALUE_FIRST + head * HEAD_ELEMENTS) / 4u;
//#expand load_patch("word", "patch_values", "head_at", "chunk")
    return word;
}
//#else
// Eight elements of q, chunk `chunk` of a head whose first quad is number `head_at`.
fn query_word(head_at: u32, chunk: u32) -> vec4<u32> {
    let quad = head_at + 2u * chunk;
    return word_of(input[quad], input[quad + 1u]);
}
//#endif

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
    return dim / ${FRAGMENT_N}u * VALUE_WORDS + dim % ${FRAGMENT_N}u * WEIGHT_WORDS;
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

// Scores of four tokens, where the row attends to them.
//#if IMAGES
fn masked(score: vec4<f32>, position: u32, last: u32, first_token: u32) -> vec4<f32> {
    let token = vec4<u32>(first_token) + vec4<u32>(0u, 1u, 2u, 3u);
    let seen = select(vec4<f32>(MASKED), score, token <= vec4<u32>(last));
//#else
fn masked(score: vec4<f32>, position: u32, first_token: u32) -> vec4<f32> {
    let token = vec4<u32>(first_token) + vec4<u32>(0u, 1u, 2u, 3u);
    let seen = select(vec4<f32>(MASKED), score, token <= vec4<u32>(position));
//#endif
//#if WINDOWED
    return select(vec4<f32>(MASKED), seen, token + vec4<u32>(WINDOW) > vec4<u32>(position));
//#else
    return seen;
//#endif
}

// A row that attends to nothing yet has MASKED as its maximum, and weighs nothing.
fn weights_of(score: vec4<f32>, largest: f32) -> vec4<f32> {
    return select(exp(score - vec4<f32>(largest - LIFT)), vec4<f32>(0.0), score == vec4<f32>(MASKED));
}

// Of the neighbouring lanes that share a query.
fn query_max(score: vec4<f32>) -> f32 {
    var tile_max = max(max(score.x, score.y), max(score.z, score.w));
    for (var step = 1u; step < LANES_PER_QUERY; step *= 2u) {
        tile_max = max(tile_max, subgroupShuffleXor(tile_max, step));
    }
    return tile_max;
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
// Writes a number of quads of the strip's vectors, from dimension `dim` on, from the subgroup's plane.
fn write(plane: u32, strip: u32, first_row: u32, last_row: u32, first_head: u32, dim: u32, quads: u32, subgroup_lane: u32) {
    subgroupBarrier();
    for (var i = subgroup_lane; i < STRIP * quads; i += SUBGROUP) {
        let query = strip * STRIP + i / quads;
        let row = first_row + query / HEADS;
        let quad_of_head = dim / 4u + i % quads;
        let quad = (first_head + query % HEADS) * (HEAD_ELEMENTS / 4u) + quad_of_head;
        let value = scores[plane + i / quads * SCORE_QUADS + i % quads];
        // Vectors past the last repeat it; nothing of them is stored.
//#if PATCHES
        let stored = query < ROWS && row <= last_row && quad_of_head < HEAD_ELEMENTS / 4u;
//#else
        let stored = query < ROWS * HEADS && row <= last_row;
//#endif
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

// Words of K of a tile; neighbouring lanes read neighbouring tokens, and lanes left over read the last word again.
//#macro fetch_keys(tile)
//#if PATCHES
//#for i in 0..KEY_SHARES
    key_${i} = key_word(${tile} + min(lane + ${i * WORKGROUP}u, ${KEY_ITEMS - 1}u) % TILE, first_head, min(lane + ${i * WORKGROUP}u, ${KEY_ITEMS - 1}u) / TILE);
//#end
//#else
    let key_head = head_of_page(table, ${tile}, kv_head);
//#for i in 0..KEY_SHARES
//#if KEY_ITEMS % WORKGROUP == 0
    key_${i} = keys[key_head + lane + ${i * WORKGROUP}u];
//#else
    key_${i} = keys[key_head + min(lane + ${i * WORKGROUP}u, ${KEY_ITEMS - 1}u)];
//#endif
//#end
//#endif
//#end

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
) {
    let lane = subgroup * SUBGROUP + subgroup_lane;
    let first_row = ${FIRST_ROW};
    if (first_row >= ${ALL_ROWS}) {
        return;
    }
    let last_row = min(first_row + ROWS, ${ROWS_END}) - 1u;
    let first_head = group.x * HEADS;
//#if PATCHES
    let first_position = ${ALL_ROWS} - 1u;
    let last_position = first_position;
//#else
    let first_position = step.rows[first_row].position;
    let last_position = step.rows[last_row].position;
    let kv_head = first_head / GQA;
    let table = table_of(first_row);
//#endif
//#if IMAGES
    // Tokens that all rows see come before the end of the first row's sight.
    let first_end = last_seen(first_row) + 1u;
    let end = last_seen(last_row) + 1u;
//#else
    let end = last_position + 1u;
//#endif
//#if WINDOWED
    let first_tile = (max(first_position + 1u, WINDOW) - WINDOW) / TILE * TILE;
//#else
    let first_tile = 0u;
//#endif
    let strip = subgroup / SLICES;
    let slice = subgroup % SLICES;
    // The strip's part of a plane of scores.
    let plane = (slice * QUERIES + strip * STRIP) * SCORE_QUADS;

    // A lane loads a word of each fragment of Q, and one of further rows each where a fragment has more words than the subgroup lanes.
    let query_column = subgroup_lane % ${FRAGMENT_K / 8}u;
    let query_row_0 = subgroup_lane / ${FRAGMENT_K / 8}u % STRIP;
//#for j in 1..QUERY_SHARES
    let query_row_${j} = query_row_0 + ${SUBGROUP * 8 / FRAGMENT_K * j}u;
//#end
//#for j in 0..QUERY_SHARES
    let query_of_${j} = min(strip * STRIP + query_row_${j}, ROWS * HEADS - 1u);
    let query_at_${j} = (min(first_row + query_of_${j} / HEADS, last_row) * INPUT_STRIDE
//#if PATCHES
        + QUERY_FIRST
//#endif
        + (first_head + query_of_${j} % HEADS) * HEAD_ELEMENTS) / 4u;
//#end
    let query_chunk = slice * (SLICE_DIM / 8u) + query_column;
    let query_tile = subgroup * STRIP * QUERY_WORDS;
//#for j in 0..QUERY_SHARES
    let query_put_${j} = query_tile + query_row_${j} * QUERY_WORDS + query_column;
//#end
//#for i in 0..QUERY_FRAGMENTS
//#for j in 0..QUERY_SHARES
    let word_${i}_${j} = query_word(query_at_${j}, query_chunk + ${FRAGMENT_K / 8 * i}u);
//#end
//#end
//#for i in 0..QUERY_FRAGMENTS
//#for j in 0..QUERY_SHARES
    kv_tile[query_put_${j}] = word_${i}_${j};
//#end
    subgroupBarrier();
    let query_${i} = coop_load_half_a(kv_tile[query_tile], QUERY_WORDS);
    subgroupBarrier();
//#end
//#for i in 0..SUM_FRAGMENTS
    var sum_${i}: ${MATRIX}<f32, C>;
//#end
    var zeros: ${MATRIX}<f32, C>;

    // While weighing, neighbouring lanes share a query.
    let weighed = lane / LANES_PER_QUERY;
    let share = lane % LANES_PER_QUERY;
//#if PATCHES
    let position = last_position;
//#else
    let position = step.rows[min(first_row + weighed / HEADS, last_row)].position;
//#endif
//#if IMAGES
    let last = last_seen(min(first_row + weighed / HEADS, last_row));
//#endif
    let score_at = weighed * SCORE_QUADS + share * (TOKENS / 4u);
    let weight_at = weighed * WEIGHT_WORDS + share * TOKENS / 8u;
    var largest = MASKED;
    var total = 0.0;

    // Words of K in flight.
//#for i in 0..KEY_SHARES
    var key_${i}: vec4<u32>;
//#end
//#expand fetch_keys("first_tile")
    for (var tile = first_tile; tile < end; tile += TILE) {
//#if !PATCHES
        let head = head_of_page(table, tile, kv_head);
//#endif
        workgroupBarrier();
//#for i in 0..KEY_SHARES
//#if KEY_ITEMS % WORKGROUP == 0
        let key_item_${i} = lane + ${i * WORKGROUP}u;
//#else
        let key_item_${i} = min(lane + ${i * WORKGROUP}u, ${KEY_ITEMS - 1}u);
//#endif
        kv_tile[key_item_${i} % TILE * KEY_WORDS + key_item_${i} / TILE] = key_${i};
//#end
        workgroupBarrier();
        // Words of VALUE_TOKENS tokens of V; neighbouring lanes read neighbouring chunks. Slots past the last token may hold
        // anything, even NaNs; 0 times those is no 0.
//#for i in 0..VALUE_SHARES
//#if VALUE_ITEMS % WORKGROUP == 0
        let value_item_${i} = lane + ${i * WORKGROUP}u;
//#else
        let value_item_${i} = min(lane + ${i * WORKGROUP}u, ${VALUE_ITEMS - 1}u);
//#endif
        let value_token_${i} = value_item_${i} / CHUNKS * ${VALUE_TOKENS}u;
//#for t in 0..VALUE_TOKENS
//#if PATCHES
        let fetched_${i}_${t} = value_word(tile + value_token_${i} + ${t}u, first_head, value_item_${i} % CHUNKS);
//#else
        let fetched_${i}_${t} = select(vec4<u32>(0u), values[value_at(head, value_token_${i} + ${t}u, value_item_${i} % CHUNKS)], tile + value_token_${i} + ${t}u < end);
//#endif
//#end
//#end

        // The slice's part of the strip's scores.
//#for n in 0..SCORE_FRAGMENTS
//#for i in 0..QUERY_FRAGMENTS
        let part_${n}_${i} = coop_load_half_b(kv_tile[${FRAGMENT_N * n}u * KEY_WORDS + slice * (SLICE_DIM / 8u) + ${FRAGMENT_K / 8 * i}u], KEY_WORDS);
//#if i == 0
        let score_${n}_0 = coopMultiplyAdd(query_0, part_${n}_0, zeros);
//#else
        let score_${n}_${i} = coopMultiplyAdd(query_${i}, part_${n}_${i}, score_${n}_${i - 1});
//#endif
//#end
        coopStoreT(score_${n}_${QUERY_FRAGMENTS - 1}, &scores[plane + ${FRAGMENT_N / 4 * n}u], SCORE_QUADS);
//#end
//#if SLICED
        workgroupBarrier();
//#else
        subgroupBarrier();
//#endif
        let first_token = tile + share * TOKENS;
//#if WINDOWED && IMAGES
        let whole = tile + TILE <= first_end && tile + WINDOW > last_position;
//#else if IMAGES
        let whole = tile + TILE <= first_end;
//#else if WINDOWED
        let whole = tile + TILE <= first_position + 1u && tile + WINDOW > last_position;
//#else
        let whole = tile + TILE <= first_position + 1u;
//#endif
        // A lane's tokens of a query: scores of all slices, the new maximum, weights.
//#for i in 0..LANE_QUADS
        var seen_${i} = capped(
//#for slice in 0..SLICES join +
            scores[score_at + ${slice}u * QUERIES * SCORE_QUADS + ${i}u]
//#end
        );
//#end
        if (!whole) {
//#for i in 0..LANE_QUADS
//#if IMAGES
            seen_${i} = masked(seen_${i}, position, last, first_token + ${4 * i}u);
//#else
            seen_${i} = masked(seen_${i}, position, first_token + ${4 * i}u);
//#endif
//#end
        }
        let max_0 = seen_0;
//#for i in 1..LANE_QUADS
        let max_${i} = max(max_${i - 1}, seen_${i});
//#end
        let tile_max = query_max(max_${LANE_QUADS - 1});
        let before = largest;
        largest = max(before, tile_max);
        let rescale = exp(before - largest);
//#for i in 0..LANE_QUADS
        let weight_${i} = weights_of(seen_${i}, largest);
//#end
        total = total * rescale + dot(
//#for i in 0..LANE_QUADS join +
            weight_${i}
//#end
            , vec4<f32>(1.0));
//#if LANE_QUADS == 1
        weights[weight_at][share % 2u * 2u + 0u] = pair_of(weight_0.xy);
        weights[weight_at][share % 2u * 2u + 1u] = pair_of(weight_0.zw);
//#else
//#for i in 0..LANE_QUADS / 2
        weights[weight_at + ${i}u] = word_of(weight_${2 * i}, weight_${2 * i + 1});
//#end
//#endif
        if (share == 0u) {
            factors[weighed] = rescale;
        }
        workgroupBarrier();
        // A lane's words of some tokens become parts of rows of eight dimensions.
//#for i in 0..VALUE_SHARES
        let value_block_${i} = value_item_${i} / CHUNKS;
        let value_put_${i} = value_row(value_item_${i} % CHUNKS) + value_block_${i} / ${8 / VALUE_TOKENS}u;
//#for m in 0..VALUE_TOKENS / 2
        let pair_${i}_${m} = pairs(fetched_${i}_${2 * m}, fetched_${i}_${2 * m + 1});
//#end
//#for c in 0..4
//#if VALUE_TOKENS == 8
        kv_tile[value_put_${i} + ${2 * c}u * WEIGHT_WORDS] = vec4<u32>(pair_${i}_0.low.${"xyzw"[c]}, pair_${i}_1.low.${"xyzw"[c]}, pair_${i}_2.low.${"xyzw"[c]}, pair_${i}_3.low.${"xyzw"[c]});
        kv_tile[value_put_${i} + ${2 * c + 1}u * WEIGHT_WORDS] = vec4<u32>(pair_${i}_0.high.${"xyzw"[c]}, pair_${i}_1.high.${"xyzw"[c]}, pair_${i}_2.high.${"xyzw"[c]}, pair_${i}_3.high.${"xyzw"[c]});
//#else
//#for m in 0..VALUE_TOKENS / 2
        kv_tile[value_put_${i} + ${2 * c}u * WEIGHT_WORDS][value_block_${i} % ${8 / VALUE_TOKENS}u * ${VALUE_TOKENS / 2}u + ${m}u] = pair_${i}_${m}.low.${"xyzw"[c]};
//#end
//#for m in 0..VALUE_TOKENS / 2
        kv_tile[value_put_${i} + ${2 * c + 1}u * WEIGHT_WORDS][value_block_${i} % ${8 / VALUE_TOKENS}u * ${VALUE_TOKENS / 2}u + ${m}u] = pair_${i}_${m}.high.${"xyzw"[c]};
//#end
//#endif
//#end
//#end
        // The last tile fetches itself again; nothing reads it.
        let next = select(tile, tile + TILE, tile + TILE < end);
//#expand fetch_keys("next")
        workgroupBarrier();
        // The sum of V so far, rescaled for the new maximum, and the tile's values by their weights. All columns of `factor` are equal.
        let factor = coopLoad<${MATRIX}<f32, C>>(&factors[strip * STRIP], 0u);
//#for i in 0..SUM_FRAGMENTS
        sum_${i} = coop_multiply_elements(sum_${i}, factor);
//#end
//#for n in 0..WEIGHT_FRAGMENTS
        let strip_weight_${n} = coop_load_half_a(weights[strip * STRIP * WEIGHT_WORDS + ${FRAGMENT_K / 8 * n}u], WEIGHT_WORDS);
//#for i in 0..SUM_FRAGMENTS
        let value_${n}_${i} = coop_load_half_b(kv_tile[(slice * ${SUM_FRAGMENTS}u + ${i}u) * VALUE_WORDS + ${FRAGMENT_K / 8 * n}u], WEIGHT_WORDS);
        sum_${i} = coopMultiplyAdd(strip_weight_${n}, value_${n}_${i}, sum_${i});
//#end
//#end
    }
    // Weights are e^LIFT times what they are elsewhere.
    let sum = with_sink(query_sum(total), largest - LIFT, first_head + weighed % HEADS);
    workgroupBarrier();
    if (share == 0u) {
        factors[weighed] = 1.0 / sum;
    }
    workgroupBarrier();
    // As many dimensions at a time as a plane of scores is wide.
    let factor = coopLoad<${MATRIX}<f32, C>>(&factors[strip * STRIP], 0u);
//#for first in 0..div_ceil(SUM_FRAGMENTS, SCORE_FRAGMENTS)
//#for i in first * SCORE_FRAGMENTS..min((first + 1) * SCORE_FRAGMENTS, SUM_FRAGMENTS)
    coopStoreT(coop_multiply_elements(sum_${i}, factor), &scores[plane + ${FRAGMENT_N / 4 * (i % SCORE_FRAGMENTS)}u], SCORE_QUADS);
//#end
    write(plane, strip, first_row, last_row, first_head, slice * SLICE_DIM + ${FRAGMENT_N * SCORE_FRAGMENTS * first}u, ${FRAGMENT_N / 4 * min(SCORE_FRAGMENTS, SUM_FRAGMENTS - first * SCORE_FRAGMENTS)}u, subgroup_lane);
//#end
}
