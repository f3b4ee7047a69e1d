// A workgroup's tile of a GEMM without matrix units, and each lane's results in it: LANE_ROWS rows of the step by one row in each of
// LANE_TILES tiles of 8 matrix rows.
//#if ACT_MUL
//#include activation
//#endif

// Where the tile begins, and in it the lane's part.
//#macro place_lane()
//#expand place_tile()
    let row = lane % 8u;
    let lane_tile = lane / 8u % ${ACROSS}u * ${LANE_TILES}u;
    let lane_step_row = lane / ${8 * ACROSS}u * ${LANE_ROWS}u;
//#end

// The same for lanes that load vectors of four from workgroup memory: two neighbours have the same matrix rows. An H100 is up to 5 in 100 faster so:
// it seems to load for twice as many lanes at a time where lanes 1 or 2 apart have the same address, as of activations in the order above.
//#macro place_lane_in_pairs()
//#expand place_tile()
    let row = lane / 2u % 8u;
    let lane_tile = lane / 16u % ${ACROSS}u * ${LANE_TILES}u;
    let lane_step_row = (lane / ${16 * ACROSS}u * 2u + lane % 2u) * ${LANE_ROWS}u;
//#end

//#macro place_tile()
    let first_step_row = group.x * STEP_ROWS;
    let first_tile = group.y * (MATRIX_ROWS / 8u);
    if (first_step_row >= ${ROWS_IN_USE}) {
        return;
    }
    // Rows past the last are computed as the last one again, and not written.
    let last_step_row = ${ROWS_IN_USE} - 1u;
//#end

// Finishes and writes sum_TILE_ROW of each.
//#macro write_results()
//#for tile in 0..LANE_TILES
    let matrix_row_of_${tile} = (first_tile + lane_tile + ${tile}u) * 8u + row;
//#if BIAS
    let bias_${tile} = bias[min(matrix_row_of_${tile}, ${MATRIX_ROWS_WITHOUT_PADDING - 1}u)];
//#for token in 0..LANE_ROWS
    sum_${tile}_${token} += bias_${tile};
//#end
//#endif
//#end
//#for token in 0..LANE_ROWS
    let step_row_of_${token} = first_step_row + lane_step_row + ${token}u;
    if (step_row_of_${token} <= last_step_row) {
        let output_at = step_row_of_${token} * OUTPUT_STRIDE + OUTPUT_FIRST;
//#if ACT_MUL
//#for pair in 0..LANE_TILES / 2
        let column_${pair} = (first_tile + lane_tile) / 2u * 8u + ${8 * pair}u + row;
        if (column_${pair} < OUTPUT_ROWS) {
            output[output_at + column_${pair}] = gated(sum_${2 * pair}_${token}, sum_${2 * pair + 1}_${token});
        }
//#end
//#else
//#for tile in 0..LANE_TILES
        if (matrix_row_of_${tile} < OUTPUT_ROWS) {
            output[output_at + matrix_row_of_${tile}] = sum_${tile}_${token};
        }
//#end
//#endif
    }
//#end
//#end
