//! Recurrent state: what a layer with a gated delta rule keeps of all tokens so far, in f32, in the place of a KV cache.
//!
//! ```text
//! pool   pages of one sequence's state each; the first entry of its block table is the page, whatever its length
//! page   two halves, where other layers have K and V; each  [head][key dim][value dim], then [channel][tap]
//! heads  the lower half of them is in the first half of a page, the others in the second; so are channels
//! ```
//!
//! A head that predicts the token behind the next one keeps rows in such a page of its own (`previous_row`), and nothing else.
//!
//! A channel keeps its last `taps - 1` inputs, the oldest first. At position 0, kernels begin with zeros instead of reading the
//! state, so that a page need not be cleared before another sequence gets it.

use serde::{Deserialize, Serialize};

use crate::template::Values;

/// Shape of one layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StateLayout {
    /// Value heads, each with a matrix of its own.
    pub heads: usize,
    /// Rows of a head's matrix.
    pub key_dim: usize,
    /// Columns of a head's matrix.
    pub value_dim: usize,
    /// Channels of the convolution in front.
    pub channels: usize,
    /// Inputs of one output of the convolution.
    pub taps: usize,
}

impl StateLayout {
    /// Heads in the first half of a page.
    pub fn low_heads(&self) -> usize {
        self.heads.div_ceil(2)
    }

    /// Channels in the first half of a page.
    pub fn low_channels(&self) -> usize {
        self.channels.div_ceil(2)
    }

    /// Words of a head's matrix.
    pub fn head_words(&self) -> usize {
        self.key_dim * self.value_dim
    }

    /// Words of half a page.
    pub fn half_words(&self) -> usize {
        self.conv_at() + (self.low_channels() * (self.taps - 1)).next_multiple_of(4)
    }

    /// Bytes of half a page: an artifact counts each half as it does the K and the V of a page.
    pub fn page_bytes(&self) -> usize {
        4 * self.half_words()
    }

    /// Offset of the channels in a half, in words.
    pub fn conv_at(&self) -> usize {
        (self.low_heads() * self.head_words()).next_multiple_of(4)
    }

    /// Values for pieces that include `recurrent_state`.
    pub(crate) fn values(&self, kv_group: usize, values: Values) -> Values {
        values
            .size("KV_GROUP", kv_group)
            .size("HALF_WORDS", self.half_words())
            .size("CONV_AT", self.conv_at())
            .size("LOW_HEADS", self.low_heads())
            .size("LOW_CHANNELS", self.low_channels())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_halves_of_a_page_have_room_for_their_heads_and_channels() {
        let layout = StateLayout { heads: 5, key_dim: 12, value_dim: 7, channels: 83, taps: 4 };
        assert_eq!((layout.low_heads(), layout.low_channels(), layout.conv_at()), (3, 42, 252));
        assert_eq!(layout.half_words(), 252 + 128);
        assert_eq!(layout.page_bytes() % 16, 0);
    }
}
