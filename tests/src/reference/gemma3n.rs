//! Gemma 3n's streams and what its layers do with them, as transformers' `modeling_gemma3n` has it. Streams are rows of (tokens, hidden); the
//! first is the one that layers work on.

use super::{Caches, Reference, activate, add};

impl Reference {
    /// (tokens, hidden) after the final norm.
    pub(super) fn hidden_of_streams(&self, tokens: &[i32], count: usize) -> Vec<f32> {
        let embedded = self.embed(tokens);
        let hidden = embedded.len() / tokens.len();
        let inputs = self.layer_inputs(tokens, &embedded).expect("every layer has an input");
        let mut streams = vec![embedded.clone()];
        for other in 0..count - 1 {
            let projected = self.multiply(&format!("altup_projections.{other}.weight"), &embedded);
            streams.push(with_magnitude_of(&embedded, projected, hidden));
        }
        let mut caches = Caches::new();
        for layer in 0..self.config.layers {
            self.layer_of_streams(layer, &mut streams, &inputs, &mut caches);
        }
        let mut sum = streams[0].clone();
        for (other, stream) in streams[1..].iter().enumerate() {
            let projected = self.multiply(&format!("altup_unembed_projections.{other}.weight"), stream);
            add(&mut sum, &with_magnitude_of(&streams[0], projected, hidden), 1.0);
        }
        sum.iter_mut().for_each(|value| *value /= count as f32);
        self.norm("norm.weight", &sum)
    }

    fn layer_of_streams(&self, layer: usize, streams: &mut [Vec<f32>], inputs: &[f32], caches: &mut Caches) {
        let block = format!("layers.{layer}");
        let norm = |name: &str, rows: &[f32]| self.norm(&format!("{block}.{name}.weight"), rows);
        let predicted = self.predicted(&block, streams);

        let stream = &predicted[0];
        let normed = norm("input_layernorm", stream);
        let low = self.multiply(&format!("{block}.laurel.linear_left.weight"), &normed);
        let low = self.multiply(&format!("{block}.laurel.linear_right.weight"), &low);
        let mut sum = stream.clone();
        add(&mut sum, &norm("post_attention_layernorm", &self.attention(layer, &normed, caches)), 1.0);
        add(&mut sum, &normed, 1.0);
        add(&mut sum, &norm("laurel.post_laurel_norm", &low), 1.0);
        sum.iter_mut().for_each(|value| *value /= 2f32.sqrt());
        let transformed = self.sparse_feed_forward(layer, &norm("pre_feedforward_layernorm", &sum));
        add(&mut sum, &norm("post_feedforward_layernorm", &transformed), 1.0);

        self.correct(&block, streams, &predicted, &sum);
        let factors = &self.weights.get(&format!("{block}.altup.correct_output_scale")).values;
        let scaled: Vec<f32> =
            streams[0].iter().zip(factors.iter().cycle()).map(|(value, factor)| value * factor).collect();
        let input = self.gated_input(layer, &scaled, inputs);
        streams[1..].iter_mut().for_each(|stream| add(stream, &input, 1.0));
    }

    /// Each stream plus a sum of all, by coefficients that the first chooses.
    fn predicted(&self, block: &str, streams: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let (count, hidden) = (streams.len(), self.hidden_size());
        let coefs =
            self.multiply(&format!("{block}.altup.prediction_coefs.weight"), &self.modalities(block, &streams[0]));
        let predicted = |stream: usize| {
            let mut sum = streams[stream].clone();
            for (token, row) in sum.chunks_exact_mut(hidden).enumerate() {
                for (from, other) in streams.iter().enumerate() {
                    let coef = coefs[token * count * count + stream * count + from];
                    row.iter_mut().zip(&other[token * hidden..]).for_each(|(sum, value)| *sum += coef * value);
                }
            }
            sum
        };
        (0..count).map(predicted).collect()
    }

    /// Writes the predictions, corrected by what the layer made of the first.
    fn correct(&self, block: &str, streams: &mut [Vec<f32>], predicted: &[Vec<f32>], activated: &[f32]) {
        let (count, hidden) = (streams.len(), self.hidden_size());
        let coefs =
            self.multiply(&format!("{block}.altup.correction_coefs.weight"), &self.modalities(block, activated));
        for (stream, corrected) in streams.iter_mut().enumerate() {
            corrected.clone_from(&predicted[stream]);
            for (index, value) in corrected.iter_mut().enumerate() {
                let coef = 1.0 + coefs[index / hidden * count + stream];
                *value += coef * (activated[index] - predicted[0][index]);
            }
        }
    }

    /// (tokens, streams): how much of each kind a row is.
    fn modalities(&self, block: &str, rows: &[f32]) -> Vec<f32> {
        let mut normed = self.norm(&format!("{block}.altup.router_norm.weight"), rows);
        let hidden = self.hidden_size() as f32;
        normed.iter_mut().for_each(|value| *value /= hidden);
        let mut routed = self.multiply(&format!("{block}.altup.modality_router.weight"), &normed);
        routed.iter_mut().for_each(|value| *value = value.tanh());
        routed
    }

    /// The MLP, whose gates become 0 below a cutoff of their row.
    fn sparse_feed_forward(&self, layer: usize, input: &[f32]) -> Vec<f32> {
        let product = |name: &str, input: &[f32]| self.multiply(&format!("layers.{layer}.mlp.{name}.weight"), input);
        let (mut gate, up) = (product("gate_proj", input), product("up_proj", input));
        let width = gate.len() / (input.len() / self.hidden_size());
        if let Some(deviations) = self.config.gate_deviations[layer] {
            for row in gate.chunks_exact_mut(width) {
                let mean = row.iter().sum::<f32>() / width as f32;
                let variance = row.iter().map(|gate| (gate - mean) * (gate - mean)).sum::<f32>() / width as f32;
                let cutoff = mean + variance.sqrt() * deviations;
                row.iter_mut().for_each(|gate| *gate = (*gate - cutoff).max(0.0));
            }
        }
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate = activate(self.config.activation, *gate) * up;
        }
        product("down_proj", &gate)
    }

    fn hidden_size(&self) -> usize {
        self.weights.get("norm.weight").values.len()
    }
}

/// `rows` with the root mean square that those of `target` have.
fn with_magnitude_of(target: &[f32], mut rows: Vec<f32>, hidden: usize) -> Vec<f32> {
    let mean_square = |row: &[f32]| row.iter().map(|value| value * value).sum::<f32>() / hidden as f32;
    for (row, target) in rows.chunks_exact_mut(hidden).zip(target.chunks_exact(hidden)) {
        let factor = mean_square(target).sqrt() / mean_square(row).max(1e-5).sqrt();
        row.iter_mut().for_each(|value| *value *= factor);
    }
    rows
}

/// Where the standard normal distribution has this share below: the inverse of its cumulative function by P. J. Acklam's rational
/// approximation for the middle and the upper tail, whose relative error is 1.2e-9.
pub fn normal_quantile(share: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.38357751867269e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 6] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
        1.0,
    ];
    let polynomial = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, next| sum * x + next);
    assert!((0.02425..=0.97575).contains(&share), "the reference's models have other shares of gates than {share}");
    let (distance, square) = (share - 0.5, (share - 0.5) * (share - 0.5));
    polynomial(&A, square) * distance / polynomial(&B, square)
}
