// One workgroup a row.
${DECLARATIONS}
//#include reduce
//#include encode
//#include encode_row

// Rows are padded with whatever was there before.
fn quad_of(at: u32, quad: u32) -> vec4<f32> {
    let columns = vec4<u32>(4u * quad) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(0.0), input[at + min(quad, STRIDE / 4u - 1u)], columns < vec4<u32>(WIDTH));
}

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x;
    if (row >= ${ROWS}) {
        return;
    }
    let at = row * (STRIDE / 4u);
//#if ENCODE_FACTOR
    var most = 0.0;
    for (var quad = lane; quad < STORED_QUADS; quad += WORKGROUP) {
        most = max(most, largest(quad_of(at, quad)));
    }
    store_factor(row * STRIDE, workgroup_max(most, lane), lane);
//#endif
    // Every lane goes round as often as the others: groups are made together.
    for (var first = 0u; first < STORED_QUADS; first += WORKGROUP) {
        let quad = first + lane;
        store_quad(row * STRIDE, quad, quad_of(at, quad), lane);
    }
}
