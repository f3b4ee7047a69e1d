//! The paged KV cache: where `heads` (or the prologue of attention) stores a token's K and V for attention.
//!
//! ```text
//! pool       pages of 32 tokens; a sequence's block table gives the page of its tokens 32 n .. 32 n + 32
//! word       16 bytes: a chunk of 8 dimensions as f16, or of 16 as int8
//! key page   [kv head]( [chunk][token] words, then for int8 [token] f32 scales )
//! value page [kv head]( [token][chunk] words, then for int8 [token] f32 scales )
//! latent     one vector a token, whose first elements are its value: in the order of a key page, the first half of its chunks in
//!            key pages and the others in value pages
//! ```
//!
//! While scoring, lanes are tokens, and neighbours read neighbouring words of K; while accumulating V, lanes are chunks, and
//! neighbours read neighbouring words of V. Dimensions past the head's last are stored as zeros. int8: x ≈ code · scale,
//! with one scale for a token and head.

use half::f16;
use serde::{Deserialize, Serialize};

use crate::template::Values;

/// Number format of the cached K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum KvFormat {
    /// f16, without scales.
    F16,
    /// int8 codes with one f32 scale for each token and head.
    Int8,
}

/// Shape of one layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CacheLayout {
    /// Number format of K and V.
    pub format: KvFormat,
    /// Number of KV heads.
    pub n_kv_heads: usize,
    /// Elements of a head, without padding.
    pub head_dim: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Elements at the start of a token's latent vector, which has `head_dim`, that are its value; `None`: K and V are apart.
    pub latent_value: Option<usize>,
}

/// Bytes of a word, and 32-bit words in one.
const WORD_BYTES: usize = 16;
const WORD_LANES: usize = WORD_BYTES / 4;
/// Maximum code of an int8 cache.
const CODE_MAX: f32 = 127.0;

impl KvFormat {
    /// Dimensions of one word.
    pub fn chunk(self) -> usize {
        match self {
            KvFormat::F16 => 8,
            KvFormat::Int8 => 16,
        }
    }

    /// Name of the format: `f16` or `int8`.
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::F16 => "f16",
            KvFormat::Int8 => "int8",
        }
    }
}

impl CacheLayout {
    /// Words of one head of one token.
    pub fn chunks(&self) -> usize {
        self.head_dim.div_ceil(self.format.chunk())
    }

    /// Elements of a value.
    pub fn value_dim(&self) -> usize {
        self.latent_value.unwrap_or(self.head_dim)
    }

    /// Words of one value.
    pub fn value_chunks(&self) -> usize {
        self.value_dim().div_ceil(self.format.chunk())
    }

    /// Words of one head of one token in a key page, and in a value page.
    fn page_chunks(&self) -> usize {
        if self.latent_value.is_some() { self.chunks().div_ceil(2) } else { self.chunks() }
    }

    /// Dimensions of a head with padding.
    pub fn padded_dim(&self) -> usize {
        self.chunks() * self.format.chunk()
    }

    /// Words of one head of one page, scales included.
    fn head_words(&self) -> usize {
        let scales = if self.format == KvFormat::Int8 { self.page_tokens.div_ceil(WORD_LANES) } else { 0 };
        self.page_chunks() * self.page_tokens + scales
    }

    /// Bytes of the K of one page; its V has as many.
    pub fn page_bytes(&self) -> usize {
        self.n_kv_heads * self.head_words() * WORD_BYTES
    }

    /// Values for pieces that include `cache`.
    pub(crate) fn values(&self, values: Values) -> Values {
        values
            .size("KV_HEADS", self.n_kv_heads)
            .size("HEAD_DIM", self.head_dim)
            .size("PADDED", self.padded_dim())
            .size("QUADS", self.padded_dim() / 4)
            .size("CHUNKS", self.chunks())
            .size("PAGE_CHUNKS", self.page_chunks())
            .size("VALUE_CHUNKS", self.value_chunks())
            .size("VALUE_QUADS", self.value_chunks() * self.format.chunk() / 4)
            .flag("LATENT", self.latent_value.is_some())
            .size("PAGE_TOKENS", self.page_tokens)
            .size("HEAD_WORDS", self.head_words())
            .number("KV_CODE_MAX", CODE_MAX)
            .flag("KV_INT8", self.format == KvFormat::Int8)
    }
}

/// One token's K or V of one head, for twins.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Index of the page in the pool.
    pub page: usize,
    /// Index of the KV head.
    pub kv_head: usize,
    /// Token within the page.
    pub slot: usize,
}

/// Order of the chunks of a page: keys by chunk, values by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// K, in the order `[chunk][token]`.
    Keys,
    /// V, in the order `[token][chunk]`.
    Values,
}

impl CacheLayout {
    /// Writes `vector` of `head_dim` elements; `pool` is in 32-bit words.
    pub fn put(&self, side: Side, pool: &mut [u32], cell: Cell, vector: &[f32]) {
        let scale = scale_of(vector);
        self.put_chunks(side, pool, cell, vector, scale);
        if self.format == KvFormat::Int8 {
            pool[self.scale_at(cell)] = scale.to_bits();
        }
    }

    /// Writes a token's latent vector of `head_dim` elements; pools of key and value pages, in 32-bit words.
    pub fn put_latent(&self, keys: &mut [u32], values: &mut [u32], cell: Cell, vector: &[f32]) {
        let (low, high) = vector.split_at(vector.len().min(self.page_chunks() * self.format.chunk()));
        let scale = scale_of(vector);
        self.put_chunks(Side::Keys, keys, cell, low, scale);
        self.put_chunks(Side::Keys, values, cell, high, scale);
        if self.format == KvFormat::Int8 {
            keys[self.scale_at(cell)] = scale.to_bits();
        }
    }

