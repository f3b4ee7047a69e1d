//! The speculation of one sequence: its drafter, how often its drafts are accepted, and what resulted from them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unicorn_artifact::step::is_image_row;

use crate::error::RunError;
use crate::session::speculation::draft_length::{Acceptance, StepTimes};
use crate::session::speculation::drafter::{Draft, Drafter};
use crate::session::speculation::ngram::NGram;
use crate::session::speculation::verify::Verified;

/// How sequences speculate: see [`crate::Session::set_speculation`] and [`crate::scheduler::Scheduler::set_speculation`].
#[derive(Clone)]
#[non_exhaustive]
pub struct Speculation {
    /// Most tokens of a draft, 1 to [`Speculation::MAX_DRAFT_TOKENS`]. Default: 7, which one step of eight rows verifies.
    pub max_tokens: u32,
    /// Fewest tokens of a draft; shorter ones are not verified. Default: 1.
    pub min_tokens: u32,
    /// Verify only drafts that are expected to save time, by measured acceptance and times. Default: yes. Otherwise all are verified.
    pub adaptive: bool,
    source: Source,
}

/// Who makes the drafts of sequences.
#[derive(Clone)]
enum Source {
    /// A drafter for each sequence.
    Drafters(Arc<dyn Fn() -> Box<dyn Drafter> + Send + Sync>),
    /// The model's own head for them.
    Predictor,
}

/// Drafts that were verified, and their tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Number of drafts.
    pub drafts: u64,
    /// Number of their tokens.
    pub proposed: u64,
    /// Number of those tokens that the model sampled as well.
    pub accepted: u64,
}

/// The speculation of one sequence.
pub struct Speculator {
    options: Speculation,
    /// `None`: the model's own head makes the drafts.
    drafter: Option<Box<dyn Drafter>>,
    acceptance: Acceptance,
    /// The last proposal, and the length of the sequence that it was for.
    draft: Draft,
    draft_at: Option<usize>,
    /// Number of tokens of a draft that the model's own head is yet to make.
    n_to_predict: usize,
    /// How long the drafter took for it.
    draft_time: Duration,
    /// Tokens since there was a draft to verify; many where the drafter is not asked for one.
    since_draft: u32,
    /// Counts of drafts since they were last taken.
    pub counts: DraftCounts,
    /// Buffer for the logits of a verification.
    pub logits: Vec<f32>,
}

/// After this number of tokens without a draft, steps run ahead of the host, which delays the next draft by some tokens.
const TOKENS_WITHOUT_DRAFT: u32 = 8;
/// Class of the drafts of a model's own head.
const PREDICTED: usize = 0;

impl Speculation {
    /// Most tokens of a draft: with the token before it, a step of 64 rows.
    pub const MAX_DRAFT_TOKENS: u32 = 63;

    /// Drafts are the tokens that followed an earlier occurrence, in the sequence, of at least `least_tokens` of its last tokens
    /// (prompt lookup). No second model is needed.
    pub fn ngram(least_tokens: u32) -> Speculation {
        Speculation::by(move || Box::new(NGram { least_tokens: least_tokens as usize }))
    }

    /// Drafts are those of a drafter that `new_drafter` makes for each sequence.
    pub fn by(new_drafter: impl Fn() -> Box<dyn Drafter> + Send + Sync + 'static) -> Speculation {
        Speculation { max_tokens: 7, min_tokens: 1, adaptive: true, source: Source::Drafters(Arc::new(new_drafter)) }
    }

    /// Drafts are those of the model's own head, which it must have.
    pub(crate) fn by_predictor() -> Speculation {
        Speculation { max_tokens: 7, min_tokens: 1, adaptive: true, source: Source::Predictor }
    }

    /// Whether drafts are those of the model's own head, see [`crate::Model::own_speculation`].
    pub fn is_of_predictor(&self) -> bool {
        matches!(self.source, Source::Predictor)
    }

    /// The options after `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Speculation)) -> Speculation {
        change(&mut self);
        self
    }

    /// Whether the options are in their ranges. Everything that takes a `Speculation` checks it.
    ///
    /// # Errors
    /// [`RunError::Sampling`] for the first that is not.
    pub fn check(&self) -> Result<(), RunError> {
        let wrong = |what, expected, found: u32| Err(RunError::Sampling { what, expected, found: found.to_string() });
        if !(1..=Speculation::MAX_DRAFT_TOKENS).contains(&self.max_tokens) {
            return wrong("most tokens of a draft", "1 to 63", self.max_tokens);
        }
        if self.min_tokens > self.max_tokens {
            return wrong("fewest tokens of a draft", "no more than its most", self.min_tokens);
        }
        Ok(())
    }

    /// A speculator for one sequence.
    pub(crate) fn speculator(&self) -> Speculator {
        Speculator {
            options: self.clone(),
            drafter: match &self.source {
                Source::Drafters(new_drafter) => Some(new_drafter()),
                Source::Predictor => None,
            },
            acceptance: Acceptance::default(),
            draft: Draft::default(),
            draft_at: None,
            n_to_predict: 0,
            draft_time: Duration::ZERO,
            since_draft: TOKENS_WITHOUT_DRAFT,
            counts: DraftCounts::default(),
            logits: Vec::new(),
        }
    }
}

