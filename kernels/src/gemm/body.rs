//! The text of a GEMM's main function: stages of columns, and what subgroups do with one.

use super::loads::{Load, loads};
use super::spec::WORD_ELEMENTS;
use super::spec::{BLOCK, GemmSpec};
use crate::activations::{ACTIVATION_GROUP, groups};
use crate::fragments::matrix;

/// Stages of K columns. While one is multiplied, the next is on its way into registers.
pub(super) fn body(spec: &GemmSpec) -> String {
    let stages = (groups(spec.product.layout.cols) * ACTIVATION_GROUP).div_ceil(spec.tile.k);
    let loads = loads(spec);
    let fetch = |stage: &str| Load::statements(&loads, |load| &load.fetch, "$stage", stage);
    let put = |buffer: &str| Load::statements(&loads, |load| &load.put, "$buffer", buffer);
    let barrier = || vec!["workgroupBarrier();".to_owned()];
    let kind = format!("{}<f32, C>", matrix(spec.tile.fragment));
    let mut setup: Vec<String> = sums(spec).map(|(i, j)| format!("var sum_{i}_{j}: {kind};")).collect();
    setup.extend(loads.iter().flat_map(|load| load.setup.clone()));
    // The last stage fetches itself again, for nobody.
    let next = vec![format!("let next = min(stage + 1u, {}u);", stages - 1)];
    let stage = if spec.tile.double_buffered {
        [next, fetch("next"), multiply(spec, "stage % 2u"), put("(stage + 1u) % 2u"), barrier()].concat()
    } else {
        [next, fetch("next"), multiply(spec, "0u"), barrier(), put("0u"), barrier()].concat()
    };
    let indented = |indent: &str, lines: Vec<String>| -> String {
        lines.into_iter().map(|code| format!("{indent}{code}\n")).collect()
    };
    indented("    ", [setup, fetch("0u"), put("0u"), barrier()].concat())
        + &format!("    for (var stage = 0u; stage < {stages}u; stage++) {{\n")
        + &indented("        ", stage)
        + "    }\n"
        + &indented("    ", results(spec))
}

/// Fragments of one subgroup, along the rows of the step and along the matrix rows.
fn fragments(spec: &GemmSpec) -> (usize, usize) {
    let (step_rows, matrix_rows) = spec.tile.subgroup_rows();
    (step_rows / spec.tile.fragment, matrix_rows / spec.tile.fragment)
}

/// Places of a subgroup's sums.
fn sums(spec: &GemmSpec) -> impl Iterator<Item = (usize, usize)> {
    let (step_fragments, matrix_fragments) = fragments(spec);
    (0..step_fragments).flat_map(move |i| (0..matrix_fragments).map(move |j| (i, j)))
}

/// Where a subgroup's operands of a stage begin.
fn operands_at(buffer: &str) -> Vec<String> {
    vec![
        format!("let activations_at = (({buffer}) * STEP_ROWS + subgroup_step_row) * ROW_WORDS;"),
        format!("let weights_at = (({buffer}) * MATRIX_ROWS + subgroup_matrix_row) * ROW_WORDS;"),
    ]
}

/// One stage: every fragment of the activations with every fragment of the weights.
fn multiply(spec: &GemmSpec, buffer: &str) -> Vec<String> {
    let (step_fragments, matrix_fragments) = fragments(spec);
    let mut lines = operands_at(buffer);
    for depth in 0..spec.tile.k / spec.tile.fragment {
        for i in 0..step_fragments {
            lines.push(format!("let a_{depth}_{i} = {};", activations(spec, depth, i)));
        }
        for j in 0..matrix_fragments {
            lines.push(format!("let b_{depth}_{j} = {};", weights(spec, depth, j)));
            for i in 0..step_fragments {
                let sum = format!("sum_{i}_{j}");
                lines.push(format!("{sum} = coopMultiplyAdd(a_{depth}_{i}, b_{depth}_{j}, {sum});"));
            }
        }
    }
    lines
}

/// Fragment `i` of the activations, the stage's `depth`th along its columns.
fn activations(spec: &GemmSpec, depth: usize, i: usize) -> String {
    let at = format!("activations_at + {}u * ROW_WORDS + {}u", spec.tile.fragment * i, depth_words(spec) * depth);
    format!("coop_load_half_a(activation_tile[{at}], ROW_WORDS)")
}

/// The same of the weights.
fn weights(spec: &GemmSpec, depth: usize, j: usize) -> String {
    let at = format!("weights_at + {}u * ROW_WORDS + {}u", spec.tile.fragment * j, depth_words(spec) * depth);
    format!("coop_load_half_b(weight_tile[{at}], ROW_WORDS)")
}

fn depth_words(spec: &GemmSpec) -> usize {
    spec.tile.fragment / WORD_ELEMENTS
}

fn results(spec: &GemmSpec) -> Vec<String> {
    let first = ["first_step_row + subgroup_step_row", "first_tile * 8u + subgroup_matrix_row"];
    blocks_out(spec.tile.fragment, spec.tile.subgroup_rows(), first)
}

/// Code that finishes a subgroup's sums of so many rows of the step and as many matrix rows, of which the first are `first`: a block after the other
/// goes into workgroup memory, and from there by every lane to the output.
pub(crate) fn blocks_out(fragment: usize, (step_rows, matrix_rows): (usize, usize), first: [&str; 2]) -> Vec<String> {
    let across = BLOCK / fragment;
    let [first_step_row, first_matrix_row] = first;
    let mut lines = Vec::new();
    for (block_i, block_j) in (0..step_rows / BLOCK).flat_map(|i| (0..matrix_rows / BLOCK).map(move |j| (i, j))) {
        for (i, j) in (0..across).flat_map(|i| (0..across).map(move |j| (i, j))) {
            let sum = format!("sum_{}_{}", block_i * across + i, block_j * across + j);
            let at = (BLOCK * i + j) * fragment;
            lines.push(format!("coopStoreT({sum}, &results[subgroup * RESULTS + {at}u], {BLOCK}u);"));
        }
        let step_row = format!("{first_step_row} + {}u", BLOCK * block_i);
        let matrix_row = format!("{first_matrix_row} + {}u", BLOCK * block_j);
        lines.push(format!("write_block({step_row}, {matrix_row}, last_step_row, subgroup, subgroup_lane);"));
    }
    lines
}
