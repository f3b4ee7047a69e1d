//! An f32 that can be part of a key.

use serde::{Deserialize, Serialize};

/// An f32 that can be part of a key: compared by its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Number(u32);

impl Number {
    /// The key of `value`.
    pub fn new(value: f32) -> Number {
        Number(value.to_bits())
    }

    /// The value as f32.
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}
