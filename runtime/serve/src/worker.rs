//! The thread that runs the model's steps: takes commands between two steps, and ticks the scheduler.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc;

use unicorn_structure::ReplySampler;
use unicorn_text::OutputText;
use unicorn_text::unicorn_runtime::scheduler::{Request, Scheduler};
use unicorn_text::unicorn_runtime::{Image, Sampling};

use crate::activity::Activity;
use crate::admission::QueuePlace;
use crate::choice::Choice;
use crate::events::Events;
use crate::line_limits::LineLimits;
use crate::metrics::Metrics;
use crate::pooling::PoolingJob;
use crate::prompt_probabilities::PromptProbabilities;
use crate::receiver::Receiver;

/// What is sent to the worker.
pub(crate) enum Command {
    Generate(Box<Job>),
    Pool(Box<PoolingJob>),
    /// End at once, whatever is being generated.
    Stop,
}

/// One choice of a request.
pub(crate) struct Job {
    /// Index among the request's choices.
    pub(crate) choice: u32,
    /// The prompt, which fits the context.
    pub(crate) prompt: Vec<u32>,
    /// Images of which it has rows.
    pub(crate) images: Vec<Image>,
    pub(crate) sampling: Sampling,
    pub(crate) priority: i32,
    pub(crate) output: OutputText,
    pub(crate) lines: LineLimits,
    /// `None`: the device samples.
    pub(crate) sampler: Option<Box<ReplySampler>>,
    /// Where those of the prompt's tokens were requested.
    pub(crate) prompt_probabilities: Option<PromptProbabilities>,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) place: QueuePlace,
}

pub(crate) struct Worker {
    pub(crate) scheduler: Scheduler<Receiver>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Worker {
    /// Returns after [`Command::Stop`], or when every sender of commands has been dropped.
    pub(crate) fn run(mut self, monitor: &mut dyn FnMut(&Activity)) {
        let mut received = VecDeque::new();
        loop {
            if self.scheduler.is_idle() && received.is_empty() {
                let activity = self.activity();
                self.metrics.show(&activity);
                monitor(&activity);
                let Ok(command) = self.commands.recv() else { return };
                received.push_back(command);
            }
            received.extend(self.commands.try_iter());
            for command in received.drain(..) {
                match command {
                    Command::Generate(job) => self.scheduler.submit(request(*job)),
                    Command::Pool(job) => self.scheduler.submit(pooling(*job)),
                    Command::Stop => return,
                }
            }
            let mut activity = self.activity();
            self.metrics.show(&activity);
            monitor(&activity);
            let Worker { scheduler, commands, metrics } = &mut self;
            scheduler.tick(&mut |n_tokens| {
                activity.new_tokens = n_tokens as u32;
                metrics.count_step(n_tokens);
                monitor(&activity);
                received.extend(commands.try_iter());
                if received.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            metrics.health.has_lost(scheduler.device_losses());
            if let Some(error) = scheduler.take_kv_store_error() {
                tracing::warn!(%error, "KV caches are not kept any more");
            }
        }
    }

    fn activity(&self) -> Activity {
        Activity {
            waiting: self.scheduler.waiting() as u32,
            in_prefill: self.scheduler.in_prefill() as u32,
            decoding: self.scheduler.decoding() as u32,
            running_pages: self.scheduler.running_pages(),
            preemptions: self.scheduler.preemptions(),
            new_tokens: 0,
        }
    }
}

fn pooling(job: PoolingJob) -> Request<Receiver> {
    let PoolingJob { prompt, receiver } = job;
    Request { prompt, sampling: Sampling::default(), priority: 0, receiver: Receiver::Pooling(Box::new(receiver)) }
}

fn request(job: Job) -> Request<Receiver> {
    let Job { choice, prompt, images, sampling, priority, output, lines, sampler, .. } = job;
    let Job { prompt_probabilities, events, metrics, place, .. } = job;
    let samplers = (sampler, prompt_probabilities);
    let choice = Choice::new(choice, prompt.len() as u32, events, (output, lines), samplers, metrics, place);
    Request { prompt, sampling, priority, receiver: Receiver::Text { choice: Box::new(choice), _images: images } }
}
