//! The one thread that has the model: takes orders between two steps, and lets the scheduler make steps.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::mpsc::Receiver;

use tokio::sync::mpsc::UnboundedSender;

use super::choice::{Choice, Event};
use crate::load::tell_recoveries;
use crate::status::{Doing, StatusWriter};
use crate::text::Text;
use unicorn_runtime::scheduler::{Request, Scheduler};
use unicorn_runtime::{Model, Sampling};

/// What the worker is asked for.
pub enum Order {
    Answer(Job),
    /// Ends it, whatever is under way.
    Stop,
}

/// One choice of a request.
pub struct Job {
    /// Its index among the request's choices.
    pub choice: u32,
    /// Fits the context.
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    /// `None`: until something else ends it.
    pub max_tokens: Option<u32>,
    pub stop_strings: Vec<String>,
    pub events: UnboundedSender<Event>,
}

pub struct Worker<'m> {
    pub model: &'m Model,
    pub text: &'m Text,
    pub scheduler: Scheduler<Choice<'m>>,
    pub status: StatusWriter,
    pub inbox: Receiver<Order>,
}

impl Worker<'_> {
    /// Works until it is told to stop.
    pub fn run(mut self) {
        let mut orders = VecDeque::new();
        loop {
            if self.scheduler.is_idle() && orders.is_empty() {
                self.tell_status();
                // Nobody is left to order anything when the other side is gone.
                let Ok(order) = self.inbox.recv() else { return };
                orders.push_back(order);
            }
            orders.extend(self.inbox.try_iter());
            for order in orders.drain(..) {
                match order {
                    Order::Answer(job) => self.scheduler.submit(request(job, self.model, self.text)),
                    Order::Stop => return,
                }
            }
            self.tell_status();
            let Worker { model, scheduler, status, inbox, .. } = &mut self;
            scheduler.turn(&mut |n_tokens| {
                status.tokens(n_tokens as u64, model);
                orders.extend(inbox.try_iter());
                if orders.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            tell_recoveries(model);
        }
    }

    fn tell_status(&mut self) {
        let doing = match (self.scheduler.in_prefill() + self.scheduler.waiting(), self.scheduler.decoding()) {
            (0, 0) => Doing::Idle,
            (_, 0) => Doing::Prefill,
            _ => Doing::Decode,
        };
        self.status.turn_to(doing, self.scheduler.waiting() as u32, self.model);
    }
}

fn request<'m>(job: Job, model: &'m Model, text: &'m Text) -> Request<Choice<'m>> {
    let Job { choice, prompt, sampling, max_tokens, stop_strings, events } = job;
    let stop_ids = &model.tokenizer_section().stop_ids;
    let listener = Choice::new(choice, events, text.stream_after(&prompt), stop_ids, stop_strings, max_tokens);
    Request { prompt, sampling, listener }
}
