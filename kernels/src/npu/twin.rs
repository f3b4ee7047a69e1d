//! What a core does with its objects, and the whole product from its definition.
//!
//! [`add_products`] and [`finish`] work on bytes in the layout of [`super::tile`], as the core does. [`product`] uses none of that
//! layout: it is the independent answer.

use half::bf16;

use super::quantize::{Activations, Weights};
use super::tile::{BLOCK_BYTES, BLOCK_COLS, BLOCK_DEPTH, BLOCK_ROWS, BLOCK_SUMS, CoreTile, Epilogue, GemmShape};

/// Adds the products of one activation object and one weight object to `sums`, rows/4 × cols/8 blocks of 4×8.
pub fn add_products(core: &CoreTile, activations: &[u8], weights: &[u8], sums: &mut [i32]) {
    let (shift, half) = (core.multiplier_shift(), core.multiplier_half());
    let (codes, weight_codes) = (activation_codes(core, activations), weight_codes(core, weights));
    for (row, codes) in codes.chunks_exact(core.depth).enumerate() {
        let of_row = core.row_multipliers_at() + core.row_multiplier_of(row) / BLOCK_ROWS * BLOCK_SUMS;
        let of_row = &activations[of_row + row % BLOCK_ROWS * BLOCK_COLS..][..BLOCK_COLS];
        let blocks = weight_codes.chunks_exact(BLOCK_COLS * core.depth).enumerate();
        for (col_block, weight_codes) in blocks {
            let lanes = row % BLOCK_ROWS * BLOCK_COLS;
            let block = row / BLOCK_ROWS * (core.cols / BLOCK_COLS) + col_block;
            let sums = &mut sums[block * BLOCK_SUMS + lanes..][..BLOCK_COLS];
            let of_columns = &weights[core.multipliers_at() + col_block * BLOCK_SUMS + lanes..][..BLOCK_COLS];
            let multipliers = of_columns.iter().zip(of_row);
            let columns = weight_codes.chunks_exact(core.depth);
            for ((sum, column), (of_column, of_row)) in sums.iter_mut().zip(columns).zip(multipliers) {
                let short = ((dot(codes, column) + core.half()) >> core.shift()) as i16;
                let multiplier = (i32::from(*of_column as i8) * i32::from(*of_row as i8) + half) >> shift;
                *sum = sum.wrapping_add(i32::from(short) * i32::from(multiplier as i16));
            }
        }
    }
}

/// The codes of an activation object: (rows, depth).
fn activation_codes(core: &CoreTile, object: &[u8]) -> Vec<i16> {
    let mut codes = vec![0; core.rows * core.depth];
    for (index, block) in object[..core.row_multipliers_at()].chunks_exact(BLOCK_BYTES).enumerate() {
        let (row_block, step) = (index / (core.depth / BLOCK_DEPTH), index % (core.depth / BLOCK_DEPTH));
        for (row, bytes) in block.chunks_exact(BLOCK_DEPTH).enumerate() {
            let at = (row_block * BLOCK_ROWS + row) * core.depth + step * BLOCK_DEPTH;
            for (code, byte) in codes[at..].iter_mut().zip(bytes) {
                *code = i16::from(*byte as i8);
            }
        }
    }
    codes
}

/// The codes of a weight object: (cols, depth).
fn weight_codes(core: &CoreTile, object: &[u8]) -> Vec<i16> {
    let mut codes = vec![0; core.cols * core.depth];
    for (index, block) in object[..core.multipliers_at()].chunks_exact(BLOCK_BYTES).enumerate() {
        let (col_block, step) = (index / (core.depth / BLOCK_DEPTH), index % (core.depth / BLOCK_DEPTH));
        for (k, bytes) in block.chunks_exact(BLOCK_COLS / 2).enumerate() {
            for (pair, byte) in bytes.iter().enumerate() {
                let at = (col_block * BLOCK_COLS + 2 * pair) * core.depth + step * BLOCK_DEPTH + k;
                codes[at] = i16::from((byte << 4) as i8 >> 4);
                codes[at + core.depth] = i16::from(*byte as i8 >> 4);
            }
        }
    }
    codes
}

/// The sum of products of a group's codes, in 16 bits since processors multiply these in pairs.
fn dot(a: &[i16], w: &[i16]) -> i32 {
    a.iter().zip(w).map(|(a, w)| i32::from(*a) * i32::from(*w)).sum()
}

