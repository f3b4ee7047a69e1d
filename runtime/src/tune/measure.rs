//! Times of a program's variants: kernels by the device's timestamps, and whole steps, on made-up tokens in the model's own
//! buffers.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use unicorn_artifact::{ModelMeta, Pipeline, Plan, TargetKernels};

use crate::error::{LoadError, RunError};
use crate::memory::buffers::Buffers;
use crate::memory::kv_pages::BlockTable;
use crate::program::pipelines::compile_each;
use crate::program::programs::{self, RecordedPrograms};
use crate::step::engine::{Engine, Rows, Step};
use crate::step::masks::Masks;
use crate::step::sampling::{SamplerInput, Sampling};
use crate::step::stop::Stop;
use crate::step::watch::Watch;
use crate::tune::candidates::{Candidates, cached_tokens, candidates, variants};
use crate::tune::choices::{Choice, StepShape, shapes, versions};
use crate::vk::device::Device;
use crate::vk::pipeline::Capture;

/// What a model that was loaded with [`crate::LoadOptions::candidates`] keeps, to record other programs later.
pub struct TuningResources {
    pub device: Arc<Device>,
    pub buffers: Buffers,
    pub bound_seconds: f64,
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds in which every candidate runs once, so that a slow phase of the device affects all of them.
    pub rounds: u32,
    /// Most steps of a candidate in a round; a round of it ends early after 300 ms.
    pub steps: u32,
    /// Cached tokens that a step of one row of each sequence attends to; fewer where a step with that many takes another program.
    pub depth_tokens: u32,
    /// Time after which a measurement begins no further round. The first round is always completed.
    pub max_time: Option<Duration>,
}

/// Called with the number of candidate rounds done and their total; a `Break` ends the measurement with [`RunError::Cancelled`].
pub type TuneProgress<'a> = dyn FnMut(u32, u32) -> ControlFlow<()> + 'a;

/// Time after which a candidate's steps of one round end; at least one step runs.
pub const ROUND: Duration = Duration::from_millis(300);

/// Times of one pipeline's candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedPipeline {
    /// Index of the pipeline in the artifact's target.
    pub pipeline: u32,
    /// The compiler's choice first, then the alternatives.
    pub candidates: Vec<TimedCandidate>,
}

/// Time of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedCandidate {
    /// Name of the kernel.
    pub name: String,
    /// Seconds of all its dispatches in a step; the median of all steps.
    pub seconds: f64,
}

/// Why nothing was measured.
#[derive(Debug)]
#[non_exhaustive]
pub enum TuneError {
    /// A candidate could not be compiled or recorded.
    Load(LoadError),
    /// Its steps did not run.
    Run(RunError),
}

/// A loaded model, as far as a measurement needs it.
pub struct Tuner<'m> {
    /// The target as the artifact has it, with alternatives.
    pub target: &'m TargetKernels,
    pub plan: &'m Plan,
    pub model: &'m ModelMeta,
    pub context_tokens: u32,
    /// Sequences that the model was loaded for.
    pub slots: u32,
    /// Use barriers instead of counter synchronisation.
    pub barriers: bool,
}

/// An engine for measurements: `slots` and `tables` of empty sequences that nothing else uses meanwhile.
pub struct IdleEngine<'e> {
    pub engine: &'e mut Engine,
    pub slots: &'e [u32],
    pub tables: &'e mut [Vec<BlockTable>],
}

/// Work on an idle engine.
pub type IdleWork<'a> = dyn FnMut(IdleEngine<'_>) -> Result<(), Stop> + 'a;

/// Calls the work once with an idle engine that has the given number of sequences, and frees their pages.
pub type OnIdleEngine<'a> = dyn FnMut(u32, &mut IdleWork<'_>) -> Result<(), RunError> + 'a;

