//! The text of a register GEMM's main function: fetch, multiply, exchange, results.

use super::spec::RegisterGemmSpec;
use super::spec::STAGE;
use crate::fragments::ROW_LANES;
use crate::gemm::blocks_out;
use crate::layout::{TILE_ROWS, WeightFormat};

/// Columns of a stage that one lane has of each of its rows.
const LANE_COLUMNS: usize = STAGE / ROW_LANES;

/// A matrix row that a lane has in registers, or an item of activations that it brings: a number in names.
type Item = usize;

impl RegisterGemmSpec {
    /// 16-byte words that hold a lane's columns of a row.
    fn row_chunks(&self) -> usize {
        LANE_COLUMNS / self.product.layout.format.chunk_cols()
    }

    /// A lane's rows of all its subgroup's fragments.
    fn rows(&self) -> impl Iterator<Item = Item> + use<> {
        0..self.tile.fragments * self.fragment().rows()
    }

    /// The matrix row of the first lane's, counted from the subgroup's first.
    fn first_row(&self, row: Item) -> usize {
        let fragment = self.fragment();
        row / fragment.rows() * fragment.side + row % fragment.rows() * fragment.rows_apart()
    }

    /// 16-byte words of activations that a lane brings into workgroup memory for a panel.
    fn activations(&self) -> impl Iterator<Item = Item> + use<> {
        0..(self.tile.step_rows * self.tile.panel / 8).div_ceil(self.lanes())
    }

    /// Whether every lane brings as much as the others.
    fn shares_out(&self) -> bool {
        (self.tile.step_rows * self.tile.panel / 8).is_multiple_of(self.lanes())
    }

    /// Places of a subgroup's sums: fragments along the rows of the step, and along the matrix rows.
    fn sums(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (down, across) = (self.tile.step_rows / self.tile.fragment, self.tile.fragments);
        (0..down).flat_map(move |i| (0..across).map(move |j| (i, j)))
    }

    /// The type of sums.
    fn sums_type(&self) -> String {
        format!("{}<f32, C>", self.fragment().matrix())
    }
}

fn indented(depth: usize, lines: impl IntoIterator<Item = String>) -> String {
    lines.into_iter().map(|line| format!("{}{line}\n", "    ".repeat(depth))).collect()
}

/// All stages: while one is multiplied, the weights of the next and the activations of the next panel are on their way into
/// registers.
pub(super) fn multiply(spec: &RegisterGemmSpec) -> String {
    let panels = STAGE / spec.tile.panel;
    let mut setup: Vec<String> = spec.sums().map(|(i, j)| format!("var sum_{i}_{j}: {};", spec.sums_type())).collect();
    setup.extend(weight_setup(spec));
    setup.extend(activation_setup(spec));
    setup.extend(fetch_weights(spec, "first_stage"));
    setup.extend(fetch_activations(spec, &format!("first_stage * {panels}u")));
    setup.extend(put_activations(spec));
    setup.push("workgroupBarrier();".into());
    let mut stage = turn(spec);
    // The last stage fetches itself again, for nobody.
    stage.extend(fetch_weights(spec, "min(stage + 1u, end_stage - 1u)"));
    for panel in 0..panels {
        stage.extend(fetch_activations(
            spec,
            &format!("min(stage * {panels}u + {}u, end_stage * {panels}u - 1u)", panel + 1),
        ));
        stage.extend(multiply_panel(spec, panel));
        stage.push("workgroupBarrier();".into());
        stage.extend(put_activations(spec));
        stage.push("workgroupBarrier();".into());
    }
    indented(1, setup)
        + "    for (var stage = first_stage; stage < end_stage; stage++) {\n"
        + &indented(2, stage)
        + "    }\n"
}

/// Where a lane's rows begin in the packed matrix, and what is under way of them.
fn weight_setup(spec: &RegisterGemmSpec) -> Vec<String> {
    let layout = &spec.product.layout;
    let tile_words = layout.blocks_per_tile() * layout.format.block_words();
    let mut lines = vec![
        format!("let place = subgroup_lane % {ROW_LANES}u;"),
        format!("let lane_row = subgroup_lane / {ROW_LANES}u;"),
    ];
    for row in spec.rows() {
        lines.extend([
            format!("let row_{row} = first_matrix_row + {}u + lane_row;", spec.first_row(row)),
            format!("let tile_{row} = min(row_{row} / {TILE_ROWS}u, {}u) * {tile_words}u;", layout.tiles() - 1),
            format!("var next_params_{row}: u32;"),
        ]);
        lines.extend((0..spec.row_chunks()).map(|chunk| format!("var next_{row}_{chunk}: vec4<u32>;")));
    }
    lines
}

