//! The independent answer: a language model as plain loops over f32, read straight from a Hugging Face folder.
//!
//! It shares no code with the compiler, the kernels or the runtime, so that agreement means something. It is written
//! to be read beside a paper, not to be fast: every matrix product is three loops, nothing is cached between tokens,
//! and the whole sequence is computed again for each call. Begin at [`Reference::hidden`]; `config` says what the
//! folder requires, `rope` how positions become angles, `weights` where numbers come from, `compare` how two
//! answers are compared.
//!
//! Families: llama, mistral, ministral, ministral3, qwen2, qwen3, gemma2, gemma3, gemma3n, gemma4, olmo2, olmo3, glm, glm4, gpt_oss, granite, granitemoehybrid without
//! its Mamba, phi3, smollm3, and with experts mixtral, qwen2_moe, qwen3_moe and olmoe; qwen3_vl, qwen3_vl_moe; with gated delta nets qwen3_next, qwen3_5 and
//! qwen3_5_moe; lfm2 and lfm2_moe; with latent attention deepseek_v2, deepseek_v3 and glm4_moe_lite; of a multimodal model its text
//! part.
//! Inputs are ours, so whatever is wrong with them is a panic that names it.

mod compare;
mod config;
mod delta;
mod gemma3n;
mod gemma4;
mod golden;
mod latent;
mod mxfp4;
mod rope;
mod short_conv;
mod tensor;
mod weights;

use std::collections::BTreeMap;
use std::path::Path;

pub use compare::{mean_kl_divergence, relative_error};
pub use golden::{Golden, PredictorGolden, read_golden, read_logits, read_predictor_golden};

pub use weights::{Weights, values_as_f32};

use config::{Activation, Config, Experts};
use tensor::Tensor;

/// A model in f32: its configuration and all tensors of its text part.
pub struct Reference {
    config: Config,
    weights: Weights,
}

/// The newest keys and values of layers with each window, for layers that share those of another.
type Caches = BTreeMap<Option<usize>, (Vec<f32>, Vec<f32>)>;

impl Reference {
    /// Reads `config.json` and the safetensors (one file or shards; f32, f16 or bf16) of `folder`.
    ///
    /// # Panics
    /// If a file is missing or malformed, or the family or an option is not supported.
    pub fn open(folder: impl AsRef<Path>) -> Self {
        let folder = folder.as_ref();
        Self { config: Config::read(&folder.join("config.json")), weights: Weights::read(folder) }
    }

    /// How many logits a token has: the rows of the output matrix.
    pub fn vocab_size(&self) -> usize {
        self.weights.get(self.output_matrix()).shape[0]
    }

    /// Logits of every position, (tokens, vocab) in row order.
    ///
    /// # Panics
    /// If a token is not in the vocabulary, or a tensor is missing or of another shape than the config's.
    pub fn logits(&self, tokens: &[i32]) -> Vec<f32> {
        let mut logits = self.multiply(self.output_matrix(), &self.hidden(tokens));
        logits.iter_mut().for_each(|logit| *logit /= self.config.logits_divisor);
        if let Some(cap) = self.config.final_softcap {
            logits.iter_mut().for_each(|logit| *logit = softcap(*logit, cap));
        }
        logits
    }

