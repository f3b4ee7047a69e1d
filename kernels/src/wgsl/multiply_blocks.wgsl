// The loop of a matmul of f32 activations whose lanes each have a row; it uses macros of `matmul`.

// Four weights, number `part` of those of word_TILE; for sums of a block, without their scale.
//#macro unpack_quad(part, tile)
//#if MATRIX_F16
            let w_${part}_${tile} = f16_weights(word_${tile}.${"xyzw"[2 * part]}, word_${tile}.${"xyzw"[2 * part + 1]});
//#else if MATRIX_INT8 && BLOCK_SUMS
            let w_${part}_${tile} = int8_codes(word_${tile}.${"xyzw"[part]});
//#else if MATRIX_INT8
            let w_${part}_${tile} = int8_codes(word_${tile}.${"xyzw"[part]}) * scale_${tile};
//#else if BLOCK_SUMS && part % 2 == 0
            let w_${part}_${tile} = int4_low_differences(word_${tile}.${"xyzw"[part / 2]}, zero_${tile});
//#else if BLOCK_SUMS
            let w_${part}_${tile} = int4_high_differences(word_${tile}.${"xyzw"[part / 2]}, zero_${tile});
//#else if OWN_LOADS && part % 2 == 0
            let w_${part}_${tile} = int4_low_differences(word_${tile}.${"xyzw"[part / 2]}, zero_${tile}) * scale_${tile};
//#else if OWN_LOADS
            let w_${part}_${tile} = int4_high_differences(word_${tile}.${"xyzw"[part / 2]}, zero_${tile}) * scale_${tile};
//#else if part % 2 == 0
            let w_${part}_${tile} = fma(int4_low(word_${tile}.${"xyzw"[part / 2]}), vec4(scale_${tile}), vec4(shift_${tile}));
//#else
            let w_${part}_${tile} = fma(int4_high(word_${tile}.${"xyzw"[part / 2]}), vec4(scale_${tile}), vec4(shift_${tile}));
//#endif
//#end

// The loop of f32 activations: blocks of weights.
//#macro multiply_blocks()
//#expand place_tiles("let ", "first_tile")
    for (var block = ${FIRST_RUN}; block < BLOCKS; block += ${COLUMN_LANES}u) {
//#for tile in 0..TILES_PER_LANE
        let at_${tile} = base_${tile} + block * BLOCK_WORDS;
//#end
//#expand unpack_params()
//#if BROADCAST
        // Eight activations of every row at a time, one a lane, broadcast to the subgroup.
        for (var chunk = 0u; chunk < ${CHUNKS_PER_BLOCK}u; chunk++) {
//#for tile in 0..TILES_PER_LANE
            let chunk_${tile} = weights[at_${tile} + chunk * 8u + row];
//#end
            for (var octet = 0u; octet < ${CHUNK_COLS / 8}u; octet++) {
//#for tile in 0..TILES_PER_LANE
                // The words that hold the octet, first in front.
//#if MATRIX_INT4
                let word_${tile} = vec4<u32>(chunk_${tile}[octet], 0u, 0u, 0u);
//#else if MATRIX_INT8
                let word_${tile} = select(chunk_${tile}, chunk_${tile}.zwxy, octet == 1u);
//#else
                let word_${tile} = chunk_${tile};
//#endif
//#expand unpack_quad(0, tile)
//#expand unpack_quad(1, tile)
//#end
                let at = block * ${BLOCK_COLS}u + chunk * ${CHUNK_COLS}u + octet * 8u + row;
//#for token in 0..TOKENS_PER_LANE
//#if BY_EXPERT
                let x_${token} = activation(input_row_${token}, at);
//#else
                let x_${token} = activation(input_row + ${token}u, at);
//#endif
//#for i in 0..8
                let x_${token}_${i} = subgroupBroadcast(x_${token}, ${i}u);
//#for tile in 0..TILES_PER_LANE
                acc_${tile}_${token} = fma(w_${i / 4}_${tile}.${"xyzw"[i % 4]}, x_${token}_${i}, acc_${tile}_${token});
//#end
//#end
//#end
            }
        }
//#else
        // Four activations of every row at a time, each lane loading its own.
        let quad = block * ${BLOCK_COLS / 4}u;
//#if BLOCK_SUMS
        // For one row of the step, a block is summed before it is scaled, once; for several, further sums would take as many registers again.
//#for tile in 0..TILES_PER_LANE
        var sum_${tile}_0 = 0.0;
//#end
//#let into = "sum"
//#else
//#let into = "acc"
//#endif
//#for chunk in 0..CHUNKS_PER_BLOCK
        {
//#for tile in 0..TILES_PER_LANE
            let word_${tile} = weights[at_${tile} + ${8 * chunk}u + row];
//#end
//#for part in 0..CHUNK_COLS / 4
//#for tile in 0..TILES_PER_LANE
//#expand unpack_quad(part, tile)
//#end
//#for token in 0..TOKENS_PER_LANE
//#if BY_EXPERT
            let x_${part}_${token} = activations(input_row_${token}, quad + ${chunk * CHUNK_COLS / 4 + part}u);
//#else
            let x_${part}_${token} = activations(input_row + ${token}u, quad + ${chunk * CHUNK_COLS / 4 + part}u);
//#endif
//#for tile in 0..TILES_PER_LANE
//#for i in 0..4
            ${into}_${tile}_${token} = fma(w_${part}_${tile}.${"xyzw"[i]}, x_${part}_${token}.${"xyzw"[i]}, ${into}_${tile}_${token});
//#end
//#end
//#end
//#end
        }
//#end
//#if BLOCK_SUMS
//#for tile in 0..TILES_PER_LANE
        acc_${tile}_0 = fma(sum_${tile}_0, scale_${tile}, acc_${tile}_0);
//#end
//#endif
//#endif
    }
//#end
