//! The interface of draft sources.

/// Classes of drafts: see [`Draft::class`].
pub const DRAFT_CLASSES: usize = 8;

/// Proposes the tokens that may follow a sequence. Each sequence has one of its own.
pub trait Drafter: Send {
    /// At most `max_tokens` that may follow `tokens` and, behind them, `newest`. Called between two steps, which it delays. Whatever it
    /// proposes, the text stays that of the model.
    fn draft(&mut self, tokens: &[u32], newest: u32, max_tokens: usize) -> Draft;

    /// The class of all its drafts. If set, [`draft`](Self::draft) is called only when a draft is expected to save time, and for no more
    /// tokens than that. `None`, the default: drafts cost nothing, and their class is known with them.
    fn only_class(&self) -> Option<usize> {
        None
    }
}

/// Tokens that may follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// The proposed tokens, in order; empty: there is no proposal.
    pub tokens: Vec<u32>,
    /// Drafts of equal class, below [`DRAFT_CLASSES`], are expected to be accepted about equally often: acceptance is measured by class.
    pub class: usize,
}
