//! Weights and activations in the form of this kernel, and their objects as bytes.

use super::rotation::{rotate, rotated};
use super::tile::{
    ACTIVATION_MAX, BLOCK_BYTES, BLOCK_COLS, BLOCK_DEPTH, BLOCK_ROWS, BLOCK_SUMS, CODE_MIN, CORE_ROWS, CoreTile,
    Epilogue, GemmShape, MULTIPLIER_MAX,
};

/// A quantised matrix, rotated: `rotated weight(column, k) = column_scales[column] / 2^shifts · multipliers[column, group] · codes[column, k]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// (cols, depth), -8..=7.
    pub codes: Vec<i8>,
    /// (cols, depth / group), 0..=127.
    pub multipliers: Vec<i8>,
    /// (cols), times 2^shifts: what the sum of a group and the product of its multipliers are divided by.
    pub column_scales: Vec<f32>,
}

impl Weights {
    /// Rotates and quantises `values`, (cols, depth), to the shape's padding, with one multiplier for each `shape.core.depth` values of k.
    ///
    /// With [`Epilogue::ActMul`], the first half of the columns is gate and the second up: the result has them in blocks of 8 in turn.
    pub fn quantize(shape: &GemmShape, values: &[f32], cols: usize, depth: usize) -> Weights {
        assert_eq!(values.len(), cols * depth, "values are not (cols, depth)");
        let (group, chunks) = (shape.core.depth, shape.chunks());
        let mut weights = Weights {
            codes: vec![0; shape.cols * shape.depth],
            multipliers: vec![0; shape.cols * chunks],
            column_scales: vec![0.0; shape.cols],
        };
        for col in 0..shape.cols {
            let Some(source) = source_column(shape.core.epilogue, col, cols) else { continue };
            let column = rotated(&values[source * depth..(source + 1) * depth], shape.depth);
            let group_scales: Vec<f32> = column.chunks(group).map(scale_of_group).collect();
            let largest = group_scales.iter().copied().fold(0.0, f32::max);
            if largest == 0.0 {
                continue;
            }
            let column_scale = largest / MULTIPLIER_MAX as f32;
            weights.column_scales[col] = column_scale * removed(&shape.core);
            for (index, (values, scale)) in column.chunks(group).zip(&group_scales).enumerate() {
                let multiplier = (scale / column_scale).round().clamp(1.0, MULTIPLIER_MAX as f32);
                weights.multipliers[col * chunks + index] = multiplier as i8;
                let at = col * shape.depth + index * group;
                for (code, value) in weights.codes[at..].iter_mut().zip(values) {
                    *code = (value / (multiplier * column_scale)).round().clamp(CODE_MIN as f32, 7.0) as i8;
                }
            }
        }
        weights
    }

    /// The weights of a column, decoded from its codes and rotated back, as in the model.
    pub fn column(&self, shape: &GemmShape, col: usize) -> Vec<f32> {
        let mut values: Vec<f32> = (0..shape.depth).map(|k| self.value(shape, col, k)).collect();
        rotate(&mut values);
        values
    }

    /// The rotated weight that a code stands for.
    fn value(&self, shape: &GemmShape, col: usize, k: usize) -> f32 {
        let multiplier = self.multipliers[col * shape.chunks() + k / shape.core.depth];
        let column_scale = self.column_scales[col] / removed(&shape.core);
        column_scale * f32::from(multiplier) * f32::from(self.codes[col * shape.depth + k])
    }

