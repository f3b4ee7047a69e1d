//! What each dispatch of a step writes, read back one dispatch after another: where two targets of an artifact begin to differ.

use std::sync::atomic::AtomicBool;

use unicorn_artifact::{Binding, BufferRef, ModelMeta, Plan, TargetKernels};

use crate::device::memory_types::BufferUse;
use crate::error::{LoadError, RunError};
use crate::program::chunks::{StepOutput, next_chunk};
use crate::program::pipelines::compile_each;
use crate::program::programs;
use crate::program::submissions::DispatchRange;
use crate::step::engine::{Rows, Step};
use crate::step::masks::Masks;
use crate::step::sampling::{SamplerInput, Sampling};
use crate::step::stop::Stop;
use crate::step::watch::Watch;
use crate::tune::candidates::variants;
use crate::tune::choices::{Choice, StepShape, versions};
use crate::tune::measure::{IdleEngine, OnIdleEngine, TuneError, TuningResources};
use crate::vk::buffer::{Allocation, Buffer, BufferRange};
use crate::vk::command_list::{Command, CommandList};
use crate::vk::pipeline::Capture;
use crate::vk::workgroup_range::WorkgroupRange;

/// A dispatch of a traced step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedDispatch {
    /// Layer, role and kernel.
    pub label: String,
    /// Index of its pipeline in the artifact's target.
    pub pipeline: u32,
    /// Name of that pipeline.
    pub kernel: String,
}

/// Called with each dispatch and what it wrote: activations and logits, in the order of its bindings.
pub type TraceSink<'a> = dyn FnMut(&TracedDispatch, &[&[u8]]) + 'a;

/// A step to trace: `cached` tokens of each sequence are fed by the engine's own programs before it.
#[derive(Clone, Copy, Debug)]
pub struct TracedStep<'s> {
    /// Shape of the step.
    pub shape: StepShape,
    /// Its alternatives and version.
    pub choice: &'s Choice,
    /// Tokens before the step, of each sequence.
    pub cached: &'s [u32],
    /// The step's tokens, one a row.
    pub tokens: &'s [u32],
}

/// A loaded model, as far as a trace needs it.
pub struct Tracer<'m> {
    pub target: &'m TargetKernels,
    pub plan: &'m Plan,
    pub model: &'m ModelMeta,
    pub context_tokens: u32,
}

