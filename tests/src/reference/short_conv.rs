//! The short convolution of LFM2 between two gates, as transformers' `Lfm2ShortConv` has it.

use super::{Reference, split_rows};

impl Reference {
    /// (tokens, hidden) to (tokens, hidden)
    pub(super) fn short_conv(&self, layer: usize, input: &[f32]) -> Vec<f32> {
        let block = format!("layers.{layer}.conv");
        let filters = self.weights.get(&format!("{block}.conv.weight"));
        let (hidden, taps) = (filters.shape[0], filters.shape[2]);
        let projected = self.multiply(&format!("{block}.in_proj.weight"), input);
        let (before, rest) = split_rows(&projected, hidden, 2 * hidden);
        let (after, values) = split_rows(&rest, hidden, hidden);
        let gated: Vec<f32> = before.iter().zip(&values).map(|(gate, value)| gate * value).collect();
        let mut output = Vec::with_capacity(gated.len());
        for (index, gate) in after.iter().enumerate() {
            let (token, channel) = (index / hidden, index % hidden);
            // The last tap is of the token itself; before the first token all is zero.
            let seen = (0..taps.min(token + 1))
                .map(|back| filters.values[channel * taps + taps - 1 - back] * gated[index - back * hidden]);
            output.push(gate * seen.sum::<f32>());
        }
        self.multiply(&format!("{block}.out_proj.weight"), &output)
    }
}
