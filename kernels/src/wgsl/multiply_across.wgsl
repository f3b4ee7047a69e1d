// The loop of a matmul whose lanes take columns and not rows (`Sharing::Across`); it uses macros of `matmul`.

// The weight of this lane's column in octet `octet` of a row's word, without its scale, and a comma.
//#macro lane_weight(word, octet)
//#if MATRIX_INT4
            // As int4_low and int4_high have them.
//#if CODEBOOK
            f32(lifted_levels(${word}.${"xyzw"[octet]} >> (8u * (row % 4u) + 4u * (row / 4u))).low & 255u),
//#else
            f32((${word}.${"xyzw"[octet]} >> (8u * (row % 4u) + 4u * (row / 4u))) & 15u),
//#endif
//#else if MATRIX_INT8
            f32(bitcast<i32>(select(${word}.${"xyzw"[2 * octet]}, ${word}.${"xyzw"[2 * octet + 1]}, row >= 4u) << (24u - 8u * (row % 4u))) >> 24u),
//#else
            unpack2x16float(${word}[row / 2u])[row % 2u],
//#endif
//#end

// The product of a row's word with the chunk's activations: nested fmas, the last octet's outside.
//#macro lane_products(word, chunk)
//#for i in 0..CHUNK_COLS / 8
            fma(
//#expand lane_weight(word, CHUNK_COLS / 8 - 1 - i)
            x_${chunk}_${CHUNK_COLS / 8 - 1 - i},
//#end
            0.0
//#for i in 0..CHUNK_COLS / 8
            )
//#end
//#end

// The loop of `Sharing::Across`: lanes take the columns of a word, rows follow one another. A lane's accumulators are the eight rows of a
// tile, each summed over its own columns; at the end, lanes and rows are transposed, and lane n has row n as in every other loop.
//#macro multiply_across()
    let shared_tile = subgroupBroadcastFirst(first_tile);
//#expand place_tiles("let ", "shared_tile")
//#for tile in 0..TILES_PER_LANE
//#for row in 0..8
    var row_${tile}_${row} = 0.0;
//#end
//#end
    for (var block = 0u; block < BLOCKS; block++) {
//#for tile in 0..TILES_PER_LANE
        let at_${tile} = base_${tile} + block * BLOCK_WORDS;
//#end
//#expand unpack_params()
//#for chunk in 0..CHUNKS_PER_BLOCK
        // The activations of a chunk's columns, and its weights of all rows.
//#for octet in 0..CHUNK_COLS / 8
        let x_${chunk}_${octet} = activation(input_row, block * ${BLOCK_COLS}u + ${chunk * CHUNK_COLS + 8 * octet}u + row);
//#end
//#if MATRIX_INT4
        let sum_${chunk} =
//#for octet in 0..CHUNK_COLS / 8 join +
            x_${chunk}_${octet}
//#end
        ;
//#endif
//#for tile in 0..TILES_PER_LANE
//#for row in 0..8
        let w_${chunk}_${tile}_${row} = weights[at_${tile} + ${8 * chunk + row}u];
//#if MATRIX_INT4
        row_${tile}_${row} = fma(subgroupBroadcast(scale_${tile}, ${row}u),
//#expand lane_products("w_${chunk}_${tile}_${row}", chunk)
            , fma(subgroupBroadcast(shift_${tile}, ${row}u), sum_${chunk}, row_${tile}_${row}));
//#else if MATRIX_INT8
        row_${tile}_${row} = fma(subgroupBroadcast(scale_${tile}, ${row}u),
//#expand lane_products("w_${chunk}_${tile}_${row}", chunk)
            , row_${tile}_${row});
//#else
        row_${tile}_${row} = row_${tile}_${row} +
//#expand lane_products("w_${chunk}_${tile}_${row}", chunk)
            ;
//#endif
//#end
//#end
//#end
    }
//#for tile in 0..TILES_PER_LANE
    // Adds up over the lanes and leaves the sum of row n in lane n: at each step half of the rows go to the other half of the lanes.
//#for level in 0..3
//#let half = 4 / pow(2, level)
//#for row in 0..half
    row_${tile}_${row} = select(row_${tile}_${row}, row_${tile}_${row + half}, (row & ${half}u) != 0u)
        + subgroupShuffleXor(select(row_${tile}_${row + half}, row_${tile}_${row}, (row & ${half}u) != 0u), ${half}u);
//#end
//#end
    var acc_${tile}_0 = row_${tile}_0;
//#end
//#end
