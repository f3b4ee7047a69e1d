// Heads of one row in workgroup memory, PADDED elements each with zeros past HEAD_DIM: norm, RoPE and the write to the
// cache. Called by all lanes of a workgroup together; what is fetched is readable behind a barrier, anything else at once.
var<workgroup> vectors: array<f32, VECTORS * PADDED>;

// `count` vectors from `vector` on, from consecutive heads of the input; to be read behind a barrier.
fn fetch_vectors(vector: u32, count: u32, at: u32, lane: u32) {
    for (var i = lane; i < count * PADDED; i += WORKGROUP) {
        let element = i % PADDED;
        if (element < HEAD_DIM) {
            vectors[vector * PADDED + i] = input[at + i / PADDED * HEAD_DIM + element];
        } else {
            vectors[vector * PADDED + i] = 0.0;
        }
    }
}

//#if NORM
fn norm_factor(vector: u32, lane: u32) -> f32 {
    var squares = 0.0;
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
        squares += vectors[vector * PADDED + i] * vectors[vector * PADDED + i];
    }
    return inverseSqrt(workgroup_sum(squares, lane) / f32(HEAD_DIM) + EPS);
}
//#endif

//#if QUERY_NORM
fn norm_query(vector: u32, lane: u32) {
    let factor = norm_factor(vector, lane);
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
        vectors[vector * PADDED + i] *= factor * query_norm[i];
    }
    workgroupBarrier();
}
//#endif

//#if KEY_NORM
fn norm_key(vector: u32, lane: u32) {
    let factor = norm_factor(vector, lane);
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
        vectors[vector * PADDED + i] *= factor * key_norm[i];
    }
    workgroupBarrier();
}
//#endif

//#if VALUE_NORM
fn norm_value(vector: u32, lane: u32) {
    let factor = norm_factor(vector, lane);
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
        vectors[vector * PADDED + i] *= factor;
    }
    workgroupBarrier();
}
//#endif

//#if ROPE
//#if SHIFTED
//#include rope_position
//#endif
// Cosine and sine of each rotary pair's angle.
var<workgroup> rotations: array<vec2<f32>, ROTARY_PAIRS>;

// Of row `row`; to be read behind a barrier.
fn fetch_rotations(row: u32, lane: u32) {
//#if SHIFTED
    let variant = 0u;
//#else
    let position = step.rows[row].position;
    let variant = step.rows[row].rope_variant * (ROPE_COARSE + ROPE_FINE) * ROTARY_PAIRS;
//#endif
    for (var i = lane; i < ROTARY_PAIRS; i += WORKGROUP) {
//#if SHIFTED
        let position = rope_position(row, i);
//#endif
        let coarse = rope_table[variant + (position / ROPE_FINE) * ROTARY_PAIRS + i];
        let fine = rope_table[variant + (ROPE_COARSE + position % ROPE_FINE) * ROTARY_PAIRS + i];
        rotations[i] = vec2<f32>(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
    }
}

fn rope_vectors(vector: u32, count: u32, lane: u32) {
    for (var i = lane; i < count * ROTARY_PAIRS; i += WORKGROUP) {
        let rotation = rotations[i % ROTARY_PAIRS];
        let at = (vector + i / ROTARY_PAIRS) * PADDED + ${ROTARY_BEGINS}i % ROTARY_PAIRS;
        let low = vectors[at];
        let high = vectors[at + ROTARY_PAIRS];
        vectors[at] = low * rotation.x - high * rotation.y;
        vectors[at + ROTARY_PAIRS] = high * rotation.x + low * rotation.y;
    }
    workgroupBarrier();
}
//#endif

//#if CACHE
//#include store_kv

//#if KV_INT8
fn packed(vector: u32, lane: u32) -> Packed {
    var most = 0.0;
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {
        most = max(most, abs(vectors[vector * PADDED + i]));
    }
    let scale = workgroup_max(most, lane) / KV_CODE_MAX;
    let inverse = select(0.0, 1.0 / scale, scale > 0.0);
    let at = vector * PADDED + min(lane, CHUNKS - 1u) * 16u;
    let words = vec4<u32>(
        packed_codes(at, inverse),
        packed_codes(at + 4u, inverse),
        packed_codes(at + 8u, inverse),
        packed_codes(at + 12u, inverse),
    );
    return Packed(words, scale);
}

fn packed_codes(at: u32, inverse: f32) -> u32 {
    let quad = vec4<f32>(vectors[at], vectors[at + 1u], vectors[at + 2u], vectors[at + 3u]);
    return int8_word(vec4<i32>(round(quad * inverse)));
}
//#else
fn packed(vector: u32, lane: u32) -> Packed {
    let at = vector * PADDED + min(lane, CHUNKS - 1u) * 8u;
    return Packed(vec4<u32>(packed_pair(at), packed_pair(at + 2u), packed_pair(at + 4u), packed_pair(at + 6u)), 1.0);
}

fn packed_pair(at: u32) -> u32 {
    return pack2x16float(vec2<f32>(vectors[at], vectors[at + 1u]));
}
//#endif
//#endif
