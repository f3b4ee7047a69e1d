//! Probabilities of the tokens of a prompt, for requests with `echo` and `logprobs`, by which harnesses rate given answers.

use unicorn_text::unicorn_runtime::HostSampled;

/// Is given the logits of a prompt row by row.
pub(crate) struct PromptProbabilities {
    tokens: Vec<u32>,
    /// Number of most likely tokens beside each.
    n_top: usize,
    found: Vec<HostSampled>,
}

impl PromptProbabilities {
    pub(crate) fn new(tokens: Vec<u32>, n_top: usize) -> PromptProbabilities {
        PromptProbabilities { tokens, n_top, found: Vec::new() }
    }

    /// The prompt is fed from its first token on, before which there is nothing.
    pub(crate) fn begin(&mut self) {
        let first = self.tokens.first();
        self.found = first
            .map(|&token| HostSampled { token, logprob: None, top: Vec::new(), candidates: 0 })
            .into_iter()
            .collect();
    }

    /// Takes the logits of the token behind that at `position`.
    pub(crate) fn add(&mut self, position: u32, logits: &[f32]) {
        if let Some(&token) = self.tokens.get(position as usize + 1) {
            self.found.push(HostSampled::given(token, logits, self.n_top));
        }
    }

    /// One entry a token; the first has no probability.
    pub(crate) fn take(&mut self) -> Vec<HostSampled> {
        std::mem::take(&mut self.found)
    }
}
