//! One step, of whose tokens receivers may choose some, and which may feed parts of prompts: no step runs ahead of it.

use std::time::Instant;

use super::requests::Active;
use super::{AfterStep, SamplingPlaces, Scheduler, TokenReceiver};
use crate::error::RunError;
use crate::session::batch::{BatchRow, decode_masked};
use crate::session::mixed::{PromptPart, decode_beside_prompts};
use crate::step::masks::Masks;
use crate::step::sampling::{Sampled, Sampling};

impl<R: TokenReceiver> Scheduler<R> {
    /// One step of all decoding sequences, some of whose tokens their receivers may sample or mask, which feeds `parts` of the first prompts: that
    /// many tokens of each.
    pub(super) fn decode_and_choose(&mut self, parts: &[usize], after_step: &mut AfterStep<'_>) {
        let begun = Instant::now();
        let greedy = Sampling::default();
        let n_decoding = self.machine.decoding.len();
        let places = SamplingPlaces::of(&self.shared);
        let mut prompts: Vec<_> = self.machine.prefill.iter_mut().zip(parts.iter().copied()).collect();
        let ends = |(active, n_tokens): &(&mut Active<R>, usize)| *n_tokens == active.rest.len();
        let ended = prompts.iter().filter(|part| ends(part)).map(|(active, _)| &**active);
        let choosing: Vec<usize> = (0..)
            .zip(self.machine.decoding.iter().chain(ended))
            .filter(|(_, active)| places.samples_on_host(&active.receiver))
            .map(|(row, _)| row)
            .collect();
        // Greedy sampling leaves the logits as they are.
        let sampling_of = |active: &Active<R>| match places.samples_on_host(&active.receiver) {
            true => greedy.clone(),
            false => active.sampling.clone(),
        };
        let samplings: Vec<Sampling> = self.machine.decoding.iter().map(sampling_of).collect();
        let of_prompts: Vec<Sampling> = prompts.iter().map(|(active, _)| sampling_of(active)).collect();
        let (mut rows, mut receivers) = (Vec::new(), Vec::new());
        for (active, sampling) in self.machine.decoding.iter_mut().zip(&samplings) {
            rows.push(BatchRow { session: &mut active.session, token: active.rest[0], sampling });
            receivers.push(&mut active.receiver);
        }
        let mut fed = Vec::new();
        for (part, sampling) in prompts.iter_mut().zip(&of_prompts) {
            let ends = ends(part);
            let (Active { session, rest, receiver, .. }, n_tokens) = (&mut *part.0, part.1);
            receivers.extend(ends.then_some(receiver));
            fed.push(PromptPart { session, rest, n_tokens, sampling });
        }
        let masked = receivers.into_iter().enumerate().filter(|(_, receiver)| places.is_masked(&**receiver));
        let mut masks = Masks::of(masked.map(|(row, receiver)| (row, receiver.mask())).collect());
        let logits = (&choosing[..], &mut self.logits);
        let decoded = match fed.is_empty() {
            true => decode_masked(&self.shared, rows, logits, &mut masks),
            false => decode_beside_prompts(&self.shared, rows, fed, logits, &mut masks),
        };
        drop(masks);
        let row_len = (self.logits.len() / choosing.len().max(1)).max(1);
        let mut chosen = self.logits.chunks_exact_mut(row_len);
        let mut choose = |active: &mut Active<R>, sampled: &Sampled| match places.samples_on_host(&active.receiver) {
            true => active.receiver.sample(active.session.tokens(), chosen.next().expect("logits of each such row")),
            false => sampled.token,
        };
        let mut go_on = vec![true; n_decoding];
        let mut first_tokens = Vec::new();
        if let Ok(sampled) = &decoded {
            let (of_rows, of_prompts) = sampled.split_at(n_decoding);
            for ((active, sampled), goes_on) in self.machine.decoding.iter_mut().zip(of_rows).zip(&mut go_on) {
                active.rest[0] = choose(active, sampled);
                *goes_on = active.receiver.token(active.rest[0]).is_continue();
            }
            let mut of_prompts = of_prompts.iter();
            for part in &mut prompts {
                let sampled = if ends(part) { of_prompts.next() } else { None };
                first_tokens.push(sampled.map(|sampled| choose(part.0, sampled)));
            }
            // The tick ends anyway.
            let _ = after_step(n_decoding);
        }
        let failed = decoded.err();
        self.after_decode(&go_on, failed.as_ref());
        match &failed {
            None if parts.is_empty() => {}
            None => {
                self.machine.pace.add_mixed(n_decoding + parts.iter().sum::<usize>(), begun.elapsed());
                // Of those before the last part, all was fed, and the next prompt is the first.
                for (first_token, n_tokens) in first_tokens.into_iter().zip(parts) {
                    self.after_feed(Ok(first_token), *n_tokens, after_step);
                }
            }
            // Pages were made free.
            Some(RunError::NoPages) => {}
            Some(error) => parts.iter().for_each(|n_tokens| self.after_feed(Err(error), *n_tokens, after_step)),
        }
    }
}
