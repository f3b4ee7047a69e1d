//! Tokens of one sequence, or of several at once, step by step: each sample feeds the next step on the device before the host
//! has read it.
//!
//! ```text
//! device   │ step 0 │ step 1 │ step 2 │ step 3 …
//! host       submits 1 │ reads 0, submits 2 │ reads 1, submits 3 …      between two tokens it holds no lock
//! ```
//!
//! Where only some tokens may follow, the step behind is submitted without its sampler, whose masks the host computes when it has read the token
//! before (`crate::step::steps_in_flight`).
//!
//! Where several threads generate, their steps alternate, and none runs ahead.

use std::sync::Arc;

use unicorn_artifact::step::mask_words;

use crate::error::RunError;
use crate::program::chunks::batch_program;
use crate::program::multistep::steps_of_submission;
use crate::session::model_state::Shared;
use crate::session::recovery::persist;
use crate::session::sequence::Sequence;
use crate::session::speculation::predictor::predict;
use crate::session::speculation::verify::{Verified, verify};
use crate::step::cancel::CancelToken;
use crate::step::engine::{Engine, Rows, Step};
use crate::step::host_sampling::{HostSampler, HostSampling};
use crate::step::masks::Masks;
use crate::step::sampling::{Sampled, SamplerInput, Sampling};
use crate::step::steps_in_flight::{EndedStep, Samples, SharedStepsInFlight, StepsInFlight, SubmittedSteps};
use crate::step::stop::Stop;
use crate::step::watch::Watch;

/// A sequence's next token, and how those after it are sampled.
pub struct StreamRow<'s> {
    /// The sequence.
    pub sequence: &'s mut Sequence,
    /// Ends the stream with [`RunError::Cancelled`].
    pub cancel: Option<&'s CancelToken>,
    /// The next token, not appended to the sequence yet.
    pub token: u32,
    /// How the tokens that follow are sampled.
    pub sampling: Sampling,
}

/// Tokens of several sequences, one for each in a step.
pub struct Stream<'s> {
    shared: Arc<Shared>,
    sequences: Vec<&'s mut Sequence>,
    samplings: Vec<Sampling>,
    cancels: Vec<CancelToken>,
    /// The tokens that were sampled last, or came from the caller, and are not appended yet.
    newest: Vec<u32>,
    steps_left: u32,
    /// Most steps that are submitted behind the one that is waited for.
    most_ahead: u32,
    /// Samples are the next step's tokens. Otherwise steps run one by one, and are profiled.
    feeds: bool,
    flight: SharedStepsInFlight,
    /// An error that the caller could have foreseen; it is the first item.
    refused: Option<RunError>,
}

