//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::{Kernel, RowAxis};
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one rearrangement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadColumnsSpec {
    /// The heads of the result, in order.
    pub blocks: Vec<HeadBlock>,
    /// Elements between rows of each value that is read.
    pub source_strides: Vec<usize>,
    /// Elements between heads of the result; as many as a head has, unless each head is a row of its own.
    pub head_stride: usize,
    /// Elements between rows of the result.
    pub output_stride: usize,
}

/// Consecutive heads that are made of the same columns of each value's heads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadBlock {
    /// Number of heads.
    pub n_heads: usize,
    /// What a head is made of, in order; all heads of a spec have the same width.
    pub parts: Vec<HeadPart>,
}

/// Columns of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadPart {
    /// Index of the value, at most 3.
    pub source: usize,
    /// Elements between heads of the value.
    pub head_stride: usize,
    /// First column in a head of the value.
    pub first: usize,
    /// Number of columns.
    pub width: usize,
}

impl HeadBlock {
    /// Elements of a head.
    pub fn width(&self) -> usize {
        self.parts.iter().map(|part| part.width).sum()
    }
}

const WORKGROUP: usize = 64;
/// The roles of the values, and their names in WGSL.
const SOURCES: [(Role, &str); 4] =
    [(Role::Input, "input"), (Role::Second, "second"), (Role::Third, "third"), (Role::Fourth, "fourth")];

impl Kernel for HeadColumnsSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let sources = SOURCES[..self.source_strides.len()].iter().map(|(role, _)| *role);
        bindings([Role::Step].into_iter().chain(sources).chain([Role::Output]))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [(self.n_heads() * self.width()).div_ceil(WORKGROUP), rows, 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        RowAxis::each_row(1)
    }

    fn wgsl(&self) -> String {
        assert!(self.blocks.iter().all(|block| block.width() == self.width()), "heads of a result are equally wide");
        let mut values = Values::default()
            .size("COLUMNS", self.n_heads() * self.width())
            .size("WIDTH", self.width())
            .size("HEAD_STRIDE", self.head_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WORKGROUP", WORKGROUP)
            .text("DECLARATIONS", declarations(&self.bindings()));
        let (mut at, mut head) = (0, 0);
        for block in &self.blocks {
            let mut begin = 0;
            for part in &block.parts {
                let name = |what: &str| format!("PIECE_{at}_{what}");
                values = values
                    .count(name("HEAD"), head)
                    .count(name("HEADS_END"), head + block.n_heads)
                    .count(name("BEGIN"), begin)
                    .count(name("END"), begin + part.width)
                    .count(name("ROW"), self.source_strides[part.source])
                    .count(name("STRIDE"), part.head_stride)
                    .count(name("FIRST"), part.first)
                    .text(name("SOURCE"), SOURCES[part.source].1);
                (at, begin) = (at + 1, begin + part.width);
            }
            head += block.n_heads;
        }
        render(include_str!("kernel.wgsl"), &values.count("PIECES", at))
    }
}

impl HeadColumnsSpec {
    /// Heads of a row of the result.
    pub fn n_heads(&self) -> usize {
        self.blocks.iter().map(|block| block.n_heads).sum()
    }

    /// Elements of a head of the result.
    pub fn width(&self) -> usize {
        self.blocks.first().map_or(0, HeadBlock::width)
    }
}