    /// Hidden states of every position after the final norm, (tokens, hidden) in row order.
    ///
    /// # Panics
    /// In the same cases as [`Reference::logits`].
    pub fn hidden(&self, tokens: &[i32]) -> Vec<f32> {
        if let Some(streams) = self.config.streams {
            return self.hidden_of_streams(tokens, streams);
        }
        let mut residual = self.embed(tokens);
        let (norms, multiplier) = (&self.config.norms, self.config.residual_multiplier);
        let mut caches = Caches::new();
        let layer_inputs = self.layer_inputs(tokens, &residual);
        for layer in 0..self.config.layers {
            let norm = |name: Option<&str>, rows: Vec<f32>| match name {
                Some(name) => self.norm(&format!("layers.{layer}.{name}.weight"), &rows),
                None => rows,
            };
            let normed = norm(norms.before_attention, residual.clone());
            let attended = match &self.config.delta {
                Some(delta) if self.config.recurrent[layer] => self.delta_net(layer, delta, &normed),
                None if self.config.recurrent[layer] => self.short_conv(layer, &normed),
                None if self.config.latent.is_some() => self.latent_attention(layer, &normed),
                _ => self.attention(layer, &normed, &mut caches),
            };
            add(&mut residual, &norm(norms.after_attention, attended), multiplier);
            let transformed = norm(norms.before_feed_forward, residual.clone());
            let transformed = match &self.config.experts {
                Some(experts) if experts.beside => self.mlp_beside_experts(layer, experts, &transformed, &residual),
                _ => self.feed_forward(layer, &transformed),
            };
            add(&mut residual, &norm(norms.after_feed_forward, transformed), multiplier);
            if let Some(inputs) = &layer_inputs {
                let projected = self.gated_input(layer, &residual, inputs);
                add(&mut residual, &projected, multiplier);
            }
            if let Some(scalar) = self.weights.find(&format!("layers.{layer}.layer_scalar")) {
                residual.iter_mut().for_each(|value| *value *= scalar.values[0]);
            }
        }
        self.norm("norm.weight", &residual)
    }

    /// The `count` tokens that follow `tokens` when the likeliest is taken each time; of equals, the first.
    pub fn greedy(&self, tokens: &[i32], count: usize) -> Vec<i32> {
        let mut sequence = tokens.to_vec();
        for _ in 0..count {
            let logits = self.logits(&sequence);
            let last = &logits[logits.len() - self.vocab_size()..];
            let best = (0..last.len()).reduce(|best, next| if last[next] > last[best] { next } else { best });
            sequence.push(best.expect("the vocabulary is not empty") as i32);
        }
        sequence.split_off(tokens.len())
    }

    /// (tokens, hidden)
    fn embed(&self, tokens: &[i32]) -> Vec<f32> {
        let table = self.weights.get("embed_tokens.weight");
        let hidden = table.shape[1];
        let row = |&token: &i32| {
            let start = usize::try_from(token).expect("token ids are not negative") * hidden;
            table.values[start..start + hidden].iter().map(|value| value * self.config.embedding_scale)
        };
        tokens.iter().flat_map(row).collect()
    }

    /// Root mean square norm of every run of as many values as the weight `name` has.
    fn norm(&self, name: &str, input: &[f32]) -> Vec<f32> {
        let weight = &self.weights.get(name).values;
        let mut output = Vec::with_capacity(input.len());
        for row in input.chunks_exact(weight.len()) {
            let mean_square = row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
            let scale = 1.0 / (mean_square + self.config.norm_epsilon).sqrt();
            output
                .extend(row.iter().zip(weight).map(|(value, w)| value * scale * (w + self.config.norm_weight_offset)));
        }
        output
    }

