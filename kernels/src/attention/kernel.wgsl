// One workgroup a split of the tokens that ROWS rows see, and HEADS query heads of one KV head: QUERIES = ROWS * HEADS
// vectors, carried through tiles of TILE tokens. In the text that is generated, names that end in a number belong to the
// query of that number.
${DECLARATIONS}
//#include cache
//#include split
//#include reduce
//#if FOLD
//#include vectors
//#include put_newest
//#endif
//#if SOFTCAP
//#include tanh
//#endif
//#if !PARTIAL
//#include result
//#endif

var<workgroup> queries: array<vec4<f32>, QUERIES * QUADS>;
// exp(score - greatest) of the tile's tokens; without subgroups, the scores before.
var<workgroup> weights: array<f32, QUERIES * TILE>;
// Greatest scores of PARTS runs of the tile.
var<workgroup> parts: array<f32, QUERIES * PARTS>;
var<workgroup> mixed: array<vec4<f32>, TILE * CHUNK_QUADS>;

//#if SOFTCAP
fn capped(score: f32) -> f32 {
    return CAP * bounded_tanh(score / CAP);
}
//#else
fn capped(score: f32) -> f32 {
    return score;
}
//#endif

fn sees(position: u32, token: u32) -> bool {
//#if WINDOWED
    return token <= position && token + WINDOW > position;
//#else
    return token <= position;
//#endif
}

// Puts away what query `query` found in one of `splits` splits. Lanes have left their sums in `mixed`.
fn finish(
    query: u32,
    greatest: f32,
    lane_total: f32,
    first_row: u32,
    first_head: u32,
    split: u32,
    splits: u32,
    lane: u32,
) {
    let total = workgroup_sum(lane_total, lane);
    let row = first_row + query / HEADS;
    let head = first_head + query % HEADS;
    // Rows past the last repeat it; nothing of them is stored.
    if (row < step.header.n_rows) {
        for (var first = 0u; first < HEAD_QUADS; first += TILE) {
            let quad = first + lane;
            var sum = vec4<f32>(0.0);
            if (quad < HEAD_QUADS) {
                for (var share = 0u; share < SHARES; share++) {
                    sum += mixed[share * QUADS + quad];
                }
            }
//#if PARTIAL
            if (quad < HEAD_QUADS) {
                partials[((row * N_HEADS + head) * ROOM + split) * PARTIAL_QUADS + quad] = sum;
            }
//#else
            put_result(row, head, quad, sum / total, lane);
//#endif
        }
//#if PARTIAL
        if (lane == 0u) {
            let at = ((row * N_HEADS + head) * ROOM + split) * PARTIAL_QUADS + HEAD_QUADS;
            partials[at] = vec4<f32>(greatest, total, f32(splits), 0.0);
        }
//#endif
    }
    workgroupBarrier();
}

@compute @workgroup_size(${WORKGROUP_SIZE})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = group.y * ROWS;
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
    // While mixing, a lane has a chunk of dimensions and every so-many-th token.
    let share = min(lane / CHUNKS, SHARES - 1u);
    let chunk = lane % CHUNKS;
${STATE}
//#if FOLD
    let position = step.rows[first_row].position;
    let is_first = split == 0u;
    // Everything is on its way before anything is waited for.
    let at = first_row * INPUT_STRIDE;
    fetch_vectors(0u, HEADS, at + first_head * HEAD_DIM, lane);
    if (is_first) {
        fetch_vectors(HEADS, 1u, at + (N_HEADS + kv_head) * HEAD_DIM, lane);
        fetch_vectors(HEADS + 1u, 1u, at + (N_HEADS + KV_HEADS + kv_head) * HEAD_DIM, lane);
    }
//#if ROPE
    fetch_turns(first_row, lane);
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
//#if ROPE
    rope_vectors(0u, select(HEADS, HEADS + 1u, is_first), lane);
//#endif
    for (var i = lane; i < QUERIES * QUADS; i += TILE) {
        let at = 4u * i;
        queries[i] = QUERY_SCALE * vec4<f32>(vectors[at], vectors[at + 1u], vectors[at + 2u], vectors[at + 3u]);
    }
    workgroupBarrier();
    if (is_first) {
        let key = packed(HEADS, lane);
        let value = packed(HEADS + 1u, lane);
        if (first_head % GQA == 0u) {
            put_newest(key, value, table, position, kv_head, lane);
        }
${NEWEST}
    }
//#else
    for (var i = lane; i < QUERIES * QUADS; i += TILE) {
        let query = i / QUADS;
        let row = min(first_row + query / HEADS, step.header.n_rows - 1u);
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
${PAGES}
        let slot = clamp(lane, low, high - 1u);
        let inside = slot == lane;
        let head = ${PAGE_OF_SLOT};
        let key_first = key_at(head, slot % PAGE_TOKENS, 0u);
${SCORES}
        for (var c = 0u; c < CHUNKS; c += KEY_UNROLL) {
${SCORE}
        }
//#if KV_INT8
        let key_scale = bitcast<f32>(keys[scale_at(head, slot % PAGE_TOKENS)][slot % 4u]);
        let value_scale = bitcast<f32>(values[scale_at(head, slot % PAGE_TOKENS)][slot % 4u]);
//#endif
${SCORED}
//#if !SUBGROUPS
        workgroupBarrier();
        for (var i = lane; i < QUERIES * PARTS; i += TILE) {
            var most = MASKED;
            for (var t = 0u; t < TILE / PARTS; t++) {
                most = max(most, weights[i * (TILE / PARTS) + t]);
            }
            parts[i] = most;
        }
//#endif
        workgroupBarrier();
${WEIGH}
        workgroupBarrier();
        for (var t = low / (SHARES * VALUE_UNROLL) * (SHARES * VALUE_UNROLL); t < high; t += SHARES * VALUE_UNROLL) {
${MIX}
        }
//#if !SUBGROUPS
        workgroupBarrier();
//#endif
    }
    for (var q = 0u; q < QUERIES; q++) {
${FOUND}
        finish(q, greatest, total, first_row, first_head, split, span.splits, lane);
    }
}
