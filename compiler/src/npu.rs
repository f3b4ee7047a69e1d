//! The NPU's work for a model: which products, by which programs, and where their weights are stored.
//!
//! ```text
//! FusedGraph ─ products ─► cost ─ timeline ─► chooser: decisions ─► NpuPlan: record of the NPU section, matrices ─ weights ─► sections of NPU weights
//!                                                                   └ mlir ─► the same programs as MLIR (feature `npu`)
//! ```

mod attention;
mod check;
mod chooser;
mod control;
mod cost;
#[cfg_attr(not(feature = "npu"), path = "npu/mlir_disabled.rs")]
mod mlir;
mod options;
mod passthrough;
mod products;
mod timeline;
mod weights;

use std::collections::BTreeMap;

use unicorn_artifact::account::size;
use unicorn_artifact::npu::HEAP_BYTES;
use unicorn_artifact::{
    Account, NpuArgument, NpuDecision, NpuEstimate, NpuProduct, NpuProgram, NpuSection, NpuShape, NpuTileUse, Plan,
    Reader, Tier,
};
use unicorn_kernels::npu::tile::{Epilogue, GemmShape};
use unicorn_npu::device::{CLOCK_HZ, TileKind, limits};
use unicorn_npu::stream::encode;
use unicorn_npu::{Problem, Solution};

use crate::error::{CompileError, Result};
use crate::format_policy::FormatPolicy;
use crate::fuse::{FusedGraph, MatrixId};
use crate::import::ModelConfig;
use crate::place::npu::places;
use crate::select::NpuProducts;
use chooser::{Candidates, Chooser};
use cost::{Cost, GPU_BYTES_PER_S, GPU_OPS_PER_S, SHIM_BYTES_PER_S, Times};
use products::{Product, products, solution};
use timeline::Timeline;

use attention::attention;
pub use check::{NpuCheck, npu_product};
use control::control_part;
pub(crate) use control::{keep_control, with_control, with_cores};
pub use mlir::npu_mlir;
pub use options::{NpuMlir, NpuOptions, NpuTexts, NpuWork};
pub use passthrough::npu_passthrough;
pub(crate) use weights::pack;

/// XDNA1, as mlir-aie calls it.
const DEVICE: &str = "npu1";

/// The NPU's part of an artifact.
#[derive(Clone, Debug, PartialEq)]
pub struct NpuPlan {
    /// The artifact's record, without steps.
    pub section: NpuSection,
    /// Of each shape of the model's products, for people: whether the NPU computes them, why its tiles have their sizes, and the times that decide.
    pub explanations: Vec<String>,
    /// The packed matrices, in the order of the section's products.
    pub(crate) matrices: Vec<NpuMatrix>,
}

/// A matrix that is packed for the NPU.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NpuMatrix {
    pub matrix: MatrixId,
    pub shape: GemmShape,
    /// Without padding.
    pub cols: usize,
    /// Without padding.
    pub depth: usize,
}

impl NpuPlan {
    /// What the NPU computes in steps of `rows` tokens.
    pub(crate) fn products(&self, rows: usize) -> NpuProducts {
        let of_matrix = |(index, one): (usize, &NpuMatrix)| (one.matrix, (index, one.shape));
        NpuProducts { rows, products: self.matrices.iter().enumerate().map(of_matrix).collect() }
    }
}

impl NpuOptions {
    /// The options for a draft that is packed into the model's artifact: all of its products are those of one token.
    pub(crate) fn of_draft(&self) -> NpuOptions {
        let work = match (&self.work, self.draft) {
            (_, true) => Some(NpuWork::ALL.to_vec()),
            (None, false) => None,
            (Some(_), false) => Some(Vec::new()),
        };
        NpuOptions { rows: 1, work, draft: false, ..self.clone() }
    }

    /// These options with some of them changed, such as `|npu| npu.columns = 2`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut NpuOptions)) -> NpuOptions {
        change(&mut self);
        self
    }

    /// Checks that programs can be made with these options.
    ///
    /// # Errors
    /// [`CompileError::Option`], naming the field.
    pub fn check(&self) -> Result<()> {
        let refused = |option, what| Err(CompileError::Option { option, what });
        if !(1..=4).contains(&self.columns) {
            return refused("npu_columns", format!("columns of the NPU are {}, expected 1 to 4", self.columns));
        }
        if !NpuOptions::ROWS.contains(&self.rows) {
            // Steps that one sequence takes have these rows, or a multiple of them that the NPU's programs run one after the other.
            let expected = NpuOptions::ROWS.map(|rows| rows.to_string()).join(", ");
            return refused(
                "npu_rows",
                format!("rows of an NPU program are {}, expected one of {expected}", self.rows),
            );
        }
        Ok(())
    }
}

