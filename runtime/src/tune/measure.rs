//! Measures every alternative of the kernels of a step, and whole steps, on the device and on the model's real buffers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unicorn_artifact::{ModelMeta, Pipeline, TargetKernels};

use crate::error::{LoadError, RunError};
use crate::memory::buffers::Buffers;
use crate::memory::kv_pages::BlockTable;
use crate::model::Model;
use crate::program::pipelines::compile_each;
use crate::program::programs::{self, RecordedPrograms};
use crate::session::shared::Shared;
use crate::step::engine::{Engine, Rows, Step};
use crate::step::sampling::{SamplerInput, Sampling};
use crate::step::stop::Stop;
use crate::tune::candidates::{Candidates, cached_tokens, candidates, variants};
use crate::tune::choices::{Choice, StepShape, shapes, versions};
use crate::vk::device::Device;
use crate::vk::pipeline::Capture;

/// What a model that was loaded with [`crate::LoadOptions::candidates`] keeps, so that programs can be recorded later.
pub struct TuningResources {
    pub device: Arc<Device>,
    pub buffers: Buffers,
    pub bound_seconds: f64,
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Times that every candidate gets its turn, so that what slows the device down for a while slows all of them.
    pub rounds: u32,
    /// Most steps of a turn, which ends early when it has taken [`TURN`].
    pub steps: u32,
    /// Cached tokens that a step of one row of each sequence attends to; fewer where so many take another program.
    pub depth_tokens: u32,
}

/// A turn of longer steps has one.
pub const TURN: Duration = Duration::from_millis(300);

/// One pipeline's candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedPipeline {
    /// Its number in the artifact.
    pub pipeline: u32,
    /// The compiler's choice first, then the alternatives.
    pub candidates: Vec<TimedCandidate>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TimedCandidate {
    pub name: String,
    /// Of all its dispatches in a step; the median of all steps.
    pub seconds: f64,
}

/// Why there are no times.
#[derive(Debug)]
pub enum TuneError {
    /// A candidate could not be made.
    Load(LoadError),
    /// Its steps did not run.
    Run(RunError),
}

impl Model {
    /// Shapes of steps that [`Model::time_kernels`] can measure at this depth, with as many versions of their program as there
    /// are: those that this load has sequences and context for.
    pub fn tunable(&self, depth_tokens: u32) -> Vec<(StepShape, u32)> {
        let target = self.untuned();
        let has_room = |shape: &StepShape| {
            let Some(depth_tokens) = cached_tokens(target, *shape, depth_tokens) else { return false };
            let (sequences, last_token) = extent(*shape, depth_tokens);
            sequences <= self.slots() && last_token < self.context_tokens()
        };
        let shapes = shapes(target).into_iter().filter(has_room);
        shapes.map(|shape| (shape, versions(target, shape).len() as u32)).collect()
    }

    /// Times the candidates of all pipelines that are `wanted` of one version of a shape's program. `turn` hears of each
    /// turn done, and how many there are.
    ///
    /// # Errors
    /// When a kernel does not compile, the device keeps no time, or fails, or another session has the room.
    ///
    /// # Panics
    /// Unless the model was loaded with [`crate::LoadOptions::candidates`] and has such a version.
    pub fn time_kernels(
        &self,
        shape: StepShape,
        version: u32,
        effort: Effort,
        wanted: impl Fn(&Pipeline) -> bool,
        turn: &mut dyn FnMut(u32, u32),
    ) -> Result<Vec<TimedPipeline>, TuneError> {
        let target = self.untuned();
        let program = versions(target, shape)[version as usize];
        let Candidates { target, pipelines, names } = candidates(target, program, wanted);
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let programs = self.record(&target, true)?;
        let mut samples: BTreeMap<(u32, usize), Vec<f64>> = BTreeMap::new();
        self.take_turns(programs, shape, effort, turn, |engine, candidate| {
            let mut sums: BTreeMap<u32, f64> = BTreeMap::new();
            for step in std::mem::take(&mut engine.profiles) {
                for (pipeline, seconds) in pipelines.iter().zip(&step.seconds) {
                    *sums.entry(*pipeline).or_default() += seconds;
                }
            }
            sums.into_iter().for_each(|(pipeline, sum)| samples.entry((pipeline, candidate)).or_default().push(sum));
        })?;
        let mut timed = |(pipeline, names): (u32, Vec<String>)| TimedPipeline {
            pipeline,
            candidates: (names.into_iter().enumerate())
                .map(|(number, name)| TimedCandidate {
                    name,
                    seconds: median(samples.remove(&(pipeline, number)).unwrap_or_default()),
                })
                .collect(),
        };
        Ok(names.into_iter().map(&mut timed).collect())
    }

    /// Medians of the seconds of whole steps, one a choice. `turn` as above.
    ///
    /// # Errors
    /// As [`Model::time_kernels`].
    ///
    /// # Panics
    /// As [`Model::time_kernels`], and if the artifact does not hold what is chosen.
    pub fn time_steps(
        &self,
        shape: StepShape,
        choices: &[Choice],
        effort: Effort,
        turn: &mut dyn FnMut(u32, u32),
    ) -> Result<Vec<f64>, TuneError> {
        let target = variants(self.untuned(), shape, choices).expect("what was measured is there");
        let programs = self.record(&target, false)?;
        let mut samples = vec![Vec::new(); choices.len()];
        self.take_turns(programs, shape, effort, turn, |engine, candidate| {
            samples[candidate].extend(engine.gpu_seconds(candidate, 0));
        })?;
        Ok(samples.into_iter().map(median).collect())
    }