    fn put_chunks(&self, side: Side, pool: &mut [u32], cell: Cell, vector: &[f32], scale: f32) {
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        for chunk in 0..vector.len().div_ceil(self.format.chunk()) {
            let element = |i: usize| vector.get(chunk * self.format.chunk() + i).copied().unwrap_or(0.0);
            let at = self.word_at(side, cell, chunk);
            for (lane, word) in pool[at..at + WORD_LANES].iter_mut().enumerate() {
                *word = match self.format {
                    KvFormat::F16 => {
                        let bits = |i: usize| u32::from(f16::from_f32(element(2 * lane + i)).to_bits());
                        bits(0) | (bits(1) << 16)
                    }
                    KvFormat::Int8 => u32::from_le_bytes(std::array::from_fn(|i| {
                        (element(4 * lane + i) * inverse).round_ties_even() as i8 as u8
                    })),
                };
            }
        }
    }

    /// Element `i` of a token's latent vector, from the pools of key and value pages.
    pub fn get_latent(&self, keys: &[u32], values: &[u32], cell: Cell, i: usize) -> f32 {
        let in_keys = self.page_chunks() * self.format.chunk();
        let (pool, i) = if i < in_keys { (keys, i) } else { (values, i - in_keys) };
        self.element(Side::Keys, pool, cell, i, self.scale(keys, cell))
    }

    /// Element `i` of what a cell holds.
    pub fn get(&self, side: Side, pool: &[u32], cell: Cell, i: usize) -> f32 {
        self.element(side, pool, cell, i, self.scale(pool, cell))
    }

    fn element(&self, side: Side, pool: &[u32], cell: Cell, i: usize, scale: f32) -> f32 {
        let (at, within) = (self.word_at(side, cell, i / self.format.chunk()), i % self.format.chunk());
        match self.format {
            KvFormat::F16 => f16::from_bits((pool[at + within / 2] >> (16 * (within % 2))) as u16).to_f32(),
            KvFormat::Int8 => {
                let code = (pool[at + within / 4] >> (8 * (within % 4))) as u8 as i8;
                f32::from(code) * scale
            }
        }
    }

    /// Scale of a cell of an int8 cache; 1 for f16.
    fn scale(&self, pool: &[u32], cell: Cell) -> f32 {
        if self.format == KvFormat::Int8 { f32::from_bits(pool[self.scale_at(cell)]) } else { 1.0 }
    }

    /// Offset of a chunk in the pool, in 32-bit words.
    fn word_at(&self, side: Side, cell: Cell, chunk: usize) -> usize {
        let within = match side {
            Side::Keys => chunk * self.page_tokens + cell.slot,
            Side::Values => cell.slot * self.page_chunks() + chunk,
        };
        WORD_LANES * (self.head_at(cell) + within)
    }

    /// Offset of a cell's scale in the pool, in 32-bit words.
    fn scale_at(&self, cell: Cell) -> usize {
        WORD_LANES * (self.head_at(cell) + self.page_chunks() * self.page_tokens) + cell.slot
    }

    /// Place of a head of a page, in words.
    fn head_at(&self, cell: Cell) -> usize {
        (cell.page * self.n_kv_heads + cell.kv_head) * self.head_words()
    }
}

/// Scale of an int8 vector.
fn scale_of(vector: &[f32]) -> f32 {
    vector.iter().fold(0f32, |most, x| x.abs().max(most)) / CODE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_put_is_found_again(
            head_dim in 1usize..100, n_kv_heads in 1usize..4, seed in -1e3f32..1e3, slot in 0usize..32,
        ) {
            for (format, bound) in [(KvFormat::F16, 1.0 / 2048.0), (KvFormat::Int8, 0.501 / 127.0)] {
                let layout = CacheLayout { format, n_kv_heads, head_dim, page_tokens: 32, latent_value: None };
                let mut pool = vec![0; 2 * layout.page_bytes() / 4];
                let vector = |at: usize| -> Vec<f32> {
                    (0..head_dim).map(|i| seed * ((i * 37 + at * 11) % 17) as f32 - 8.0).collect()
                };
                for side in [Side::Keys, Side::Values] {
                    let cells: Vec<Cell> = (0..2 * n_kv_heads)
                        .flat_map(|at| [slot, 31 - slot].map(|slot| Cell { page: at % 2, kv_head: at / 2, slot }))
                        .collect();
                    for (at, cell) in cells.iter().enumerate() {
                        layout.put(side, &mut pool, *cell, &vector(at));
                    }
                    for (at, cell) in cells.iter().enumerate() {
                        let expected = vector(at);
                        let most = expected.iter().fold(0f32, |most, x| x.abs().max(most));
                        for (i, x) in expected.iter().enumerate() {
                            prop_assert!((layout.get(side, &pool, *cell, i) - x).abs() <= bound * most);
                        }
                    }
                }
                // As a latent vector, in both pools.
                let layout = CacheLayout { latent_value: Some(head_dim), ..layout };
                let (mut keys, mut values) = (vec![0; layout.page_bytes() / 4], vec![0; layout.page_bytes() / 4]);
                let cell = Cell { page: 0, kv_head: n_kv_heads - 1, slot };
                layout.put_latent(&mut keys, &mut values, cell, &vector(5));
                let most = vector(5).iter().fold(0f32, |most, x| x.abs().max(most));
                for (i, x) in vector(5).iter().enumerate() {
                    prop_assert!((layout.get_latent(&keys, &values, cell, i) - x).abs() <= bound * most);
                }
            }
        }
    }
}
