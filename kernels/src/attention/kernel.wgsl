// One workgroup a split of the tokens that ROWS rows attend to, and HEADS query heads of one KV head: QUERIES = ROWS * HEADS
// vectors, carried through tiles of TILE tokens. Names that end in `_q` belong to query q; a word of the cache is CHUNK_QUADS
// vectors of four dimensions, numbered j.
${DECLARATIONS}
//#include cache
//#if IMAGES
//#include last_seen
//#endif
//#include split
//#include reduce
//#if FOLD
//#include vectors
//#include store_newest
//#endif
//#if SOFTCAP
//#include tanh
//#endif
//#if !PARTIAL
//#include result
//#include sink
//#endif

var<workgroup> queries: array<vec4<f32>, QUERIES * QUADS>;
// exp(score - max_score) of the tile's tokens; without subgroups, the scores before.
var<workgroup> weights: array<f32, QUERIES * TILE>;
// Largest scores of PARTS runs of the tile.
var<workgroup> parts: array<f32, QUERIES * PARTS>;
var<workgroup> partial_sums: array<vec4<f32>, TILE * CHUNK_QUADS>;

//#if SOFTCAP
fn capped(score: f32) -> f32 {
    return CAP * bounded_tanh(score / CAP);
}
//#else
fn capped(score: f32) -> f32 {
    return score;
}
//#endif

//#if LATENT
// A chunk of a token's latent vector, of which keys are the whole and values the first chunks.
fn latent_word(head: u32, slot: u32, chunk: u32) -> vec4<u32> {
    if (chunk < PAGE_CHUNKS) {
        return keys[key_at(head, slot, chunk)];
    }
    return values[key_at(head, slot, chunk - PAGE_CHUNKS)];
}
//#endif

// The page, of those of a tile, that holds the tile's token `slot`, is NAME_(TILE / PAGE_TOKENS - 1).
//#macro page_of_slot(name, slot)
let ${name}_0 = page_0;
//#for i in 1..TILE / PAGE_TOKENS
let ${name}_${i} = select(page_${i}, ${name}_${i - 1}, ${slot} < ${i * PAGE_TOKENS}u);
//#end
//#end

//#if IMAGES
fn attends(position: u32, last: u32, token: u32) -> bool {
//#if WINDOWED
    return token <= last && token + WINDOW > position;
//#else
    return token <= last;
//#endif
}
//#else
fn attends(position: u32, token: u32) -> bool {
//#if WINDOWED
    return token <= position && token + WINDOW > position;
//#else
    return token <= position;
//#endif
}
//#endif

// Stores the partial result of query `query` in one of `splits` splits. Lanes have left their sums in `partial_sums`.
fn finish(
    query: u32,
    max_score: f32,
    lane_total: f32,
    first_row: u32,
    first_head: u32,
    split: u32,
    splits: u32,
    lane: u32,
) {
    let row = first_row + query / HEADS;
    let head = first_head + query % HEADS;
//#if PARTIAL
    let total = workgroup_sum(lane_total, lane);
//#else
    let total = with_sink(workgroup_sum(lane_total, lane), max_score, head);
//#endif
    // Rows past the last repeat it; nothing of them is stored.
    if (row < ${ROWS_END}) {
        for (var first = 0u; first < HEAD_QUADS; first += TILE) {
            let quad = first + lane;
            var sum = vec4<f32>(0.0);
            if (quad < HEAD_QUADS) {
                for (var share = 0u; share < SHARES; share++) {
                    sum += partial_sums[share * VALUE_QUADS + quad];
                }
            }
//#if PARTIAL
            if (quad < HEAD_QUADS) {
                partials[((row * N_HEADS + head) * MAX_SPLITS + split) * PARTIAL_QUADS + quad] = sum;
            }
//#else
            store_result(row, head, quad, sum / total, lane);
//#endif
        }
//#if PARTIAL
        if (lane == 0u) {
            let at = ((row * N_HEADS + head) * MAX_SPLITS + split) * PARTIAL_QUADS + HEAD_QUADS;
            partials[at] = vec4<f32>(max_score, total, f32(splits), 0.0);
        }
//#endif
    }
    workgroupBarrier();
}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = ${FIRST_ROW};
    if (first_row >= step.header.n_rows) {
        return;
    }
    let split = group.z;
    let span = span_of(first_row);
    if (split >= span.splits) {
        return;
    }
    let first_head = group.x * HEADS;
    let kv_head = first_head / GQA;
    let table = table_of(first_row);
    let first_tile = (span.begin / TILE + split * span.tiles_per_split) * TILE;
    let end = select(first_tile, min(span.end, first_tile + span.tiles_per_split * TILE), span.begin < span.end);
    // While adding up V, a lane has a chunk of dimensions and a strided share of the tokens.
    let share = min(lane / VALUE_CHUNKS, SHARES - 1u);
    let chunk = lane % VALUE_CHUNKS;