    /// Compiles and records the programs of `target`, with the time of each dispatch or only of the whole.
    fn record(&self, target: &TargetKernels, profile: bool) -> Result<RecordedPrograms, LoadError> {
        let TuningResources { device, buffers, bound_seconds } = self.tuning_resources();
        let pipelines = compile_each(device, self.kernels(), target, None, Capture::Nothing, Ok)?;
        let context_tokens = self.context_tokens();
        let barriers = profile || self.shared().has_barriers();
        let prepared = programs::prepare(device, self.plan(), target, &pipelines, buffers, context_tokens, barriers)?;
        prepared.record(device, &prepared.estimated_costs(), *bound_seconds, profile.then_some(target))
    }

    /// Runs steps of each of the programs, all of one shape, in turn. `look` is called after each step that counts.
    fn take_turns(
        &self,
        mut programs: RecordedPrograms,
        shape: StepShape,
        effort: Effort,
        turn: &mut dyn FnMut(u32, u32),
        look: impl FnMut(&mut Engine, usize),
    ) -> Result<(), RunError> {
        let depth_tokens = cached_tokens(self.untuned(), shape, effort.depth_tokens).unwrap_or(effort.depth_tokens);
        let shared = self.shared();
        let (sequences, _) = extent(shape, depth_tokens);
        let mut slots = TakenSlots { shared, slots: Vec::new() };
        for _ in 0..sequences {
            slots.slots.push(shared.take_slot()?);
        }
        let slots = &slots.slots;
        let mut slot = shared.lock_engine();
        // The buffers are those of the first engine.
        let engine = slot.engine().filter(|_| shared.generation() == 0);
        let engine = engine.ok_or(RunError::DeviceLost { detail: "it was lost since loading".into() })?;
        engine.settle(None)?;
        let mut tables: Vec<Vec<BlockTable>> = slots.iter().map(|_| shared.empty_tables()).collect();
        std::mem::swap(&mut engine.programs, &mut programs);
        engine.profiles.clear();
        let made_up = MadeUp { shape, depth_tokens, model: &self.meta().model };
        let ran = made_up.run(engine, slots, &mut tables, effort, turn, look);
        std::mem::swap(&mut engine.programs, &mut programs);
        engine.profiles.clear();
        for tables in &mut tables {
            let mut pools = engine.pools.lock();
            tables.iter_mut().zip(pools.iter_mut()).for_each(|(table, pool)| table.truncate(pool, 0));
        }
        Ok(ran?)
    }
}

/// Slots that no session has meanwhile.
struct TakenSlots<'m> {
    shared: &'m Shared,
    slots: Vec<u32>,
}

impl Drop for TakenSlots<'_> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|&slot| self.shared.give_back_slot(slot));
    }
}

/// Steps of one shape on tokens that nobody wrote. What lies in the cache before them is whatever the buffer holds: no kernel's
/// time depends on it.
struct MadeUp<'m> {
    shape: StepShape,
    depth_tokens: u32,
    model: &'m ModelMeta,
}

impl MadeUp<'_> {
    fn run(
        &self,
        engine: &mut Engine,
        slots: &[u32],
        tables: &mut [Vec<BlockTable>],
        effort: Effort,
        turn: &mut dyn FnMut(u32, u32),
        mut look: impl FnMut(&mut Engine, usize),
    ) -> Result<(), Stop> {
        let rows_each = self.shape.rows / slots.len() as u32;
        let position = self.first_position();
        for (&slot, tables) in slots.iter().zip(tables) {
            for before in 0..position {
                engine.advance(slot, before..before + 1, tables);
            }
            engine.advance(slot, position..position + rows_each, tables);
        }
        let vocab_size = self.model.vocab_size;
        let tokens: Vec<u32> = (0..self.shape.rows).map(|index| index.wrapping_mul(7919) % vocab_size).collect();
        let rope_variant = self.model.rope_variant(position + rows_each);
        let both = slots.iter().zip(tokens.chunks(rows_each as usize));
        let rows: Vec<Rows> = both.map(|(&slot, tokens)| Rows { slot, position, tokens, rope_variant }).collect();
        let samplers: Vec<SamplerInput> = slots.iter().map(|_| Sampling::default().input(0, false, &[])).collect();
        let candidates = engine.programs.shapes.len();
        let turns = effort.rounds * candidates as u32;
        for number in 0..turns {
            let program = number as usize % candidates;
            let samplers = if engine.programs.shapes[program].samples { &samplers[..] } else { &[] };
            let step = Step { program, rows: &rows, samplers };
            if number < candidates as u32 {
                // The first step pays for what later ones find warm.
                engine.run(&step)?;
                engine.profiles.clear();
            }
            let begin = Instant::now();
            for _ in 0..effort.steps {
                engine.run(&step)?;
                look(engine, program);
                if begin.elapsed() > TURN {
                    break;
                }
            }
            turn(number + 1, turns);
        }
        Ok(())
    }

    fn first_position(&self) -> u32 {
        let (_, last_token) = extent(self.shape, self.depth_tokens);
        if is_prefill(self.shape) { 0 } else { last_token }
    }
}

/// Rows of one sequence.
fn is_prefill(shape: StepShape) -> bool {
    shape.rows > 1 && !shape.batch
}

/// Sequences of a step, and the position of their last token.
fn extent(shape: StepShape, depth_tokens: u32) -> (u32, u32) {
    if is_prefill(shape) { (1, shape.rows - 1) } else { (shape.rows, depth_tokens) }
}

/// The middle one; of no times at all, one that nothing beats.
fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}

impl fmt::Display for TuneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TuneError::Load(error) => error.fmt(f),
            TuneError::Run(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TuneError {}

impl From<LoadError> for TuneError {
    fn from(error: LoadError) -> TuneError {
        TuneError::Load(error)
    }
}

impl From<RunError> for TuneError {
    fn from(error: RunError) -> TuneError {
        TuneError::Run(error)
    }
}
