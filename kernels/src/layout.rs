//! Where each weight of a matrix is stored: the one layout that every target's kernels read.
//!
//! ```text
//! matrix (rows, cols) = tiles of 8 rows, each a run of blocks along the columns
//!
//! tile 0: [block 0][block 1] … [block n-1]   tile 1: [block 0] …
//!
//! block = 8 rows × block_cols weights, in words of 16 bytes (one vec4<u32>):
//!         chunk 0 of rows 0..8, chunk 1 of rows 0..8, …, then parameters, one a row
//!
//! INT4       block_cols = group; a chunk is 32 weights; parameters are Int4Params, 2 bytes each
//! INT4 wide  block_cols = group; a chunk is 32 weights; parameters are WideInt4Params, 4 bytes each
//! FP4, IQ4   block_cols = 32;    a chunk is 32 weights; parameters are f16 scales, 2 bytes each
//! INT8       block_cols = 32;    a chunk is 16 weights; parameters are f16 scales, 2 bytes each
//! F16        block_cols = 32;    a chunk is 8 weights;  no parameters
//! ```
//!
//! Eight lanes that take one row each read 128 consecutive bytes; a subgroup of 32 reads four blocks of one tile. Rows
//! beyond `rows` and columns beyond `cols` hold weights of value 0. IQ4 has no such level: its columns are whole blocks, and a row beyond
//! `rows` has scales of 0.

use half::f16;
use serde::{Deserialize, Serialize};
use unicorn_artifact::codebook::{CODEBOOK_GROUP, Codebook};
use unicorn_artifact::int4::{INT8_GROUP, Int4Params, SCALE_SHIFT, WideInt4Params, ZERO_SHIFT, unpack_int4};

use crate::template::Values;

/// Rows of a tile.
pub const TILE_ROWS: usize = 8;
/// Bytes of one `vec4<u32>`.
pub const WORD_BYTES: usize = 16;

/// Number format of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WeightFormat {
    /// INT4 codes with a scale and a zero point for each group.
    Int4 {
        /// Consecutive weights of a row that share a scale and a zero point.
        group: u32,
    },
    /// INT4 codes with scales of full f16, for weights that are INT4 in the model's own files.
    WideInt4 {
        /// Consecutive weights of a row that share a scale and a zero point.
        group: u32,
    },
    /// INT8 codes; 32 consecutive weights of a row share an f16 scale.
    Int8,
    /// f16 weights without parameters.
    F16,
    /// MXFP4's codes; 32 consecutive weights of a row share an f16 scale, a power of two.
    Fp4,
    /// Codes of GGUF's IQ4_NL and IQ4_XS; 32 consecutive weights of a row share an f16 scale.
    Iq4,
}

impl WeightFormat {
    /// Name of the format: `int4/<group>`, `int4w/<group>`, `int8`, `f16`, `mxfp4` or `iq4`.
    pub fn name(self) -> String {
        match self {
            WeightFormat::Int4 { group } => format!("int4/{group}"),
            WeightFormat::WideInt4 { group } => format!("int4w/{group}"),
            WeightFormat::Int8 => "int8".into(),
            WeightFormat::F16 => "f16".into(),
            WeightFormat::Fp4 => "mxfp4".into(),
            WeightFormat::Iq4 => "iq4".into(),
        }
    }

    /// Columns of one block.
    pub fn block_cols(self) -> usize {
        match self {
            WeightFormat::Int4 { group } | WeightFormat::WideInt4 { group } => group as usize,
            WeightFormat::Int8 => INT8_GROUP,
            WeightFormat::F16 => 32,
            WeightFormat::Fp4 | WeightFormat::Iq4 => CODEBOOK_GROUP,
        }
    }

    /// Weights of one row in one 16-byte word.
    pub fn chunk_cols(self) -> usize {
        match self {
            WeightFormat::Int4 { .. } | WeightFormat::WideInt4 { .. } | WeightFormat::Fp4 | WeightFormat::Iq4 => 32,
            WeightFormat::Int8 => 16,
            WeightFormat::F16 => 8,
        }
    }

    /// 16-byte words of one row in one block.
    pub fn chunks_per_block(self) -> usize {
        self.block_cols() / self.chunk_cols()
    }

