//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};
use unicorn_artifact::step::IMAGE_ROW;

use crate::kernel::{Kernel, RowAxis};
use crate::layout::{WeightLayout, unpacking};
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one lookup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EmbedSpec {
    /// Format and shape of the embedding matrix, or of a part of its rows.
    pub layout: WeightLayout,
    /// Token of the layout's first row.
    pub first_token: usize,
    /// Rows of the whole table, where tokens may be beyond it: those have the row of token 0. `None`: no token is.
    pub table_tokens: Option<usize>,
    /// Elements between rows of the output.
    pub output_stride: usize,
    /// Factor of every element of the embedding.
    pub scale: Number,
    /// Elements between rows of [`Role::InputRows`], from which rows of images are copied; `None`: there are none.
    pub image_stride: Option<usize>,
}

const WORKGROUP: usize = 64;

impl Kernel for EmbedSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let images = self.image_stride.map(|_| Role::InputRows);
        bindings([Role::Step, Role::Weights, Role::Output].into_iter().chain(images))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.chunks().div_ceil(WORKGROUP), rows, 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        RowAxis::each_row(1)
    }

    fn wgsl(&self) -> String {
        let layout = &self.layout;
        let values = unpacking(&[layout.format], Values::default())
            .size("COLS", layout.cols)
            .size("ROWS", layout.rows)
            .size("BLOCKS", layout.blocks_per_tile())
            .size("BLOCK_WORDS", layout.format.block_words())
            .size("CHUNKS", self.chunks())
            .size("CHUNKS_PER_BLOCK", layout.format.chunks_per_block())
            .size("CHUNK_COLS", layout.format.chunk_cols())
            .size("FIRST_TOKEN", self.first_token)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WORKGROUP", WORKGROUP)
            .number("SCALE", self.scale.get())
            .flag("BEYOND", self.table_tokens.is_some())
            .text("TABLE_TOKENS", format!("{}u", self.table_tokens.unwrap_or(0)))
            .flag("IMAGES", self.image_stride.is_some())
            .size("IMAGE_STRIDE", self.image_stride.unwrap_or(0))
            .text("IMAGE_ROW", format!("{IMAGE_ROW}u"))
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}

impl EmbedSpec {
    fn chunks(&self) -> usize {
        self.layout.cols.div_ceil(self.layout.format.chunk_cols())
    }
}
