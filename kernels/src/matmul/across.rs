//! The loop of [`Sharing::Across`](super::Sharing): lanes take the columns of a word, rows follow one another.
//!
//! A lane's accumulators are the eight rows of a tile, each summed over its own columns; in the end lanes and rows change
//! places, and lane `n` has row `n` as in every other loop.

use super::body::Body;
use crate::group_weights::component;
use crate::layout::{TILE_ROWS, WeightFormat};

/// Columns that the lanes of a subgroup take at a time.
const OCTET: usize = 8;

impl Body<'_> {
    pub(super) fn across(&mut self) {
        let format = self.spec.layout.format;
        self.line(1, "let shared_tile = subgroupBroadcastFirst(first_tile);".into());
        self.bases(1, "let ", "shared_tile");
        for tile in self.tiles() {
            for row in 0..TILE_ROWS {
                self.line(1, format!("var row_{tile}_{row} = 0.0;"));
            }
        }
        self.line(1, "for (var block = 0u; block < BLOCKS; block++) {".into());
        for tile in self.tiles() {
            self.line(2, format!("let at_{tile} = base_{tile} + block * BLOCK_WORDS;"));
        }
        self.block_params();
        for chunk in 0..format.chunks_per_block() {
            self.chunk(chunk);
        }
        self.line(1, "}".into());
        for tile in self.tiles() {
            self.lanes_to_rows(tile);
        }
    }

    /// The activations of a chunk's columns, and its weights of all rows.
    fn chunk(&mut self, chunk: usize) {
        let format = self.spec.layout.format;
        let octets = format.chunk_cols() / OCTET;
        for octet in 0..octets {
            let first = chunk * format.chunk_cols() + octet * OCTET;
            let at = format!("block * {}u + {first}u + row", format.block_cols());
            self.line(2, format!("let x_{chunk}_{octet} = activation(input_row, {at});"));
        }
        if let WeightFormat::Int4 { .. } = format {
            let sum = (0..octets).map(|octet| format!("x_{chunk}_{octet}")).collect::<Vec<_>>().join(" + ");
            self.line(2, format!("let sum_{chunk} = {sum};"));
        }
        for (tile, row) in self.tiles().flat_map(|tile| (0..TILE_ROWS).map(move |row| (tile, row))) {
            let word = format!("w_{chunk}_{tile}_{row}");
            self.line(2, format!("let {word} = weights[at_{tile} + {}u];", chunk * TILE_ROWS + row));
            let products = (0..octets).fold(String::from("0.0"), |sum, octet| {
                format!("fma({}, x_{chunk}_{octet}, {sum})", lane_weight(format, &word, octet))
            });
            let sum = format!("row_{tile}_{row}");
            let of_row = |name: &str| format!("subgroupBroadcast({name}_{tile}, {row}u)");
            let value = match format {
                WeightFormat::Int4 { .. } => {
                    let shifted = format!("fma({}, sum_{chunk}, {sum})", of_row("shift"));
                    format!("fma({}, {products}, {shifted})", of_row("scale"))
                }
                WeightFormat::Int8 => format!("fma({}, {products}, {sum})", of_row("scale")),
                WeightFormat::F16 => format!("{sum} + {products}"),
            };
            self.line(2, format!("{sum} = {value};"));
        }
    }

    /// Adds up over the lanes and leaves the sum of row `n` in lane `n`: at each step half of the rows go to the other half
    /// of the lanes.
    fn lanes_to_rows(&mut self, tile: usize) {
        let mut half = TILE_ROWS / 2;
        while half > 0 {
            for row in 0..half {
                let (low, high) = (format!("row_{tile}_{row}"), format!("row_{tile}_{}", row + half));
                let upper = format!("(row & {half}u) != 0u");
                let given = format!("subgroupShuffleXor(select({high}, {low}, {upper}), {half}u)");
                self.line(1, format!("{low} = select({low}, {high}, {upper}) + {given};"));
            }
            half /= 2;
        }
        self.line(1, format!("var acc_{tile}_0 = row_{tile}_0;"));
    }
}

/// The weight of this lane's column in octet `octet` of a row's word, without its scale.
fn lane_weight(format: WeightFormat, word: &str, octet: usize) -> String {
    match format {
        // As `int4_low` and `int4_high` have them.
        WeightFormat::Int4 { .. } => {
            format!("f32(({word}.{} >> (8u * (row % 4u) + 4u * (row / 4u))) & 15u)", component(octet))
        }
        WeightFormat::Int8 => {
            let (first, second) = (component(2 * octet), component(2 * octet + 1));
            let codes = format!("select({word}.{first}, {word}.{second}, row >= 4u)");
            format!("f32(bitcast<i32>({codes} << (24u - 8u * (row % 4u))) >> 24u)")
        }
        WeightFormat::F16 => format!("unpack2x16float({word}[row / 2u])[row % 2u]"),
    }
}
