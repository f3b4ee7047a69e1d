//! What each kernel of a step reads and computes: the points of a roofline.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use unicorn_artifact::{BufferRef, LogitsRows, Plan, Program, TargetKernels};
use unicorn_runtime::profile::weights_of;

use crate::report::text::role;

/// All dispatches of one kernel in one role, in steps of one sequence.
#[derive(Debug, PartialEq, Serialize)]
pub struct KernelRow<'a> {
    /// Tokens of the step.
    pub rows: u32,
    /// What it is for, without the layer.
    pub role: &'a str,
    pub kernel: &'a str,
    pub calls: u32,
    /// Bytes of weights that all calls read.
    pub weight_bytes: u64,
    /// KV cache that all calls read at the planned context; 0 for steps of several rows, which begin with an empty cache.
    pub kv_bytes: u64,
    /// Operations of all calls on weights, a multiply-add counted as two; `None` for kernels without a matrix.
    pub flops: Option<u64>,
}

/// Kernels of the programs for one sequence that sample: decode first, then by rows.
pub fn kernels<'a>(target: &'a TargetKernels, plan: &Plan) -> Vec<KernelRow<'a>> {
    let is_prefill = |program: &&Program| program.rows > 1 && program.logits == LogitsRows::One && program.samples;
    let mut programs: BTreeMap<u32, &Program> = BTreeMap::new();
    for program in decode(target).into_iter().chain(target.programs.iter().filter(is_prefill)) {
        programs.entry(program.rows).or_insert(program);
    }
    programs.into_values().flat_map(|program| of_program(program, target, plan)).collect()
}

/// The program of a decode step of one sequence.
pub fn decode(target: &TargetKernels) -> Option<&Program> {
    target.programs.iter().find(|program| program.rows == 1 && program.samples)
}

/// Bytes of KV cache that each dispatch of a decode step reads at the planned context: those of the last one that is bound to the
/// keys of a layer, since the ones before only write them.
pub fn kv_bytes(program: &Program, plan: &Plan) -> Vec<u64> {
    let mut read = vec![0; program.dispatches.len()];
    let mut seen = BTreeSet::new();
    for (index, dispatch) in program.dispatches.iter().enumerate().rev() {
        for binding in &dispatch.bindings {
            let BufferRef::Keys { group, layer } = binding.buffer else { continue };
            if seen.insert((group, layer)) {
                let group = &plan.kv_groups[group as usize];
                let of_group = group.bytes_read_per_token(plan.planned_context_tokens);
                read[index] += of_group / u64::from(group.n_layers.max(1));
            }
        }
    }
    read
}

fn of_program<'a>(program: &'a Program, target: &'a TargetKernels, plan: &Plan) -> Vec<KernelRow<'a>> {
    let kv_bytes = if program.rows == 1 { kv_bytes(program, plan) } else { vec![0; program.dispatches.len()] };
    let mut rows: Vec<KernelRow> = Vec::new();
    for (dispatch, kv_bytes) in program.dispatches.iter().zip(kv_bytes) {
        let kernel = target.pipelines[dispatch.pipeline as usize].name.as_str();
        let role = role(&dispatch.label);
        let of_logits = dispatch.bindings.iter().any(|one| one.writes && one.buffer == BufferRef::Logits);
        let step_rows = if of_logits && program.logits == LogitsRows::One { 1 } else { program.rows };
        let flops = weights_of(kernel).filter(|_| dispatch.weight_bytes > 0);
        let flops = flops.map(|weights| weights.saturating_mul(2 * u64::from(step_rows)));
        let found = rows.iter().position(|row| (row.role, row.kernel) == (role, kernel));
        let index = found.unwrap_or_else(|| {
            let flops = flops.map(|_| 0);
            rows.push(KernelRow { rows: program.rows, role, kernel, calls: 0, weight_bytes: 0, kv_bytes: 0, flops });
            rows.len() - 1
        });
        let row = &mut rows[index];
        row.calls += 1;
        row.weight_bytes += dispatch.weight_bytes;
        row.kv_bytes += kv_bytes;
        row.flops = row.flops.zip(flops).map(|(sum, flops)| sum.saturating_add(flops));
    }
    rows
}