    /// (tokens, hidden) to (tokens, hidden)
    fn attention(&self, layer: usize, input: &[f32], caches: &mut Caches) -> Vec<f32> {
        let heads = self.config.heads;
        let (kv_heads, head_dim) = self.heads_of(layer);
        let window = self.config.windows[layer];
        let is_shared = layer + self.config.kv_shared_layers >= self.config.layers;
        let (mut query, mut key, mut value) = match is_shared {
            true => (self.multiply(&format!("layers.{layer}.self_attn.q_proj.weight"), input), Vec::new(), Vec::new()),
            false => self.query_key_value(layer, input),
        };
        let mut gate = Vec::new();
        if self.config.delta.is_some() {
            // Each head's query is followed by its gate.
            (query, gate) = split_rows(&query, head_dim, head_dim);
        }
        if self.config.query_and_key_are_normed {
            query = self.norm(&format!("layers.{layer}.self_attn.q_norm.weight"), &query);
            if !is_shared {
                key = self.norm(&format!("layers.{layer}.self_attn.k_norm.weight"), &key);
            }
        }
        if self.config.values_are_normed {
            for head in value.chunks_exact_mut(head_dim) {
                let mean_square = head.iter().map(|value| value * value).sum::<f32>() / head_dim as f32;
                head.iter_mut().for_each(|value| *value /= (mean_square + self.config.norm_epsilon).sqrt());
            }
        }
        let tokens = query.len() / (heads * head_dim);
        let rope = if window.is_some() { &self.config.sliding_rope } else { &self.config.full_rope };
        if self.config.rotated[layer] {
            let (angles, neighbours) = (rope.angles(tokens), self.config.rotated_pairs_are_neighbours);
            rope::rotate(&mut query, &angles, heads, head_dim, neighbours);
            rope::rotate(&mut key, &angles, kv_heads, head_dim, neighbours);
        }
        if let Some((beta, interval)) = self.config.query_growth {
            for (position, query) in query.chunks_exact_mut(heads * head_dim).enumerate() {
                let growth = 1.0 + beta * (1.0 + (position / interval) as f32).ln();
                query.iter_mut().for_each(|value| *value *= growth);
            }
        }

        if !is_shared {
            caches.insert(window, (key, value));
        }
        let (key, value) = &caches[&window];
        let mut mixed = vec![0.0; query.len()]; // (tokens, heads * head_dim)
        for position in 0..tokens {
            let first_seen = window.map_or(0, |window| (position + 1).saturating_sub(window));
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let of_query = (position * heads + head) * head_dim;
                let of_key = |seen: usize| (seen * kv_heads + kv_head) * head_dim;
                let query = &query[of_query..][..head_dim];
                let mut scores: Vec<f32> = (first_seen..=position)
                    .map(|seen| dot(query, &key[of_key(seen)..][..head_dim]) * self.config.attention_scale)
                    .collect();
                if let Some(cap) = self.config.attention_softcap {
                    scores.iter_mut().for_each(|score| *score = softcap(*score, cap));
                }
                if let Some(sinks) = self.weights.find(&format!("layers.{layer}.self_attn.sinks")) {
                    // The sink: one more score, without a value.
                    scores.push(sinks.values[head]);
                }
                softmax(&mut scores);
                let mixed = &mut mixed[of_query..][..head_dim];
                for (seen, probability) in (first_seen..=position).zip(scores) {
                    for (sum, value) in mixed.iter_mut().zip(&value[of_key(seen)..]) {
                        *sum += probability * value;
                    }
                }
            }
        }
        for (value, gate) in mixed.iter_mut().zip(gate) {
            *value *= sigmoid(gate);
        }
        self.multiply(&format!("layers.{layer}.self_attn.o_proj.weight"), &mixed)
    }

    /// Heads of keys, and elements of a head.
    fn heads_of(&self, layer: usize) -> (usize, usize) {
        let full = self.config.full_heads.filter(|_| self.config.windows[layer].is_none());
        full.unwrap_or((self.config.kv_heads, self.config.head_dim))
    }

    /// (tokens, heads * head_dim), (tokens, kv_heads * head_dim), (tokens, kv_heads * head_dim)
    fn query_key_value(&self, layer: usize, input: &[f32]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let (heads, (kv_heads, head_dim)) = (self.config.heads, self.heads_of(layer));
        let has = |name: &str| self.weights.find(&format!("layers.{layer}.self_attn.{name}.weight")).is_some();
        let product = |name: &str| self.multiply(&format!("layers.{layer}.self_attn.{name}.weight"), input);
        if !has("qkv_proj") {
            // Gemma 4 may have keys that are values.
            let value = if has("v_proj") { "v_proj" } else { "k_proj" };
            return (product("q_proj"), product("k_proj"), product(value));
        }
        let (query_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let (query, key_value) = split_rows(&product("qkv_proj"), query_width, 2 * kv_width);
        let (key, value) = split_rows(&key_value, kv_width, kv_width);
        (query, key, value)
    }

    /// (tokens, hidden) to (tokens, hidden)
    fn feed_forward(&self, layer: usize, input: &[f32]) -> Vec<f32> {
        match &self.config.experts {
            Some(experts) if self.config.has_experts[layer] => {
                self.mixture(&format!("layers.{layer}.mlp"), experts, input, input)
            }
            _ => self.dense_feed_forward(layer, input),
        }
    }

    /// Each token's experts, weighted by their probabilities, and Qwen 2's shared one by a gate of its own. The router reads
    /// `routed`.
    fn mixture(&self, block: &str, experts: &Experts, routed: &[f32], input: &[f32]) -> Vec<f32> {
        let router = self.multiply(&self.weights.router(block), routed);
        let scale = self.weights.find(&format!("{block}.router.per_expert_scale"));
        let hidden = input.len() * experts.count / router.len();
        let mut output = Vec::with_capacity(input.len());
        for (token, logits) in input.chunks_exact(hidden).zip(router.chunks_exact(experts.count)) {
            let mut probabilities = logits.to_vec();
            if experts.sigmoid {
                probabilities.iter_mut().for_each(|value| *value = sigmoid(*value));
            } else {
                softmax(&mut probabilities);
            }
            let bias = self.weights.find(&format!("{block}.gate.choice_bias"));
            let rank = |expert: usize| probabilities[expert] + bias.map_or(0.0, |bias| bias.values[expert]);
            let mut likeliest = match experts.groups {
                Some(groups) => groups.kept_experts(experts.count, &rank),
                None => (0..experts.count).collect(),
            };
            likeliest.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)));
            likeliest.truncate(experts.chosen);
            let total: f32 = likeliest.iter().map(|&expert| probabilities[expert]).sum();
            let divisor = if experts.normalized { total } else { 1.0 };
            let mut sum = vec![0.0; hidden];
            for expert in likeliest {
                let [gate, up, down] = self.weights.expert(block, expert);
                let [gate_bias, up_bias, down_bias] = self.weights.expert_bias(block, expert);
                let weight =
                    probabilities[expert] / divisor * experts.factor * scale.map_or(1.0, |scale| scale.values[expert]);
                let product: Vec<f32> = plus(times(&gate, token), &gate_bias)
                    .into_iter()
                    .zip(plus(times(&up, token), &up_bias))
                    .map(|(gate, up)| match self.config.activation {
                        Activation::ClampedSwiGlu => clamped_swiglu(gate, up),
                        activation => activate(activation, gate) * up,
                    })
                    .collect();
                for (sum, value) in sum.iter_mut().zip(plus(times(&down, &product), &down_bias)) {
                    *sum += weight * value;
                }
            }
            output.extend(sum);
        }
        if self.weights.find(&format!("{block}.shared_expert.up_proj.weight")).is_some() {
            let gate = format!("{block}.shared_expert_gate.weight");
            // DeepSeek's has no gate.
            let gates = self.weights.find(&gate).map(|_| self.multiply(&gate, input));
            let shared = self.gated_feed_forward(&format!("{block}.shared_expert"), input);
            for (index, (sum, value)) in output.iter_mut().zip(shared).enumerate() {
                *sum += value * gates.as_ref().map_or(1.0, |gates| sigmoid(gates[index / hidden]));
            }
        }
        output
    }

    /// Gate and up are one matrix in some models, under two names.
    fn dense_feed_forward(&self, layer: usize, input: &[f32]) -> Vec<f32> {
        let joined = [
            (format!("layers.{layer}.mlp.gate_up_proj.weight"), format!("layers.{layer}.mlp.down_proj.weight")),
            (
                format!("layers.{layer}.shared_mlp.input_linear.weight"),
                format!("layers.{layer}.shared_mlp.output_linear.weight"),
            ),
        ];
        let Some((gate_up, down)) = joined.iter().find(|(gate_up, _)| self.weights.find(gate_up).is_some()) else {
            return self.gated_feed_forward(&format!("layers.{layer}.mlp"), input);
        };
        let intermediate = self.weights.get(gate_up).shape[0] / 2;
        let (mut gate, up) = split_rows(&self.multiply(gate_up, input), intermediate, intermediate);
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate = activate(self.config.activation, *gate) * up;
        }
        self.multiply(down, &gate)
    }

    fn gated_feed_forward(&self, block: &str, input: &[f32]) -> Vec<f32> {
        let product = |name: &str, input: &[f32]| self.multiply(&format!("{block}.{name}.weight"), input);
        let (mut gate, up) = (product("gate_proj", input), product("up_proj", input));
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate = activate(self.config.activation, *gate) * up;
        }
        product("down_proj", &gate)
    }

    /// Rows of `input` (rows, in) times the matrix `name` (out, in), plus its bias where there is one: (rows, out).
    fn multiply(&self, name: &str, input: &[f32]) -> Vec<f32> {
        let matrix = self.weights.get(name);
        let bias = self.weights.find(&name.replace(".weight", ".bias"));
        let [outputs, inputs] = matrix.shape[..] else { panic!("{name} is not a matrix: shape {:?}", matrix.shape) };
        assert_eq!(input.len() % inputs, 0, "{name}: its input is no multiple of {inputs} wide");
        let mut output = Vec::with_capacity(input.len() / inputs * outputs);
        for row in input.chunks_exact(inputs) {
            for (index, weights) in matrix.values.chunks_exact(inputs).enumerate() {
                output.push(dot(row, weights) + bias.map_or(0.0, |bias| bias.values[index]));
            }
        }
        output
    }

    /// The embedding serves as output matrix where the config ties them or there is no other.
    fn output_matrix(&self) -> &'static str {
        let has_own = self.weights.find("lm_head.weight").is_some();
        if has_own && !self.config.embeddings_are_tied { "lm_head.weight" } else { "embed_tokens.weight" }
    }
}

