//! The kernel in plain loops, to check it by.

use super::spec::{ExpertRowsSpec, TILE_WORDS};

/// The table of `n_rows` rows. The kernel may have an expert's pairs in another order, which changes no row of a result.
pub fn twin(spec: &ExpertRowsSpec, routes: &[u32], n_rows: usize) -> Vec<u32> {
    let pairs = n_rows * spec.chosen;
    let expert_of = |pair: usize| routes[pair / spec.chosen * spec.routes_stride + pair % spec.chosen];
    let mut table = vec![0; spec.tiles.table_words(pairs)];
    let (mut tile, mut first) = (0, 0);
    for expert in 0..spec.experts as u32 {
        let own: Vec<u32> = (0..pairs).filter(|&pair| expert_of(pair) == expert).map(|pair| pair as u32).collect();
        for rows in own.chunks(spec.tiles.tile_rows) {
            let words = [expert, first as u32, rows.len() as u32, 0];
            table[TILE_WORDS * (1 + tile)..][..TILE_WORDS].copy_from_slice(&words);
            table[spec.tiles.pairs_at() + first..][..rows.len()].copy_from_slice(rows);
            tile += 1;
            first += rows.len();
        }
    }
    table[0] = tile as u32;
    table
}

/// A tile of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tile {
    /// Expert of all pairs of the tile.
    pub expert: u32,
    /// Pairs: indices of rows of the experts' results.
    pub pairs: Vec<u32>,
}

/// The tiles of a table.
pub fn tiles_of(spec: &ExpertRowsSpec, table: &[u32]) -> Vec<Tile> {
    let tile = |number: usize| {
        let words = &table[TILE_WORDS * (1 + number)..][..TILE_WORDS];
        let first = spec.tiles.pairs_at() + words[1] as usize;
        Tile { expert: words[0], pairs: table[first..first + words[2] as usize].to_vec() }
    };
    (0..table[0] as usize).map(tile).collect()
}