    /// Bytes of a row's parameter, with which a block ends; 0: there is none.
    pub fn param_bytes(self) -> usize {
        match self {
            WeightFormat::Int4 { .. } | WeightFormat::Int8 | WeightFormat::Fp4 | WeightFormat::Iq4 => 2,
            WeightFormat::WideInt4 { .. } => 4,
            WeightFormat::F16 => 0,
        }
    }

    /// 16-byte words of one block, parameters included.
    pub fn block_words(self) -> usize {
        TILE_ROWS * self.chunks_per_block() + TILE_ROWS * self.param_bytes() / WORD_BYTES
    }

    /// Whether weights are INT4 codes.
    pub fn is_int4(self) -> bool {
        matches!(self, WeightFormat::Int4 { .. } | WeightFormat::WideInt4 { .. })
    }

    /// Whether parameters have 4 bytes.
    pub fn is_wide(self) -> bool {
        matches!(self, WeightFormat::WideInt4 { .. })
    }

    /// The table that codes are places in; `None`: they are numbers themselves.
    pub fn codebook(self) -> Option<Codebook> {
        match self {
            WeightFormat::Fp4 => Some(Codebook::Fp4),
            WeightFormat::Iq4 => Some(Codebook::Iq4),
            _ => None,
        }
    }

    /// The format whose codes are places in `codebook`.
    pub fn of_codebook(codebook: Codebook) -> WeightFormat {
        match codebook {
            Codebook::Fp4 => WeightFormat::Fp4,
            Codebook::Iq4 => WeightFormat::Iq4,
        }
    }

    /// Whether weights are codes of 4 bits: of INT4, or of a codebook, which the same kernels unpack.
    pub fn has_nibbles(self) -> bool {
        self.is_int4() || self.codebook().is_some()
    }

    /// Whether packed dot products are of weights as signed bytes; otherwise a zero point is subtracted.
    fn has_signed_bytes(self) -> bool {
        self == WeightFormat::Int8 || self.codebook().is_some()
    }

    /// Whether a kernel that unpacks these weights can also unpack those of another format.
    pub fn unpacks_with_others(self) -> bool {
        !self.is_wide() && self.codebook().is_none()
    }
}

impl WeightFormat {
    /// Values whose names begin with `matrix`, for pieces that take weights of this format.
    pub(crate) fn values(self, matrix: &str, values: Values) -> Values {
        values
            .flag(format!("{matrix}_INT8"), self == WeightFormat::Int8)
            .flag(format!("{matrix}_SIGNED"), self.has_signed_bytes())
            .count(format!("{matrix}_BLOCK_WORDS"), self.block_words())
            .count(format!("{matrix}_GROUPS_PER_BLOCK"), self.block_cols() / 32)
    }
}

/// Values for pieces that unpack weights of these formats.
///
/// # Panics
/// When there are several formats, and a kernel cannot unpack one of them together with others.
pub(crate) fn unpacking(formats: &[WeightFormat], values: Values) -> Values {
    assert!(
        formats.iter().all(|format| format.unpacks_with_others() || *format == formats[0]),
        "{formats:?} are unpacked by one kernel"
    );
    let is_wide = formats.iter().any(|format| format.is_wide());
    let codebook = formats.iter().find_map(|format| format.codebook());
    // A wide parameter has the whole scale in its low half, and the zero point in its high one.
    let (zero_shift, scale_shift) = if is_wide || codebook.is_some() { (16, 0) } else { (ZERO_SHIFT, SCALE_SHIFT) };
    values
        .flag("INT4", formats.iter().any(|format| format.has_nibbles()))
        .flag("CODEBOOK", codebook.is_some())
        .flag("IQ4", codebook == Some(Codebook::Iq4))
        .flag("INT8", formats.contains(&WeightFormat::Int8))
        .flag("F16", formats.contains(&WeightFormat::F16))
        .flag("WIDE", is_wide)
        .text("INT4_SCALE_MASK", (1u32 << zero_shift) - 1)
        .text("INT4_SCALE_SHIFT", scale_shift)
        .text("INT4_ZERO_SHIFT", zero_shift)
}

/// A packed matrix of `rows` outputs and `cols` inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WeightLayout {
    /// Number format of the weights.
    pub format: WeightFormat,
    /// Number of outputs, without padding.
    pub rows: usize,
    /// Number of inputs, without padding.
    pub cols: usize,
}

