//! Masks: which tokens a step's samplers may sample. They depend on earlier tokens alone, so that the host computes them while the device
//! computes the logits.

use std::convert::Infallible;
use std::ops::ControlFlow;

use crate::parallel;

/// Computes a mask: sets the bits of the tokens that may be sampled, in words of 0; the first token's is the lowest bit of the first word. May run on
/// another thread.
pub type FillMask<'m> = Box<dyn FnOnce(&mut [u32]) + Send + 'm>;

/// Most threads that compute masks. Each step starts them, which takes about as long as a simple mask.
const MAX_THREADS: usize = 8;

/// The masks of one step.
pub struct Masks<'m> {
    /// Samplers that have a mask, in order.
    samplers: Vec<usize>,
    /// One a sampler, until they have run.
    fills: Vec<FillMask<'m>>,
    /// Of all of them, one behind the other, once they were computed.
    words: Vec<u32>,
}

impl<'m> Masks<'m> {
    /// No sampler has a mask.
    pub fn none() -> Masks<'m> {
        Masks::of(Vec::new())
    }

    /// These samplers of the step, in order, have one.
    pub fn of(masks: Vec<(usize, FillMask<'m>)>) -> Masks<'m> {
        let (samplers, fills) = masks.into_iter().unzip();
        Masks { samplers, fills, words: Vec::new() }
    }

    /// Whether no sampler has a mask.
    pub fn is_empty(&self) -> bool {
        self.samplers.is_empty()
    }

    /// Samplers that have a mask, in order.
    pub fn samplers(&self) -> &[usize] {
        &self.samplers
    }

    /// Which of the masks a sampler has.
    pub fn number(&self, sampler: usize) -> Option<usize> {
        self.samplers.binary_search(&sampler).ok()
    }

    /// All masks, `mask_words` each, one behind the other. The first call computes them, several on several threads: a step that runs again has the
    /// same.
    pub fn words(&mut self, mask_words: usize) -> &[u32] {
        if self.words.is_empty() {
            self.words.resize(self.samplers.len() * mask_words, 0);
            let fills = std::mem::take(&mut self.fills);
            let threads = if fills.len() < 2 { 0 } else { fills.len().min(parallel::cores()).min(MAX_THREADS) };
            let work = |(fill, words): (FillMask<'m>, &mut [u32])| {
                fill(words);
                Ok::<(), Infallible>(())
            };
            let each = fills.into_iter().zip(self.words.chunks_exact_mut(mask_words));
            let done = parallel::for_each(threads, each, work, &mut |()| ControlFlow::Continue(()));
            assert!(done.is_ok_and(|flow| flow.is_continue()), "all masks are computed");
        }
        &self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_computed_once_and_lie_one_behind_the_other() {
        let mut n_computed = [0; 2];
        let fills = n_computed.iter_mut().zip([1u32, 4]).map(|(n_computed, sampler)| {
            let fill = move |words: &mut [u32]| {
                *n_computed += 1;
                words[sampler as usize % 2] = sampler;
            };
            (sampler as usize, Box::new(fill) as FillMask)
        });
        let mut masks = Masks::of(fills.collect());
        assert_eq!([0, 1, 4, 5].map(|sampler| masks.number(sampler)), [None, Some(0), Some(1), None]);
        assert_eq!(masks.words(2), [0, 1, 4, 0]);
        assert_eq!(masks.words(2), [0, 1, 4, 0]);
        drop(masks);
        assert_eq!(n_computed, [1, 1]);
        assert!(Masks::none().is_empty());
    }
}
