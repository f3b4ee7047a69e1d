//! What a core does with its objects, and the whole product from its definition.
//!
//! [`add_products`] and [`finish`] work on bytes in the layout of [`super::tile`], as the core does. [`product`] uses none of that
//! layout: it is the independent answer.

use half::bf16;

use super::quantize::{Activations, Weights};
use super::tile::{BLOCK_BYTES, BLOCK_COLS, BLOCK_DEPTH, BLOCK_ROWS, BLOCK_SUMS, CoreTile, Epilogue, GemmShape};

/// Adds the products of one activation object and one weight object to `sums`, rows/4 × cols/8 blocks of 4×8.
pub fn add_products(core: &CoreTile, activations: &[u8], weights: &[u8], sums: &mut [i32]) {
    let (blocks_across, steps) = (core.cols / BLOCK_COLS, core.depth / BLOCK_DEPTH);
    let (shift, half) = (core.multiplier_shift(), core.multiplier_half());
    for row_block in 0..core.rows / BLOCK_ROWS {
        for col_block in 0..blocks_across {
            let mut group = [core.half(); BLOCK_SUMS];
            for step in 0..steps {
                let a = &activations[(row_block * steps + step) * BLOCK_BYTES..][..BLOCK_BYTES];
                let w = &weights[(col_block * steps + step) * BLOCK_BYTES..][..BLOCK_BYTES];
                multiply_block(a, w, &mut group);
            }
            let of_columns = &weights[core.multipliers_at() + col_block * BLOCK_SUMS..][..BLOCK_SUMS];
            let of_rows = core.row_multipliers_at() + row_block / core.sharing_rows() * BLOCK_SUMS;
            let of_rows = &activations[of_rows..][..BLOCK_SUMS];
            let multipliers = of_columns.iter().zip(of_rows);
            let block = &mut sums[(row_block * blocks_across + col_block) * BLOCK_SUMS..][..BLOCK_SUMS];
            for ((sum, value), (column, row)) in block.iter_mut().zip(group).zip(multipliers) {
                let short = (value >> core.shift()) as i16;
                let multiplier = (i32::from(*column as i8) * i32::from(*row as i8) + half) >> shift;
                *sum = sum.wrapping_add(i32::from(short) * i32::from(multiplier as i16));
            }
        }
    }
}

/// The matrix unit: 4×16 INT8 by 16×8 INT4, added to 4×8 i32.
fn multiply_block(a: &[u8], w: &[u8], sums: &mut [i32; BLOCK_SUMS]) {
    for k in 0..BLOCK_DEPTH {
        let mut codes = [0; BLOCK_COLS];
        for (pair, byte) in w[k * BLOCK_COLS / 2..][..BLOCK_COLS / 2].iter().enumerate() {
            codes[2 * pair] = i32::from((byte << 4) as i8 >> 4);
            codes[2 * pair + 1] = i32::from(*byte as i8 >> 4);
        }
        for row in 0..BLOCK_ROWS {
            let value = i32::from(a[row * BLOCK_DEPTH + k] as i8);
            for (sum, code) in sums[row * BLOCK_COLS..][..BLOCK_COLS].iter_mut().zip(codes) {
                *sum += value * code;
            }
        }
    }
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

/// Some rows of the product: (rows, outputs).
pub fn product_of_rows(
    shape: &GemmShape,
    activations: &Activations,
    weights: &Weights,
    rows: impl IntoIterator<Item = usize>,
) -> Vec<bf16> {
    let core = &shape.core;
    let sum = |row: usize, col: usize| {
        let a = &activations.codes[row * shape.depth..][..shape.depth];
        let w = &weights.codes[col * shape.depth..][..shape.depth];
        let groups = a.chunks(core.depth).zip(w.chunks(core.depth));
        let of_group = groups.map(|(a, w)| a.iter().zip(w).map(|(a, w)| i32::from(*a) * i32::from(*w)).sum::<i32>());
        let of_column = weights.multipliers[col * shape.chunks()..].iter();
        let multipliers = of_column.zip(&activations.multipliers[row * shape.chunks()..]);
        let multiplier = |(column, row): (&i8, &i8)| core.multiplier_of(i32::from(*column), i32::from(*row));
        // Division that rounds down is what an arithmetic shift does.
        let rounded = of_group.map(|sum| (sum + core.half()).div_euclid(1 << core.shift()));
        rounded.zip(multipliers).map(|(sum, both)| sum * multiplier(both)).sum::<i32>()
    };
    let scaled =
        |row: usize, col: usize| sum(row, col) as f32 * weights.column_scales[col] * activations.row_scales[row];
    let value = |row: usize, out: usize| match core.epilogue {
        Epilogue::Scale => scaled(row, out),
        Epilogue::ActMul(activation) => {
            let gate = out / BLOCK_COLS * 2 * BLOCK_COLS + out % BLOCK_COLS;
            activation.gated(scaled(row, gate), scaled(row, gate + BLOCK_COLS))
        }
    };
    let row = |row: usize| (0..shape.outputs()).map(move |out| (row, out));
    rows.into_iter().flat_map(row).map(|(row, out)| bf16::from_f32(value(row, out))).collect()
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