impl<'s> Stream<'s> {
    /// A stream of at most `max_steps` steps, and no further than the first full context.
    pub fn new(shared: &Arc<Shared>, rows: Vec<StreamRow<'s>>, max_steps: u32) -> Stream<'s> {
        let checked = rows.iter().try_for_each(|row| {
            row.sampling.check()?;
            shared.check_tokens(row.sequence.len_tokens(), &[row.token])
        });
        let free_tokens = rows.iter().map(|row| shared.context_tokens() - row.sequence.len_tokens()).min();
        // A context that is full already is an error, of the first step.
        let steps_left = free_tokens.map_or(0, |free_tokens| max_steps.min(free_tokens.max(1)));
        Stream {
            shared: shared.clone(),
            samplings: rows.iter().map(|row| row.sampling.clone()).collect(),
            cancels: rows.iter().filter_map(|row| row.cancel.cloned()).collect(),
            newest: rows.iter().map(|row| row.token).collect(),
            steps_left,
            most_ahead: u32::MAX,
            feeds: true,
            flight: SharedStepsInFlight::default(),
            refused: checked.err(),
            sequences: rows.into_iter().map(|row| row.sequence).collect(),
        }
    }

    /// One step that feeds no other, so that it is profiled where the model was loaded for that.
    pub fn one_step(shared: &Arc<Shared>, rows: Vec<StreamRow<'s>>) -> Stream<'s> {
        Stream { feeds: false, ..Stream::new(shared, rows, 1) }
    }

    /// The first step, alone, among the tokens that `masks` allow; appends the logits of `rows` to `logits`.
    pub fn masked_step(
        &mut self,
        (rows, logits): (&[usize], &mut Vec<f32>),
        masks: &mut Masks<'_>,
    ) -> Result<Vec<Sampled>, RunError> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        let Stream { shared, sequences, samplings, newest, .. } = self;
        let vocab_size = shared.model().vocab_size;
        let mut stream = RowsOfStream { shared, samplings, newest };
        persist(shared, sequences, None, |engine, sequences| {
            let lens: Vec<u32> = sequences.iter().map(|sequence| sequence.len_tokens()).collect();
            logits.clear();
            let ran = stream.run_one(engine, sequences, masks).and_then(|(program, sampled)| {
                if !rows.is_empty() {
                    engine.read_logits(program, rows.iter().copied(), vocab_size, logits)?;
                }
                stream.count(engine.gpu_seconds(program, 0).unwrap_or_default(), sequences);
                Ok(sampled)
            });
            if ran.is_err() {
                sequences.iter_mut().zip(lens).for_each(|(sequence, len)| sequence.take_back(len));
            }
            ran
        })
    }

    /// From now on, at most this number of steps is submitted ahead. Steps that are already submitted still return their samples.
    pub fn set_most_ahead(&mut self, most_ahead: u32) {
        self.most_ahead = most_ahead;
    }

    /// Steps that were submitted whose samples were not given out yet.
    pub fn steps_ahead(&self) -> u32 {
        self.flight.lock().n_steps()
    }

    /// Ends the stream after the steps that are already submitted.
    pub fn end_soon(&mut self) {
        self.steps_left = self.steps_left.min(self.steps_ahead());
        self.most_ahead = 0;
    }

    /// Whether its sequences have recurrent state.
    pub fn has_state(&self) -> bool {
        self.shared.has_state()
    }

    /// Steps until the stream ends.
    pub fn steps_left(&self) -> u32 {
        self.steps_left
    }

    /// The tokens of a row's sequence, and its newest, which is not appended yet.
    pub fn tokens(&self, row: usize) -> (&[u32], u32) {
        (self.sequences[row].tokens(), self.newest[row])
    }

    /// A draft of `n_tokens` tokens behind the newest token of the only row, by the model's own head; none if a step failed. No steps are ahead.
    pub fn predict(&mut self, n_tokens: u32) -> Vec<u32> {
        if self.refused.is_some() {
            return Vec::new();
        }
        let predicted = predict(&self.shared, self.sequences[0], self.newest[0], n_tokens, &mut |_, _| Ok(()));
        predicted.unwrap_or_default()
    }

    /// Verifies `draft` behind the newest token of the only row: appends the newest token and the accepted ones, and returns the samples
    /// behind each. No steps are ahead, and there is a step left for each of them.
    pub fn verify(&mut self, draft: &[u32], logits: &mut Vec<f32>) -> Result<(Verified, Vec<Sampled>), RunError> {
        if let Some(error) = self.refused.take() {
            self.steps_left = 0;
            return Err(error);
        }
        let Stream { shared, sequences, samplings, cancels, newest, .. } = self;
        let sampler = HostSampler::new(samplings[0].clone(), HostSampling::default());
        let rows: Vec<u32> = newest.iter().chain(draft).copied().collect();
        let mut samples = Vec::new();
        let verified = verify(shared, sequences[0], cancels.first(), &rows, logits, &mut |tokens, number, logits| {
            let sampled = sampler.sample_as_device(number, tokens, logits, None);
            samples.push(sampled);
            (sampled.token, true)
        });
        match &verified {
            Ok(_) => {
                self.steps_left -= samples.len() as u32;
                self.newest.clear();
                self.newest.extend(samples.last().map(|sampled| sampled.token));
            }
            Err(_) => self.steps_left = 0,
        }
        verified.map(|verified| (verified, samples))
    }

    /// Takes back the last `n_samples`, which were not returned yet, and the tokens that were appended because of them. They came from a
    /// verification behind which no step ran.
    pub fn take_back(&mut self, n_samples: u32) {
        let sequence = &mut *self.sequences[0];
        sequence.truncate(sequence.len_tokens() - n_samples);
        sequence.take_back_samples(n_samples);
    }

    /// The samples of the next step, in the order of the rows, among the tokens that `masks` allow. One step is submitted behind it, whose masks
    /// are those of the next call, for the same rows; if they are for others, it is not used, and recurrent state is computed again.
    pub fn next_masked(&mut self, masks: &mut Masks<'_>) -> Option<Result<Vec<Sampled>, RunError>> {
        self.steps_left = self.steps_left.checked_sub(1)?;
        let step = match self.refused.take() {
            Some(error) => Err(error),
            None => self.step(masks),
        };
        match &step {
            Ok(sampled) => {
                self.newest.clear();
                self.newest.extend(sampled.iter().map(|one| one.token));
            }
            Err(_) => self.steps_left = 0,
        }
        Some(step)
    }

    /// Appends the newest tokens and returns those that follow them.
    fn step(&mut self, masks: &mut Masks<'_>) -> Result<Vec<Sampled>, RunError> {
        let Stream { shared, sequences, samplings, cancels, newest, flight, .. } = self;
        if cancels.iter().any(CancelToken::is_cancelled) {
            return Err(RunError::Cancelled);
        }
        if !flight.lock().has_masks_for(masks.samplers()) {
            // Steps ahead were told other masks.
            *flight = SharedStepsInFlight::default();
        }
        let (steps_behind, feeds) = (self.steps_left.min(self.most_ahead), self.feeds);
        let mut rows = RowsOfStream { shared, samplings, newest };
        if let Some(sampled) = rows.take(flight, sequences, masks) {
            return Ok(sampled);
        }
        persist(shared, sequences, Some(flight), |engine, sequences| {
            // The steps may have ended meanwhile, because another session needed the engine.
            if let Some(sampled) = rows.take(flight, sequences, masks) {
                return Ok(sampled);
            }
            let lens: Vec<u32> = sequences.iter().map(|sequence| sequence.len_tokens()).collect();
            let ran = match feeds {
                true => rows.run_ahead(engine, flight, sequences, steps_behind, masks),
                false => rows.run_one(engine, sequences, masks).map(|(program, sampled)| {
                    rows.count(engine.gpu_seconds(program, 0).unwrap_or_default(), sequences);
                    sampled
                }),
            };
            if ran.is_err() {
                sequences.iter_mut().zip(lens).for_each(|(sequence, len)| sequence.take_back(len));
            }
            ran
        })
    }
}

impl Iterator for Stream<'_> {
    type Item = Result<Vec<Sampled>, RunError>;

