//! Texts of sessions.

use unicorn_runtime::{Sampling, Session};

/// `prompt` and `n_tokens` tokens behind it, of a session that is new.
///
/// # Panics
/// If a step fails.
pub fn text_of(session: &mut Session, prompt: &[u32], sampling: &Sampling, n_tokens: usize) -> Vec<u32> {
    session.clear();
    let first = session.feed_and_sample(prompt, sampling).expect("the steps run").token;
    let rest = session.generate(first, sampling, n_tokens as u32 - 1);
    let rest = rest.map(|sampled| sampled.expect("the step runs").token);
    prompt.iter().copied().chain([first]).chain(rest).collect()
}