impl WeightLayout {
    /// Number of tiles of [`TILE_ROWS`] rows.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Number of blocks along the columns.
    pub fn blocks_per_tile(&self) -> usize {
        self.cols.div_ceil(self.format.block_cols())
    }

    /// Columns with padding: the number of codes of a row.
    pub fn padded_cols(&self) -> usize {
        self.blocks_per_tile() * self.format.block_cols()
    }

    /// Size of one tile in bytes.
    pub fn tile_bytes(&self) -> usize {
        self.blocks_per_tile() * self.format.block_words() * WORD_BYTES
    }

    /// Size of the packed matrix in bytes, padding included.
    pub fn bytes(&self) -> usize {
        self.tiles() * self.tile_bytes()
    }

    /// Byte offset, within a tile, of chunk `chunk` of `block` for row `row_in_tile`.
    pub fn chunk_offset(&self, block: usize, chunk: usize, row_in_tile: usize) -> usize {
        (block * self.format.block_words() + chunk * TILE_ROWS + row_in_tile) * WORD_BYTES
    }

    /// Byte offset, within a tile, of the parameter of `block` for row `row_in_tile`.
    pub fn param_offset(&self, block: usize, row_in_tile: usize) -> usize {
        let params_at = (block * self.format.block_words() + TILE_ROWS * self.format.chunks_per_block()) * WORD_BYTES;
        params_at + self.format.param_bytes() * row_in_tile
    }

    /// Decodes row `row` to f32, (cols), by plain loops; for tests and exports.
    pub fn decode_row(&self, packed: &[u8], row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols);
        let tile = &packed[row / TILE_ROWS * self.tile_bytes()..][..self.tile_bytes()];
        let row_in_tile = row % TILE_ROWS;
        let chunk_cols = self.format.chunk_cols();
        let mut weights = [0f32; 32];
        for (index, chunk_out) in out.chunks_mut(chunk_cols).enumerate() {
            let (block, chunk) = (index / self.format.chunks_per_block(), index % self.format.chunks_per_block());
            let bytes = &tile[self.chunk_offset(block, chunk, row_in_tile)..][..WORD_BYTES];
            let mut param = [0u8; 4];
            let param_bytes = self.format.param_bytes();
            param[..param_bytes].copy_from_slice(&tile[self.param_offset(block, row_in_tile)..][..param_bytes]);
            self.decode_chunk(bytes, u32::from_le_bytes(param), &mut weights);
            chunk_out.copy_from_slice(&weights[..chunk_out.len()]);
        }
    }

    fn decode_chunk(&self, bytes: &[u8], param: u32, out: &mut [f32; 32]) {
        match self.format {
            WeightFormat::Int4 { .. } | WeightFormat::WideInt4 { .. } => {
                for (weight, code) in out.iter_mut().zip(codes_of(bytes)) {
                    *weight = if self.format.is_wide() {
                        WideInt4Params(param).decode(code)
                    } else {
                        Int4Params(param as u16).decode(code)
                    };
                }
            }
            WeightFormat::Int8 => {
                let scale = f16::from_bits(param as u16).to_f32();
                for (weight, &byte) in out.iter_mut().zip(bytes) {
                    *weight = f32::from(byte as i8) * scale;
                }
            }
            WeightFormat::F16 => {
                for (weight, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *weight = f16::from_le_bytes([pair[0], pair[1]]).to_f32();
                }
            }
            WeightFormat::Fp4 | WeightFormat::Iq4 => {
                let codebook = self.format.codebook().expect("codes are places in a table");
                let scale = f16::from_bits(param as u16).to_f32();
                for (weight, code) in out.iter_mut().zip(codes_of(bytes)) {
                    *weight = f32::from(codebook.level(code)) * scale;
                }
            }
        }
    }
}

/// The 32 codes of a chunk of 4-bit weights.
fn codes_of(bytes: &[u8]) -> [u8; 32] {
    let words: [u32; 4] =
        std::array::from_fn(|w| u32::from_le_bytes(bytes[4 * w..4 * w + 4].try_into().expect("4 bytes")));
    let mut codes = [0u8; 32];
    unpack_int4(&words, &mut codes);
    codes
}