    /// The samples of the next step, in the order of the rows.
    fn next(&mut self) -> Option<Result<Vec<Sampled>, RunError>> {
        self.next_masked(&mut Masks::none())
    }
}

/// The rows of a stream's steps, without the sequences.
struct RowsOfStream<'r> {
    shared: &'r Shared,
    samplings: &'r [Sampling],
    newest: &'r [u32],
}

impl RowsOfStream<'_> {
    /// Takes the samples of the oldest step that ended, if there is one.
    fn take(
        &mut self,
        flight: &SharedStepsInFlight,
        sequences: &mut [&mut Sequence],
        masks: &mut Masks<'_>,
    ) -> Option<Vec<Sampled>> {
        let generation = sequences[0].generation()?;
        let (EndedStep { program, samples }, gpu_seconds) = {
            let mut flight = flight.lock();
            (flight.take(generation)?, flight.take_gpu_seconds())
        };
        self.append(sequences, program);
        let sampled = match samples {
            Samples::Sampled(sampled) => sampled,
            Samples::Logits(logits) => self.sample_on_host(sequences, logits, masks),
        };
        self.count(gpu_seconds, sequences);
        Some(sampled)
    }

    /// Samples each row's token by the logits of all rows.
    fn sample_on_host(&self, sequences: &[&mut Sequence], mut logits: Vec<f32>, masks: &mut Masks<'_>) -> Vec<Sampled> {
        let vocab_size = self.shared.model().vocab_size;
        let mask_words = mask_words(vocab_size);
        let row_len = logits.len() / sequences.len();
        let rows = logits.chunks_exact_mut(row_len).map(|row| &mut row[..vocab_size as usize]);
        let each = sequences.iter().zip(self.samplings).zip(rows).enumerate();
        let sample = |(row, ((sequence, sampling), logits)): (usize, ((&&mut Sequence, &Sampling), &mut [f32]))| {
            let number_of_mask = masks.number(row);
            let allowed = number_of_mask.map(|number| &masks.words(mask_words)[number * mask_words..][..mask_words]);
            let sampler = HostSampler::new(sampling.clone(), HostSampling::default());
            sampler.sample_as_device(sequence.samples(), sequence.tokens(), logits, allowed)
        };
        each.map(sample).collect()
    }

    /// Submits the step of the newest tokens if it is not in flight, its sampler if that awaits `masks`, and steps behind it, at most
    /// `steps_behind`; returns what the first one samples.
    fn run_ahead(
        &mut self,
        engine: &mut Engine,
        flight: &SharedStepsInFlight,
        sequences: &mut [&mut Sequence],
        steps_behind: u32,
        masks: &mut Masks<'_>,
    ) -> Result<Vec<Sampled>, Stop> {
        let mut flight_now = flight.lock();
        let now = match flight_now.first().filter(|_| engine.is_in_flight(flight)) {
            Some(now) => {
                self.append(sequences, now.program);
                now
            }
            None => {
                let program = self.push(engine, sequences)?;
                // Steps behind this one find what it has left.
                self.with_step(program, sequences, true, |step| engine.write(step, masks))?;
                let generation = sequences[0].generation().unwrap_or_default();
                let sample_numbers = sequences.iter().map(|sequence| sequence.samples());
                flight_now.restart(generation, sample_numbers, masks.samplers());
                engine.in_flight = Some(flight.clone());
                let awaits_masks = engine.begin_before_masks(program, 0, masks)?;
                let now = SubmittedSteps { program, step_slot: 0, n_steps: 1, awaits_masks };
                flight_now.push(now);
                now
            }
        };
        if now.awaits_masks {
            engine.begin_sampler(now.program, now.step_slot, masks)?;
            flight_now.set_sampled();
        }
        if !self.shared.is_contended() {
            self.submit_behind(engine, &mut flight_now, now, sequences, (steps_behind, masks))?;
        }
        engine.end_first(&mut flight_now, false)?;
        if flight_now.first().is_none() {
            engine.in_flight = None;
        }
        let generation = sequences[0].generation().unwrap_or_default();
        let Some(EndedStep { samples: Samples::Sampled(sampled), .. }) = flight_now.take(generation) else {
            unreachable!("its sampler was submitted");
        };
        self.count(flight_now.take_gpu_seconds(), sequences);
        Ok(sampled)
    }

    /// Submits steps behind those of `now`, whose first has the newest tokens, as far as `steps_behind` go: one without its sampler, where rows have
    /// masks.
    fn submit_behind(
        &self,
        engine: &mut Engine,
        flight: &mut StepsInFlight,
        now: SubmittedSteps,
        sequences: &mut [&mut Sequence],
        (steps_behind, masks): (u32, &Masks<'_>),
    ) -> Result<(), Stop> {
        // Tokens behind the newest that steps in flight append.
        let ahead = now.n_steps - 1;
        let Some(steps_to_submit) = steps_behind.checked_sub(ahead).filter(|&steps| steps > 0) else { return Ok(()) };
        let awaits_masks = !masks.is_empty();
        let (program, step_slot) = (decoder(engine, sequences, ahead)?, 1 - now.step_slot);
        let n_steps = match (engine.has_steps_together(program)?, &*sequences) {
            (true, [sequence]) if !awaits_masks => {
                let (shapes, cached) = (&engine.programs.shapes, sequence.len_tokens() + ahead);
                let max_seconds = self.shared.multistep_seconds();
                steps_of_submission(shapes, cached, steps_to_submit, flight.step_seconds(), max_seconds)
            }
            _ => 1,
        };
        // From a sequence's end on, not from these steps' first position: if the stream is dropped, the sequence continues there, and
        // a sliding window must not have given back what that position attends to.
        if take_pages(engine, sequences, ahead, n_steps).is_err() {
            // Pages may be free again when the step is due.
            return Ok(());
        }
        match n_steps {
            1 if awaits_masks => {
                if !engine.begin_behind_sampler(program, step_slot)? {
                    sequences.iter_mut().for_each(|sequence| sequence.keep_state(ahead));
                    return Ok(());
                }
            }
            1 => engine.begin(program, step_slot)?,
            _ => engine.begin_together(program, step_slot)?,
        }
        flight.push(SubmittedSteps { program, step_slot, n_steps, awaits_masks });
        Ok(())
    }

    /// Runs the step of the newest tokens alone, and returns its program and samples, which are not counted yet.
    fn run_one(
        &mut self,
        engine: &mut Engine,
        sequences: &mut [&mut Sequence],
        masks: &mut Masks<'_>,
    ) -> Result<(usize, Vec<Sampled>), Stop> {
        let program = self.push(engine, sequences)?;
        self.with_step(program, sequences, false, |step| engine.run(step, Watch::default(), masks))?;
        let numbers = sequences.iter().enumerate();
        let sampled =
            numbers.map(|(row, sequence)| engine.sampled(row, sequence.samples())).collect::<Result<_, _>>()?;
        Ok((program, sampled))
    }

    /// Appends the newest tokens, with pages, for a step of the program that is returned and that is yet to run.
    fn push(&self, engine: &mut Engine, sequences: &mut [&mut Sequence]) -> Result<usize, RunError> {
        let program = decoder(engine, sequences, 0)?;
        take_pages(engine, sequences, 0, 1)?;
        self.append(sequences, program);
        Ok(program)
    }

    /// Appends the newest tokens, whose step of `program` has its pages.
    fn append(&self, sequences: &mut [&mut Sequence], program: usize) {
        for (sequence, &token) in sequences.iter_mut().zip(self.newest) {
            let rope_variant = self.shared.model().rope_variant(sequence.len_tokens() + 1);
            sequence.append(&[token], program, rope_variant);
        }
    }

    /// Counts one more sample of every sequence, and adds the device's seconds to each.
    fn count(&self, gpu_seconds: f64, sequences: &mut [&mut Sequence]) {
        for sequence in sequences {
            sequence.count_sample();
            sequence.add_gpu_seconds(gpu_seconds);
        }
    }

    /// Calls `run` with the step of every sequence's newest token; `feeds`: its samples are the next step's tokens.
    fn with_step<T>(
        &self,
        program: usize,
        sequences: &[&mut Sequence],
        feeds: bool,
        run: impl FnOnce(&Step<'_>) -> T,
    ) -> T {
        let row = |sequence: &&'_ mut Sequence| -> u32 { self.shared.model().rope_variant(sequence.len_tokens()) };
        let rows: Vec<Rows> = sequences.iter().map(|sequence| sequence.newest_rows(1, row(sequence))).collect();
        let both = sequences.iter().zip(self.samplings);
        let samplers: Vec<SamplerInput> = both.map(|(sequence, sampling)| sequence.sampler(sampling, feeds)).collect();
        run(&Step { program, rows: &rows, apart_rows: 0, samplers: &samplers })
    }
}

/// Takes pages for the last tokens of every sequence: `ahead` that steps in flight append, and `n_steps` behind them. Where one finds
/// none, the others' state stays as it is.
fn take_pages(engine: &mut Engine, sequences: &mut [&mut Sequence], ahead: u32, n_steps: u32) -> Result<(), RunError> {
    let taken = sequences.iter_mut().try_for_each(|sequence| sequence.take_pages(ahead + n_steps, engine));
    if taken.is_err() {
        sequences.iter_mut().for_each(|sequence| sequence.keep_state(ahead));
    }
    taken
}

/// The program that samples the next token of every sequence, `ahead` tokens behind its last.
fn decoder(engine: &Engine, sequences: &[&mut Sequence], ahead: u32) -> Result<usize, RunError> {
    let longest = sequences.iter().map(|sequence| sequence.len_tokens()).max().unwrap_or(0);
    let program = batch_program(&engine.programs.shapes, sequences.len() as u32, longest + ahead);
    program.ok_or(RunError::NoProgram { wanted: "a token of each sequence of the batch" })
}
