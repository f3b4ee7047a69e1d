// What decode's attention on matrix units has in workgroup memory; drawn in kernels/src/decode_attention/matrices.rs.

// Queries as f16, a row each, in the order in which lanes have a token's dimensions.
var<workgroup> query_words: array<vec4<u32>, SIDE * QUERY_WORDS>;
// Of each subgroup: scores of a piece, a row a query, and at last a fragment of the mix.
var<workgroup> scores: array<vec4<f32>, SUBGROUPS * SIDE * SCORE_QUADS>;
// What tokens of a piece weigh, as f16, and what each query's sums are multiplied by.
var<workgroup> weight_words: array<vec4<u32>, SUBGROUPS * SIDE * WEIGHT_WORDS>;
var<workgroup> rescales: array<f32, SUBGROUPS * SIDE>;
// The newest token's value, fragment by fragment.
var<workgroup> newest_value: array<f32, PADDED>;
// A fragment of each subgroup, row by row, on its way from the lanes that have it.
var<workgroup> lane_words: array<u32, SUBGROUPS * FRAGMENT_WORDS>;

fn make_query_words(index: u32) {
    for (var i = index; i < HEADS * CHUNKS; i += WORKGROUP) {
        let word = i % CHUNKS;
        var halves: vec4<u32>;
        for (var place = 0u; place < 4u; place++) {
            let dim = 8u * (word / 4u * 4u + place) + 2u * (word % 4u);
            let quad = vectors[i / CHUNKS * QUADS + dim / 4u];
            halves[place] = pair_of(select(quad.xy, quad.zw, dim % 4u == 2u));
        }
        query_words[i / CHUNKS * QUERY_WORDS + word] = halves;
    }
}

// Where the newest value's dimensions lie.
fn fragment_place(dim: u32) -> u32 {
    let chunk = dim / 8u;
    let element = dim % 8u;
    return (chunk / SIDE * 8u + element % PART) * SIDE + element / PART * CHUNKS + chunk % SIDE;
}

// The dimension of a fragment's column.
fn dim_of(fragment: u32, column: u32) -> u32 {
    let chunk = fragment / PART * SIDE + column % CHUNKS;
    return 8u * chunk + column / CHUNKS * PART + fragment % PART;
}

fn capped_quad(score: vec4<f32>) -> vec4<f32> {
//#if SOFTCAP
    return vec4<f32>(capped(score.x), capped(score.y), capped(score.z), capped(score.w));
//#else
    return score;
//#endif
}

// Leaves the fragment of the mix that is in `scores`, for the workgroup's sum.
fn leave_fragment(fragment: u32, plane: u32, subgroup: u32, lane: u32) {
    subgroupBarrier();
    for (var i = lane; i < HEADS * SIDE; i += SUBGROUP) {
        let query = i / SIDE;
        let column = i % SIDE;
        let dim = dim_of(fragment, column);
        let value = scores[plane + query * SCORE_QUADS + column / 4u][column % 4u];
        mixed[(subgroup * HEADS + query) * QUADS + dim / 4u][dim % 4u] = value;
    }
    subgroupBarrier();
}