/// Decides what the NPU does in prefill, and makes the programs, with machine code of their cores if there is a compiler for it. `plan`, the GPU's, gives the memory that is left; `None`: memory
/// is not considered.
///
/// # Errors
/// [`CompileError::Option`] for options that no program can be made with, for requested work whose weights do not fit, and for cores that are
/// not compiled.
pub fn npu_plan(
    graph: &FusedGraph,
    config: &ModelConfig,
    policy: FormatPolicy,
    options: &NpuOptions,
    plan: Option<&Plan>,
) -> Result<NpuPlan> {
    options.check()?;
    let context_tokens = plan.map_or(options.rows, |plan| plan.planned_context_tokens as usize);
    let mut free = plan.and_then(free_bytes);
    let (mut problems, mut with_program) = (BTreeMap::new(), BTreeMap::new());
    let mut solutions: BTreeMap<Problem, std::result::Result<Solution, String>> = BTreeMap::new();
    let mut works = Vec::new();
    let all = products(graph, options);
    for work in NpuWork::ALL {
        let of_work: Vec<Product> = all.iter().filter(|one| one.work == work).copied().collect();
        let mut candidates = Candidates::default();
        for product in &of_work {
            let problem = product.problem;
            problems.insert(product.matrix, problem);
            if product.has_bias {
                candidates.biased += 1;
                continue;
            }
            match solutions.entry(problem).or_insert_with(|| solution(&problem)) {
                Ok(solution) => {
                    let weight_bytes = solution.estimate.shape.weight_bytes() as u64;
                    let times = times_of(&problem, solution);
                    with_program.insert(product.matrix, (work, times));
                    candidates.cost.add(Cost::of(&times, weight_bytes));
                    candidates.products.push(*product);
                }
                Err(why) => candidates.unfit.push(format!("{} ({why})", graph.matrices[product.matrix.0].name)),
            }
        }
        works.push((work, candidates));
    }
    // Memory that is needed for any work.
    let longest = |bytes: fn(&GemmShape) -> usize| {
        solutions.values().flatten().map(|one| bytes(&one.estimate.shape) as u64).max().unwrap_or(0)
    };
    let fixed = HEAP_BYTES + longest(GemmShape::activation_bytes) + longest(|shape| 2 * shape.rows * shape.outputs());
    free = free.map(|free| free.saturating_sub(fixed));
    let timeline = Timeline::of_step(graph, config, options, context_tokens, &problems, &with_program);
    let chooser = Chooser::of(options, policy, graph, &timeline, free, &works)?;
    let mut decisions: Vec<NpuDecision> =
        works.iter().map(|(work, candidates)| chooser.decision(*work, candidates)).collect();
    let is_chosen = |(work, _): &&(NpuWork, Candidates)| chooser.choice.contains(work);
    let mut chosen: Vec<Product> =
        works.iter().filter(is_chosen).flat_map(|(_, candidates)| candidates.products.iter().copied()).collect();
    decisions.push(attention_decision(config, options, context_tokens));
    decisions.extend((options.rows > 1 || chosen.is_empty()).then(|| decode_decision(plan)));
    // In the order of a step.
    chosen.sort_by_key(|product| all.iter().position(|one| one.matrix == product.matrix));
    let solutions: BTreeMap<Problem, Solution> =
        solutions.into_iter().filter_map(|(problem, found)| Some((problem, found.ok()?))).collect();
    let mut made = assemble(graph, decisions, &chosen, &solutions);
    let explained = solutions.iter().map(|(problem, found)| explanation(graph, problem, found, [&all, &chosen]));
    made.explanations = explained.collect();
    if let Some(peano) = &options.peano {
        made.section = with_cores(&made.section, peano)?;
    }
    Ok(made)
}