//#if ROWS > 1
//#for row in 0..ROWS
    let position_${row} = step.rows[min(first_row + ${row}u, ${ROWS_END} - 1u)].position;
//#if IMAGES
    let last_${row} = last_seen(min(first_row + ${row}u, ${ROWS_END} - 1u));
//#endif
//#end
//#endif
//#for q in 0..QUERIES
    var max_${q} = MASKED;
    var total_${q} = 0.0;
//#for j in 0..CHUNK_QUADS
    var acc_${j}_${q} = vec4<f32>(0.0);
//#end
//#end
//#if FOLD
    let position = step.rows[first_row].position;
    let is_first = split == 0u;
    // All loads are issued before the first result is used.
    let at = first_row * INPUT_STRIDE;
    fetch_vectors(0u, HEADS, at + first_head * HEAD_DIM, lane);
    if (is_first) {
        fetch_vectors(HEADS, 1u, at + (N_HEADS + kv_head) * HEAD_DIM, lane);
//#if VALUES_ARE_KEYS
        fetch_vectors(HEADS + 1u, 1u, at + (N_HEADS + kv_head) * HEAD_DIM, lane);
//#else
        fetch_vectors(HEADS + 1u, 1u, at + (N_HEADS + KV_HEADS + kv_head) * HEAD_DIM, lane);
//#endif
    }
//#if ROPE
    fetch_rotations(first_row, lane);
//#endif
    workgroupBarrier();
//#if QUERY_NORM
    for (var q = 0u; q < HEADS; q++) {
        norm_query(q, lane);
    }
//#endif
//#if KEY_NORM
    if (is_first) {
        norm_key(HEADS, lane);
    }
//#endif
//#if VALUE_NORM
    if (is_first) {
        norm_value(HEADS + 1u, lane);
    }
//#endif
//#if ROPE
    rope_vectors(0u, select(HEADS, HEADS + 1u, is_first), lane);
//#endif
    let query_scale = ${QUERY_SCALE};
    for (var i = lane; i < QUERIES * QUADS; i += TILE) {
        let at = 4u * i;
        queries[i] = query_scale * vec4<f32>(vectors[at], vectors[at + 1u], vectors[at + 2u], vectors[at + 3u]);
    }
    workgroupBarrier();
    if (is_first) {
        let key = packed(HEADS, lane);
        let value = packed(HEADS + 1u, lane);
        if (first_head % GQA == 0u) {
            store_newest(key, value, table, position, kv_head, lane);
        }
        // The newest token is the first: its score is the max_score so far, and its weight 1.
//#for j in 0..CHUNK_QUADS
//#expand unpack_cached("key_${j}", "", "key.words", j)
//#expand unpack_cached("value_${j}", "value.scale * ", "value.words", j)
//#end
//#for q in 0..QUERIES
        let part_${q} = select(0.0, key.scale * (
//#for j in 0..CHUNK_QUADS join +
            dot(key_${j}, queries[${q}u * QUADS + chunk * CHUNK_QUADS + ${j}u])
//#end
        ), lane < CHUNKS);
        max_${q} = capped(workgroup_sum(part_${q}, lane));
        total_${q} = select(0.0, 1.0, lane == 0u);
//#for j in 0..CHUNK_QUADS
        acc_${j}_${q} = select(vec4<f32>(0.0), value_${j}, lane < CHUNKS);
//#end
//#end
    }
