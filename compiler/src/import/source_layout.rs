//! How a source tensor is stored in its file: element type, order of rows, and encoding of numbers.

use std::fmt::{self, Display, Formatter};

/// Element types a source tensor may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceDType {
    F32,
    F16,
    Bf16,
    /// Numbers of 8 bits, with factors in another tensor.
    F8E4M3,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    MxFp4,
    /// A matrix of INT4 codes with scales in another tensor.
    Int4,
}

impl SourceDType {
    /// Elements and bytes of the smallest part that can be read by itself: 1 element for floats, a block otherwise.
    pub(crate) fn block(self) -> (usize, usize) {
        match self {
            SourceDType::F32 => (1, 4),
            SourceDType::F16 | SourceDType::Bf16 => (1, 2),
            SourceDType::F8E4M3 => (1, 1),
            SourceDType::Q4_0 => (32, 18),
            SourceDType::Q4_1 => (32, 20),
            SourceDType::Q5_0 => (32, 22),
            SourceDType::Q5_1 => (32, 24),
            SourceDType::Q8_0 => (32, 34),
            SourceDType::Q2K => (256, 84),
            SourceDType::Q3K => (256, 110),
            SourceDType::Q4K => (256, 144),
            SourceDType::Q5K => (256, 176),
            SourceDType::Q6K => (256, 210),
            SourceDType::Iq4Nl => (32, 18),
            SourceDType::Iq4Xs => (256, 136),
            SourceDType::MxFp4 => (32, 17),
            SourceDType::Int4 => (8, 4),
        }
    }

    /// Bytes of a row; `None` when `cols` is not a whole number of blocks or the product overflows.
    pub(crate) fn row_bytes(self, cols: usize) -> Option<usize> {
        let (elements, bytes) = self.block();
        cols.is_multiple_of(elements).then_some(cols / elements)?.checked_mul(bytes)
    }
}

/// ggml's name, or safetensors' for floats.
impl Display for SourceDType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SourceDType::F32 => "F32",
            SourceDType::F16 => "F16",
            SourceDType::Bf16 => "BF16",
            SourceDType::F8E4M3 => "F8_E4M3",
            SourceDType::Q4_0 => "Q4_0",
            SourceDType::Q4_1 => "Q4_1",
            SourceDType::Q5_0 => "Q5_0",
            SourceDType::Q5_1 => "Q5_1",
            SourceDType::Q8_0 => "Q8_0",
            SourceDType::Q2K => "Q2_K",
            SourceDType::Q3K => "Q3_K",
            SourceDType::Q4K => "Q4_K",
            SourceDType::Q5K => "Q5_K",
            SourceDType::Q6K => "Q6_K",
            SourceDType::Iq4Nl => "IQ4_NL",
            SourceDType::Iq4Xs => "IQ4_XS",
            SourceDType::MxFp4 => "MXFP4",
            SourceDType::Int4 => "INT4",
        })
    }
}

/// Order of the rows in the source; of a vector (a bias), order of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    Plain,
    /// `rotary_dim` rows of each head of q and k, those behind its first `plain`, are adjacent rotary pairs: of a head's `r` such rows,
    /// our row `i` is the source's `2i` for `i < r/2`, else `2(i - r/2) + 1`. llama.cpp's converter writes Llama's in this order; GLM-4's
    /// checkpoints have it as well.
    InterleavedHeads {
        head_dim: usize,
        plain: usize,
        rotary_dim: usize,
    },
    /// After `plain` rows, a delta net's heads of values, `width` rows each, are stored in tiles: the first of every key head, then
    /// the second of every one; ours are all `shared` of a key head, then of the next. llama.cpp's converter writes Qwen 3.5's so.
    TiledHeads {
        plain: usize,
        key_heads: usize,
        shared: usize,
        width: usize,
    },
    /// The same order, of columns.
    TiledColumns {
        key_heads: usize,
        shared: usize,
        width: usize,
    },
    /// Blocks of the source's rows that are ours, counted from its first row: all of the first, then of the second and third.
    /// Absent blocks have 0 rows.
    Blocks([RowBlocks; 3]),
    /// Our columns are rows of the source, and our rows its columns.
    Transposed,
    /// Our rows are not rows of the source; each element has a place of its own.
    Strided(Elements),
}

/// Where our elements are stored among those of the source tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements {
    /// Source index of the element in our first row and column.
    pub(crate) first: usize,
    /// Source elements from one row to the next.
    pub(crate) row: usize,
    /// Source elements from one column to the next.
    pub(crate) column: usize,
    /// Source elements that are left out after each run of columns.
    pub(crate) gaps: Option<Gaps>,
}