/// One row times a matrix (out, in).
fn times(matrix: &Tensor, row: &[f32]) -> Vec<f32> {
    matrix.values.chunks_exact(row.len()).map(|weights| dot(weights, row)).collect()
}

/// A vector plus a bias, which may be empty.
fn plus(mut vector: Vec<f32>, bias: &[f32]) -> Vec<f32> {
    vector.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    vector
}

/// The activation of gpt-oss.
fn clamped_swiglu(gate: f32, up: f32) -> f32 {
    let gate = gate.min(7.0);
    gate * sigmoid(1.702 * gate) * (up.clamp(-7.0, 7.0) + 1.0)
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

fn sigmoid(value: f32) -> f32 {
    1.0 / (1.0 + (-value).exp())
}

fn add(sum: &mut [f32], term: &[f32], multiplier: f32) {
    assert_eq!(sum.len(), term.len(), "a branch returns as many values as the residual has");
    sum.iter_mut().zip(term).for_each(|(sum, term)| *sum += term * multiplier);
}

fn softcap(value: f32, cap: f32) -> f32 {
    (value / cap).tanh() * cap
}

fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

fn activate(activation: Activation, value: f32) -> f32 {
    match activation {
        Activation::Silu => value / (1.0 + (-value).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (value + 0.044715 * value * value * value);
            0.5 * value * (1.0 + inner.tanh())
        }
        Activation::ClampedSwiGlu => unreachable!("gate and up are clamped together"),
    }
}

/// Each row of (rows, left + right) cut in two: (rows, left) and (rows, right).
fn split_rows(matrix: &[f32], left: usize, right: usize) -> (Vec<f32>, Vec<f32>) {
    let rows = matrix.chunks_exact(left + right);
    (rows.clone().flat_map(|row| &row[..left]).copied().collect(), rows.flat_map(|row| &row[left..]).copied().collect())
}
