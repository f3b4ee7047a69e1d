//! Programs of other targets or with other alternatives, which run in place of a loaded model's own: for tests of kernels on a
//! device. All share the model's buffers.

use std::sync::atomic::AtomicBool;

use unicorn_artifact::{Plan, TargetKernels};

use crate::device::facts::DeviceKind;
use crate::error::LoadError;
use crate::program::chunks::ProgramShape;
use crate::program::pipelines::compile_each;
use crate::program::programs::{self, RecordedProgram, RecordedPrograms};
use crate::tune::choices::{Choice, StepShape, apply};
use crate::tune::corrections::only;
use crate::tune::measure::TuningResources;
use crate::vk::pipeline::Capture;

/// Recorded programs that are not a model's own: see [`crate::Model::exchange_programs`].
pub struct Programs {
    recorded: RecordedPrograms,
}

/// Compiles and records programs of `target`: all as the compiler chose them, or with `choice` those of one shape.
///
/// # Errors
/// When a kernel does not compile, the device fails, or the choice does not exist in the target.
pub fn record(
    resources: &TuningResources,
    plan: &Plan,
    target: &TargetKernels,
    choice: Option<(StepShape, &Choice)>,
    context_tokens: u32,
    barriers: bool,
) -> Result<Programs, LoadError> {
    let made = match choice {
        None => apply(target, [0; 32], None).0,
        Some((shape, choice)) => only(target, |program| StepShape::of(program) == shape, choice).ok_or_else(|| {
            LoadError::Unsupported { what: format!("target {} does not hold {choice:?}", target.name) }
        })?,
    };
    let TuningResources { device, buffers, bound_seconds } = resources;
    let pipelines = compile_each(device, &made, None, Capture::Nothing, &AtomicBool::new(false), Ok)?;
    let prepared = programs::prepare(device, plan, &made, &pipelines, buffers, context_tokens, barriers)?;
    let is_software = device.facts().kind == DeviceKind::Cpu;
    let recorded = prepared.record(device, &prepared.estimated_costs(is_software), *bound_seconds, None)?;
    Ok(Programs { recorded })
}

impl Programs {
    /// Exchanges all programs with those of `engine`; with a shape, only the programs of that shape.
    pub(crate) fn exchange(&mut self, engine: &mut RecordedPrograms, shape: Option<StepShape>) {
        let Some(shape) = shape else { return std::mem::swap(&mut self.recorded, engine) };
        let (of_engine, of_others) = (take(engine, shape), take(&mut self.recorded, shape));
        put(engine, of_others);
        put(&mut self.recorded, of_engine);
    }
}

fn take(programs: &mut RecordedPrograms, shape: StepShape) -> Vec<(ProgramShape, RecordedProgram)> {
    let RecordedPrograms { shapes, recorded } = std::mem::take(programs);
    let both = shapes.into_iter().zip(recorded);
    let (taken, kept) = both.partition(|(one, _): &(ProgramShape, _)| step_shape(one) == shape);
    put(programs, kept);
    taken
}

fn put(programs: &mut RecordedPrograms, added: Vec<(ProgramShape, RecordedProgram)>) {
    let (shapes, recorded): (Vec<_>, Vec<_>) = added.into_iter().unzip();
    programs.shapes.extend(shapes);
    programs.recorded.extend(recorded);
}

fn step_shape(shape: &ProgramShape) -> StepShape {
    StepShape { rows: shape.rows, batch: shape.batch && shape.rows > 1, from_tokens: shape.from_tokens }
}