    /// All weight objects, in the order that the array reads them.
    pub fn pack(&self, shape: &GemmShape) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(shape.weight_bytes());
        for stream in 0..shape.weight_streams() {
            for tile in 0..shape.col_tiles() {
                for chunk in 0..shape.chunks() {
                    self.pack_object(shape, shape.first_col(tile, stream), chunk, &mut bytes);
                }
            }
        }
        bytes
    }

    /// Restores the weights that [`Weights::pack`] has packed.
    ///
    /// # Panics
    /// If `bytes` have another length than the shape's weights.
    pub fn unpack(shape: &GemmShape, bytes: &[u8]) -> Weights {
        assert_eq!(bytes.len(), shape.weight_bytes(), "bytes of packed weights");
        let CoreTile { cols, depth, .. } = shape.core;
        let mut weights = Weights {
            codes: vec![0; shape.cols * shape.depth],
            multipliers: vec![0; shape.cols * shape.chunks()],
            column_scales: vec![0.0; shape.cols],
        };
        let places = (0..shape.weight_streams())
            .flat_map(|stream| (0..shape.col_tiles()).map(move |tile| shape.first_col(tile, stream)))
            .flat_map(|first_col| (0..shape.chunks()).map(move |chunk| (first_col, chunk)));
        for (object, (first_col, chunk)) in bytes.chunks_exact(shape.core.weight_bytes()).zip(places) {
            for within in 0..cols {
                let (col, block, lane) = (first_col + within, within / BLOCK_COLS, within % BLOCK_COLS);
                for k in 0..depth {
                    let index = k % BLOCK_DEPTH * BLOCK_COLS + lane;
                    let byte = object[(block * (depth / BLOCK_DEPTH) + k / BLOCK_DEPTH) * BLOCK_BYTES + index / 2];
                    let code = if index.is_multiple_of(2) { (byte << 4) as i8 >> 4 } else { byte as i8 >> 4 };
                    weights.codes[col * shape.depth + chunk * depth + k] = code;
                }
                weights.multipliers[col * shape.chunks() + chunk] =
                    object[shape.core.multipliers_at() + block * BLOCK_SUMS + lane] as i8;
                let scale = &object[shape.core.column_scales_at() + 4 * within..][..4];
                weights.column_scales[col] = f32::from_le_bytes(scale.try_into().expect("four bytes"));
            }
        }
        weights
    }

    fn pack_object(&self, shape: &GemmShape, first_col: usize, chunk: usize, bytes: &mut Vec<u8>) {
        let CoreTile { cols, depth, .. } = shape.core;
        for block in 0..cols / BLOCK_COLS {
            for k in (0..depth).step_by(BLOCK_DEPTH) {
                for index in (0..BLOCK_DEPTH * BLOCK_COLS).step_by(2) {
                    let nibble = |index: usize| {
                        let col = first_col + block * BLOCK_COLS + index % BLOCK_COLS;
                        let k = chunk * depth + k + index / BLOCK_COLS;
                        self.codes[col * shape.depth + k] as u8 & 15
                    };
                    bytes.push(nibble(index) | nibble(index + 1) << 4);
                }
            }
        }
        for block in 0..cols / BLOCK_COLS {
            for lane in 0..BLOCK_SUMS {
                let col = first_col + block * BLOCK_COLS + lane % BLOCK_COLS;
                bytes.push(self.multipliers[col * shape.chunks() + chunk] as u8);
            }
        }
        for scale in &self.column_scales[first_col..first_col + cols] {
            bytes.extend(scale.to_le_bytes());
        }
    }
}

/// The weight objects of one tile of columns: those of one weight stream and column tile, over all of k. `values` are (columns of a core, depth), in the
/// order of the packed columns.
///
/// All tiles one after the other, by weight stream and then by column tile, are what [`Weights::pack`] gives for the whole matrix; memory is needed
/// for one of them.
pub fn pack_tile(shape: &GemmShape, values: &[f32], depth: usize) -> Vec<u8> {
    // The epilogue affects only the order of the weights, which the caller chooses.
    let core = CoreTile { epilogue: Epilogue::Scale, ..shape.core };
    let tile = GemmShape { cols: core.cols, columns: 1, core, ..*shape };
    Weights::quantize(&tile, values, core.cols, depth).pack(&tile)
}

/// What the shifts of a core divide its sums by.
fn removed(core: &CoreTile) -> f32 {
    (1u32 << (core.shift() + core.multiplier_shift())) as f32
}

