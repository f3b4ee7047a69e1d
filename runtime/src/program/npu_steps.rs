//! Steps in which an NPU computes products: its programs in the place of a target's own, and where they stop for it.

use unicorn_artifact::npu::{ACTIVATIONS, OUTPUTS};
use unicorn_artifact::{NpuCommand, NpuSection, NpuSteps, Pipeline, Program, TargetKernels};

/// A stop of a program: what passes between the arena and the NPU before a dispatch. Where a step has more rows than the NPU's program, it stops several
/// times before the same dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpuTransfer {
    /// Index of the dispatch.
    pub before_dispatch: usize,
    /// Index of the product.
    pub product: usize,
    /// First row of the step that it computes.
    pub first_row: u32,
    /// Offset in the arena, and length, of its activations.
    pub activations: (u64, u64),
    /// Offset in the arena, and length, of its outputs.
    pub outputs: (u64, u64),
}

/// A target's kernels with those of `steps`, whose programs replace its own of the same kind; and the stops of each program.
pub fn with_steps(
    target: &TargetKernels,
    steps: &NpuSteps,
    section: &NpuSection,
) -> (TargetKernels, Vec<Vec<NpuTransfer>>) {
    let mut merged = target.clone();
    let first_module = merged.modules.records.len() as u32;
    let first_pipeline = merged.pipelines.len() as u32;
    merged.modules.records.extend(steps.kernels.modules.records.iter().cloned());
    merged.modules.frames.extend(steps.kernels.modules.frames.iter().cloned());
    merged.pipelines.extend(steps.kernels.pipelines.iter().map(|pipeline| {
        // Nothing is tuned there.
        Pipeline { module: first_module + pipeline.module, alternatives: Vec::new(), ..pipeline.clone() }
    }));
    let mut transfers = vec![Vec::new(); merged.programs.len()];
    for (program, commands) in steps.kernels.programs.iter().zip(&steps.commands) {
        let mut program = program.clone();
        for dispatch in &mut program.dispatches {
            dispatch.pipeline += first_pipeline;
            dispatch.alternatives.clear();
        }
        let is_like = |own: &Program| {
            !own.images
                && (own.rows, own.logits, own.samples, own.batch, own.from_tokens)
                    == (program.rows, program.logits, program.samples, program.batch, program.from_tokens)
        };
        // A target without such a program runs no step of that many rows.
        let Some(index) = merged.programs.iter().position(is_like) else { continue };
        let rows = program.rows;
        merged.programs[index] = program;
        transfers[index] = commands.iter().flat_map(|command| runs(command, rows, section)).collect();
    }
    (merged, transfers)
}

/// The runs of a command of a step of `rows` rows.
fn runs(command: &NpuCommand, rows: u32, section: &NpuSection) -> impl Iterator<Item = NpuTransfer> {
    let NpuCommand { before_dispatch, product, activations_offset_bytes, outputs_offset_bytes } = *command;
    let program = &section.programs[section.products[product as usize].program as usize];
    let [activation_bytes, output_bytes] = [ACTIVATIONS, OUTPUTS].map(|index| program.arguments[index].bytes);
    let program_rows = program.shape.rows;
    (0..program.runs_of(rows).expect("a reader has checked the rows")).map(move |run| NpuTransfer {
        before_dispatch: before_dispatch as usize,
        product: product as usize,
        first_row: run * program_rows,
        activations: (activations_offset_bytes + u64::from(run) * activation_bytes, activation_bytes),
        outputs: (outputs_offset_bytes + u64::from(run) * output_bytes, output_bytes),
    })
}