fn fetch_weights(spec: &RegisterGemmSpec, stage: &str) -> Vec<String> {
    let layout = &spec.product.layout;
    let format = layout.format;
    let (chunks, of_block, block_words) = (spec.row_chunks(), format.chunks_per_block(), format.block_words());
    let last_chunk = layout.blocks_per_tile() * of_block - 1;
    let mut lines = vec!["{".to_owned()];
    for chunk in 0..chunks {
        lines.extend([
            format!(
                "let column_{chunk} = min((({stage}) * {ROW_LANES}u + place) * {chunks}u + {chunk}u, {last_chunk}u);"
            ),
            format!("let block_{chunk} = column_{chunk} / {of_block}u * {block_words}u;"),
            format!("let chunk_{chunk} = block_{chunk} + column_{chunk} % {of_block}u * {TILE_ROWS}u;"),
        ]);
    }
    for row in spec.rows() {
        lines.extend((0..chunks).map(|chunk| {
            format!("next_{row}_{chunk} = weights[tile_{row} + chunk_{chunk} + row_{row} % {TILE_ROWS}u];")
        }));
        if format.has_params() {
            let pair = format!("weights[tile_{row} + block_0 + {}u][row_{row} % {TILE_ROWS}u / 2u]", block_words - 1);
            lines.push(format!("next_params_{row} = {pair};"));
        }
    }
    lines.push("}".into());
    lines
}

/// The stage that was under way is the one to multiply.
fn turn(spec: &RegisterGemmSpec) -> Vec<String> {
    let mut lines = Vec::new();
    for row in spec.rows() {
        lines.extend((0..spec.row_chunks()).map(|chunk| format!("let word_{row}_{chunk} = next_{row}_{chunk};")));
        if spec.product.layout.format.has_params() {
            let first = spec.first_row(row);
            lines.push(format!("let params_{row} = doubled(row_param(next_params_{row}, lane_row + {first}u));"));
            lines.push(format!("let scale_{row} = scale_of(params_{row});"));
            lines.push(format!("let zero_{row} = zero_of(params_{row});"));
        }
    }
    lines
}

/// Where a lane's words of a panel come from and go to: lanes count words of a row, then rows.
fn activation_setup(spec: &RegisterGemmSpec) -> Vec<String> {
    let row_words = spec.tile.panel / 8;
    let mut lines = Vec::new();
    for item in spec.activations() {
        lines.extend([
            format!("let given_{item} = lane + {}u;", item * spec.lanes()),
            format!("let given_row_{item} = given_{item} / {row_words}u;"),
            format!("let given_word_{item} = given_{item} % {row_words}u;"),
            format!("let from_{item} = min(first_step_row + given_row_{item}, last_step_row) * (INPUT_STRIDE / 4u) + given_word_{item};"),
            format!("var activations_{item}: vec4<u32>;"),
        ]);
    }
    lines
}

fn fetch_activations(spec: &RegisterGemmSpec, panel: &str) -> Vec<String> {
    let row_words = spec.tile.panel / 8;
    let fetch = |item| format!("activations_{item} = codes[from_{item} + ({panel}) * {row_words}u];");
    spec.activations().map(fetch).collect()
}

fn put_activations(spec: &RegisterGemmSpec) -> Vec<String> {
    let put = |item| {
        let put = format!("activation_tile[given_row_{item} * ROW_WORDS + given_word_{item}] = activations_{item};");
        if spec.shares_out() { put } else { format!("if (given_row_{item} < STEP_ROWS) {{ {put} }}") }
    };
    spec.activations().map(put).collect()
}

/// One panel: fragments of weights out of registers, each with every fragment of the activations.
fn multiply_panel(spec: &RegisterGemmSpec, panel: usize) -> Vec<String> {
    let fragment = spec.tile.fragment;
    let depths = spec.tile.panel / fragment;
    let mut lines = Vec::new();
    for depth in 0..depths {
        for j in 0..spec.tile.fragments {
            lines.extend(fragment_of_weights(spec, panel * depths + depth, j));
        }
        for i in 0..spec.tile.step_rows / fragment {
            let at = format!("{}u * ROW_WORDS + {}u", i * fragment, depth * fragment / 8);
            let activations = format!("coop_load_half_a(activation_tile[{at}], ROW_WORDS)");
            lines.push(format!("let a_{panel}_{depth}_{i} = {activations};"));
            lines.extend((0..spec.tile.fragments).map(|j| {
                let weights = format!("b_{}_{j}", panel * depths + depth);
                format!("sum_{i}_{j} = coopMultiplyAdd(a_{panel}_{depth}_{i}, {weights}, sum_{i}_{j});")
            }));
        }
    }
    lines
}

