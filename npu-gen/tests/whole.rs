//! Whole designs of all models at their real sizes, run from their encoded instructions, each output value compared: `cargo xtask npu-report --whole`.
//!
//! `NPU_MODEL` names one model. What is compared with are the product and attention from their definitions, which know nothing of designs or layouts.

mod support;

use std::time::Instant;

use support::Case;
use support::attention::AttentionCase;
use support::comparison::Comparison;
use support::models::{MODELS, Model, ROWS};
use support::parallel::on_all_processors;
use unicorn_kernels::npu::attention::AttentionShape;
use unicorn_kernels::npu::tile::{GEMV_ROWS, GemmShape};
use unicorn_npu::{attention, solve};

const COLUMNS: usize = 4;

/// A design of a model.
struct Work {
    model: &'static str,
    what: &'static str,
    shape: Shape,
}

enum Shape {
    Product(GemmShape),
    Attention(AttentionShape),
}

#[test]
#[ignore = "takes minutes, optimised: cargo xtask npu-report --whole"]
fn every_value_of_whole_designs_is_the_definitions() {
    let begun = Instant::now();
    let mut works: Vec<Work> = chosen().iter().flat_map(designs).collect();
    // The longest first, so that no processor is left with one of them at the end.
    works.sort_by_key(|work| std::cmp::Reverse(work.shape.operations()));
    println!(
        "{:<13} {:<9} {:<32} {:<30} {:>9}  {:>18}  {:>7}",
        "model", "design", "sizes", "tiles", "values", "largest difference", "seconds"
    );
    let failed: Vec<String> = on_all_processors(&works, Work::fault).into_iter().flatten().collect();
    println!("{} designs in {:.0} s", works.len(), begun.elapsed().as_secs_f64());
    assert!(failed.is_empty(), "{} of {} designs are wrong:\n{}", failed.len(), works.len(), failed.join("\n"));
}

/// All models, or the one that `NPU_MODEL` names.
fn chosen() -> Vec<&'static Model> {
    let Ok(name) = std::env::var("NPU_MODEL") else { return MODELS.iter().collect() };
    let found = MODELS.iter().find(|model| model.name == name);
    let names = || MODELS.map(|model| model.name).join(", ");
    vec![found.unwrap_or_else(|| panic!("there is no model {name}, expected one of {}", names()))]
}

/// The products of prefill and of few rows, and attention.
fn designs(model: &&'static Model) -> Vec<Work> {
    let name = model.name;
    let products = [ROWS, GEMV_ROWS].into_iter().flat_map(|rows| model.products_of(rows, COLUMNS));
    let product = |(what, problem)| {
        let solution = solve(&problem).unwrap_or_else(|| panic!("{name} {what}: no size fits"));
        Work { model: name, what, shape: Shape::Product(solution.estimate.shape) }
    };
    let mut works: Vec<Work> = products.map(product).collect();
    let solution = attention::solve(&model.attention(COLUMNS)).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    works.push(Work { model: name, what: "attention", shape: Shape::Attention(solution.shape) });
    works
}

impl Work {
    /// Runs the design and prints what came out; what is wrong, if anything is.
    fn fault(&self) -> Option<String> {
        let begun = Instant::now();
        let outcome = self.shape.compared();
        let Work { model, what, shape } = self;
        let name = format!("{model:<13} {what:<9} {:<32}", shape.sizes());
        let fault = match outcome {
            Ok(Comparison { values, largest, first, beyond }) => {
                let seconds = begun.elapsed().as_secs_f64();
                println!("{name} {:<30} {values:>9}  {largest:>18}  {seconds:>7.1}", shape.tiles());
                let (index, found, expected) = first?;
                let (row, column) = (index / shape.outputs(), index % shape.outputs());
                format!(
                    "{beyond} of {values} values differ, first output {column} of row {row}: {found}, expected {expected}"
                )
            }
            Err(fault) => fault,
        };
        println!("{name} WRONG: {fault}");
        Some(format!("{name} {fault}"))
    }
}

impl Shape {
    fn compared(&self) -> Result<Comparison, String> {
        match self {
            Shape::Product(shape) => Case::of(*shape).compared(),
            Shape::Attention(shape) => AttentionCase::of(*shape).compared(),
        }
    }

    /// Multiplications.
    fn operations(&self) -> usize {
        match self {
            Shape::Product(shape) => shape.rows * shape.cols * shape.depth,
            Shape::Attention(shape) => 2 * shape.heads * shape.rows * shape.keys * shape.tile.depth,
        }
    }

    /// Output values of a row.
    fn outputs(&self) -> usize {
        match self {
            Shape::Product(shape) => shape.outputs(),
            Shape::Attention(shape) => shape.tile.depth,
        }
    }

    /// The padded sizes.
    fn sizes(&self) -> String {
        match self {
            Shape::Product(GemmShape { rows, cols, depth, .. }) => format!("{rows} rows × {cols} × {depth}"),
            Shape::Attention(AttentionShape { heads, rows, keys, tile, .. }) => {
                format!("{heads} × {rows} rows × {keys} × {}", tile.depth)
            }
        }
    }

    fn tiles(&self) -> String {
        match self {
            Shape::Product(shape) => {
                format!("{} × {} of {} objects", shape.row_tiles(), shape.col_tiles(), shape.chunks())
            }
            Shape::Attention(shape) => {
                format!("{} × {} of {} blocks", shape.heads, shape.row_tiles(), shape.blocks())
            }
        }
    }
}
