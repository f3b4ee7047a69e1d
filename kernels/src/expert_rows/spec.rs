//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Words of a tile, and words before the first tile.
pub const TILE_WORDS: usize = 4;

/// Parameters of one table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExpertRowsSpec {
    /// Experts, shared ones included.
    pub experts: usize,
    /// Experts of a row, shared ones included.
    pub chosen: usize,
    /// The last experts, which every row is given to: they are the last of its routes.
    pub shared: usize,
    /// Words between rows of the routes.
    pub routes_stride: usize,
    /// How the table is cut.
    pub tiles: ExpertTiles,
}

/// How the rows of each expert are cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExpertTiles {
    /// Maximum number of pairs of a tile.
    pub tile_rows: usize,
    /// Maximum number of tiles of a step, whatever its routes are.
    pub max_tiles: usize,
}

impl ExpertTiles {
    /// Tiles for at most `pairs` pairs: each expert has at most one tile that is not full.
    pub fn of(pairs: usize, experts: usize, tile_rows: usize) -> ExpertTiles {
        ExpertTiles { tile_rows, max_tiles: pairs.min(pairs / tile_rows + experts) }
    }

    /// Index of the word of the first pair.
    pub fn pairs_at(&self) -> usize {
        TILE_WORDS * (1 + self.max_tiles)
    }

    /// Words of a table of `pairs` pairs.
    pub fn table_words(&self, pairs: usize) -> usize {
        self.pairs_at() + pairs
    }

    /// Values for kernels that take their rows from the table.
    pub(crate) fn values(&self, values: Values) -> Values {
        values.count("PAIRS_AT", self.pairs_at())
    }
}

const WORKGROUP: usize = 128;

impl Kernel for ExpertRowsSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Step, Role::Routes, Role::MadeExpertRows])
    }

    fn workgroups(&self, _rows: usize) -> [usize; 3] {
        [1, 1, 1]
    }

    fn wgsl(&self) -> String {
        let values = Values::default()
            .size("EXPERTS", self.experts)
            .size("CHOSEN", self.chosen)
            .size("ROUTED", self.experts - self.shared)
            .size("ROUTED_CHOSEN", self.chosen - self.shared)
            .flag("SHARED_EXPERTS", self.shared > 0)
            .size("ROUTES_STRIDE", self.routes_stride)
            .size("TILE_ROWS", self.tiles.tile_rows)
            .size("WORKGROUP", WORKGROUP)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &self.tiles.values(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs are spread over experts so that as many tiles as possible are not full.
    #[test]
    fn no_step_has_more_tiles_than_there_is_room_for() {
        for (pairs, experts, tile_rows) in
            [(1, 1, 4), (16, 128, 2), (4096, 128, 32), (33, 4, 8), (7, 3, 16), (512, 8, 64)]
        {
            let tiles = ExpertTiles::of(pairs, experts, tile_rows);
            let alone = experts.min(pairs);
            let worst = alone + (pairs - alone) / tile_rows;
            assert!(worst <= tiles.max_tiles, "{pairs} pairs, {experts} experts: {worst} tiles, {tiles:?}");
            assert_eq!(tiles.table_words(pairs), 4 + 4 * tiles.max_tiles + pairs);
        }
    }
}
