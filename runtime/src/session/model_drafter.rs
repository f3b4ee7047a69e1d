//! Drafts of a second, smaller model with the same vocabulary: its greedy continuation.

use std::sync::Arc;

use crate::error::RunError;
use crate::session::model_state::Shared;
use crate::session::session::Session;
use crate::session::speculation::drafter::{Draft, Drafter};
use crate::step::sampling::Sampling;

/// Continues the text with a session of the smaller model. Where that has none free, or its context ends, or its device fails, there is no
/// draft: the text continues without one.
pub struct ModelDrafter {
    shared: Arc<Shared>,
    /// Session of the smaller model, taken with the first draft.
    session: Option<Session>,
}

/// Tokens that a draft may go back, and a sliding window keeps: those of a draft that was rejected.
const KEPT_BEHIND_WINDOW: u32 = 64;

impl ModelDrafter {
    /// A drafter without a session.
    pub fn new(shared: Arc<Shared>) -> ModelDrafter {
        ModelDrafter { shared, session: None }
    }

    fn continuation(&mut self, text: &[u32], max_tokens: usize) -> Result<Vec<u32>, RunError> {
        let session = match &mut self.session {
            Some(session) => session,
            none => {
                let mut session = Session::new(self.shared.clone())?;
                session.keep_behind_window(KEPT_BEHIND_WINDOW);
                none.insert(session)
            }
        };
        let greedy = Sampling::default();
        let n_cached = session.keep_saved_start(text) as usize;
        let first = session.feed_and_sample(&text[n_cached..], &greedy)?.token;
        session.save_state()?;
        let rest = session.generate(first, &greedy, max_tokens as u32 - 1);
        std::iter::once(Ok(first)).chain(rest.map(|sampled| Ok(sampled?.token))).collect()
    }
}

impl Drafter for ModelDrafter {
    fn draft(&mut self, tokens: &[u32], newest: u32, max_tokens: usize) -> Draft {
        let text = [tokens, &[newest]].concat();
        Draft { tokens: self.continuation(&text, max_tokens).unwrap_or_default(), class: 0 }
    }

    fn only_class(&self) -> Option<usize> {
        Some(0)
    }
}