/// Copies the scales of both objects to where the epilogue finds them, (rows + cols) f32.
pub fn keep_scales(core: &CoreTile, activations: &[u8], weights: &[u8], scales: &mut [u8]) {
    scales[..4 * core.rows].copy_from_slice(&activations[core.row_scales_at()..][..4 * core.rows]);
    scales[4 * core.rows..].copy_from_slice(&weights[core.column_scales_at()..][..4 * core.cols]);
}

/// Output object `piece` (4 rows) of the sums, as the bits of bf16.
pub fn finish(core: &CoreTile, sums: &[i32], scales: &[u8], piece: usize, output: &mut [u8]) {
    let scale = |index: usize| f32::from_le_bytes(scales[4 * index..4 * index + 4].try_into().expect("four bytes"));
    let blocks_across = core.cols / BLOCK_COLS;
    let scaled = |row: usize, col: usize| {
        let block = piece * blocks_across + col / BLOCK_COLS;
        let sum = sums[block * BLOCK_SUMS + row * BLOCK_COLS + col % BLOCK_COLS];
        sum as f32 * scale(core.rows + col) * scale(piece * BLOCK_ROWS + row)
    };
    for (index, bytes) in output.chunks_exact_mut(2).enumerate() {
        let (row, out) = (index / core.outputs(), index % core.outputs());
        let value = match core.epilogue {
            Epilogue::Scale => scaled(row, out),
            Epilogue::ActMul(activation) => {
                let col = out / BLOCK_COLS * 2 * BLOCK_COLS + out % BLOCK_COLS;
                activation.gated(scaled(row, col), scaled(row, col + BLOCK_COLS))
            }
        };
        bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
    }
}

/// The whole product from its definition: (rows, outputs) of the padded shape, rounded to bf16.
pub fn product(shape: &GemmShape, activations: &Activations, weights: &Weights) -> Vec<bf16> {
    product_of_rows(shape, activations, weights, 0..shape.rows)
}

/// Rows of a product between which a column's codes are converted once.
const ROWS_AT_A_TIME: usize = 32;

/// Some rows of the product: (rows, outputs).
pub fn product_of_rows(
    shape: &GemmShape,
    activations: &Activations,
    weights: &Weights,
    rows: impl IntoIterator<Item = usize>,
) -> Vec<bf16> {
    let rows: Vec<usize> = rows.into_iter().collect();
    let some = |rows: &[usize]| {
        let sums = sums(shape, activations, weights, rows);
        let scaled = |index: usize, col: usize| {
            sums[col * rows.len() + index] as f32 * weights.column_scales[col] * activations.row_scales[rows[index]]
        };
        let value = |index: usize, out: usize| match shape.core.epilogue {
            Epilogue::Scale => scaled(index, out),
            Epilogue::ActMul(activation) => {
                let gate = out / BLOCK_COLS * 2 * BLOCK_COLS + out % BLOCK_COLS;
                activation.gated(scaled(index, gate), scaled(index, gate + BLOCK_COLS))
            }
        };
        let values = (0..rows.len()).flat_map(|index| (0..shape.outputs()).map(move |out| (index, out)));
        values.map(|(index, out)| bf16::from_f32(value(index, out))).collect::<Vec<_>>()
    };
    rows.chunks(ROWS_AT_A_TIME).flat_map(some).collect()
}