/// Bytes that the GPU's plan leaves to an NPU of the largest memory that an NPU reads: system memory, of which GTT is a part.
/// `None`: no limit is known.
fn free_bytes(plan: &Plan) -> Option<u64> {
    let read = plan.machine.tiers.iter().filter(|tier| tier.tier != Tier::Npu && tier.readers.contains(&Reader::Npu));
    let most: Vec<Option<u64>> = read.map(|tier| tier.budget_bytes).collect();
    let budget = most.into_iter().collect::<Option<Vec<u64>>>()?.into_iter().max()?;
    let account = Account::of(plan);
    let shared = account.tiers.iter().filter(|tier| matches!(tier.tier, Tier::Gtt | Tier::Host));
    Some(budget.saturating_sub(shared.map(|tier| tier.bytes()).sum()))
}

fn times_of(problem: &Problem, solution: &Solution) -> Times {
    let shape = &solution.estimate.shape;
    let handed = shape.activation_bytes() + 2 * shape.rows * shape.outputs();
    let ops = 2.0 * problem.rows as f64 * problem.cols as f64 * problem.depth as f64;
    Times::of(&solution.estimate, ops, handed as u64, shape.weight_bytes() as u64)
}

/// Why the products of one shape have this program and this place.
fn explanation(
    graph: &FusedGraph,
    problem: &Problem,
    solution: &Solution,
    [of_shape, chosen]: [&[Product]; 2],
) -> String {
    let is_of_shape = |product: &&Product| product.problem == *problem;
    let names: Vec<&str> =
        of_shape.iter().filter(is_of_shape).map(|product| &graph.matrices[product.matrix.0].name[..]).collect();
    let place = match chosen.iter().filter(is_of_shape).count() {
        0 => "GPU".to_owned(),
        on_npu if on_npu == names.len() => "NPU".to_owned(),
        on_npu => format!("NPU, {on_npu} of {}", names.len()),
    };
    format!(
        "{} on the {place}\n{solution}\n  computes           {}\n  times of one       {}",
        program_name(problem),
        named(&names),
        times_of(problem, solution)
    )
}

