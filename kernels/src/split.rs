//! How the cached tokens that a few rows attend to are divided between workgroups: contiguous ranges of whole tiles.
//!
//! ```text
//! tokens   0        64       128      192      256      320
//!          │    ┌───┼────────┼────────┼────────┼──┐     │     what rows at positions attend to, with a window
//! splits        └─── split 0 ─────────┴─ split 1 ─┘           split 2: nothing left, ends at once
//! ```
//!
//! All splits but the last one in use have the same number of tiles; that one has the rest, and those after it have none.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use unicorn_artifact::step::{IMAGE_ROW, ImageNumbers, MAX_SAMPLERS, SECOND_ROW_BIT};

use crate::template::Values;

/// Which rows read the cache together, which tokens they read, and in how many parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Split {
    /// Rows of the step in one workgroup; they belong to one sequence, and their positions grow.
    pub rows_per_group: usize,
    /// Which rows of the step.
    pub rows: StepRows,
    /// Cached tokens that a workgroup processes at a time; splits are whole tiles.
    pub tile: usize,
    /// A row attends to this many tokens, its own included; `None`: all up to its own.
    pub window: Option<usize>,
    /// No row attends to the tokens before this one, which a cache has nothing of; not beside a window.
    pub first_token: usize,
    /// Workgroups that share the tokens.
    pub splits: usize,
    /// Maximum number of splits of a head of a row whose partial results fit `combine`'s input, at least `splits`; 1: there is one split,
    /// which writes the result.
    pub max_splits: usize,
    /// The K and V of the row's own token are not read from the cache: split 0 computes them.
    pub newest_apart: bool,
}

/// Which rows of a step a kernel takes. The first of `StepHeader::apart_rows` are apart: each is of any sequence. Those behind them are of one, or
/// of two, one after the other (`step::rows_apart`):
///
/// ```text
/// rows        0 1 2 │ 3 4 5 6 │ 7 8 │ 9 10 11 12 │ 13     3 apart, the second part from row 9 on, 4 rows a workgroup
/// workgroups         0         1     2            3       no workgroup has rows of both
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StepRows {
    /// All, of a step of which none are apart.
    All,
    /// All; each of those apart has a workgroup of its own.
    EachApart,
    /// Those apart.
    Apart,
    /// Those behind.
    Behind,
}

impl Split {
    /// Whether splits write partial results, for `combine`.
    pub fn is_partial(&self) -> bool {
        self.max_splits > 1
    }

    /// Cached tokens that some rows attend to, the first of which has position `first`, and of which none sees a token behind `last`.
    pub fn span(&self, first: u32, last: u32) -> Range<usize> {
        let (first, last) = (first as usize, last as usize);
        let end = last + usize::from(!self.newest_apart);
        self.window.map_or(self.first_token.min(end), |window| (first + 1).saturating_sub(window))..end
    }

    /// Tokens of each split in use: the first always is, though it may have none.
    pub fn parts(&self, first: u32, last: u32) -> Vec<Range<usize>> {
        let span = self.span(first, last);
        let first_tile = span.start / self.tile;
        let tiles = if span.is_empty() { 0 } else { span.end.div_ceil(self.tile) - first_tile };
        let tiles_per_split = tiles.div_ceil(self.splits).max(1);
        let start = |part: usize| (self.tile * (first_tile + part * tiles_per_split)).clamp(span.start, span.end);
        (0..tiles.div_ceil(tiles_per_split).max(1)).map(|part| start(part)..start(part + 1)).collect()
    }

    /// Workgroups for `rows` rows.
    pub fn groups(&self, rows: usize) -> usize {
        row_groups(rows, self.rows_per_group, self.rows)
    }

    /// Values for pieces that include `split`.
    pub(crate) fn values(&self, values: Values) -> Values {
        assert!(self.window.is_none() || self.first_token == 0, "a window has its own first token");
        row_values(self.rows_per_group, self.rows, values)
            .size("WINDOW", self.window.unwrap_or(0))
            .count("FIRST_TOKEN", self.first_token)
            .size("SPLITS", self.splits)
            .size("MAX_SPLITS", self.max_splits)
            .size("TILE", self.tile)
            .flag("WINDOWED", self.window.is_some())
            .flag("NEWEST_APART", self.newest_apart)
    }
}