impl Tuner<'_> {
    /// Shapes of steps that can be measured at this depth, with the number of versions of their program: those for which the model
    /// was loaded with enough sequences and context.
    pub fn shapes(&self, depth_tokens: u32) -> Vec<(StepShape, u32)> {
        let fits = |shape: &StepShape| {
            let Some(depth_tokens) = cached_tokens(self.target, *shape, depth_tokens) else { return false };
            let (sequences, last_token) = extent(*shape, depth_tokens);
            sequences <= self.slots && last_token < self.context_tokens
        };
        let shapes = shapes(self.target).into_iter().filter(fits);
        shapes.map(|shape| (shape, versions(self.target, shape).len() as u32)).collect()
    }

    /// Times the candidates of all pipelines that `is_tuned` accepts, in one version of a shape's program. See [`TuneProgress`] for
    /// `progress`.
    ///
    /// # Errors
    /// When a kernel does not compile, the device has no timestamps or fails, or too few sequences are free.
    pub fn time_kernels(
        &self,
        resources: &TuningResources,
        on_engine: &mut OnIdleEngine<'_>,
        (shape, version): (StepShape, u32),
        effort: Effort,
        is_tuned: impl Fn(&Pipeline) -> bool,
        progress: &mut TuneProgress<'_>,
    ) -> Result<Vec<TimedPipeline>, TuneError> {
        let program = versions(self.target, shape)[version as usize];
        let Candidates { target, pipelines, names } = candidates(self.target, program, is_tuned);
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let programs = self.record(resources, &target, true)?;
        let mut samples: BTreeMap<(u32, usize), Vec<f64>> = BTreeMap::new();
        self.run_rounds(on_engine, programs, shape, effort, progress, &mut |engine, candidate| {
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

    /// Medians of the seconds of whole steps, one a choice. `progress` as in [`Tuner::time_kernels`].
    ///
    /// # Errors
    /// As [`Tuner::time_kernels`].
    ///
    /// # Panics
    /// If a choice does not exist in the artifact.
    pub fn time_steps(
        &self,
        resources: &TuningResources,
        on_engine: &mut OnIdleEngine<'_>,
        shape: StepShape,
        choices: &[Choice],
        effort: Effort,
        progress: &mut TuneProgress<'_>,
    ) -> Result<Vec<f64>, TuneError> {
        let target = variants(self.target, shape, choices).expect("choices exist in the artifact");
        let programs = self.record(resources, &target, false)?;
        let mut samples = vec![Vec::new(); choices.len()];
        self.run_rounds(on_engine, programs, shape, effort, progress, &mut |engine, candidate| {
            samples[candidate].extend(engine.gpu_seconds(candidate, 0));
        })?;
        Ok(samples.into_iter().map(median).collect())
    }

    /// Compiles and records the programs of `target`; with a `profile`, each dispatch is timed.
    fn record(
        &self,
        resources: &TuningResources,
        target: &TargetKernels,
        profile: bool,
    ) -> Result<RecordedPrograms, LoadError> {
        let TuningResources { device, buffers, bound_seconds } = resources;
        let pipelines = compile_each(device, target, None, Capture::Nothing, &AtomicBool::new(false), Ok)?;
        let barriers = profile || self.barriers;
        let prepared =
            programs::prepare(device, self.plan, target, &pipelines, buffers, self.context_tokens, barriers)?;
        prepared.record(device, &prepared.estimated_costs(false), *bound_seconds, profile.then_some(target))
    }

    /// Runs steps of each of the programs, all of one shape, in rounds. `inspect` is called after each step that counts.
    fn run_rounds(
        &self,
        on_engine: &mut OnIdleEngine<'_>,
        mut programs: RecordedPrograms,
        shape: StepShape,
        effort: Effort,
        progress: &mut TuneProgress<'_>,
        inspect: &mut dyn FnMut(&mut Engine, usize),
    ) -> Result<(), RunError> {
        let depth_tokens = cached_tokens(self.target, shape, effort.depth_tokens).unwrap_or(effort.depth_tokens);
        let steps = MadeUpSteps { shape, depth_tokens, model: self.model };
        on_engine(extent(shape, depth_tokens).0, &mut |mut idle| {
            std::mem::swap(&mut idle.engine.programs, &mut programs);
            idle.engine.profiles.clear();
            let ran = steps.run(&mut idle, effort, progress, inspect);
            std::mem::swap(&mut idle.engine.programs, &mut programs);
            idle.engine.profiles.clear();
            ran
        })
    }
}

/// Steps of one shape on made-up tokens. The cache before them has arbitrary contents, on which no kernel's time depends.
struct MadeUpSteps<'m> {
    shape: StepShape,
    depth_tokens: u32,
    model: &'m ModelMeta,
}

impl MadeUpSteps<'_> {
    fn run(
        &self,
        idle: &mut IdleEngine<'_>,
        effort: Effort,
        progress: &mut TuneProgress<'_>,
        inspect: &mut dyn FnMut(&mut Engine, usize),
    ) -> Result<(), Stop> {
        let IdleEngine { engine, slots, tables } = idle;
        let rows_each = self.shape.rows / slots.len() as u32;
        let position = self.first_position();
        for (&slot, tables) in slots.iter().zip(tables.iter_mut()) {
            for before in 0..position {
                engine.advance(slot, before..before + 1, tables)?;
            }
            engine.advance(slot, position..position + rows_each, tables)?;
        }
        let vocab_size = self.model.vocab_size;
        let tokens: Vec<u32> = (0..self.shape.rows).map(|index| index.wrapping_mul(7919) % vocab_size).collect();
        let rope_variant = self.model.rope_variant(position + rows_each);
        let both = slots.iter().zip(tokens.chunks(rows_each as usize));
        let rows: Vec<Rows> =
            both.map(|(&slot, tokens)| Rows { slot, position, tokens, rope_variant, rope_shift: 0 }).collect();
        let samplers: Vec<SamplerInput> = slots.iter().map(|_| Sampling::default().input(0, false, &[])).collect();
        let candidates = engine.programs.shapes.len();
        let total = effort.rounds * candidates as u32;
        let first_step = Instant::now();
        for number in 0..total {
            let program = number as usize % candidates;
            let begins_round = program == 0 && number > 0;
            if begins_round && effort.max_time.is_some_and(|most| first_step.elapsed() >= most) {
                break;
            }
            let samplers = if engine.programs.shapes[program].samples { &samplers[..] } else { &[] };
            let step = Step { program, rows: &rows, apart_rows: 0, samplers };
            if number < candidates as u32 {
                // The first step of each candidate warms caches up and does not count.
                engine.run(&step, Watch::default(), &mut Masks::none())?;
                engine.profiles.clear();
            }
            let begin = Instant::now();
            for _ in 0..effort.steps {
                engine.run(&step, Watch::default(), &mut Masks::none())?;
                inspect(engine, program);
                if begin.elapsed() > ROUND {
                    break;
                }
            }
            if progress(number + 1, total).is_break() {
                return Err(RunError::Cancelled.into());
            }
        }
        Ok(())
    }

    fn first_position(&self) -> u32 {
        let (_, last_token) = extent(self.shape, self.depth_tokens);
        if is_prefill(self.shape) { 0 } else { last_token }
    }
}

/// Whether all rows belong to one sequence.
fn is_prefill(shape: StepShape) -> bool {
    shape.rows > 1 && !shape.batch
}

/// Sequences of a step, and the position of their last token.
fn extent(shape: StepShape, depth_tokens: u32) -> (u32, u32) {
    if is_prefill(shape) { (1, shape.rows - 1) } else { (shape.rows, depth_tokens) }
}

/// The median; 0 without any times, which no measured time is below.
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
