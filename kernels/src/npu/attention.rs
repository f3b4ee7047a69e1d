//! Attention of prefill on a pipeline of three cores: the layout of its objects, and what each core does with them.
//!
//! ```text
//! queries ─► scores ─ Q·Kᵀ, limits ─► softmax ─ P, corrections, inverses ─► values ─ Σ corrections·O + P·V, at the end · inverses ─► outputs
//! keys ──────┘                                                 values ───────┘
//!
//! query object        rows/4 × depth/8 blocks of 4×8 bf16, scaled │ rows × 2 i32: first visible key, and the one behind the last
//! key/value object    keys: keys/4 × depth/8 blocks of 8×4 bf16, by k and key │ values: depth/4 × keys/8 blocks of 8×4 bf16, by key and value
//! score object        rows/4 × keys/4 blocks of 4×4 f32 │ the limits of its query object
//! probability object  rows/4 × keys/8 blocks of 4×8 bf16 │ rows/4 × 4×4 f32: corrections │ rows/4 × 4×4 f32: inverses of the sums so far
//! output object       depth/4 blocks of 4×4 bf16: four rows
//! ```
//!
//! Blocks are row-major inside. Corrections and inverses are stored four times, once for each column of a block, so that one vector
//! multiplies a block. The softmax is online, with its running maximum subtracted (Milakov and Gimelshein, arXiv 1805.02867;
//! FlashAttention, arXiv 2205.14135).

use half::bf16;

/// Rows and columns of a block of sums, and values that the matrix unit takes at a time: 4×8 by 8×4 bf16.
pub const BLOCK: usize = 4;
/// See [`BLOCK`].
pub const BLOCK_INNER: usize = 8;
/// Values of a block of sums.
pub const BLOCK_VALUES: usize = BLOCK * BLOCK;
/// Values of a block of operands.
const OPERANDS: usize = BLOCK * BLOCK_INNER;
/// Bytes of a block of operands.
pub const OPERAND_BYTES: usize = 2 * OPERANDS;

/// What the pipeline takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttentionTile {
    /// Query rows; a multiple of 8.
    pub rows: usize,
    /// Keys of a block; a multiple of 8.
    pub keys: usize,
    /// Values of a head; a multiple of 8.
    pub depth: usize,
}

impl AttentionTile {
    /// Offset of the limits in a query object.
    pub fn query_limits_at(&self) -> usize {
        2 * self.rows * self.depth
    }

    /// Bytes of the limits of all rows.
    pub fn limits_bytes(&self) -> usize {
        8 * self.rows
    }

    /// Bytes of a query object.
    pub fn query_bytes(&self) -> usize {
        self.query_limits_at() + self.limits_bytes()
    }

    /// Bytes of the keys of a block, and as many of its values.
    pub fn key_bytes(&self) -> usize {
        2 * self.keys * self.depth
    }

    /// Offset of the limits in a score object.
    pub fn score_limits_at(&self) -> usize {
        4 * self.rows * self.keys
    }

    /// Bytes of a score object.
    pub fn score_bytes(&self) -> usize {
        self.score_limits_at() + self.limits_bytes()
    }

    /// Offset of the corrections in a probability object.
    pub fn corrections_at(&self) -> usize {
        2 * self.rows * self.keys
    }

    /// Bytes of the corrections of all rows, and as many of the inverses.
    pub fn factor_bytes(&self) -> usize {
        4 * BLOCK * self.rows
    }

    /// Bytes of a probability object.
    pub fn probability_bytes(&self) -> usize {
        self.corrections_at() + 2 * self.factor_bytes()
    }

    /// Values of the state of the softmax: each row's maximum, then each row's sum.
    pub fn state(&self) -> usize {
        2 * self.rows
    }

    /// Values of the sums of a tile: rows/4 × depth/4 blocks of 4×4.
    pub fn sums(&self) -> usize {
        self.rows * self.depth
    }

    /// Values of an output object.
    pub fn output_values(&self) -> usize {
        BLOCK * self.depth
    }

    /// Output objects of a tile.
    pub fn pieces(&self) -> usize {
        self.rows / BLOCK
    }
}

fn f32_at(bytes: &[u8], index: usize) -> f32 {
    f32::from_le_bytes(bytes[4 * index..4 * index + 4].try_into().expect("four bytes"))
}

fn put_f32(bytes: &mut [u8], index: usize, value: f32) {
    bytes[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes());
}

/// bf16 operands of the matrix unit as f32, which changes none of them.
fn operands(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|bits| bf16::from_le_bytes([bits[0], bits[1]]).to_f32()).collect()
}

