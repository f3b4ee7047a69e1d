//! Text forms of the results of a compile's stages: for people, and for golden file tests.

use std::fmt::Write;
use std::path::Path;

use unicorn_artifact::{Account, BufferRef, Order, Plan};

use crate::Planned;
use crate::error::Result;
use crate::outputs::write_text;
use crate::pipeline_name::pipeline_name;

/// A text form of one result of a compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// The plain graph.
    Graph,
    /// The fused graph.
    Fused,
    /// Where every byte is placed, and why.
    Plan,
    /// Pipelines with their WGSL, and the dispatch lists.
    Kernels,
}

impl Form {
    /// Every form, in the order of the stages.
    pub const ALL: [Form; 4] = [Form::Graph, Form::Fused, Form::Plan, Form::Kernels];

    /// What it shows, in a line.
    pub fn about(self) -> &'static str {
        match self {
            Form::Graph => "The plain graph",
            Form::Fused => "The fused graph",
            Form::Plan => "Where every byte is placed, and why",
            Form::Kernels => "Pipelines with their WGSL, and the dispatch lists",
        }
    }

    /// Writes this form beside `output`: `model.unicorn` → `model.graph.txt`.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(self, output: &Path, planned: &Planned) -> Result<()> {
        let path = crate::beside(output, self.name());
        write_text(&path, &self.text(planned))
    }

    /// `graph`, `fused`, `plan` or `kernels`.
    pub fn name(self) -> &'static str {
        match self {
            Form::Graph => "graph",
            Form::Fused => "fused",
            Form::Plan => "plan",
            Form::Kernels => "kernels",
        }
    }

    /// The form.
    pub fn text(self, planned: &Planned) -> String {
        match self {
            Form::Graph => planned.plain.to_string(),
            Form::Fused => planned.verified.graph().to_string(),
            Form::Plan => plan_text(&planned.placement.plan),
            Form::Kernels => kernels_text(planned),
        }
    }
}

/// One line for each placed object: kind, tier, buffer and offset in it, bytes, name, reason.
pub fn plan_text(plan: &Plan) -> String {
    let mut text = String::new();
    let mut line = |parts: std::fmt::Arguments| writeln!(text, "{parts}").expect("writing to a String");
    let account = Account::of(plan);
    let name = &plan.machine.name;
    line(format_args!(
        "machine {name}, {} tokens; each slice, pool, arena and buffer is a device buffer by itself",
        account.context_tokens
    ));
    for tier in &account.tiers {
        let budget = tier.budget_bytes.map_or("no known limit".to_owned(), |bytes| bytes.to_string());
        let (bytes, read) = (tier.bytes(), tier.bytes_read_per_token);
        line(format_args!("tier {} {bytes} bytes of {budget}, {read} read per token", tier.tier));
    }
    for (index, slice) in plan.slices.iter().enumerate() {
        line(format_args!("slice {} slice{index}+0 {}", slice.tier.name(), slice.bytes));
    }
    for weight in &plan.weights {
        let tier = plan.slices[weight.slice as usize].tier.name();
        let (slice, offset, len) = (weight.slice, weight.offset_bytes, weight.len_bytes);
        line(format_args!("weight {tier} slice{slice}+{offset} {len} {}: {}", weight.name, weight.reason));
    }
    for (index, group) in plan.kv_groups.iter().enumerate() {
        let window = group.window_tokens.map_or("all".to_owned(), |window| window.to_string());
        let pages = group.pages_per_sequence(plan.planned_context_tokens, plan.planned_chunk_tokens);
        let holds = match group.is_state() {
            true => format!("{pages} pages of state"),
            false => format!("window {window}, {pages} pages of {} tokens", group.page_tokens),
        };
        line(format_args!(
            "pool {} kv{index}+0 {} {} layers, {holds}: {}",
            group.tier.name(),
            group.bytes(pages),
            group.n_layers,
            group.reason,
        ));
    }
    line(format_args!("arena {} arena+0 {}", plan.arena_tier.name(), plan.arena_bytes));
    for one in &plan.activations {
        let (offset, len, first, last) = (one.offset_bytes, one.len_bytes, one.first_use, one.last_use);
        let (tier, name, reason) = (plan.arena_tier.name(), &one.name, &one.reason);
        line(format_args!("activation {tier} arena+{offset} {len} {name}: {first} to {last}, {reason}"));
    }
    for buffer in &plan.buffers {
        let (tier, bytes) = (buffer.tier.name(), buffer.bytes);
        line(format_args!("buffer {tier} {}+0 {bytes}: {}", buffer.name.replace(' ', "-"), buffer.reason));
    }
    text
}

fn kernels_text(planned: &Planned) -> String {
    let mut text = String::new();
    for (selected, programs) in planned.selection.targets.iter().zip(&planned.placement.programs) {
        writeln!(text, "target {}", selected.target.name).expect("writing to a String");
        for program in programs {
            let (rows, logits) = (program.rows, program.logits);
            let depth = match program.from_tokens {
                0 => String::new(),
                from_tokens => format!(", from {from_tokens} tokens on"),
            };
            writeln!(text, "program of {rows} rows, logits {logits:?}{depth}").expect("writing to a String");
            for dispatch in &program.dispatches {
                let order = order_mark(dispatch.order);
                let bindings: Vec<String> = dispatch.bindings.iter().map(binding_text).collect();
                let [x, y, z] = dispatch.workgroups;
                let (pipeline, label) = (dispatch.pipeline, &dispatch.label);
                writeln!(text, "{order} {label}: pipeline {pipeline} {x}×{y}×{z} {}", bindings.join(" "))
                    .expect("writing to a String");
            }
        }
        for (index, spec) in selected.kernels.iter().map(|kernel| &kernel.spec).enumerate() {
            writeln!(text, "pipeline {index}: {}\n{}", pipeline_name(spec), spec.wgsl()).expect("writing to a String");
        }
    }
    text
}

/// `|` after a barrier, `>` where workgroups wait for those of the dispatch before by counters.
fn order_mark(order: Order) -> char {
    match order {
        Order::Free => ' ',
        Order::Barrier => '|',
        Order::CounterSync => '>',
    }
}

fn binding_text(binding: &unicorn_artifact::Binding) -> String {
    let name = match binding.buffer {
        BufferRef::Weights { slice } => format!("w{slice}"),
        BufferRef::Arena => "arena".into(),
        BufferRef::Keys { group, layer } => format!("k{group}.{layer}"),
        BufferRef::Values { group, layer } => format!("v{group}.{layer}"),
        BufferRef::Step => "step".into(),
        BufferRef::Logits => "logits".into(),
        BufferRef::Output => "samples".into(),
        BufferRef::Input => "input".into(),
    };
    let access = if binding.writes { "!" } else { "" };
    match binding.len_bytes {
        0 => format!("{name}{access}"),
        len => format!("{name}+{}:{len}{access}", binding.offset_bytes),
    }
}
