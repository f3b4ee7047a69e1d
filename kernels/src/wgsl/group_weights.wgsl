// A group of 32 packed weights of one row, and its product with integer activations: the inner step of every matmul that uses packed dot
// products. `matrix` is MATRIX or FUSED, with which the names of its values begin; variables of a group end in `name`.

// `at_name`: where the block of column group `group` begins. Blocks of 64 and of 128 weights are several groups of activations.
//#macro place_group(matrix, name, base, group)
//#let block_words = ${matrix}_BLOCK_WORDS
//#let groups_per_block = ${matrix}_GROUPS_PER_BLOCK
//#if groups_per_block == 1
let at_${name} = ${base} + ${group} * ${block_words}u;
//#else
let at_${name} = ${base} + (${group} / ${groups_per_block}u) * ${block_words}u;
//#endif
//#end

// Loads weights and parameters of row `row` of a tile. `declare` is `let `, `var `, or nothing where they have been declared.
//#macro load_group(matrix, name, declare, buffer, row, group)
//#let block_words = ${matrix}_BLOCK_WORDS
//#let groups_per_block = ${matrix}_GROUPS_PER_BLOCK
//#if WIDE
${declare}pair_${name} = ${buffer}[at_${name} + ${block_words - 2}u + ${row} / 4u][${row} % 4u];
//#else
${declare}pair_${name} = ${buffer}[at_${name} + ${block_words - 1}u][${row} / 2u];
//#endif
//#if ${matrix}_INT8
${declare}first_${name} = ${buffer}[at_${name} + ${row}];
${declare}second_${name} = ${buffer}[at_${name} + 8u + ${row}];
//#else if groups_per_block == 1
${declare}word_${name} = ${buffer}[at_${name} + ${row}];
//#else
${declare}word_${name} = ${buffer}[at_${name} + (${group} % ${groups_per_block}u) * 8u + ${row}];
//#endif
//#end

// Declares what a group loads, where it is loaded from one of several buffers.
//#macro declare_group(matrix, name)
var pair_${name} = 0u;
//#if ${matrix}_INT8
var first_${name} = vec4<u32>();
var second_${name} = vec4<u32>();
//#else
var word_${name} = vec4<u32>();
//#endif
//#end

// Scale, zero point and codes.
//#macro unpack_group(matrix, name, row)
let param_${name} = row_param(pair_${name}, ${row});
//#if ${matrix}_INT8
let scale_${name} = int8_scale(param_${name});
//#else
let scale_${name} = int4_scale(param_${name});
//#if CODEBOOK
//#for i in 0..4
let levels_${name}_${i} = signed_levels(word_${name}.${"xyzw"[i]});
//#end
let low_${name} = vec4<u32>(
//#for i in 0..4 join ,
    levels_${name}_${i}.low
//#end
);
let high_${name} = vec4<u32>(
//#for i in 0..4 join ,
    levels_${name}_${i}.high
//#end
);
//#else
let zero_${name} = i32(param_${name} >> ZERO_SHIFT);
// Codes 0..4 of each word, and 4..8.
let low_${name} = word_${name} & vec4<u32>(0x0f0f0f0fu);
let high_${name} = (word_${name} >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
//#endif
//#endif
//#end

// Scale and sum of codes of a group of activations, from the word that holds both.
//#macro unpack_activations(matrix, x, word)
let of_group_${x} = ${word};
let x_scale_${x} = bitcast<f32>(of_group_${x} & 0xffff0000u);
//#if !${matrix}_SIGNED
let x_sum_${x} = bitcast<i32>(of_group_${x} << 16u) >> 16u;
//#endif
//#end

// The integer dot product of a group's weights with the activations x_X_FIRST and the one behind.
//#macro dot_group(matrix, name, x, first)
//#for i in 0..8 join +
//#let c = "xyzwxyzw"[i]
//#let quad = first + i / 4
//#if ${matrix}_INT8 && i < 4
    dot4I8Packed(first_${name}.${c}, x_${x}_${quad}.${c})
//#else if ${matrix}_INT8
    dot4I8Packed(second_${name}.${c}, x_${x}_${quad}.${c})
//#else if i % 2 == 0
    dot4I8Packed(low_${name}.${"xyzw"[i / 2]}, x_${x}_${quad}.${c})
//#else
    dot4I8Packed(high_${name}.${"xyzw"[i / 2]}, x_${x}_${quad}.${c})
//#endif
//#end
//#end

// Adds scale * x_scale * (dot product - zero * sum of activations) to `sum`. Activations of two planes are 16 * high + low.
//#macro add_product(matrix, sum, name, x, planes)
${sum} = fma(scale_${name} * x_scale_${x}, f32(
//#if planes == 2
    16 * (
//#expand dot_group(matrix, name, x, 0)
    ) +
//#expand dot_group(matrix, name, x, 2)
//#else
//#expand dot_group(matrix, name, x, 0)
//#endif
//#if !${matrix}_SIGNED
    - zero_${name} * x_sum_${x}
//#endif
), ${sum});
//#end
