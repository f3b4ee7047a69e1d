//! The report on every product of the models, against the committed one: `cargo xtask npu-report --bless` rewrites it.
//!
//! One tile of each product is run by the interpreter, over the whole of k. All tiles are run by a command of its own (`whole.rs`).

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use support::attention::{AttentionCase, ROUNDING, small_attention};
use support::models::{KEYS, MODELS, Model, ROWS};
use support::mutants::Mutations;
use support::parallel::on_all_processors;
use support::{Case, commands_from_bytes, small, small_gemv};
use unicorn_kernels::npu::attention::AttentionShape;
use unicorn_kernels::npu::tile::{Epilogue, GEMV_ROWS, GemmShape};
use unicorn_npu::attention::{self, AttentionSolution};
use unicorn_npu::design::Design;
use unicorn_npu::device::{CLOCK_HZ, TileKind, limits};
use unicorn_npu::emit::{Dialect, module, readable};
use unicorn_npu::interpret;
use unicorn_npu::lower::{Lowered, lower};
use unicorn_npu::{Problem, Solution, solve, stream};

/// Share of mutations that must be caught.
const CAUGHT: f64 = 0.95;
/// Share of the matrix units' slots that the products of the large models keep busy.
const BUSY: f64 = 0.75;
/// Rows from one that is compared to the next: 4 rows a block, 4 cores in turn and this number have no common divisor, so that rows of all
/// cores and blocks are among them.
const ROW_STEP: usize = 13;
/// A model with at least this many values of a token is large.
const LARGE: usize = 4096;
const COLUMNS: usize = 4;

const HEAD: &str = "\
W4A8 GEMMs and attention of prefill, and GEMVs of at most 8 rows, for the NPU of Ryzen 7040 and 8040 (XDNA1), by npu-gen.

Emitted, checked against the device's limits, and functionally simulated on the host; never compiled to AIE2 machine code and never run on
hardware here. Times and shares are of the static model in npu-gen/src/solve.rs, which leaves out DRAM and what a compiler makes of a loop.

  tile        rows × columns of a core's sums, and values of k at a time
  L1, L2      bytes of the fullest core's data memory and of the fullest memory tile, in per cent
  BDs         DMA descriptors of the fullest core, memory tile and shim tile, of 16, 48 and 16
  ms          estimate at 1.6 GHz and at 0.8 GHz
  busy        share of the matrix units' slots that do a product of the problem
  stream      KiB of instructions
  error       largest difference to the product from its definition: one tile of each core over all of k, run from the encoded instructions,
              every 13th row compared, and every row of a GEMV
";

#[test]
fn the_report_is_the_committed_one() {
    let mut report = HEAD.to_owned();
    for (rows, cores) in [(ROWS, "columns × 4 cores"), (GEMV_ROWS, "columns, 7 cores with a stream of weights each")] {
        writeln!(report, "\n{rows} rows, {COLUMNS} {cores}\n").unwrap();
        writeln!(
            report,
            "{:<13} {:<8} {:>13}   {:<14} {:>5} {:>5}  {:<8}  {:<13}  {:>4}  {:>6}  {:>5}",
            "model", "product", "columns × k", "tile", "L1 %", "L2 %", "BDs", "ms", "busy", "stream", "error"
        )
        .unwrap();
        let products: Vec<(&Model, &str, Solution)> = MODELS.iter().flat_map(|model| solved(model, rows)).collect();
        let errors = errors(products.iter().map(|(_, _, solution)| one_tile(solution)).collect());
        for (model, what, solution) in &products {
            report += &line(model.name, what, solution, errors[&one_tile(solution)]);
        }
    }
    report += &attention_lines();
    report += &mutations();
    compare(&report);
}

/// The designs of a model's products.
fn solved(model: &Model, rows: usize) -> impl Iterator<Item = (&Model, &'static str, Solution)> {
    model.products_of(rows, COLUMNS).into_iter().map(move |(what, problem)| {
        let solution = solve(&problem).unwrap_or_else(|| panic!("{} {what}: no size fits", model.name));
        let busy = solution.estimate.busy;
        let is_prefill = rows == ROWS;
        assert!(!is_prefill || model.hidden < LARGE || busy >= BUSY, "{} {what}: {busy} of the slots busy", model.name);
        let cores = if is_prefill { 4 * COLUMNS } else { 7 };
        for dialect in Dialect::ALL {
            let text = readable(&module(&solution.design, dialect));
            assert_eq!(text.matches("aie.core(").count(), cores, "{} {what}", model.name);
        }
        (model, what, solution)
    })
}

/// The shape of a design, but with one tile of each core.
fn one_tile(solution: &Solution) -> GemmShape {
    let shape = solution.estimate.shape;
    GemmShape { rows: shape.tile_rows(), cols: shape.tile_cols(), ..shape }
}

/// The error of each shape, on all processors.
fn errors(shapes: BTreeSet<GemmShape>) -> BTreeMap<GemmShape, f64> {
    let shapes: Vec<GemmShape> = shapes.into_iter().collect();
    let errors = on_all_processors(&shapes, error);
    shapes.into_iter().zip(errors).collect()
}

