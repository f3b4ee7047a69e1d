//! Speculative decoding: a drafter proposes tokens, and one step of the model computes what follows each of them. Those that the model
//! samples as well are accepted, so that a step gives several tokens.
//!
//! ```text
//! drafter ──► draft ──► verify: one step of 1 + n rows ──► sampled tokens, up to the first that is not the draft's
//!               ▲                                              │
//!           draft_length: how many tokens, or none ◄───────────┘ acceptance and times
//! ```
//!
//! Rejected tokens are taken out of a KV cache by cutting it. Recurrent state, out of which none can be taken, is copied before the step; it goes
//! back to the copy, and the accepted tokens are appended again by a step without logits (`memory::state_copies`).
//!
//! A row's token is sampled from the model's distribution with the random number that it has without speculation, and a proposed token
//! is accepted if it is that token. For a drafter that names tokens without probabilities this is speculative sampling (Leviathan et
//! al. 2023, Chen et al. 2023): a token x is accepted with probability p(x), and in place of a rejected one the others are
//! sampled by theirs. So the distribution is that of the model, and equal seeds give equal text with and without speculation,
//! unless rounding decides otherwise: the step computes other rows at once, and its sums may differ in their last bits.

pub mod draft_length;
pub mod drafter;
pub mod ngram;
pub mod predictor;
pub mod speculator;
pub mod verify;
