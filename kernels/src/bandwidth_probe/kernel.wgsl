// Whole blocks only. There is a workgroup for each word of what is written.
${DECLARATIONS}

var<workgroup> words: array<u32, LANES>;

@compute @workgroup_size(${LANES})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let blocks = arrayLength(&weights) / BLOCK_QUADS;
    let groups = arrayLength(&folded);
    var folded_quad = vec4<u32>(0u);
    for (var block = group.x; block < blocks; block += groups) {
        let first = block * BLOCK_QUADS + lane;
//#for i in 0..LOADS
        let quad_${i} = weights[first + ${i * LANES}u];
//#end
        folded_quad ^=
//#for i in 0..LOADS join ^
            quad_${i}
//#end
        ;
    }
    words[lane] = folded_quad.x ^ folded_quad.y ^ folded_quad.z ^ folded_quad.w;
    workgroupBarrier();
    if (lane == 0u) {
        var word = 0u;
        for (var other = 0u; other < LANES; other++) {
            word ^= words[other];
        }
        folded[group.x] = word;
    }
}
