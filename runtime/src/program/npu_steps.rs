//! Steps in which an NPU computes products: its programs in the place of a target's own, and where they stop for it.

use unicorn_artifact::npu::{ACTIVATIONS, OUTPUTS};
use unicorn_artifact::{NpuCommand, NpuSection, NpuSteps, Pipeline, Program, TargetKernels};

/// A stop of a program: what passes between the arena and the NPU before a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpuTransfer {
    /// Index of the dispatch.
    pub before_dispatch: usize,
    /// Index of the product.
    pub product: usize,
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
        merged.programs[index] = program;
        transfers[index] = commands.iter().map(|command| transfer(command, section)).collect();
    }
    (merged, transfers)
}

fn transfer(command: &NpuCommand, section: &NpuSection) -> NpuTransfer {
    let NpuCommand { before_dispatch, product, activations_offset_bytes, outputs_offset_bytes } = *command;
    let arguments = &section.programs[section.products[product as usize].program as usize].arguments;
    NpuTransfer {
        before_dispatch: before_dispatch as usize,
        product: product as usize,
        activations: (activations_offset_bytes, arguments[ACTIVATIONS].bytes),
        outputs: (outputs_offset_bytes, arguments[OUTPUTS].bytes),
    }
}