impl Tracer<'_> {
    /// Runs the step dispatch by dispatch and reads what each wrote.
    ///
    /// # Errors
    /// When a kernel does not compile, the device fails, or too few sequences are free.
    ///
    /// # Panics
    /// If the target has no program of this shape and choice.
    pub fn trace(
        &self,
        resources: &TuningResources,
        on_engine: &mut OnIdleEngine<'_>,
        step: &TracedStep<'_>,
        sink: &mut TraceSink<'_>,
    ) -> Result<(), TuneError> {
        let TuningResources { device, buffers, .. } = resources;
        let made = variants(self.target, step.shape, std::slice::from_ref(step.choice)).expect("the program exists");
        let pipelines = compile_each(device, &made, None, Capture::Nothing, &AtomicBool::new(false), Ok)?;
        let prepared = programs::prepare(device, self.plan, &made, &pipelines, buffers, self.context_tokens, true)?;
        let [program] = &prepared.programs[..] else { unreachable!("one choice gives one program") };
        let own = &self.target.programs[versions(self.target, step.shape)[step.choice.version as usize]];
        let limit_bytes = device.facts().storage_range_bytes;
        let mut traced = Vec::new();
        for dispatch in &own.dispatches {
            let written = dispatch.bindings.iter().filter(|binding| is_traced(binding));
            let ranges = written.map(|binding| buffers.range(binding, limit_bytes)).collect::<Result<Vec<_>, _>>()?;
            let kernel = self.target.pipelines[dispatch.pipeline as usize].name.clone();
            traced
                .push((TracedDispatch { label: dispatch.label.clone(), pipeline: dispatch.pipeline, kernel }, ranges));
        }
        let bytes = |(_, ranges): &(_, Vec<BufferRange>)| ranges.iter().map(|range| range.len_bytes).sum();
        let most: u64 = traced.iter().map(bytes).max().unwrap_or(0);
        let Allocation { buffer, mapping } =
            Buffer::create(device, most.max(4), BufferUse::Readback).map_err(LoadError::from)?;
        let mapping = mapping.expect("readbacks are host-visible");
        let mut lists = Vec::new();
        for (dispatch, (_, writes)) in traced.iter().enumerate() {
            let workgroups = WorkgroupRange::whole(made.programs[0].dispatches[dispatch].workgroups);
            let mut commands = program.commands(&[vec![DispatchRange { dispatch, workgroups }]]).concat();
            let mut at = 0;
            commands.extend((!writes.is_empty()).then_some(Command::Barrier));
            for from in writes {
                commands.push(Command::Copy { from: from.clone(), to: buffer.range(at, from.len_bytes) });
                at += from.len_bytes;
            }
            lists.push(CommandList::record(device, commands).map_err(LoadError::from)?);
        }
        let sequences = if step.shape.batch { step.shape.rows } else { 1 };
        let samples = own.samples;
        on_engine(sequences, &mut |mut idle| {
            self.begin_step(&mut idle, step, samples)?;
            for (list, (dispatch, writes)) in lists.iter().zip(&traced) {
                idle.engine.queue.run(std::slice::from_ref(list))?;
                mapping.invalidate()?;
                let mut rest = mapping.bytes();
                let mut parts = Vec::new();
                for range in writes {
                    let (part, after) = rest.split_at(range.len_bytes as usize);
                    parts.push(part);
                    rest = after;
                }
                sink(dispatch, &parts);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Feeds the cached tokens, and writes the step.
    fn begin_step(&self, idle: &mut IdleEngine<'_>, step: &TracedStep<'_>, samples: bool) -> Result<(), Stop> {
        let IdleEngine { engine, slots, tables } = idle;
        let rows_each = step.tokens.len() / slots.len();
        let position = step.cached.len() as u32;
        let rope_variant = self.model.rope_variant(position + rows_each as u32);
        for (&slot, tables) in slots.iter().zip(tables.iter_mut()) {
            let mut at = 0;
            while at < position {
                let chunk =
                    next_chunk(&engine.programs.shapes, StepOutput::Nothing, false, at, position - at, u32::MAX);
                let chunk = chunk.ok_or(RunError::NoTokens)?;
                engine.advance(slot, at..at + chunk.n_rows, tables)?;
                let tokens = &step.cached[at as usize..(at + chunk.n_rows) as usize];
                let rows = [Rows { slot, position: at, tokens, rope_variant, rope_shift: 0 }];
                let step = Step { program: chunk.program, rows: &rows, apart_rows: 0, samplers: &[] };
                engine.run(&step, Watch::default(), &mut Masks::none())?;
                at += chunk.n_rows;
            }
            engine.advance(slot, position..position + rows_each as u32, tables)?;
        }
        let both = slots.iter().zip(step.tokens.chunks(rows_each.max(1)));
        let rows: Vec<Rows> =
            both.map(|(&slot, tokens)| Rows { slot, position, tokens, rope_variant, rope_shift: 0 }).collect();
        let samplers: Vec<SamplerInput> = slots.iter().map(|_| Sampling::default().input(0, false, &[])).collect();
        let samplers = if samples { &samplers[..] } else { &[] };
        Ok(engine.write(&Step { program: 0, rows: &rows, apart_rows: 0, samplers }, &Masks::none())?)
    }
}

/// Whether a dispatch writes activations or logits there, which are copied whole: the cache and the samples are not.
fn is_traced(binding: &Binding) -> bool {
    binding.writes && matches!(binding.buffer, BufferRef::Arena | BufferRef::Logits) && binding.len_bytes > 0
}
