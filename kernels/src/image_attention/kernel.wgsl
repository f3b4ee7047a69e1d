// One lane a query of a head. Keys and values of TILE patches at a time lie in workgroup memory, where all lanes read the same quad.
// Quads of a head are numbered j, patches of a block u.
${DECLARATIONS}

var<workgroup> key_tile: array<vec4<f32>, TILE * QUADS>;
var<workgroup> value_tile: array<vec4<f32>, TILE * QUADS>;

//#macro load_quad(name, place, quad)
    var ${name} = vec4<f32>(0.0);
    for (var part = 0u; part < 4u; part++) {
        if (4u * ${quad} + part < HEAD_DIM) {
            ${name}[part] = ${place} + 4u * ${quad} + part];
        }
    }
//#end

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let n_rows = ${ROWS};
    if (group.x * WORKGROUP >= n_rows) {
        return;
    }
    let head_at = group.y * HEAD_DIM;
    // Lanes past the last row repeat it, and write nothing.
    let row = min(group.x * WORKGROUP + lane, n_rows - 1u);
    let query_at = row * QUERY_STRIDE + QUERY_FIRST + head_at;
//#for j in 0..QUADS
//#expand load_quad("loaded_${j}", "input[query_at", "${j}u")
    let query_${j} = SCALE * loaded_${j};
    var sum_${j} = vec4<f32>(0.0);
//#end
    var largest = MASKED;
    var total = 0.0;
    for (var first = 0u; first < n_rows; first += TILE) {
        workgroupBarrier();
        for (var i = lane; i < TILE * QUADS; i += WORKGROUP) {
            let patch_row = min(first + i / QUADS, n_rows - 1u);
            let key_at = patch_row * KEY_STRIDE + KEY_FIRST + head_at;
            let value_at = patch_row * VALUE_STRIDE + VALUE_FIRST + head_at;
//#expand load_quad("key", "second[key_at", "(i % QUADS)")
//#expand load_quad("value", "third[value_at", "(i % QUADS)")
            key_tile[i] = key;
            value_tile[i] = value;
        }
        workgroupBarrier();
        for (var block = 0u; block < TILE; block += ${BLOCK}u) {
            let at = block * QUADS;
//#for u in 0..BLOCK
            let product_${u} =
//#for j in 0..QUADS join +
                dot(query_${j}, key_tile[at + ${u}u * QUADS + ${j}u])
//#end
            ;
            let score_${u} = select(MASKED, product_${u}, first + block + ${u}u < n_rows);
//#end
            var next = largest;
//#for u in 0..BLOCK
            next = max(next, score_${u});
//#end
            let rescale = exp(largest - next);
            largest = next;
//#for u in 0..BLOCK
            let weight_${u} = select(exp(score_${u} - next), 0.0, score_${u} == MASKED);
//#end
            total = total * rescale
//#for u in 0..BLOCK
                + weight_${u}
//#end
            ;
//#for j in 0..QUADS
            sum_${j} = sum_${j} * rescale
//#for u in 0..BLOCK
                + weight_${u} * value_tile[at + ${u}u * QUADS + ${j}u]
//#end
            ;
//#end
        }
    }
    if (group.x * WORKGROUP + lane < n_rows) {
        let out = row * OUTPUT_STRIDE + head_at;
//#for j in 0..QUADS
        let result_${j} = sum_${j} / total;
        for (var part = 0u; part < 4u; part++) {
            if (${4 * j}u + part < HEAD_DIM) {
                output[out + ${4 * j}u + part] = result_${j}[part];
            }
        }
//#end
    }
}