/// Workgroups that take `rows_per_group` of at most `rows` rows each.
pub(crate) fn row_groups(rows: usize, rows_per_group: usize, taken: StepRows) -> usize {
    let more = match taken {
        StepRows::All | StepRows::Apart => 0,
        // The first of two parts may end with a workgroup that is not full.
        StepRows::Behind => 1,
        StepRows::EachApart => 1 + MAX_SAMPLERS,
    };
    rows.div_ceil(rows_per_group) + more
}

/// Values for kernels whose workgroups take several rows: `FIRST_ROW` is that of workgroup `group.y`, and `ROWS_END` ends the rows that may
/// be in the workgroup of `first_row`.
pub(crate) fn row_values(rows_per_group: usize, taken: StepRows, values: Values) -> Values {
    let (apart, second, all) = (apart_rows(), second_row(), "step.header.n_rows");
    // Of the workgroups behind the rows apart: the first part's come before those of the second.
    let behind = |group: &str| {
        let of_first = format!("(({second} - {apart} + ROWS - 1u) / ROWS)");
        format!("select({second} + ({group} - {of_first}) * ROWS, {apart} + {group} * ROWS, {group} < {of_first})")
    };
    let end_behind = format!("select({all}, {second}, first_row < {second})");
    let (first, end) = match taken {
        StepRows::All => ("group.y * ROWS".to_owned(), all.to_owned()),
        StepRows::EachApart => (
            format!("select(group.y, {}, group.y >= {apart})", behind(&format!("(group.y - {apart})"))),
            format!("select({end_behind}, first_row + 1u, first_row < {apart})"),
        ),
        StepRows::Apart => ("group.y * ROWS".to_owned(), apart),
        StepRows::Behind => (behind("group.y"), end_behind),
    };
    values.size("ROWS", rows_per_group).text("FIRST_ROW", first).text("ROWS_END", end)
}

/// Number of rows apart.
fn apart_rows() -> String {
    format!("(step.header.apart_rows & {}u)", (1u32 << SECOND_ROW_BIT) - 1)
}

/// The first row of the second part behind the rows apart; the end of all rows where there is none.
fn second_row() -> String {
    let second = format!("(step.header.apart_rows >> {SECOND_ROW_BIT}u)");
    format!("select(step.header.n_rows, {second}, {second} > 0u)")
}

/// Values for kernels whose rows may be of images of `image_rows` rows; 0: there are none.
pub(crate) fn image_values(image_rows: usize, values: Values) -> Values {
    values
        .flag("IMAGES", image_rows > 0)
        .count("IMAGE_ROWS", image_rows)
        .count("IMAGE_NUMBERS", ImageNumbers::for_rows(image_rows as u32).each() as usize)
        .text("IMAGE_ROW", format!("{IMAGE_ROW}u"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_the_span_in_order(
            first in 0u32..2000, rows in 1u32..9, window in prop::option::of(1usize..700), splits in 1usize..40,
            tile in prop::sample::select(vec![64usize, 128]), newest_apart in any::<bool>(), first_token in 0..2usize,
        ) {
            let first_token = if window.is_some() { 0 } else { first_token };
            let rows_of_step = StepRows::All;
            let split = Split {
                rows_per_group: 8, rows: rows_of_step, tile, window, first_token, splits, max_splits: splits, newest_apart,
            };
            let last = first + rows - 1;
            let (span, parts) = (split.span(first, last), split.parts(first, last));
            prop_assert!(parts.len() <= splits);
            prop_assert_eq!(parts[0].start, span.start);
            prop_assert_eq!(parts[parts.len() - 1].end, span.end.max(span.start));
            for pair in parts.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                prop_assert!(pair[0].end.is_multiple_of(tile) && !pair[1].is_empty());
            }
        }
    }
}