/// Elements of a source tensor that belong to another of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gaps {
    /// Columns between two gaps.
    pub(crate) run: usize,
    /// Source elements of a gap.
    pub(crate) len: usize,
}

impl Elements {
    /// Source index of the element in this row and column.
    pub(crate) fn at(&self, row: usize, column: usize) -> usize {
        let left_out = self.gaps.map_or(0, |gaps| column / gaps.run * gaps.len);
        self.first + row * self.row + column * self.column + left_out
    }
}

/// Blocks of rows at equal distances in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowBlocks {
    /// Rows of all blocks together.
    pub(crate) rows: usize,
    /// The first block's first row in the source.
    pub(crate) first: usize,
    /// Rows of a block.
    pub(crate) block: usize,
    /// Rows of the source from one block to the next.
    pub(crate) stride: usize,
}

impl RowBlocks {
    /// No blocks.
    pub(crate) const NONE: RowBlocks = RowBlocks { rows: 0, first: 0, block: 1, stride: 0 };

    /// The source's row that is our row `row`.
    fn source_row(blocks: &[RowBlocks; 3], mut row: usize) -> usize {
        for one in blocks {
            if row < one.rows {
                return one.first + row / one.block * one.stride + row % one.block;
            }
            row -= one.rows;
        }
        panic!("a tensor has no row {row} rows behind its last")
    }
}

impl RowOrder {
    /// Whether each group of `group` columns of ours, the first of which is a multiple of it, is one of the source's.
    pub(crate) fn keeps_groups(self, group: usize) -> bool {
        match self {
            RowOrder::Plain | RowOrder::InterleavedHeads { .. } | RowOrder::TiledHeads { .. } | RowOrder::Blocks(_) => {
                true
            }
            RowOrder::TiledColumns { width, .. } => width.is_multiple_of(group),
            RowOrder::Transposed | RowOrder::Strided(_) => false,
        }
    }

    /// The source's column that is our column `column`, where our rows are rows of the source.
    pub(crate) fn source_column(self, column: usize) -> usize {
        match self {
            RowOrder::TiledColumns { key_heads, shared, width } => tiled(key_heads, shared, width, column),
            _ => column,
        }
    }

    /// The source's row that is our row `row`, if our rows begin at its row `first_row`; blocks give their own rows.
    pub(crate) fn source_row(self, first_row: usize, row: usize) -> usize {
        let (head_dim, plain, rotary_dim) = match self {
            RowOrder::Plain | RowOrder::TiledColumns { .. } => return first_row + row,
            RowOrder::TiledHeads { plain, .. } if row < plain => return first_row + row,
            RowOrder::TiledHeads { plain, key_heads, shared, width } => {
                return first_row + plain + tiled(key_heads, shared, width, row - plain);
            }
            RowOrder::Blocks(blocks) => return RowBlocks::source_row(&blocks, row),
            RowOrder::Transposed | RowOrder::Strided(_) => panic!("a row of ours is no row of the source"),
            RowOrder::InterleavedHeads { head_dim, plain, rotary_dim } => (head_dim, plain, rotary_dim),
        };
        let (head_start, in_head, half) = (row - row % head_dim, row % head_dim, rotary_dim / 2);
        first_row
            + head_start
            + match in_head.checked_sub(plain) {
                Some(first) if first < half => plain + 2 * first,
                Some(second) if second < rotary_dim => plain + 2 * (second - half) + 1,
                _ => in_head,
            }
    }
}

/// Position in tiles of number `index` of heads of `width` numbers each.
pub(super) fn tiled(key_heads: usize, shared: usize, width: usize, index: usize) -> usize {
    let (head, within) = (index / width, index % width);
    (head % shared * key_heads + head / shared) * width + within
}

/// Encoding of a number in the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StoredAs {
    Itself,
    /// The number plus this one. GGUF stores Gemma's and Qwen 3.5's norm weights with 1 added.
    Plus(f32),
    /// e to its power, negated, as GGUF has the rates of a delta net's decay.
    NegatedExponential,
}

impl StoredAs {
    pub(super) fn restore(self, values: &mut [f32]) {
        match self {
            StoredAs::Itself => {}
            StoredAs::Plus(added) => values.iter_mut().for_each(|value| *value -= added),
            StoredAs::NegatedExponential => values.iter_mut().for_each(|value| *value = (-*value).ln()),
        }
    }
}