/// The first two of many names.
fn named<S: AsRef<str>>(names: &[S]) -> String {
    let first: Vec<&str> = names.iter().take(2).map(AsRef::as_ref).collect();
    let more = names.len() - first.len();
    first.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// Attention, which no plan gives to the NPU, whatever the figures: no kernel of the GPU writes its operands.
fn attention_decision(config: &ModelConfig, options: &NpuOptions, context_tokens: usize) -> NpuDecision {
    let figures = match attention_cost(config, options, context_tokens) {
        Ok(cost) => format!(
            "estimate for {} tokens behind {}: {:.1} ms on the GPU at {:.1} TOP/s, {:.1} ms on the NPU in {} commands, by an assumed cost of the softmax",
            options.rows,
            context_tokens.saturating_sub(options.rows),
            1e3 * cost.gpu_s,
            GPU_OPS_PER_S / 1e12,
            1e3 * cost.npu_s,
            cost.products
        ),
        Err(why) => why,
    };
    let reason = format!("no kernel of the GPU writes its operands for the NPU yet; {figures}");
    NpuDecision { work: "attention".into(), on_npu: false, overruled: false, reason }
}

/// Estimated time of all layers' attention in the last step of a sequence of `context_tokens`.
///
/// # Errors
/// What the model's attention computes and NPU programs do not, or the shape that fits none.
fn attention_cost(
    config: &ModelConfig,
    options: &NpuOptions,
    context_tokens: usize,
) -> std::result::Result<Cost, String> {
    let mut sum = Cost::default();
    for (problem, layers) in attention(config, options, context_tokens)? {
        let found = unicorn_npu::attention::solve(&problem)
            .map_err(|fault| format!("{} fits no NPU program, {fault}", attention::name(&problem)))?;
        let times = Times::of_attention(&found, &problem);
        layers.iter().for_each(|_| sum.add(Cost::of(&times, 0)));
    }
    Ok(sum)
}

/// Decode, which the NPU does only where it was requested.
fn decode_decision(plan: Option<&Plan>) -> NpuDecision {
    let bytes = plan.map_or(0, |plan| plan.weights.iter().map(|weight| weight.bytes_read_per_token).sum());
    let of = |bytes_per_s: f64| format!("{:.1} ms at {:.0} GB/s", 1e3 * bytes as f64 / bytes_per_s, bytes_per_s / 1e9);
    let reason = format!(
        "estimate: a token reads {} of weights, on the GPU in {}, through the NPU's shim tiles in {} or more",
        size(bytes),
        of(GPU_BYTES_PER_S),
        of(SHIM_BYTES_PER_S)
    );
    NpuDecision { work: "decode".into(), on_npu: false, overruled: false, reason }
}

fn assemble(
    graph: &FusedGraph,
    decisions: Vec<NpuDecision>,
    chosen: &[Product],
    solutions: &BTreeMap<Problem, Solution>,
) -> NpuPlan {
    let used: Vec<&Problem> =
        solutions.keys().filter(|problem| chosen.iter().any(|product| product.problem == **problem)).collect();
    let shape_of = |product: &Product| solutions[&product.problem].estimate.shape;
    let (places, slices) = places(chosen.iter().map(|product| shape_of(product).weight_bytes() as u64));
    let record = |(product, (slice, offset_bytes)): (&Product, (u32, u64))| {
        let Product { matrix, problem, .. } = product;
        let matrix = &graph.matrices[matrix.0];
        NpuProduct {
            name: matrix.name.clone(),
            layer: matrix.layer.map(|layer| layer as u32),
            program: used.iter().position(|used| *used == problem).expect("its program is used") as u32,
            cols: problem.cols as u32,
            depth: problem.depth as u32,
            slice,
            offset_bytes,
            len_bytes: shape_of(product).weight_bytes() as u64,
        }
    };
    let matrix = |product: &Product| {
        let Product { matrix, problem, .. } = *product;
        NpuMatrix { matrix, shape: shape_of(product), cols: problem.cols, depth: problem.depth }
    };
    let section = NpuSection {
        device: DEVICE.into(),
        decisions,
        programs: used.iter().map(|problem| program(problem, &solutions[*problem])).collect(),
        products: chosen.iter().zip(places).map(record).collect(),
        slices,
        // Made when kernels are.
        steps: Vec::new(),
    };
    let matrices = chosen.iter().map(matrix).collect();
    NpuPlan { section, explanations: Vec::new(), matrices }
}

/// The record of a buffer of a design's command.
fn argument(argument: &unicorn_npu::design::Argument) -> NpuArgument {
    NpuArgument { name: argument.name.into(), bytes: (argument.len * argument.element.bytes()) as u64 }
}

/// A shape such as `6144x4096`, or `28672x4096-silu`.
fn program_name(problem: &Problem) -> String {
    let Problem { cols, depth, epilogue, .. } = problem;
    match activation_of(*epilogue) {
        None => format!("{cols}x{depth}"),
        Some(activation) => format!("{cols}x{depth}-{activation}"),
    }
}

fn activation_of(epilogue: Epilogue) -> Option<String> {
    match epilogue {
        Epilogue::Scale => None,
        Epilogue::ActMul(activation) => Some(format!("{activation:?}").to_lowercase()),
    }
}

fn program(problem: &Problem, solution: &Solution) -> NpuProgram {
    let Solution { design, lowered, usage, estimate, .. } = solution;
    let GemmShape { rows, cols, depth, columns, core } = estimate.shape;
    let [rows, cols, depth, columns, core_rows, core_cols, core_depth] =
        [rows, cols, depth, columns, core.rows, core.cols, core.depth].map(|size| size as u32);
    let tile_use = |kind: TileKind| {
        let (found, most) = (usage.of(kind), limits(kind));
        NpuTileUse {
            tile: kind.name().into(),
            memory_bytes: [found.memory_bytes as u32, most.memory_bytes as u32],
            channels: [found.channels[0], found.channels[1], most.channels],
            descriptors: [found.descriptors, most.descriptors],
            locks: [found.locks, most.locks],
        }
    };
    NpuProgram {
        name: program_name(problem),
        shape: NpuShape { rows, cols, depth, columns, core_rows, core_cols, core_depth },
        activation: activation_of(problem.epilogue),
        arguments: design.arguments.iter().map(argument).collect(),
        instructions: encode(design, lowered),
        control: control_part(design, lowered).image(),
        uses: [TileKind::Core, TileKind::Memory, TileKind::Shim].map(tile_use).into(),
        estimate: NpuEstimate {
            cycles: estimate.cycles as u64,
            clock_hz: CLOCK_HZ.map(|hz| hz as u64),
            busy: estimate.busy as f32,
            shim_bytes: estimate.shim_bytes as u64,
        },
    }
}