/// The matrix unit: 4×8 by 8×4, added to 4×4.
fn multiply_block(a: &[f32], b: &[f32], sums: &mut [f32]) {
    for (a, sums) in a.chunks_exact(BLOCK_INNER).zip(sums.chunks_exact_mut(BLOCK)) {
        for (a, b) in a.iter().zip(b.chunks_exact(BLOCK)) {
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
}

/// The first core: scores of a block of keys, and a copy of the limits. `keys` is the part of its object.
pub fn scores(tile: &AttentionTile, queries: &[u8], keys: &[u8], scores: &mut [u8]) {
    let (across, steps) = (tile.keys / BLOCK, tile.depth / BLOCK_INNER);
    let (queries, limits) = queries.split_at(tile.query_limits_at());
    let (queries, keys) = (operands(queries), operands(keys));
    for row_block in 0..tile.rows / BLOCK {
        for key_block in 0..across {
            let mut sums = [0.0; BLOCK_VALUES];
            for step in 0..steps {
                let a = &queries[(row_block * steps + step) * OPERANDS..][..OPERANDS];
                let b = &keys[(key_block * steps + step) * OPERANDS..][..OPERANDS];
                multiply_block(a, b, &mut sums);
            }
            for (index, sum) in sums.into_iter().enumerate() {
                put_f32(scores, (row_block * across + key_block) * BLOCK_VALUES + index, sum);
            }
        }
    }
    scores[tile.score_limits_at()..].copy_from_slice(limits);
}

/// The second core, an external function: probabilities of key block `block`, and what earlier blocks are multiplied by. `state` needs no value before
/// block 0. A row without a visible key so far has the maximum `f32::MIN` and the inverse 0.
pub fn softmax(tile: &AttentionTile, block: usize, scores: &[u8], state: &mut [f32], probabilities: &mut [u8]) {
    let (across, inner) = (tile.keys / BLOCK, tile.keys / BLOCK_INNER);
    for row in 0..tile.rows {
        let limit = |end: usize| {
            let at = tile.score_limits_at() + 8 * row + 4 * end;
            i32::from_le_bytes(scores[at..at + 4].try_into().expect("four bytes"))
        };
        let visible = limit(0)..limit(1);
        let score = |key: usize| {
            let block_at = row / BLOCK * across + key / BLOCK;
            let value = f32_at(scores, block_at * BLOCK_VALUES + row % BLOCK * BLOCK + key % BLOCK);
            visible.contains(&((block * tile.keys + key) as i32)).then_some(value)
        };
        let (before, sum) = if block == 0 { (f32::MIN, 0.0) } else { (state[row], state[tile.rows + row]) };
        let most = (0..tile.keys).filter_map(score).fold(before, f32::max);
        let correction = (before - most).exp();
        let mut added = 0.0;
        for key in 0..tile.keys {
            let probability = bf16::from_f32(score(key).map_or(0.0, |score| (score - most).exp()));
            added += probability.to_f32();
            let block_at = row / BLOCK * inner + key / BLOCK_INNER;
            let at = block_at * BLOCK * BLOCK_INNER + row % BLOCK * BLOCK_INNER + key % BLOCK_INNER;
            probabilities[2 * at..2 * at + 2].copy_from_slice(&probability.to_le_bytes());
        }
        let sum = sum * correction + added;
        (state[row], state[tile.rows + row]) = (most, sum);
        let inverse = if sum > 0.0 { 1.0 / sum } else { 0.0 };
        let (corrections, inverses) = probabilities[tile.corrections_at()..].split_at_mut(tile.factor_bytes());
        for col in 0..BLOCK {
            put_f32(corrections, BLOCK * row + col, correction);
            put_f32(inverses, BLOCK * row + col, inverse);
        }
    }
}

/// The third core: `sums` become sums · corrections + P·V, and the inverses are kept. `values` is the part of its object.
pub fn add_values(tile: &AttentionTile, probabilities: &[u8], values: &[u8], sums: &mut [f32], inverses: &mut [f32]) {
    let (across, steps) = (tile.depth / BLOCK, tile.keys / BLOCK_INNER);
    let (probabilities, factors) = probabilities.split_at(tile.corrections_at());
    let (probabilities, values) = (operands(probabilities), operands(values));
    for row_block in 0..tile.rows / BLOCK {
        for col_block in 0..across {
            let block = &mut sums[(row_block * across + col_block) * BLOCK_VALUES..][..BLOCK_VALUES];
            for (index, sum) in block.iter_mut().enumerate() {
                *sum *= f32_at(factors, row_block * BLOCK_VALUES + index);
            }
            for step in 0..steps {
                let a = &probabilities[(row_block * steps + step) * OPERANDS..][..OPERANDS];
                let b = &values[(col_block * steps + step) * OPERANDS..][..OPERANDS];
                multiply_block(a, b, block);
            }
        }
    }
    for (index, inverse) in inverses.iter_mut().enumerate() {
        *inverse = f32_at(&factors[tile.factor_bytes()..], index);
    }
}

/// The third core, at the end: output object `piece`.
pub fn finish(tile: &AttentionTile, sums: &[f32], inverses: &[f32], piece: usize, output: &mut [u8]) {
    let inverses = &inverses[piece * BLOCK_VALUES..][..BLOCK_VALUES];
    let sums = sums[piece * tile.output_values()..].chunks_exact(BLOCK_VALUES);
    for (block, sums) in output.chunks_exact_mut(2 * BLOCK_VALUES).zip(sums) {
        for ((bytes, sum), inverse) in block.chunks_exact_mut(2).zip(sums).zip(inverses) {
            bytes.copy_from_slice(&bf16::from_f32(sum * inverse).to_le_bytes());
        }
    }
}

/// Attention of several heads, each on a pipeline of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttentionShape {
    /// Heads of keys and values, padded to the pipelines; query heads that share one are rows.
    pub heads: usize,
    /// Query rows of a head, padded to the tile.
    pub rows: usize,
    /// Keys, padded to an even number of blocks.
    pub keys: usize,
    /// Array columns, 1 to 4: one pipeline each.
    pub columns: usize,
    /// What a pipeline takes at a time.
    pub tile: AttentionTile,
}

impl AttentionShape {
    /// The shape that `heads` × `rows` × `keys` are padded to.
    pub fn padded(heads: usize, rows: usize, keys: usize, columns: usize, tile: AttentionTile) -> AttentionShape {
        AttentionShape {
            heads: heads.next_multiple_of(columns),
            rows: rows.next_multiple_of(tile.rows),
            keys: keys.next_multiple_of(2 * tile.keys),
            columns,
            tile,
        }
    }

    /// Blocks of keys.
    pub fn blocks(&self) -> usize {
        self.keys / self.tile.keys
    }

    /// Tiles of query rows of a head.
    pub fn row_tiles(&self) -> usize {
        self.rows / self.tile.rows
    }

    /// Bytes of all query objects: heads, then tiles of rows.
    pub fn query_bytes(&self) -> usize {
        self.heads * self.row_tiles() * self.tile.query_bytes()
    }

    /// Bytes of all key/value objects: heads, then blocks.
    pub fn key_value_bytes(&self) -> usize {
        self.heads * self.blocks() * 2 * self.tile.key_bytes()
    }

    /// Values of all output objects: heads, then fours of rows.
    pub fn output_values(&self) -> usize {
        self.heads * self.rows * self.tile.depth
    }
}

/// Queries, keys and values in the plain layout, with what each query attends to.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionInputs {
    /// (heads, rows, depth), scaled.
    pub queries: Vec<bf16>,
    /// (heads, keys, depth).
    pub keys: Vec<bf16>,
    /// (heads, keys, depth).
    pub values: Vec<bf16>,
    /// (heads, rows): first visible key, and the one behind the last.
    pub limits: Vec<[i32; 2]>,
}