//#else
    for (var i = lane; i < QUERIES * QUADS; i += TILE) {
        let query = i / QUADS;
        let row = min(first_row + query / HEADS, ${ROWS_END} - 1u);
        let at = row * INPUT_STRIDE + (first_head + query % HEADS) * HEAD_DIM;
        var quad = vec4<f32>(0.0);
        for (var part = 0u; part < 4u; part++) {
            let element = 4u * (i % QUADS) + part;
            if (element < HEAD_DIM) {
                quad[part] = input[at + element];
            }
        }
        queries[i] = quad;
    }
    workgroupBarrier();
//#endif
    for (var tile = first_tile; tile < end; tile += TILE) {
        // Tokens outside begin..end may lie in pages that are no longer this sequence's, or hold anything, even NaNs: lanes
        // without a token read a neighbour's, and give it no weight.
        let low = max(span.begin, tile) - tile;
        let high = min(end, tile + TILE) - tile;
//#for i in 0..TILE / PAGE_TOKENS
        let page_${i} = head_of_page(table, tile + clamp(${i * PAGE_TOKENS}u, low, high - 1u), kv_head);
//#end
        let slot = clamp(lane, low, high - 1u);
        let inside = slot == lane;
//#expand page_of_slot("head", "slot")
        let head = head_${TILE / PAGE_TOKENS - 1};
//#if !LATENT
        let key_first = key_at(head, slot % PAGE_TOKENS, 0u);
//#endif
        // Every query's score against this lane's token: one read of K serves all.
//#for q in 0..QUERIES
        var score_${q} = 0.0;
//#end
        for (var c = 0u; c < CHUNKS; c += KEY_UNROLL) {
//#for u in 0..KEY_UNROLL
//#if LATENT
            let key_${u} = latent_word(head, slot % PAGE_TOKENS, c + ${u}u);
//#else
            let key_${u} = keys[key_first + (c + ${u}u) * PAGE_TOKENS];
//#endif
//#end
//#for u in 0..KEY_UNROLL
//#for j in 0..CHUNK_QUADS
//#expand unpack_cached("key_${u}_${j}", "", "key_${u}", j)
//#for q in 0..QUERIES
            score_${q} += dot(key_${u}_${j}, queries[${q}u * QUADS + (c + ${u}u) * CHUNK_QUADS + ${j}u]);
//#end
//#end
//#end
        }
//#if KV_INT8
        let key_scale = bitcast<f32>(keys[scale_at(head, slot % PAGE_TOKENS)][slot % 4u]);
//#if LATENT
        let value_scale = key_scale;
//#else
        let value_scale = bitcast<f32>(values[scale_at(head, slot % PAGE_TOKENS)][slot % 4u]);
//#endif
//#endif
        // Scores of what a query attends to, and the max_score of each part of the tile.
//#for q in 0..QUERIES
//#if KV_INT8
        let scaled_${q} = score_${q} * key_scale;
//#else
        let scaled_${q} = score_${q};
//#endif
//#if ROWS > 1 && IMAGES
        let seen_${q} = select(MASKED, capped(scaled_${q}), inside && attends(position_${q / HEADS}, last_${q / HEADS}, tile + lane));
//#else if ROWS > 1
        let seen_${q} = select(MASKED, capped(scaled_${q}), inside && attends(position_${q / HEADS}, tile + lane));
//#else
        let seen_${q} = select(MASKED, capped(scaled_${q}), inside);
//#endif
//#if SUBGROUPS
        let part_max_${q} = subgroupMax(seen_${q});
        if (lane % SUBGROUP == 0u) {
            parts[${q}u * PARTS + lane / SUBGROUP] = part_max_${q};
        }
//#else
        weights[${q}u * TILE + lane] = seen_${q};
//#endif
//#end
//#if !SUBGROUPS
        workgroupBarrier();
        for (var i = lane; i < QUERIES * PARTS; i += TILE) {
            var max_here = MASKED;
            for (var t = 0u; t < TILE / PARTS; t++) {
                max_here = max(max_here, weights[i * (TILE / PARTS) + t]);
            }
            parts[i] = max_here;
        }
//#endif
        workgroupBarrier();
        // The new maximum, what it makes of the sums so far, and the weight of this lane's token.
//#for q in 0..QUERIES
        var next_${q} = max_${q};
//#for i in 0..PARTS
        next_${q} = max(next_${q}, parts[${q}u * PARTS + ${i}u]);
//#end
        let rescale_${q} = exp(max_${q} - next_${q});
        max_${q} = next_${q};
        // A row that attends to nothing yet has MASKED as its maximum, and weighs nothing.
        let weight_${q} = select(exp(seen_${q} - next_${q}), 0.0, seen_${q} == MASKED);
        total_${q} = total_${q} * rescale_${q} + weight_${q};
//#if KV_INT8
        weights[${q}u * TILE + lane] = weight_${q} * value_scale;
//#else
        weights[${q}u * TILE + lane] = weight_${q};
//#endif
//#for j in 0..CHUNK_QUADS
        acc_${j}_${q} *= rescale_${q};
//#end
//#end
        workgroupBarrier();
        for (var t = low / (SHARES * VALUE_UNROLL) * (SHARES * VALUE_UNROLL); t < high; t += SHARES * VALUE_UNROLL) {
//#for u in 0..VALUE_UNROLL
            let token_${u} = t + ${u}u * SHARES + share;
            let slot_${u} = clamp(token_${u}, low, high - 1u);
//#expand page_of_slot("page_of_${u}", "slot_${u}")
//#if LATENT
            let value_${u} = latent_word(page_of_${u}_${TILE / PAGE_TOKENS - 1}, slot_${u} % PAGE_TOKENS, chunk);
//#else
            let value_${u} = values[value_at(page_of_${u}_${TILE / PAGE_TOKENS - 1}, slot_${u} % PAGE_TOKENS, chunk)];
//#endif
//#end
//#for u in 0..VALUE_UNROLL
//#for j in 0..CHUNK_QUADS
//#expand unpack_cached("value_${u}_${j}", "", "value_${u}", j)
//#end
//#for q in 0..QUERIES
            let weight_${u}_${q} = weights[${q}u * TILE + token_${u}];
//#for j in 0..CHUNK_QUADS
            acc_${j}_${q} += weight_${u}_${q} * value_${u}_${j};
//#end
//#end
//#end
        }
//#if !SUBGROUPS
        workgroupBarrier();
//#endif
    }
    for (var q = 0u; q < QUERIES; q++) {
        // What query q has found, picked by its number: one copy of what follows serves all.
//#for j in 0..CHUNK_QUADS
        var acc_${j}_found = acc_${j}_0;
//#end
        var max_score = max_0;
        var total = total_0;
//#for other in 1..QUERIES
        if (q == ${other}u) {
//#for j in 0..CHUNK_QUADS
            acc_${j}_found = acc_${j}_${other};
//#end
            max_score = max_${other};
            total = total_${other};
        }
//#end
//#for j in 0..CHUNK_QUADS
        partial_sums[lane * CHUNK_QUADS + ${j}u] = acc_${j}_found;
//#end
        finish(q, max_score, total, first_row, first_head, split, span.splits, lane);
    }
}