/// Largest magnitude.
fn largest_of(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// Largest magnitude over 7: code -8 is used only where rounding of the multiplier leaves room.
fn scale_of_group(values: &[f32]) -> f32 {
    largest_of(values) / 7.0
}

/// Column of the source matrix that packed column `col` holds; `None` for padding.
pub fn source_column(epilogue: Epilogue, col: usize, cols: usize) -> Option<usize> {
    match epilogue {
        Epilogue::Scale => (col < cols).then_some(col),
        Epilogue::ActMul(_) => {
            let (pair, within) = (col / (2 * BLOCK_COLS), col % (2 * BLOCK_COLS));
            let output = pair * BLOCK_COLS + within % BLOCK_COLS;
            let is_up = within >= BLOCK_COLS;
            (output < cols / 2).then_some(output + if is_up { cols / 2 } else { 0 })
        }
    }
}

/// Quantised rows, rotated: `rotated activation(row, k) = row_scales[row] · multipliers[row, group] · codes[row, k]`.
///
/// A group's multiplier follows its largest value: where a few values of a row are far larger than the others, only their own groups lose bits. Rows of the
/// same place in the blocks that a core has in registers ([`CoreTile::sharing_rows`]) have the same multipliers, so that the core multiplies them by those of
/// the weights once for all of these blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Activations {
    /// (rows, depth), -127..=127.
    pub codes: Vec<i8>,
    /// (rows, depth / group), 1..=127.
    pub multipliers: Vec<i8>,
    /// (rows).
    pub row_scales: Vec<f32>,
}

impl Activations {
    /// Rotates and quantises `values`, (rows, depth), to the shape's padding; rows of padding are 0.
    pub fn quantize(shape: &GemmShape, values: &[f32], depth: usize) -> Activations {
        let (group, chunks) = (shape.core.depth, shape.chunks());
        let mut activations = Activations {
            codes: vec![0; shape.rows * shape.depth],
            multipliers: vec![1; shape.rows * chunks],
            row_scales: vec![0.0; shape.rows],
        };
        let mut rows: Vec<Vec<f32>> = values.chunks_exact(depth).map(|row| rotated(row, shape.depth)).collect();
        rows.resize(shape.rows, vec![0.0; shape.depth]);
        for sharing in shape.sharing_rows() {
            let largest: Vec<f32> = sharing.iter().map(|row| largest_of(&rows[*row])).collect();
            for index in 0..chunks {
                let values_of = |row: usize| &rows[row][index * group..][..group];
                // Of the row's largest value.
                let part = |(row, largest): (&usize, &f32)| {
                    if *largest > 0.0 { largest_of(values_of(*row)) / largest } else { 0.0 }
                };
                let part = sharing.iter().zip(&largest).map(part).fold(0.0, f32::max);
                let multiplier = (part * MULTIPLIER_MAX as f32).ceil().clamp(1.0, MULTIPLIER_MAX as f32);
                for (row, largest) in sharing.iter().zip(&largest) {
                    activations.multipliers[row * chunks + index] = multiplier as i8;
                    let row_scale = largest / (ACTIVATION_MAX * MULTIPLIER_MAX) as f32;
                    activations.row_scales[*row] = row_scale;
                    if row_scale == 0.0 {
                        continue;
                    }
                    let at = row * shape.depth + index * group;
                    for (code, value) in activations.codes[at..].iter_mut().zip(values_of(*row)) {
                        let code_of = (value / (multiplier * row_scale)).round();
                        *code = code_of.clamp(-ACTIVATION_MAX as f32, ACTIVATION_MAX as f32) as i8;
                    }
                }
            }
        }
        activations
    }

    /// The rotated activation that a code stands for.
    pub fn value(&self, shape: &GemmShape, row: usize, k: usize) -> f32 {
        let multiplier = self.multipliers[row * shape.chunks() + k / shape.core.depth];
        self.row_scales[row] * f32::from(multiplier) * f32::from(self.codes[row * shape.depth + k])
    }