impl AttentionInputs {
    /// All query objects, in the order that the array reads them.
    pub fn pack_queries(&self, shape: &AttentionShape) -> Vec<u8> {
        let AttentionTile { rows, depth, .. } = shape.tile;
        let mut bytes = Vec::with_capacity(shape.query_bytes());
        for first in (0..shape.heads * shape.rows).step_by(rows) {
            for (row_block, step) in pairs(rows / BLOCK, depth / BLOCK_INNER) {
                for (row, inner) in pairs(BLOCK, BLOCK_INNER) {
                    let at = (first + row_block * BLOCK + row) * depth + step * BLOCK_INNER + inner;
                    bytes.extend(self.queries[at].to_le_bytes());
                }
            }
            let limits = self.limits[first..first + rows].as_flattened();
            bytes.extend(limits.iter().flat_map(|limit| limit.to_le_bytes()));
        }
        bytes
    }

    /// All key/value objects, in the order that the array reads them.
    pub fn pack_keys_and_values(&self, shape: &AttentionShape) -> Vec<u8> {
        let AttentionTile { keys, depth, .. } = shape.tile;
        let mut bytes = Vec::with_capacity(shape.key_value_bytes());
        for first in (0..shape.heads * shape.keys).step_by(keys) {
            for (key_block, step) in pairs(keys / BLOCK, depth / BLOCK_INNER) {
                for (inner, key) in pairs(BLOCK_INNER, BLOCK) {
                    let at = (first + key_block * BLOCK + key) * depth + step * BLOCK_INNER + inner;
                    bytes.extend(self.keys[at].to_le_bytes());
                }
            }
            for (col_block, step) in pairs(depth / BLOCK, keys / BLOCK_INNER) {
                for (inner, col) in pairs(BLOCK_INNER, BLOCK) {
                    let at = (first + step * BLOCK_INNER + inner) * depth + col_block * BLOCK + col;
                    bytes.extend(self.values[at].to_le_bytes());
                }
            }
        }
        bytes
    }