fn line(model: &str, what: &str, solution: &Solution, error: f64) -> String {
    let (estimate, core) = (&solution.estimate, &solution.estimate.shape.core);
    let Problem { cols, depth, .. } = solution.problem;
    let used = |kind| solution.usage.of(kind);
    let share = |kind| 100.0 * used(kind).memory_bytes as f64 / limits(kind).memory_bytes as f64;
    let [fast, slow] = estimate.seconds().map(|seconds| 1e3 * seconds);
    let descriptors = [TileKind::Core, TileKind::Memory, TileKind::Shim].map(|kind| used(kind).descriptors.to_string());
    let bytes = stream::encode(&solution.design, &solution.lowered).len();
    format!(
        "{model:<13} {what:<8} {:>13}   {:<14} {:>5.1} {:>5.1}  {:<8}  {:<13}  {:>4.1}  {:>6.1}  {:>5}\n",
        format!("{cols} × {depth}"),
        format!("{} × {}, {}", core.rows, core.cols, core.depth),
        share(TileKind::Core),
        share(TileKind::Memory),
        descriptors.join(" "),
        format!("{fast:.2} {slow:.2}"),
        100.0 * estimate.busy,
        bytes as f64 / 1024.0,
        error
    )
}

/// Largest difference of the outputs to the product.
fn error(shape: &GemmShape) -> f64 {
    let case = Case::of_every(if shape.is_gemv() { 1 } else { ROW_STEP }, *shape);
    case.compared().unwrap_or_else(|error| panic!("{shape:?}: {error}")).largest
}

/// Blocks of keys that a tile of rows is run over.
const BLOCKS: usize = 16;

/// Attention of each model: the pipelines, and the error of one tile of rows of a head in each column, over a few blocks of keys.
fn attention_lines() -> String {
    let mut text = format!(
        "\nattention of {ROWS} tokens over {KEYS} keys, {COLUMNS} columns of three cores; error of one tile over {BLOCKS} blocks, at most {ROUNDING}\n\n"
    );
    writeln!(
        text,
        "{:<13} {:>22}   {:<10} {:>5} {:>5}  {:<8}  {:<13}  {:>4}  {:>6}  {:>6}  limited by",
        "model", "heads × rows × depth", "tile", "L1 %", "L2 %", "BDs", "ms", "busy", "stream", "error"
    )
    .unwrap();
    for model in MODELS {
        let problem = model.attention(COLUMNS);
        let solution = attention::solve(&problem).unwrap_or_else(|fault| panic!("{}: {fault}", model.name));
        let AttentionSolution { shape, usage, cycles, busy, limit, design, lowered, .. } = &solution;
        let share = |kind| 100.0 * usage.of(kind).memory_bytes as f64 / limits(kind).memory_bytes as f64;
        let descriptors =
            [TileKind::Core, TileKind::Memory, TileKind::Shim].map(|kind| usage.of(kind).descriptors.to_string());
        let [fast, slow] = CLOCK_HZ.map(|hz| 1e3 * *cycles as f64 / hz);
        let small = AttentionShape { heads: COLUMNS, rows: shape.tile.rows, keys: BLOCKS * shape.tile.keys, ..*shape };
        let compared = AttentionCase::of(small).compared();
        let error = compared.unwrap_or_else(|error| panic!("{small:?}: {error}")).largest;
        assert!(error <= ROUNDING, "{}: {error}", model.name);
        writeln!(
            text,
            "{:<13} {:>22}   {:<10} {:>5.1} {:>5.1}  {:<8}  {:<13}  {:>4.1}  {:>6.1}  {:>6.4}  {limit}",
            model.name,
            format!("{} × {} × {}", problem.heads, problem.rows, problem.depth),
            format!("{} × {}", shape.tile.rows, shape.tile.keys),
            share(TileKind::Core),
            share(TileKind::Memory),
            descriptors.join(" "),
            format!("{fast:.2} {slow:.2}"),
            100.0 * busy,
            stream::encode(design, lowered).len() as f64 / 1024.0,
            error
        )
        .unwrap();
    }
    text
}

/// Single mistakes in a small design of each epilogue, of a GEMV and of attention.
fn mutations() -> String {
    let mut text =
        "\nsingle mistakes put into a design of two columns or into the layout of a product's operands, caught by the checker or by a run\n"
            .to_owned();
    let silu = Epilogue::ActMul(unicorn_kernels::Activation::Silu);
    let of_products = [
        ("scaled outputs", small(2, 32, Epilogue::Scale)),
        ("gate·up", small(2, 32, silu)),
        ("GEMV", small_gemv(2, 32, Epilogue::Scale)),
        ("GEMV, gate·up", small_gemv(2, 32, silu)),
    ]
    .map(|(name, shape)| (name, Mutations::of(&Case::of(shape))));
    let case = AttentionCase::of(small_attention(2));
    let design = attention::design(&case.shape);
    let lowered = lower(&design);
    let right = case.outputs(&design, &lowered, &commands_from_bytes(&design, &lowered)).expect("it runs");
    let run = |design: &Design, lowered: &Lowered| {
        Ok(case.outputs(design, lowered, &interpret::commands(design, lowered))? == right)
    };
    let of_attention = ("attention", Mutations::of_design(&design, &run));
    for (name, mutations) in of_products.into_iter().chain([of_attention]) {
        let (reasons, others) = mutations.explained();
        assert!(others.is_empty(), "survivors without a reason: {others:#?}");
        assert!(mutations.caught() >= CAUGHT, "{} of the mistakes are caught", mutations.caught());
        let (tried, survived) = (mutations.tried, mutations.survivors.len());
        writeln!(text, "  {name:<15} {} of {tried}, {:.1} %", tried - survived, 100.0 * mutations.caught()).unwrap();
        for (reason, count) in reasons {
            writeln!(text, "    {count:>3} survive: {reason}").unwrap();
        }
        for survivor in &mutations.survivors {
            writeln!(text, "        {survivor}").unwrap();
        }
    }
    text
}

fn compare(report: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/npu-report.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, report).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let differing = report.lines().zip(golden.lines()).find(|(found, expected)| found != expected);
    assert!(
        report == golden,
        "the report differs from {}, first in {differing:?}; if that is meant: cargo xtask npu-report --bless, and read the change\n{report}",
        path.display()
    );
}
