// The matmul behind a kernel, by the workgroups that made its input; drawn in kernels/src/fused_tail.rs. What a workgroup has made is
// kept as integers in its memory.
//#include encode
//#include group_weights

var<workgroup> tail_codes: array<vec4<u32>, 2u * TAIL_GROUPS>;
var<workgroup> tail_group_words: array<u32, TAIL_GROUPS>;

// Four elements a lane, `quad` of the workgroup's. Called by all lanes together.
fn keep_for_tail(quad: u32, x: vec4<f32>, lane: u32) {
    let quantised = quantise(x, lane);
    let words = code_words(quantised);
    let of_group = group_word(quantised, lane);
    if (quad < 8u * TAIL_GROUPS) {
        tail_codes[quad / 4u][quad % 4u] = words.x;
        if (quad % 8u == 0u) {
            tail_group_words[quad / 8u] = of_group;
        }
    }
}

// Loads every weight that the lane multiplies, which needs no result of another workgroup. `first_group` is the first group of columns
// of this workgroup.
//#macro load_tail(lane, first_group)
    let tail_row = ${lane} % 8u;
//#for group in 0..TAIL_GROUPS
    // Groups past the last are zeros.
    let tail_group_${group} = min(${first_group} + ${group}u, ${FUSED_LAST_GROUP}u);
//#end
//#for slot in 0..TAIL_SLOTS
    let tail_base_${slot} = min(${lane} / 8u + ${slot * WORKGROUP / 8}u, ${FUSED_LAST_TILE}u) * ${FUSED_TILE_WORDS}u;
//#for group in 0..TAIL_GROUPS
//#expand place_group("FUSED", "tail_${slot}_${group}", "tail_base_${slot}", "tail_group_${group}")
//#expand load_group("FUSED", "tail_${slot}_${group}", "let ", "tail_weights", "tail_row", "tail_group_${group}")
//#end
//#end
//#end

// Multiplies them by what `keep_for_tail` has kept, and adds the products to the sums.
//#macro multiply_tail(lane)
//#for group in 0..TAIL_GROUPS
//#expand unpack_activations("FUSED", "tail_${group}", "tail_group_words[${group}]")
//#for i in 0..2
    let x_tail_${group}_${i} = tail_codes[${2 * group + i}];
//#end
//#end
//#for slot in 0..TAIL_SLOTS
    var tail_sum_${slot} = 0.0;
//#for group in 0..TAIL_GROUPS
//#expand unpack_group("FUSED", "tail_${slot}_${group}", "tail_row")
//#expand add_product("FUSED", "tail_sum_${slot}", "tail_${slot}_${group}", "tail_${group}", 1)
//#end
    if (${lane} + ${slot * WORKGROUP}u < ${FUSED_ROWS}u) {
        atomicAdd(&fixed_sums[${lane} + ${slot * WORKGROUP}u], i64(tail_sum_${slot} * ${SUM_UNIT}));
    }
//#end
//#end