    /// Attention from its definition, in f64: (heads, rows, depth). A row that attends to no key is 0.
    pub fn attention(&self, shape: &AttentionShape) -> Vec<f64> {
        let depth = shape.tile.depth;
        let wide = |values: &[bf16]| values.iter().map(|value| value.to_f64()).collect::<Vec<_>>();
        let (queries, keys, values) = (wide(&self.queries), wide(&self.keys), wide(&self.values));
        let dot = |query: usize, key: usize| -> f64 {
            queries[query * depth..][..depth].iter().zip(&keys[key * depth..][..depth]).map(|(q, k)| q * k).sum()
        };
        let mut outputs = vec![0.0; shape.output_values()];
        for (query, output) in outputs.chunks_exact_mut(depth).enumerate() {
            let first_key = query / shape.rows * shape.keys;
            let [first, end] = self.limits[query];
            let visible = (0..shape.keys as i32).filter(|key| (first..end).contains(key));
            let scores: Vec<(usize, f64)> =
                visible.map(|key| first_key + key as usize).map(|key| (key, dot(query, key))).collect();
            let most = scores.iter().map(|(_, score)| *score).fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|(_, score)| (score - most).exp()).sum();
            for (key, score) in scores {
                let weight = (score - most).exp() / sum;
                for (output, value) in output.iter_mut().zip(&values[key * depth..][..depth]) {
                    *output += weight * value;
                }
            }
        }
        outputs
    }
}

/// Output objects in the plain layout: (heads, rows, depth).
pub fn unpack_outputs(shape: &AttentionShape, bytes: &[u8]) -> Vec<f32> {
    let depth = shape.tile.depth;
    let mut outputs = vec![0.0; shape.output_values()];
    for (four, object) in bytes.chunks_exact(2 * shape.tile.output_values()).enumerate() {
        for (index, bits) in object.chunks_exact(2).enumerate() {
            let (block, within) = (index / BLOCK_VALUES, index % BLOCK_VALUES);
            let (row, col) = (four * BLOCK + within / BLOCK, block * BLOCK + within % BLOCK);
            outputs[row * depth + col] = bf16::from_le_bytes([bits[0], bits[1]]).to_f32();
        }
    }
    outputs
}

fn pairs(outer: usize, inner: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..outer).flat_map(move |outer| (0..inner).map(move |inner| (outer, inner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative to the largest output: probabilities and outputs are rounded to bf16, 8 bits of mantissa.
    const ROUNDING: f64 = 8e-3;

    fn values(n: usize, mut state: u32) -> Vec<bf16> {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bf16::from_f32((state >> 8) as f32 / (1 << 22) as f32 - 2.0)
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn objects_of_one_pipeline_give_the_attention_of_the_definition() {
        let tile = AttentionTile { rows: 8, keys: 16, depth: 24 };
        let shape = AttentionShape::padded(1, 8, 64, 1, tile);
        let queries = values(8 * 24, 1);
        // Causal, windows, one key, all, and none.
        let limits = vec![[0, 1], [0, 17], [0, 64], [5, 6], [40, 50], [16, 48], [0, 63], [3, 3]];
        let inputs = AttentionInputs { queries, keys: values(64 * 24, 2), values: values(64 * 24, 3), limits };
        let (q, kv) = (inputs.pack_queries(&shape), inputs.pack_keys_and_values(&shape));
        let mut outputs = Vec::new();
        let mut state = vec![f32::NAN; tile.state()];
        let (mut sums, mut inverses) = (vec![0.0; tile.sums()], vec![f32::NAN; BLOCK * tile.rows]);
        let mut scores = vec![0; tile.score_bytes()];
        let mut probabilities = vec![0; tile.probability_bytes()];
        for (block, object) in kv.chunks_exact(2 * tile.key_bytes()).enumerate() {
            let (keys, values) = object.split_at(tile.key_bytes());
            super::scores(&tile, &q, keys, &mut scores);
            softmax(&tile, block, &scores, &mut state, &mut probabilities);
            add_values(&tile, &probabilities, values, &mut sums, &mut inverses);
        }
        for piece in 0..tile.pieces() {
            let mut output = vec![0; 2 * tile.output_values()];
            finish(&tile, &sums, &inverses, piece, &mut output);
            outputs.extend(output);
        }
        let (found, expected) = (unpack_outputs(&shape, &outputs), inputs.attention(&shape));
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((f64::from(*found) - expected).abs() <= 2.0 * ROUNDING, "value {index}: {found} for {expected}");
        }
        assert!(found[7 * 24..].iter().all(|value| *value == 0.0));
    }
}
