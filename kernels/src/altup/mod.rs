//! AltUp (Baykal et al. 2023, "Alternating Updates for Efficient Transformers"), as transformers' `Gemma3nTextAltUp`: a layer works on
//! one of `n` streams of the residual, the active one, and this kernel makes all of them in front of the layer and behind it.
//!
//! ```text
//! m(x)       = tanh(R · (x / rms(x) · w))            n numbers of a row; R is divided by the width
//! predicted  = s_j + Σ_i (P · m(s_0))[n·j + i] · s_i  P is (n², n)
//! corrected  = p_j + (1 + (C · m(y))[j]) · (y - p_0)  of the layer's result y; C is (n, n)
//! scaled     = c · corrected_0                       what the layer's last gate reads
//! ```
//!
//! Stream 0 is the active one and has a value of its own; the others are rows `(n - 1) · row` and following of another.

mod spec;
mod twin;

pub use spec::{AltUpForm, AltUpSpec};
pub use twin::{Corrected, Predicted, correct_row, predict_row};
