//! A session with recurrent state goes back to the copy of an earlier state on the device.

use crate::error::RunError;
use crate::session::recovery::persist;
use crate::session::sequence::Sequence;
use crate::session::session::Session;
use crate::step::engine::Engine;

/// Most tokens that are computed again behind a copy of recurrent state, by the steps that computed them: those of a draft. Where it is
/// more, the whole text may take less time, in longer steps.
const MAX_TOKENS_AGAIN: u32 = 64;

impl Session {
    /// Copies recurrent state on the device, if the model has any, so that [`Session::keep_saved_start`] can go back to it.
    ///
    /// # Errors
    /// When the device fails and cannot be made ready again.
    pub(crate) fn save_state(&mut self) -> Result<(), RunError> {
        let shared = self.shared().clone();
        if !shared.has_state() {
            return Ok(());
        }
        let save = |engine: &mut Engine, sequences: &mut [&mut Sequence]| Ok(sequences[0].save_state(engine)?);
        persist(&shared, &mut [self.sequence_mut()], None, save)
    }

    /// Goes back to what the sequence shares with `prompt`, or to a copy of recurrent state if that includes more tokens. Returns how many tokens
    /// of the prompt are still there. Waits for no step.
    pub(crate) fn keep_saved_start(&mut self, prompt: &[u32]) -> u32 {
        let generation = self.shared().generation();
        let common = self.shared().common_start(self.sequence(), prompt);
        let is_ahead = self.sequence().first_cached_position(common, generation).is_some();
        match self.sequence().saved_position(common, generation).filter(|_| is_ahead) {
            Some(position) if self.truncate(position).is_ok() => position,
            _ => self.keep_common_start(prompt),
        }
    }

    /// Whether recurrent state that includes more than `len_tokens` goes back to a copy when the sequence is cut to that, and few tokens are
    /// computed again.
    pub(crate) fn can_go_back_to(&self, len_tokens: u32) -> bool {
        let saved = self.sequence().saved_position(len_tokens, self.shared().generation());
        saved.is_some_and(|position| len_tokens - position <= MAX_TOKENS_AGAIN)
    }
}
