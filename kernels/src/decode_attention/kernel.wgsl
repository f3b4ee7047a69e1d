// One workgroup a split of the tokens that a row attends to, and HEADS query heads of one KV head. Its subgroups work independently
// through the tokens, SUBGROUP at a time: while scoring, a lane is a token; while adding up V, a chunk of dimensions and a
// strided share of the tokens. They synchronise twice: when the queries are ready, and at the end. Names that end in
// `_q` belong to query q; `key_u` and `value_u` are words of the cache, of CHUNK_QUADS vectors of four dimensions, numbered j.
${DECLARATIONS}
//#include cache
//#include split
//#include pairs
//#if STORES_NEWEST
//#include store_newest
//#else
//#include store_kv
//#endif
//#include sink
//#if FUSED_TAIL
//#include weights
//#include fused_tail
//#else
//#include result
//#endif
//#if COUNTER_SYNC
//#include counter_sync
//#endif
//#if CLEARS
//#include clear_fixed_sums
//#endif
//#if SOFTCAP
//#include tanh
//#endif

// Queries, then the newest token's key and value.
var<workgroup> vectors: array<vec4<f32>, (HEADS + 2) * QUADS>;
var<workgroup> partial_sums: array<vec4<f32>, PARTIAL_SUMS>;
// Largest score and sum of weights: of each subgroup, query by query, and of each split later.
var<workgroup> reports: array<vec2<f32>, REPORTS>;

//#if SOFTCAP
fn capped(score: f32) -> f32 {
    return CAP * bounded_tanh(score / CAP);
}
//#else
fn capped(score: f32) -> f32 {
    return score;
}
//#endif

// First words of K for the lane's token `slot` of `page`.
//#macro load_keys()
//#for u in 0..KEYS_AHEAD
        key_${u} = keys[key_at(page, slot, ${u}u)];
//#end
//#if KV_INT8
        key_scale = bitcast<f32>(keys[scale_at(page, slot)][slot % 4u]);
//#endif
//#end

// Word u of V that the lane adds up: of the u-th of its tokens.
//#macro load_value(declare, u)
${declare}value_${u} = values[value_at(page, clamp(tile + ${u}u * SHARES + share, span.begin, end - 1u) % PAGE_TOKENS, chunk)];
//#end

// The first of them.
//#macro load_values()
//#for u in 0..VALUES_AHEAD
//#expand load_value("", u)
//#end
//#if KV_INT8
        value_scale = bitcast<f32>(values[scale_at(page, slot)][slot % 4u]);
//#endif
//#end

// Where the input has query `vector` of the workgroup, or behind those the key or the value.
fn input_at(row: u32, vector: u32, first_head: u32) -> u32 {
    let kv_head = first_head / GQA;
//#if VALUES_ARE_KEYS
    let behind = N_HEADS + kv_head;
//#else
    let behind = N_HEADS + (vector - HEADS) * KV_HEADS + kv_head;
//#endif
    return row * INPUT_STRIDE + select(behind, first_head + vector, vector < HEADS) * HEAD_DIM;
}

fn store_vector(vector: u32, pairs: Pairs, lane: u32) {
    for (var slot = 0u; slot < PAIR_SLOTS; slot++) {
        let pair = lane + slot * SUBGROUP;
        if (pair < PAIRS) {
            store_element(vector, first_of(pair), pairs[slot].x);
            store_element(vector, second_of(pair), pairs[slot].y);
        }
    }
    for (var element = HEAD_DIM + lane; element < PADDED; element += SUBGROUP) {
        store_element(vector, element, 0.0);
    }
}

fn store_element(vector: u32, element: u32, value: f32) {
    vectors[vector * QUADS + element / 4u][element % 4u] = value;
}

