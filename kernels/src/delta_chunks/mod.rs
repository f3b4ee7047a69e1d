//! The gated delta rule (`delta_rule`) for many rows of one sequence, a chunk of them at a time, on matrix units.
//!
//! Formula (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", section 3.3), with G the sum of the logarithms of the decay up to a row
//! of the chunk, and S the state before it. Rows are those of matrices Q, K and V:
//!
//! ```text
//! A[i][j] = b[i] · e^(G[i] - G[j]) · k[i]·k[j]     j < i
//! E = (1 + A)⁻¹ · b · (V - e^G · K S)              what each row adds to the state, times its key
//! Y = e^G · Q S + P E,  P[i][j] = e^(G[i] - G[j]) · q[i]·k[j]     j ≤ i
//! S = e^G[last] · S + Kᵀ (e^(G[last] - G) · E)
//! ```
//!
//! Products are of f16 with sums of f32; the state between chunks is f32, and E is solved by substitution in f32. Factors that make k and q
//! unit vectors multiply sums instead of operands.

mod spec;

pub use spec::DeltaChunksSpec;