/// The sums of some rows: (cols, rows).
fn sums(shape: &GemmShape, activations: &Activations, weights: &Weights, rows: &[usize]) -> Vec<i32> {
    let (core, chunks) = (&shape.core, shape.chunks());
    let wide = |codes: &[i8]| codes.iter().map(|code| i16::from(*code)).collect::<Vec<_>>();
    let row_codes: Vec<Vec<i16>> =
        rows.iter().map(|row| wide(&activations.codes[row * shape.depth..][..shape.depth])).collect();
    let (shift, multiplier_shift) = (core.shift(), core.multiplier_shift());
    // To nearest: an arithmetic shift rounds down.
    let rounded = |value: i32, shift: u32| (value + ((1 << shift) >> 1)) >> shift;
    let mut sums = Vec::with_capacity(shape.cols * rows.len());
    for col in 0..shape.cols {
        let column = wide(&weights.codes[col * shape.depth..][..shape.depth]);
        let of_column = &weights.multipliers[col * chunks..][..chunks];
        for (row, codes) in rows.iter().zip(&row_codes) {
            let of_row = &activations.multipliers[row * chunks..][..chunks];
            let groups = codes.chunks(core.depth).zip(column.chunks(core.depth));
            let multipliers = of_column.iter().zip(of_row);
            let products = groups.zip(multipliers).map(|((a, w), (of_column, of_row))| {
                let multiplier = rounded(i32::from(*of_column) * i32::from(*of_row), multiplier_shift);
                // Not the sum that cores use: this is the independent answer.
                let sum = a.iter().zip(w).map(|(a, w)| i32::from(*a) * i32::from(*w)).sum();
                rounded(sum, shift) * multiplier
            });
            sums.push(products.sum::<i32>());
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation;

    /// Rows whose groups have multipliers of many sizes.
    fn rows(shape: &GemmShape, seed: u32) -> Activations {
        let mut all = values(shape.rows * shape.depth, seed);
        for (index, group) in all.chunks_exact_mut(shape.core.depth).enumerate() {
            group.iter_mut().for_each(|value| *value /= (1 + index % 5) as f32);
        }
        Activations::quantize(shape, &all, shape.depth)
    }

    /// Deterministic values in -1..1.
    fn values(n: usize, mut state: u32) -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn objects_of_one_core_give_the_product_of_the_definition() {
        for (depth, epilogue) in [
            (32, Epilogue::Scale),
            (64, Epilogue::ActMul(Activation::Silu)),
            (128, Epilogue::ActMul(Activation::GeluTanh)),
        ] {
            let core = CoreTile::new(16, 32, depth, epilogue);
            let shape = GemmShape::padded(64, 32, 2 * depth, 1, core);
            let activations = rows(&shape, 1);
            let weights = Weights::quantize(&shape, &values(32 * shape.depth, 2), 32, shape.depth);
            let expected = product(&shape, &activations, &weights);
            let (a, w) = (activations.pack(&shape), weights.pack(&shape));
            for array_row in 0..4 {
                let (mut sums, mut scales) = (vec![0; core.sums()], vec![0; core.scales_bytes()]);
                for chunk in 0..shape.chunks() {
                    let a = &a[(chunk * 4 + array_row) * core.activation_bytes()..][..core.activation_bytes()];
                    let w = &w[chunk * core.weight_bytes()..][..core.weight_bytes()];
                    add_products(&core, a, w, &mut sums);
                    keep_scales(&core, a, w, &mut scales);
                }
                for piece in 0..core.pieces() {
                    let mut output = vec![0; 2 * core.output_values()];
                    finish(&core, &sums, &scales, piece, &mut output);
                    for (index, bits) in output.chunks_exact(2).enumerate() {
                        let row = shape.matrix_row(0, array_row, piece * 4 + index / core.outputs());
                        let expected = expected[row * shape.outputs() + index % core.outputs()];
                        assert_eq!(bits, expected.to_le_bytes(), "row {row}, {epilogue:?}");
                    }
                }
            }
        }
    }

    /// Relative to the root mean square of the f32 product: INT4 weights in groups of 64 and INT8 rows of uniform values.
    const QUANTISATION_ERROR: f32 = 0.12;

    #[test]
    fn the_product_is_near_that_of_the_f32_values() {
        let core = CoreTile::new(16, 16, 64, Epilogue::Scale);
        let shape = GemmShape::padded(64, 16, 512, 1, core);
        let (a, w) = (values(64 * 512, 3), values(16 * 512, 4));
        let found = product(&shape, &Activations::quantize(&shape, &a, 512), &Weights::quantize(&shape, &w, 16, 512));
        let (mut error, mut size) = (0.0, 0.0);
        for (index, found) in found.iter().enumerate() {
            let (row, col) = (index / 16, index % 16);
            let dot: f32 = a[row * 512..][..512].iter().zip(&w[col * 512..][..512]).map(|(a, w)| a * w).sum();
            error += (dot - found.to_f32()).powi(2);
            size += dot * dot;
        }
        let relative = (error / size).sqrt();
        assert!(relative < QUANTISATION_ERROR, "{relative}");
    }
}
