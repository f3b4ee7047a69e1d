// What a workgroup has made for the next matmul, as integers; drawn in kernels/src/next.rs.
//#include encode

var<workgroup> next_codes: array<vec4<u32>, 2u * NEXT_GROUPS>;
var<workgroup> next_group_words: array<u32, NEXT_GROUPS>;

// Four elements a lane, `quad` of the workgroup's. Called by all lanes together.
fn keep_next(quad: u32, x: vec4<f32>, lane: u32) {
    let quantised = quantise(x, lane);
    let words = code_words(quantised);
    let of_group = group_word(quantised, lane);
    if (quad < 8u * NEXT_GROUPS) {
        next_codes[quad / 4u][quad % 4u] = words.x;
        if (quad % 8u == 0u) {
            next_group_words[quad / 8u] = of_group;
        }
    }
}
