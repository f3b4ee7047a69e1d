//! Steps in which an NPU computes products: its programs in the place of a target's own, and what the NPU does in them.

use unicorn_artifact::npu::{ACTIVATIONS, OUTPUTS};
use unicorn_artifact::{NpuCommand, NpuSchedule, NpuSection, NpuSteps, Pipeline, Program, TargetKernels};

/// The NPU's part of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct NpuWork {
    /// The order of dispatches and commands in two queues.
    pub schedule: NpuSchedule,
    /// What passes between the arena and the NPU for each run of each command.
    pub transfers: Vec<Vec<NpuTransfer>>,
}

/// What passes between the arena and the NPU for one run of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NpuTransfer {
    /// Index of the product.
    pub product: usize,
    /// First row of the step that it computes.
    pub first_row: u32,
    /// Offset in the arena, and length, of its activations.
    pub activations: (u64, u64),
    /// Offset in the arena, and length, of its outputs.
    pub outputs: (u64, u64),
}

/// A target's kernels with those of `steps`, whose programs replace its own of the same kind; and the NPU's part of each program, if it has one.
/// `in_turns`: GPU and NPU wait for each other, whatever the schedules are.
pub fn with_steps(
    target: &TargetKernels,
    steps: &NpuSteps,
    section: &NpuSection,
    in_turns: bool,
) -> (TargetKernels, Vec<Option<NpuWork>>) {
    let mut merged = target.clone();
    let first_module = merged.modules.records.len() as u32;
    let first_pipeline = merged.pipelines.len() as u32;
    merged.modules.records.extend(steps.kernels.modules.records.iter().cloned());
    merged.modules.frames.extend(steps.kernels.modules.frames.iter().cloned());
    merged.pipelines.extend(steps.kernels.pipelines.iter().map(|pipeline| {
        // Nothing is tuned there.
        Pipeline { module: first_module + pipeline.module, alternatives: Vec::new(), ..pipeline.clone() }
    }));
    let mut of_npu = vec![None; merged.programs.len()];
    for (number, (program, commands)) in steps.kernels.programs.iter().zip(&steps.commands).enumerate() {
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
        let (rows, runs) = (program.rows, section.runs(program.rows, commands));
        let schedule = match in_turns {
            true => NpuSchedule::in_turns(&program, commands, &runs),
            false => steps.schedule(number, &runs),
        };
        merged.programs[index] = program;
        if !commands.is_empty() {
            let transfers = commands.iter().map(|command| transfers(command, rows, section).collect()).collect();
            of_npu[index] = Some(NpuWork { schedule, transfers });
        }
    }
    (merged, of_npu)
}

/// The runs of a command of a step of `rows` rows.
fn transfers(command: &NpuCommand, rows: u32, section: &NpuSection) -> impl Iterator<Item = NpuTransfer> {
    let NpuCommand { product, activations_offset_bytes, outputs_offset_bytes, .. } = *command;
    let program = &section.programs[section.products[product as usize].program as usize];
    let [activation_bytes, output_bytes] = [ACTIVATIONS, OUTPUTS].map(|index| program.arguments[index].bytes);
    let program_rows = program.shape.rows;
    (0..program.runs_of(rows).expect("a reader has checked the rows")).map(move |run| NpuTransfer {
        product: product as usize,
        first_row: run * program_rows,
        activations: (activations_offset_bytes + u64::from(run) * activation_bytes, activation_bytes),
        outputs: (outputs_offset_bytes + u64::from(run) * output_bytes, output_bytes),
    })
}