// As the cache holds a vector: the chunk of this lane.
fn packed(vector: u32, lane: u32) -> Packed {
    let at = vector * QUADS + min(lane, CHUNKS - 1u) * CHUNK_QUADS;
//#if KV_INT8
    var most = vec4<f32>(0.0);
    for (var quad = 0u; quad < CHUNK_QUADS; quad++) {
        most = max(most, abs(vectors[at + quad]));
    }
    let scale = subgroupMax(max(max(most.x, most.y), max(most.z, most.w))) / KV_CODE_MAX;
    let inverse = select(0.0, 1.0 / scale, scale > 0.0);
    var words = vec4<u32>(0u);
    for (var quad = 0u; quad < CHUNK_QUADS; quad++) {
        words[quad] = int8_word(vec4<i32>(round(vectors[at + quad] * inverse)));
    }
    return Packed(words, scale);
//#else
    let low = vectors[at];
    let high = vectors[at + 1u];
    let pairs = vec4<u32>(pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
    return Packed(pairs, 1.0);
//#endif
}

//#if FUSED_TAIL
// Four elements of a head's result, for the matmul behind.
fn store_result(row: u32, head: u32, quad: u32, value: vec4<f32>, lane: u32) {
    keep_for_tail(head % HEADS * HEAD_QUADS + quad, value, lane);
}
//#endif

// What the subgroups' sums of this query make together.
struct Sum {
    quad: vec4<f32>,
    max_score: f32,
    total: f32,
}

fn sum_of(query: u32, quad: u32) -> Sum {
    var max_score = MASKED;
    for (var subgroup = 0u; subgroup < SUBGROUPS; subgroup++) {
        max_score = max(max_score, reports[query * SUBGROUPS + subgroup].x);
    }
    var sum = Sum(vec4<f32>(0.0), max_score, 0.0);
    let first = (query * CHUNK_QUADS + quad % CHUNK_QUADS) * TILE + quad / CHUNK_QUADS;
    for (var subgroup = 0u; subgroup < SUBGROUPS; subgroup++) {
        let report = reports[query * SUBGROUPS + subgroup];
        let weight = exp(report.x - max_score);
        sum.total += weight * report.y;
        for (var share = 0u; share < SHARES; share++) {
            sum.quad += weight * partial_sums[first + subgroup * SUBGROUP + share * CHUNKS];
        }
    }
    return sum;
}

//#if PARTIAL
//#include completion

fn partial_at(row: u32, head: u32, split: u32) -> u32 {
    return ((row * N_HEADS + head) * MAX_SPLITS + split) * PARTIAL_QUADS;
}

// Combines the splits' partial results by their maxima and sums. A pass takes as many quads of the result as there are lanes; where there
// are fewer, lanes share the splits of a quad.
fn combine(row: u32, first_head: u32, splits: u32, index: u32) {
    for (var i = index; i < HEADS * splits; i += TILE) {
        reports[i] = partials[partial_at(row, first_head + i / splits, i % splits) + HEAD_QUADS].xy;
    }
    workgroupBarrier();
    let share = index / PASS;
    for (var first = 0u; first < HEADS * HEAD_QUADS; first += PASS) {
        let item = min(first + index % PASS, HEADS * HEAD_QUADS - 1u);
        let query = item / HEAD_QUADS;
        let quad = item % HEAD_QUADS;
        let at = partial_at(row, first_head + query, 0u) + quad;
        var max_score = MASKED;
        for (var i = 0u; i < splits; i++) {
            max_score = max(max_score, reports[query * splits + i].x);
        }
        var total = 0.0;
        for (var i = 0u; i < splits; i++) {
            let report = reports[query * splits + i];
            total += exp(report.x - max_score) * report.y;
        }
        total = with_sink(total, max_score, first_head + query);
        var sum = vec4<f32>(0.0);
        if (share < PASS_SHARES) {
            for (var i = share; i < splits; i += ${GATHERED}u * PASS_SHARES) {
                // All parts are loaded before the first is weighted.
//#for u in 0..GATHERED
                let split_${u} = i + ${u}u * PASS_SHARES;
                let place_${u} = min(split_${u}, splits - 1u);
                let part_${u} = partials[at + place_${u} * PARTIAL_QUADS];
//#end
//#for u in 0..GATHERED
                sum += select(0.0, exp(reports[query * splits + place_${u}].x - max_score), split_${u} < splits) * part_${u};
//#end
            }
        }
        partial_sums[index] = sum;
        workgroupBarrier();
        if (index < PASS && first + index < HEADS * HEAD_QUADS) {
            for (var other = 1u; other < PASS_SHARES; other++) {
                sum += partial_sums[other * PASS + index];
            }
            store_result(row, first_head + query, quad, sum / total, index);
        }
        workgroupBarrier();
    }
}
//#endif

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    let row = group.y;
    if (row >= ${ROWS_END}) {
//#if COUNTER_SYNC
        count_workgroup(index);
//#endif
        return;
    }
    let split = group.z;
    let span = span_of(row);
    if (split >= span.splits) {
//#if COUNTER_SYNC
        count_workgroup(index);
//#endif
        return;
    }
    let subgroup = index / SUBGROUP;
    let lane = index % SUBGROUP;
    let first_head = group.x * HEADS;
    let kv_head = first_head / GQA;
    let position = step.rows[row].position;
    let table = table_of(row);
    let is_first = split == 0u;
    // While adding up V, a lane has a chunk of dimensions and a strided share of the tokens.
    let share = min(lane / CHUNKS, SHARES - 1u);
    let chunk = lane % CHUNKS;
    let first_tile = (span.begin / TILE + split * span.tiles_per_split) * TILE;
    let end = select(first_tile, min(span.end, first_tile + span.tiles_per_split * TILE), span.begin < span.end);
    // The tokens of a tile lie in one page. Tokens outside begin..end may be no longer this sequence's, or hold anything, even
    // NaNs: lanes without a token read a neighbour's, and give it no weight.
    let early = first_tile + subgroup * SUBGROUP;
    var tile = select(early, early + TILE, early + SUBGROUP <= span.begin);
//#for u in 0..KEYS_AHEAD
    var key_${u}: vec4<u32>;
//#end
//#for u in 0..VALUES_AHEAD
    var value_${u}: vec4<u32>;
//#end
//#if KV_INT8
    var key_scale = 0.0;
    var value_scale = 0.0;
//#endif
    var page = 0u;
//#if FUSED_TAIL
//#expand load_tail("index", "group.x * ${TAIL_GROUPS}u")
//#endif
    // All loads are issued before the first result is used.
//#if !COUNTER_SYNC
    var pairs = pairs_of_input(input_at(row, subgroup, first_head), lane);
//#endif
//#if ROPE
    let rotations = rotations_of(row, lane);
//#endif
//#if QUERY_NORM
    let query_factors = pairs_of_query_norm(lane);
//#endif
//#if KEY_NORM
    let key_factors = pairs_of_key_norm(lane);
//#endif
    if (tile < end) {
        page = head_of_page(table, max(tile, span.begin), kv_head);
        let slot = clamp(tile + lane, span.begin, end - 1u) % PAGE_TOKENS;
//#expand load_keys()
//#expand load_values()
    }
//#if COUNTER_SYNC
    await_dispatch(index);
    var pairs = pairs_of_input(input_at(row, subgroup, first_head), lane);
//#endif
    for (var vector = subgroup; vector < select(HEADS, HEADS + 2u, is_first); vector += SUBGROUPS) {
        if (vector != subgroup) {
            pairs = pairs_of_input(input_at(row, vector, first_head), lane);
        }
//#if QUERY_NORM
        if (vector < HEADS) {
            pairs = normed(pairs, query_factors);
        }
//#endif
//#if KEY_NORM
        if (vector == HEADS) {
            pairs = normed(pairs, key_factors);
        }
//#endif
//#if VALUE_NORM
        if (vector == HEADS + 1u) {
            var ones: Pairs;
            for (var slot = 0u; slot < PAIR_SLOTS; slot++) {
                ones[slot] = vec2<f32>(1.0);
            }
            pairs = normed(pairs, ones);
        }
//#endif
//#if ROPE
        if (vector <= HEADS) {
            pairs = rotated(pairs, rotations);
        }
//#endif
        if (vector < HEADS) {
            for (var slot = 0u; slot < PAIR_SLOTS; slot++) {
                pairs[slot] *= ${QUERY_SCALE};
            }
        }
        store_vector(vector, pairs, lane);
    }
    workgroupBarrier();
//#for q in 0..HEADS
    var max_${q} = MASKED;
    var total_${q} = 0.0;
//#for j in 0..CHUNK_QUADS
    var acc_${j}_${q} = vec4<f32>(0.0);
//#end
//#end
    // The last subgroup has the fewest tokens.
    if (is_first && subgroup == SUBGROUPS - 1u) {
        let key = packed(HEADS, lane);
        let value = packed(HEADS + 1u, lane);
//#if STORES_NEWEST
        if (first_head % GQA == 0u) {
            store_newest(key, value, table, position, kv_head, lane);
        }
//#endif
        // The newest token is the first: its score is the max_score so far, and its weight 1.
//#for j in 0..CHUNK_QUADS
//#expand unpack_cached("newest_key_${j}", "", "key.words", j)
//#expand unpack_cached("newest_value_${j}", "value.scale * ", "value.words", j)
//#end
//#for q in 0..HEADS
        let part_${q} = select(0.0, key.scale * (
//#for j in 0..CHUNK_QUADS join +
            dot(newest_key_${j}, vectors[${q}u * QUADS + chunk * CHUNK_QUADS + ${j}u])
//#end
        ), lane < CHUNKS);
        max_${q} = capped(subgroupAdd(part_${q}));
        total_${q} = select(0.0, 1.0, lane == 0u);
//#for j in 0..CHUNK_QUADS
        acc_${j}_${q} = select(vec4<f32>(0.0), newest_value_${j}, lane < CHUNKS);
//#end
//#end
    }
    while (tile < end) {
        let token = tile + lane;
        let inside = token >= span.begin && token < end;
        // The operands of the next tile are loaded as soon as there are registers for it.
        let next = tile + TILE;
        var next_page = page;
        if (next < end) {
            next_page = head_of_page(table, next, kv_head);
        }
        // Every query's score against this lane's token.
//#if KEYS_AHEAD < CHUNKS
        let slot = clamp(token, span.begin, end - 1u) % PAGE_TOKENS;
//#for u in KEYS_AHEAD..CHUNKS
        let key_${u} = keys[key_at(page, slot, ${u}u)];
//#end
//#endif
//#for q in 0..HEADS
        var score_${q} = 0.0;
//#end
//#for u in 0..CHUNKS
//#for j in 0..CHUNK_QUADS
//#expand unpack_cached("key_${u}_${j}", "", "key_${u}", j)
//#for q in 0..HEADS
        score_${q} += dot(key_${u}_${j}, vectors[${q}u * QUADS + ${u * CHUNK_QUADS + j}u]);
//#end
//#end
//#end
//#if KV_INT8
//#for q in 0..HEADS
        score_${q} *= key_scale;
//#end
//#endif
        if (next < end) {
            let page = next_page;
            let slot = min(next + lane, end - 1u) % PAGE_TOKENS;
//#expand load_keys()
        }
        // The new maximum, what it makes of the sums so far, and the weight of this lane's token.
//#for q in 0..HEADS
        let seen_${q} = select(MASKED, capped(score_${q}), inside);
        let next_${q} = max(max_${q}, subgroupMax(seen_${q}));
        let rescale_${q} = exp(max_${q} - next_${q});
        max_${q} = next_${q};
        let weight_${q} = select(0.0, exp(seen_${q} - next_${q}), inside);
        total_${q} = total_${q} * rescale_${q} + weight_${q};
//#if KV_INT8
        let factor_${q} = weight_${q} * value_scale;
//#else
        let factor_${q} = weight_${q};
//#endif
//#for j in 0..CHUNK_QUADS
        acc_${j}_${q} *= rescale_${q};
//#end
//#end
//#for u in VALUES_AHEAD..STEPS
//#expand load_value("let ", u)
//#end
//#for u in 0..STEPS
//#for j in 0..CHUNK_QUADS
//#expand unpack_cached("value_${u}_${j}", "", "value_${u}", j)
//#end
//#for q in 0..HEADS
        // The weight of the u-th token that this lane adds up, from the lane that scored it.
//#if (u + 1) * SHARES <= SUBGROUP
        let factor_${u}_${q} = subgroupShuffle(factor_${q}, ${u}u * SHARES + share);
//#else
        let factor_${u}_${q} = select(0.0, subgroupShuffle(factor_${q}, min(${u}u * SHARES + share, SUBGROUP - 1u)), ${u}u * SHARES + share < SUBGROUP);
//#endif
//#for j in 0..CHUNK_QUADS
        acc_${j}_${q} += factor_${u}_${q} * value_${u}_${j};
//#end
//#end
//#end
        tile = next;
        page = next_page;
        if (tile < end) {
            let slot = min(tile + lane, end - 1u) % PAGE_TOKENS;
//#expand load_values()
        }
    }
//#for q in 0..HEADS
    let sum_${q} = subgroupAdd(total_${q});
    if (lane == 0u) {
        reports[${q}u * SUBGROUPS + subgroup] = vec2<f32>(max_${q}, sum_${q});
    }
//#for j in 0..CHUNK_QUADS
    partial_sums[(${q}u * CHUNK_QUADS + ${j}u) * TILE + index] = acc_${j}_${q};
//#end
//#end
    workgroupBarrier();
    for (var item = index; item < HEADS * HEAD_QUADS; item += TILE) {
        let query = item / HEAD_QUADS;
        let quad = item % HEAD_QUADS;
        let sum = sum_of(query, quad);
//#if PARTIAL
        if (span.splits > 1u) {
            let at = partial_at(row, first_head + query, split);
            partials[at + quad] = sum.quad;
            if (quad == 0u) {
                partials[at + HEAD_QUADS] = vec4<f32>(sum.max_score, sum.total, f32(span.splits), 0.0);
            }
        } else {
            store_result(row, first_head + query, quad, sum.quad / with_sink(sum.total, sum.max_score, first_head + query), index);
        }
//#else
        store_result(row, first_head + query, quad, sum.quad / with_sink(sum.total, sum.max_score, first_head + query), index);
//#endif
    }
//#if PARTIAL
    var is_done = span.splits == 1u;
    if (!is_done && is_last(row * (N_HEADS / HEADS) + group.x, span.splits, index)) {
        combine(row, first_head, span.splits, index);
        is_done = true;
    }
//#else
    const is_done = true;
//#endif
//#if FUSED_TAIL
    workgroupBarrier();
    if (is_done) {
//#expand multiply_tail("index")
    }
//#endif
//#if CLEARS
    if (group.x + group.y + group.z == 0u) {
        clear_fixed_sums(index);
    }
//#endif
//#if COUNTER_SYNC
    count_workgroup(index);
//#endif
}
