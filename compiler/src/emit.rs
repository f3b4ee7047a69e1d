//! Text forms of what a compile works out: for people, and for golden file tests.

use std::fmt::Write;
use std::path::Path;

use artifacts::{BufferRef, Plan};

use crate::error::{CompileError, Result};
use crate::fuse::FusedGraph;
use crate::graph::ModelGraph;
use crate::kernel_set::{KernelSet, pipeline_name};

/// `--emit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// The plain graph.
    Graph,
    /// The fused graph.
    Fused,
    /// Where every byte lives, and why.
    Plan,
    /// Pipelines with their WGSL, and the dispatch lists.
    Kernels,
}

impl Form {
    /// Writes this form beside `output`: `model.unicorn` → `model.graph.txt`.
    pub fn write(
        self,
        output: &Path,
        graph: &ModelGraph,
        fused: &FusedGraph,
        plan: &Plan,
        kernels: &KernelSet,
    ) -> Result<()> {
        let (name, text) = match self {
            Form::Graph => ("graph", graph.to_string()),
            Form::Fused => ("fused", fused.to_string()),
            Form::Plan => ("plan", plan_text(plan)),
            Form::Kernels => ("kernels", kernels_text(kernels)),
        };
        let path = crate::beside(output, name);
        std::fs::write(&path, text).map_err(CompileError::io(&path))
    }
}

/// One line a placed thing: tier, where, size, name, reason.
pub fn plan_text(plan: &Plan) -> String {
    let mut text = String::new();
    let mut line = |parts: std::fmt::Arguments| writeln!(text, "{parts}").expect("writing to a String");
    for (index, slice) in plan.slices.iter().enumerate() {
        line(format_args!("slice {index} {} {} bytes", slice.tier.name(), slice.bytes));
    }
    for weight in &plan.weights {
        let tier = plan.slices[weight.slice as usize].tier.name();
        let (slice, offset, len) = (weight.slice, weight.offset_bytes, weight.len_bytes);
        line(format_args!("weight {tier} {slice}+{offset} {len} {}: {}", weight.name, weight.reason));
    }
    for (index, group) in plan.kv_groups.iter().enumerate() {
        let window = group.window_tokens.map_or("all".to_owned(), |window| window.to_string());
        let pages = group.pages_per_sequence(plan.planned_context_tokens, 512);
        line(format_args!(
            "kv {index} {} {} layers, window {window}, {pages} pages of {} tokens, {} bytes at {} tokens: {}",
            group.tier.name(),
            group.n_layers,
            group.page_tokens,
            group.bytes(pages),
            plan.planned_context_tokens,
            group.reason,
        ));
    }
    line(format_args!("arena {} {} bytes", plan.arena_tier.name(), plan.arena_bytes));
    for one in &plan.activations {
        let (offset, len) = (one.offset_bytes, one.len_bytes);
        let (tier, first, last) = (plan.arena_tier.name(), one.first_use, one.last_use);
        line(format_args!("activation {tier} {offset} {len} {}: alive from dispatch {first} to {last}", one.name));
    }
    for buffer in &plan.buffers {
        line(format_args!("buffer {} {} {}: {}", buffer.tier.name(), buffer.bytes, buffer.name, buffer.reason));
    }
    text
}

fn kernels_text(set: &KernelSet) -> String {
    let mut text = String::new();
    for (target, specs) in set.kernels.targets.iter().zip(&set.specs) {
        writeln!(text, "target {}", target.name).expect("writing to a String");
        for program in &target.programs {
            let (rows, logits) = (program.rows, program.logits);
            writeln!(text, "program of {rows} rows, logits {logits:?}").expect("writing to a String");
            for dispatch in &program.dispatches {
                let barrier = if dispatch.barrier_before { "|" } else { " " };
                let bindings: Vec<String> = dispatch.bindings.iter().map(binding_text).collect();
                let [x, y, z] = dispatch.workgroups;
                let (pipeline, label) = (dispatch.pipeline, &dispatch.label);
                writeln!(text, "{barrier} {label}: pipeline {pipeline} {x}×{y}×{z} {}", bindings.join(" "))
                    .expect("writing to a String");
            }
        }
        for (index, spec) in specs.iter().enumerate() {
            writeln!(text, "pipeline {index}: {}\n{}", pipeline_name(spec), spec.wgsl()).expect("writing to a String");
        }
    }
    text
}

fn binding_text(binding: &artifacts::Binding) -> String {
    let name = match binding.buffer {
        BufferRef::Weights { slice } => format!("w{slice}"),
        BufferRef::Arena => "arena".into(),
        BufferRef::Keys { group, layer } => format!("k{group}.{layer}"),
        BufferRef::Values { group, layer } => format!("v{group}.{layer}"),
        BufferRef::Step => "step".into(),
        BufferRef::Logits => "logits".into(),
        BufferRef::Output => "drawn".into(),
    };
    let access = if binding.writes { "!" } else { "" };
    match binding.len_bytes {
        0 => format!("{name}{access}"),
        len => format!("{name}+{}:{len}{access}", binding.offset_bytes),
    }
}
