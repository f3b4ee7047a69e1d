//! Receivers of what the model computes for a request: text, or values from its prompt alone.

use std::ops::ControlFlow;

use unicorn_text::unicorn_runtime::scheduler::{End, TokenReceiver};
use unicorn_text::unicorn_runtime::{FillMask, Image};

use crate::choice::Choice;
use crate::pooling::PoolingReceiver;

/// The receiver of a sequence.
pub(crate) enum Receiver {
    /// A choice of a request that generates text.
    Text {
        choice: Box<Choice>,
        /// Held until the request ends: the prompt has rows of them.
        _images: Vec<Image>,
    },
    /// A prompt that nothing is to follow.
    Pooling(Box<PoolingReceiver>),
}

impl Receiver {
    fn inner(&mut self) -> &mut dyn TokenReceiver {
        match self {
            Receiver::Text { choice, .. } => &mut **choice,
            Receiver::Pooling(receiver) => &mut **receiver,
        }
    }

    fn as_inner(&self) -> &dyn TokenReceiver {
        match self {
            Receiver::Text { choice, .. } => &**choice,
            Receiver::Pooling(receiver) => &**receiver,
        }
    }
}

impl TokenReceiver for Receiver {
    fn begin(&mut self, cached_tokens: u32) {
        self.inner().begin(cached_tokens);
    }

    fn fed(&mut self, n_tokens: u32) {
        self.inner().fed(n_tokens);
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        self.inner().token(token)
    }

    fn samples_on_host(&self) -> bool {
        self.as_inner().samples_on_host()
    }

    fn is_masked(&self) -> bool {
        self.as_inner().is_masked()
    }

    fn may_be_masked(&self) -> bool {
        self.as_inner().may_be_masked()
    }

    fn mask(&mut self) -> FillMask<'_> {
        self.inner().mask()
    }

    fn sample(&mut self, tokens: &[u32], logits: &mut [f32]) -> u32 {
        self.inner().sample(tokens, logits)
    }

    fn reads_hidden_rows(&self) -> bool {
        self.as_inner().reads_hidden_rows()
    }

    fn hidden_row(&mut self, row: &[f32]) {
        self.inner().hidden_row(row);
    }

    fn reads_prompt_logits(&self) -> bool {
        self.as_inner().reads_prompt_logits()
    }

    fn prompt_logits(&mut self, position: u32, logits: &[f32]) {
        self.inner().prompt_logits(position, logits);
    }

    fn drafted(&mut self, proposed: u32, accepted: u32) {
        self.inner().drafted(proposed, accepted);
    }

    fn is_closed(&self) -> bool {
        self.as_inner().is_closed()
    }

    fn end(&mut self, why: End<'_>) {
        self.inner().end(why);
    }
}