/// Fragment `j` of the stage's `depth`th columns: its elements as they are, or by way of `lane_words`.
fn fragment_of_weights(spec: &RegisterGemmSpec, depth: usize, j: usize) -> Vec<String> {
    let fragment = spec.fragment();
    let (rows, words) = (fragment.rows(), fragment.words());
    let places = (0..rows).flat_map(|row| (0..words).map(move |word| (row, word)));
    let pair = |(row, word)| pair_of_weights(spec, j * rows + row, depth * words + word);
    if spec.lanes_hold_fragments {
        let pairs = places.map(pair).collect::<Vec<_>>().join(", ");
        return vec![format!("let b_{depth}_{j} = coop_half_b_from_lanes(array<u32, LANE_WORDS>({pairs}));")];
    }
    let put = |place: (usize, usize)| format!("lane_words[{}] = {};", fragment.word_at(place.0, place.1), pair(place));
    let mut lines: Vec<String> = places.map(put).collect();
    lines.push("subgroupBarrier();".into());
    lines
        .push(format!("let b_{depth}_{j} = coop_load_half_b_u32(lane_words[fragment_at], {}u);", fragment.row_words()));
    lines.push("subgroupBarrier();".into());
    lines
}

/// Pair `pair` of the 16 that a lane has of a row in a stage, columns `4 (pair / 2) + pair % 2` and two further, as f16 in a word.
fn pair_of_weights(spec: &RegisterGemmSpec, row: Item, pair: usize) -> String {
    let quad = pair / 2;
    let component = |word: usize| format!("word_{row}_{}.{}", word / 4, ["x", "y", "z", "w"][word % 4]);
    let shifted = |word: String, bits: usize| if bits == 0 { word } else { format!("({word} >> {bits}u)") };
    match spec.product.layout.format {
        WeightFormat::Int4 { .. } => {
            let codes = shifted(component(pair / 4), 8 * (pair % 2));
            if quad.is_multiple_of(2) {
                format!("weights_of({codes} & 0x000f000fu, zero_{row}, scale_{row})")
            } else {
                format!("weights_of_high({codes} & 0x00f000f0u, zero_{row}, scale_{row})")
            }
        }
        WeightFormat::Int8 => {
            let codes = shifted(format!("({} ^ 0x80808080u)", component(quad)), 8 * (pair % 2));
            format!("weights_of({codes} & 0x00ff00ffu, zero_{row}, scale_{row})")
        }
        WeightFormat::F16 => {
            let (low, high) = (component(2 * quad), component(2 * quad + 1));
            if pair.is_multiple_of(2) {
                format!("({low} & 0xffffu) | ({high} << 16u)")
            } else {
                format!("({low} >> 16u) | ({high} & 0xffff0000u)")
            }
        }
    }
}

/// Splits leave their sums, and the last adds them up in their order.
pub(super) fn exchange(spec: &RegisterGemmSpec) -> String {
    if spec.splits == 1 {
        return String::new();
    }
    let (kind, side) = (spec.sums_type(), spec.tile.fragment);
    let place = |split: &str, index: usize| {
        format!("&partials[parts_at + {split} * SUBGROUPS * SUBGROUP_SUMS + {}u], {side}u", index * side * side)
    };
    let mut lines = vec!["let parts_at = (tile * SPLITS * SUBGROUPS + subgroup) * SUBGROUP_SUMS;".to_owned()];
    lines.extend(
        spec.sums().enumerate().map(|(index, (i, j))| format!("coopStoreT(sum_{i}_{j}, {});", place("group.z", index))),
    );
    lines.push("if (!is_last(tile, SPLITS, lane)) { return; }".into());
    // Without a loop, so that all parts are on their way before the first is added.
    lines.extend(spec.sums().enumerate().map(|(index, (i, j))| {
        let part = |split: usize| format!("coopLoadT<{kind}>({})", place(&format!("{split}u"), index));
        format!("sum_{i}_{j} = {};", (0..spec.splits).map(part).collect::<Vec<_>>().join(" + "))
    }));
    indented(1, lines)
}

pub(super) fn results(spec: &RegisterGemmSpec) -> String {
    let rows = (spec.tile.step_rows, spec.tile.fragment * spec.tile.fragments);
    indented(1, blocks_out(spec.tile.fragment, rows, ["first_step_row", "first_matrix_row"]))
}
