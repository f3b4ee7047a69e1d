//! Chooses the kinds of work that the NPU does: what was requested, or what makes a step shortest.

use std::collections::BTreeMap;

use unicorn_artifact::NpuDecision;
use unicorn_artifact::account::size;

use super::cost::{Cost, GPU_BYTES_PER_S, GPU_OPS_PER_S, NPU_OPS_PER_S};
use super::options::{NpuOptions, NpuWork};
use super::products::Product;
use super::timeline::{Choice, Timeline};
use crate::error::{CompileError, Result};
use crate::format_policy::{FormatPolicy, WeightsOption};
use crate::fuse::{FusedGraph, FusedOp};

/// Products without a program that a decision names.
const NAMED: usize = 3;

/// Products of one kind of work.
#[derive(Default)]
pub struct Candidates {
    /// Products that have a program.
    pub products: Vec<Product>,
    /// Total cost of `products`.
    pub cost: Cost,
    /// Number of products with a bias, which no program adds.
    pub biased: usize,
    /// Names of products that fit no program, with the reason.
    pub unfit: Vec<String>,
}

impl Candidates {
    /// What stays on the GPU whatever is decided, as the end of a sentence.
    fn rest(&self) -> String {
        let biased = match self.biased {
            0 => String::new(),
            count => format!("; {count} products with biases stay on the GPU"),
        };
        biased + &if self.unfit.is_empty() { String::new() } else { format!("; {}", self.unfit_on_gpu()) }
    }

    /// The first few names: a model has as many as layers.
    fn unfit_on_gpu(&self) -> String {
        let named = self.unfit.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        let more = self.unfit.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("without an NPU program, on the GPU: {named}{more}")
    }
}

/// What the NPU computes, and what that is decided by.
pub struct Chooser<'a> {
    options: &'a NpuOptions,
    policy: FormatPolicy,
    graph: &'a FusedGraph,
    timeline: &'a Timeline,
    /// Bytes for weights of the NPU; `None`: no limit is known.
    free_bytes: Option<u64>,
    /// Bytes of the weights of each kind of work that has products with programs.
    weight_bytes: BTreeMap<NpuWork, u64>,
    /// What the NPU computes.
    pub choice: Choice,
}

impl<'a> Chooser<'a> {
    /// Chooses what was requested, or else what makes the step shortest and whose weights fit.
    ///
    /// # Errors
    /// [`CompileError::Option`] for requested work whose weights do not fit.
    pub fn of(
        options: &'a NpuOptions,
        policy: FormatPolicy,
        graph: &'a FusedGraph,
        timeline: &'a Timeline,
        free_bytes: Option<u64>,
        works: &[(NpuWork, Candidates)],
    ) -> Result<Chooser<'a>> {
        let with_products = works.iter().filter(|(_, candidates)| !candidates.products.is_empty());
        let weight_bytes = with_products.map(|(work, candidates)| (*work, candidates.cost.weight_bytes)).collect();
        let choice = Choice::new();
        let mut chooser = Chooser { options, policy, graph, timeline, free_bytes, weight_bytes, choice };
        chooser.choice = match &options.work {
            Some(requested) => chooser.requested(requested)?,
            None if policy.weights != WeightsOption::Int4 => Choice::new(),
            None => {
                let works: Vec<NpuWork> = chooser.weight_bytes.keys().copied().collect();
                timeline.shortest(&works, |choice| chooser.missing_room(choice).is_none())
            }
        };
        Ok(chooser)
    }

    fn requested(&self, requested: &[NpuWork]) -> Result<Choice> {
        let mut choice = Choice::new();
        for work in self.weight_bytes.keys().filter(|work| requested.contains(work)) {
            choice.insert(*work);
            if let Some(what) = self.missing_room(&choice) {
                return Err(CompileError::Option { option: "npu_for", what });
            }
        }
        Ok(choice)
    }

    /// Why the weights of a choice do not fit; `None`: they do.
    fn missing_room(&self, choice: &Choice) -> Option<String> {
        let needed: u64 = choice.iter().filter_map(|work| self.weight_bytes.get(work)).sum();
        let free = self.free_bytes.filter(|free| *free < needed)?;
        let names: Vec<&str> = choice.iter().map(|work| work.name()).collect();
        Some(format!(
            "weights of {} for the NPU have {}, and memory has {} left for them",
            names.join(" and "),
            size(needed),
            size(free)
        ))
    }

    /// The record of one kind of work, with its reason.
    pub fn decision(&self, work: NpuWork, candidates: &Candidates) -> NpuDecision {
        let requested = self.options.work.as_ref().map(|all| all.contains(&work));
        let decision = |on_npu, overruled, reason| NpuDecision { work: work.name().into(), on_npu, overruled, reason };
        if candidates.cost.products == 0 {
            return decision(false, false, self.nothing_to_do(work, candidates));
        }
        let (rows, cost) = (self.options.rows, figures(&candidates.cost));
        let figures = format!("estimate for {rows} tokens: {cost}; {}{}", self.lengths(work), candidates.rest());
        let on_npu = self.choice.contains(&work);
        let with_it = self.choice.iter().copied().chain([work]).collect();
        let why = match (requested, self.policy.weights) {
            (Some(true), _) => "requested; ".to_owned(),
            (Some(false), _) => "not requested; ".to_owned(),
            (None, WeightsOption::Int4) => self.missing_room(&with_it).map_or(String::new(), |what| what + "; "),
            (None, other) => format!("NPU programs have INT4 weights, {} was requested; ", other.name()),
        };
        decision(on_npu, requested.is_some(), why + &figures)
    }

    /// Lengths of the step with and without a kind of work on the NPU, which otherwise does what was chosen.
    fn lengths(&self, work: NpuWork) -> String {
        let [mut with_it, mut without] = [self.choice.clone(), self.choice.clone()];
        with_it.insert(work);
        without.remove(&work);
        let ms = |choice: &Choice| 1e3 * self.timeline.length_s(choice);
        let tokens = self.timeline.tokens(self.options.rows);
        format!(
            "both at once, a step of {tokens} tokens takes {:.1} ms with it and {:.1} ms without",
            ms(&with_it),
            ms(&without)
        )
    }

    fn nothing_to_do(&self, work: NpuWork, candidates: &Candidates) -> String {
        if !candidates.unfit.is_empty() {
            return candidates.unfit_on_gpu();
        }
        let has_experts = self.graph.nodes.iter().any(|node| matches!(node.op, FusedOp::ExpertMatMul { .. }));
        match (work, candidates.biased) {
            (_, biased @ 1..) => format!("{biased} products with biases, which NPU programs do not add"),
            (NpuWork::Ffn, 0) if has_experts => {
                "experts multiply other rows each, for which there is no NPU program".into()
            }
            _ => "the model has no such product".into(),
        }
    }
}

fn figures(cost: &Cost) -> String {
    format!(
        "{:.1} ms on the GPU at {:.1} TOP/s or {:.0} GB/s of weights, {:.1} ms on the NPU in {} commands at {:.2} TOP/s and less",
        1e3 * cost.gpu_s,
        GPU_OPS_PER_S / 1e12,
        GPU_BYTES_PER_S / 1e9,
        1e3 * cost.npu_s,
        cost.products,
        NPU_OPS_PER_S / 1e12
    )
}