impl fmt::Debug for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Speculation { max_tokens, min_tokens, adaptive, .. } = self;
        write!(f, "Speculation {{ max_tokens: {max_tokens}, min_tokens: {min_tokens}, adaptive: {adaptive} }}")
    }
}

impl DraftCounts {
    /// Counts a draft.
    pub fn add(&mut self, proposed: u32, accepted: u32) {
        self.drafts += 1;
        self.proposed += u64::from(proposed);
        self.accepted += u64::from(accepted);
    }
}

impl Speculator {
    /// Whether there is a draft to verify behind `tokens` and `newest`, of at most `most` tokens, while `n_sequences` decode; otherwise: decode
    /// without. Repeated calls for the same sequence give the same. [`Speculator::take_draft`] returns the draft.
    pub fn has_draft(
        &mut self,
        tokens: &[u32],
        newest: u32,
        most: usize,
        n_sequences: usize,
        times: &StepTimes,
    ) -> bool {
        if self.draft_at != Some(tokens.len()) {
            self.draft_at = Some(tokens.len());
            let Speculation { max_tokens, min_tokens, adaptive, .. } = self.options;
            let (least, most) = (min_tokens.max(1) as usize, most.min(max_tokens as usize));
            let mut depth = |class, most| match adaptive {
                _ if most < least => 0,
                true => self.acceptance.depth(class, least, most, n_sequences, times),
                false => most,
            };
            let only_class = self.drafter.as_ref().map_or(Some(PREDICTED), |drafter| drafter.only_class());
            let most = only_class.map_or(most, |class| depth(class, most));
            let begun = Instant::now();
            let is_asked = most >= least;
            self.n_to_predict = if self.drafter.is_none() && is_asked { most } else { 0 };
            self.draft = match &mut self.drafter {
                Some(drafter) if is_asked => drafter.draft(tokens, newest, most),
                _ => Draft::default(),
            };
            self.draft_time = begun.elapsed();
            let Draft { tokens: proposed, class } = &mut self.draft;
            // Text that is found again may go on with an image, which no step samples.
            let text = proposed.iter().position(|&token| is_image_row(token)).unwrap_or(proposed.len());
            proposed.truncate(text);
            let depth = match only_class {
                None => depth(*class, proposed.len().min(most)),
                Some(_) if proposed.len() < least => 0,
                Some(_) => most,
            };
            proposed.truncate(depth);
            self.since_draft = match proposed.len().max(self.n_to_predict) {
                0 if !is_asked => TOKENS_WITHOUT_DRAFT,
                0 => self.since_draft.saturating_add(1),
                _ => 0,
            };
        }
        !self.draft.tokens.is_empty() || self.n_to_predict > 0
    }

    /// The draft that [`Speculator::has_draft`] has found. Where the model's own head makes it, `predict` is called for as many tokens, while no
    /// step of the sequence is in flight; it may give fewer, or none.
    pub fn take_draft(&mut self, predict: impl FnOnce(u32) -> Vec<u32>) -> Vec<u32> {
        let n_to_predict = std::mem::take(&mut self.n_to_predict);
        if n_to_predict > 0 {
            let begun = Instant::now();
            self.draft = Draft { tokens: predict(n_to_predict as u32), class: PREDICTED };
            self.draft_time = begun.elapsed();
        }
        self.draft.tokens.clone()
    }

    /// Whether the next draft is so unlikely that steps should run ahead.
    pub fn runs_ahead(&self) -> bool {
        self.since_draft >= TOKENS_WITHOUT_DRAFT
    }

    /// Counts the verification of the last draft.
    pub fn add(&mut self, verified: &Verified, times: &mut StepTimes) {
        let (compared, accepted) = (verified.proposed, verified.accepted());
        self.acceptance.add(self.draft.class, compared, accepted);
        self.counts.add(compared as u32, accepted as u32);
        times.add_verification(compared + 1, verified.time + self.draft_time);
        self.draft_at = None;
    }
}
