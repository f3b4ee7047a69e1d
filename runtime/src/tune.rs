//! Measures every alternative of every pipeline that decodes a token, on the device and on the model's real buffers.

use std::collections::BTreeMap;
use std::sync::Arc;

use artifacts::{Kernels, Plan, TargetKernels};

use crate::buffers::Buffers;
use crate::error::{LoadError, RunError};
use crate::model::Model;
use crate::pipelines::compile_each;
use crate::programs::{self, Programs};
use crate::session::Sampling;
use crate::tuning::{most_alternatives, one_token, with_alternative};
use crate::vk::device::Device;
use crate::vk::pipeline::Capture;

/// Of a model that was loaded with them: the one-token program as the compiler chose it, and again with each alternative, all recorded to be profiled.
#[derive(Default)]
pub struct Candidates {
    programs: Vec<Programs>,
    /// Number of each dispatch's pipeline in the artifact.
    pipelines: Vec<u32>,
    /// Of each pipeline that has alternatives: its own name, then theirs.
    names: BTreeMap<u32, Vec<String>>,
}

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

impl Candidates {
    /// # Errors
    /// When a kernel does not compile, or the device keeps no time.
    pub fn record(
        device: &Arc<Device>,
        plan: &Plan,
        kernels: &Kernels,
        target: &TargetKernels,
        buffers: &Buffers,
        context_tokens: u32,
        bound_seconds: f64,
    ) -> Result<Candidates, LoadError> {
        let alternatives = (0..most_alternatives(target)).map(|alternative| with_alternative(target, alternative));
        let record = |target: TargetKernels| {
            let (target, _) = one_token(&target);
            let pipelines = compile_each(device, kernels, &target, None, Capture::Nothing, Ok)?;
            let prepared = programs::prepare(device, plan, &target, &pipelines, buffers, context_tokens)?;
            prepared.record(device, &prepared.guessed_paces(), bound_seconds, Some(&target))
        };
        let programs = [target.clone()].into_iter().chain(alternatives).map(record).collect::<Result<_, _>>()?;
        let (_, pipelines) = one_token(target);
        let names = pipelines.iter().filter_map(|&number| {
            let pipeline = &target.pipelines[number as usize];
            let others = pipeline.alternatives.iter().map(|other| other.name.clone());
            (!pipeline.alternatives.is_empty())
                .then(|| (number, [pipeline.name.clone()].into_iter().chain(others).collect()))
        });
        let names = names.collect();
        Ok(Candidates { programs, pipelines, names })
    }
}

impl Model {
    /// Times the candidates of a model that was loaded with [`crate::LoadOptions::candidates`], in turn, so that what
    /// slows the device down for a while slows all of them: `rounds` rounds of `steps` steps each. One slot is free.
    ///
    /// # Errors
    /// As [`crate::Session::feed_and_sample`].
    pub fn time_candidates(&self, rounds: u32, steps: u32) -> Result<Vec<TimedPipeline>, RunError> {
        let mut candidates = self.candidates();
        let Candidates { programs, pipelines, names } = &mut *candidates;
        let mut samples: BTreeMap<(u32, usize), Vec<f64>> = BTreeMap::new();
        for _ in 0..rounds {
            for (number, programs) in programs.iter_mut().enumerate() {
                self.swap_programs(programs)?;
                let profiled = self.profile_steps(steps);
                self.swap_programs(programs)?;
                for step in profiled? {
                    let mut sums: BTreeMap<u32, f64> = BTreeMap::new();
                    for (pipeline, seconds) in pipelines.iter().zip(&step) {
                        *sums.entry(*pipeline).or_default() += seconds;
                    }
                    sums.into_iter()
                        .for_each(|(pipeline, sum)| samples.entry((pipeline, number)).or_default().push(sum));
                }
            }
        }
        let mut timed = |(&pipeline, names): (&u32, &Vec<String>)| TimedPipeline {
            pipeline,
            candidates: names
                .iter()
                .enumerate()
                .map(|(number, name)| TimedCandidate {
                    name: name.clone(),
                    seconds: median(samples.remove(&(pipeline, number)).unwrap_or_default()),
                })
                .collect(),
        };
        Ok(names.iter().map(&mut timed).collect())
    }

    fn swap_programs(&self, programs: &mut Programs) -> Result<(), RunError> {
        std::mem::swap(&mut self.shared().ready(self)?.1.programs, programs);
        Ok(())
    }

    /// Seconds of each dispatch of so many steps, after one that nobody looks at.
    fn profile_steps(&self, steps: u32) -> Result<Vec<Vec<f64>>, RunError> {
        let mut session = self.session()?;
        session.feed_and_sample(&[0], &Sampling::default())?;
        self.take_profiles();
        for _ in 0..steps {
            session.feed_and_sample(&[0], &Sampling::default())?;
        }
        Ok(self.take_profiles().into_iter().map(|step| step.seconds).collect())
    }
}

/// The middle one; of no times at all, one that nothing beats.
fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}