    /// All activation objects, in the order that the array reads them.
    pub fn pack(&self, shape: &GemmShape) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(shape.activation_bytes());
        let [columns, _] = shape.activation_spread();
        for tile in 0..shape.row_tiles() {
            for column in 0..columns {
                for chunk in 0..shape.chunks() {
                    for array_row in shape.array_rows_of(column) {
                        self.pack_object(shape, tile, array_row, chunk, &mut bytes);
                    }
                }
            }
        }
        bytes
    }

    /// Restores the activations that [`Activations::pack`] has packed.
    ///
    /// # Panics
    /// If `bytes` have another length than the shape's activations.
    pub fn unpack(shape: &GemmShape, bytes: &[u8]) -> Activations {
        assert_eq!(bytes.len(), shape.activation_bytes(), "bytes of packed activations");
        let (CoreTile { rows, depth, .. }, chunks) = (shape.core, shape.chunks());
        let mut activations = Activations {
            codes: vec![0; shape.rows * shape.depth],
            multipliers: vec![0; shape.rows * chunks],
            row_scales: vec![0.0; shape.rows],
        };
        let [columns, _] = shape.activation_spread();
        let places = (0..shape.row_tiles())
            .flat_map(|tile| (0..columns).map(move |column| (tile, column)))
            .flat_map(|(tile, column)| (0..chunks).map(move |chunk| (tile, column, chunk)))
            .flat_map(|(tile, column, chunk)| shape.array_rows_of(column).map(move |row| (tile, chunk, row)));
        for (object, (tile, chunk, array_row)) in bytes.chunks_exact(shape.core.activation_bytes()).zip(places) {
            for row in 0..rows {
                let matrix_row = shape.matrix_row(tile, array_row, row);
                for k in 0..depth {
                    let block = row / BLOCK_ROWS * (depth / BLOCK_DEPTH) + k / BLOCK_DEPTH;
                    let byte = object[block * BLOCK_BYTES + row % BLOCK_ROWS * BLOCK_DEPTH + k % BLOCK_DEPTH];
                    activations.codes[matrix_row * shape.depth + chunk * depth + k] = byte as i8;
                }
                let multiplier = shape.core.row_multipliers_at() + BLOCK_COLS * shape.core.row_multiplier_of(row);
                activations.multipliers[matrix_row * chunks + chunk] = object[multiplier] as i8;
                let scale = &object[shape.core.row_scales_at() + 4 * row..][..4];
                activations.row_scales[matrix_row] = f32::from_le_bytes(scale.try_into().expect("four bytes"));
            }
        }
        activations
    }

    fn pack_object(&self, shape: &GemmShape, tile: usize, array_row: usize, chunk: usize, bytes: &mut Vec<u8>) {
        let CoreTile { rows, depth, .. } = shape.core;
        assert!(array_row < CORE_ROWS);
        for block in 0..rows / BLOCK_ROWS {
            for k in (0..depth).step_by(BLOCK_DEPTH) {
                for index in 0..BLOCK_BYTES {
                    let row = shape.matrix_row(tile, array_row, block * BLOCK_ROWS + index / BLOCK_DEPTH);
                    let k = chunk * depth + k + index % BLOCK_DEPTH;
                    bytes.push(self.codes[row * shape.depth + k] as u8);
                }
            }
        }
        for multiplier in 0..shape.core.row_multipliers() {
            let row = (0..rows).find(|row| shape.core.row_multiplier_of(*row) == multiplier).expect("a row has it");
            let of_row = self.multipliers[shape.matrix_row(tile, array_row, row) * shape.chunks() + chunk];
            bytes.extend([of_row as u8; BLOCK_COLS]);
        }
        for row in 0..rows {
            bytes.extend(self.row_scales[shape.matrix_row(tile, array_row, row)].to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation;
    use crate::npu::tile::GEMV_ROWS;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_weight_is_within_a_step_of_its_source(values in prop::collection::vec(-2.0f32..2.0, 16 * 128)) {
            let core = CoreTile::new(16, 16, 64, Epilogue::Scale);
            let shape = GemmShape::padded(64, 16, 128, 1, core);
            let weights = Weights::quantize(&shape, &values, 16, 128);
            for (col, column) in values.chunks(128).enumerate() {
                let column = rotated(column, 128);
                for (group, group_values) in column.chunks(64).enumerate() {
                    let most = group_values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                    let largest = column.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                    // Half a code's step, and for the largest weights what rounding the multiplier moves them by.
                    let bound = most / 7.0 * 0.5 + 7.5 * 0.5 * largest / 7.0 / 127.0 + 1e-6;
                    for (index, value) in group_values.iter().enumerate() {
                        let error = (weights.value(&shape, col, group * 64 + index) - value).abs();
                        prop_assert!(error <= bound, "column {}, group {}: {} > {}", col, group, error, bound);
                    }
                }
            }
        }
    }

    /// A group's step is a 127th of the largest value of its own, in any of the rows that share its multiplier, and the multiplier rounds up.
    #[test]
    fn an_activation_is_within_half_a_step_of_its_groups_own_scale() {
        let core = CoreTile::new(16, 16, 64, Epilogue::Scale);
        let shape = GemmShape::padded(64, 16, 256, 1, core);
        // The first group of each row is 50 times as large as the others.
        let value = |index: usize| ((index * 37 % 101) as f32 / 50.0 - 1.0) * if index % 256 < 64 { 50.0 } else { 1.0 };
        let values: Vec<f32> = (0..64 * 256).map(value).collect();
        let activations = Activations::quantize(&shape, &values, 256);
        for (row, values) in values.chunks(256).enumerate() {
            let values = rotated(values, 256);
            let largest = largest_of(&values);
            let errors: Vec<f32> = (0..256).map(|k| (activations.value(&shape, row, k) - values[k]).abs()).collect();
            assert!(largest_of(&errors[..64]) <= largest / 127.0 * 0.5001, "row {row}");
            // With the row's step, it would be ten times as much.
            assert!(largest_of(&errors[64..]) < largest / 127.0 * 0.05, "row {row}: {}", largest_of(&errors[64..]));
        }
    }

    /// Why the weights of a norm before a product are multiplied into its rows and not into its matrix: trained ones are small where rows have outliers, and a
    /// rotated outlier meets INT4's errors of its whole block.
    #[test]
    fn the_weights_of_a_norm_in_the_matrix_would_add_errors() {
        let (cols, depth) = (16, 256);
        let shape = GemmShape::padded(64, cols, depth, 1, CoreTile::new(16, 16, 64, Epilogue::Scale));
        let numbers =
            |count: usize, step: usize| (0..count).map(move |i| (i * step % 997 * 31 % 101) as f32 / 50.0 - 1.0);
        // An outlier in each block, which the norm takes back.
        let norm_weight = |k: usize| if k % 32 == 5 { 0.05 } else { 1.0 };
        let with_norm = |(index, value): (usize, f32)| value * norm_weight(index % depth);
        let without = |(index, value): (usize, f32)| value / norm_weight(index % depth);
        let normed: Vec<f32> = numbers(64 * depth, 37).collect();
        let rows: Vec<f32> = normed.iter().copied().enumerate().map(without).collect();
        let matrix: Vec<f32> = numbers(cols * depth, 53).collect();
        let scaled_matrix: Vec<f32> = matrix.iter().copied().enumerate().map(with_norm).collect();
        let error = |rows: &[f32], matrix: &[f32]| {
            let (a, w) = (Activations::quantize(&shape, rows, depth), Weights::quantize(&shape, matrix, cols, depth));
            let products = (0..64).flat_map(|row| (0..cols).map(move |col| (row, col)));
            let squares = products.map(|(row, col)| {
                let found: f32 = (0..depth).map(|k| a.value(&shape, row, k) * w.value(&shape, col, k)).sum();
                let exact = rows[row * depth..][..depth].iter().zip(&matrix[col * depth..]).map(|(a, w)| a * w);
                (found - exact.sum::<f32>()).powi(2)
            });
            squares.sum::<f32>().sqrt()
        };
        let [in_rows, in_matrix] = [error(&normed, &matrix), error(&rows, &scaled_matrix)];
        assert!(in_matrix > 2.0 * in_rows, "{in_matrix} and {in_rows}");
    }

    #[test]
    fn packed_activations_are_restored() {
        for (rows, columns) in [(32, 1), (16, 3), (GEMV_ROWS, 2)] {
            let shape = GemmShape::padded(70, 16, 150, columns, CoreTile::new(rows, 16, 48, Epilogue::Scale));
            let values: Vec<f32> =
                (0..70 * 150).map(|index| (index * 37 % 101) as f32 / (1 + index / 48 % 9) as f32 - 1.0).collect();
            let activations = Activations::quantize(&shape, &values, 150);
            assert_eq!(Activations::unpack(&shape, &activations.pack(&shape)), activations, "{shape:?}");
        }
    }

    #[test]
    fn gate_and_up_alternate_in_blocks_of_eight_columns() {
        let epilogue = Epilogue::ActMul(Activation::Silu);
        let sources: Vec<_> = (0..48).map(|col| source_column(epilogue, col, 40)).collect();
        assert_eq!(sources[..8], (0..8).map(Some).collect::<Vec<_>>());
        assert_eq!(sources[8..16], (20..28).map(Some).collect::<Vec<_>>());
        assert_eq!(sources[16..24], (8..16).map(Some).collect::<Vec<_>>());
        // 20 outputs: the last block has four of them, and four of padding.
        assert_eq!(sources[32..40], [Some(16), Some(17), Some(18), Some(19), None, None, None, None]);
    }

    #[test]
    fn tiles_packed_by_themselves_are_those_of_the_whole_matrix() {
        let epilogues = [Epilogue::Scale, Epilogue::ActMul(Activation::Silu)];
        for (rows, epilogue) in [16, GEMV_ROWS].into_iter().flat_map(|rows| epilogues.map(|epilogue| (rows, epilogue)))
        {
            let core = CoreTile::new(rows, 32, 32, epilogue);
            // 72 columns and 100 values of k: both are padded.
            let (cols, depth) = (72, 100);
            let shape = GemmShape::padded(64, cols, depth, 2, core);
            let values: Vec<f32> =
                (0..cols * depth).map(|i| ((i * 37 % 101) as f32 - 50.0) / (1 + i % 7) as f32).collect();
            let mut tiles = Vec::new();
            for stream in 0..shape.weight_streams() {
                for tile in 0..shape.col_tiles() {
                    let mut of_tile = vec![0.0; core.cols * depth];
                    for (row, col) in of_tile.chunks_exact_mut(depth).zip(shape.first_col(tile, stream)..) {
                        if let Some(source) = source_column(epilogue, col, cols) {
                            row.copy_from_slice(&values[source * depth..][..depth]);
                        }
                    }
                    tiles.extend(pack_tile(&shape, &of_tile, depth));
                }
            }
            let weights = Weights::quantize(&shape, &values, cols, depth);
            assert!(tiles == weights.pack(&shape), "{epilogue:?}");
            assert!(Weights::unpack(&shape, &tiles) == weights, "{epilogue:?}");
        }
    }

    #[test]
    fn objects_have_the_size_of_their_shape() {
        let core = CoreTile::new(16, 32, 32, Epilogue::Scale);
        let shape = GemmShape::padded(64, 64, 64, 2, core);
        let weights = Weights::quantize(&shape, &vec![0.5; 64 * 64], 64, 64);
        let packed = weights.pack(&shape);
        assert_eq!(packed.len(), shape.weight_bytes());
        // A rotated block of equal values has one that is not 0, its first: codes 7 of both columns, then 0.
        assert_eq!((packed[0], packed[4]), (0x77, 0));
        let activations = Activations::quantize(&shape, &vec![-1.0; 64 * 64], 64);
        let packed = activations.pack(&shape);
        assert_eq!(packed.len(), shape.activation_bytes());
        assert_eq!(packed[0] as i8, -127);
    }
}
