//! Attention over the paged KV cache, softmax taken online, tile by tile of cached tokens.
//!
//! Formula: `o = Σ_t softmax_t(cap(q·k_t)) · v_t` over the tokens `t` that a row may see: those of its own sequence up to its
//! own position and, in a windowed layer, no more than `window` of them. q arrives scaled. The running maximum and sum
//! follow Milakov and Gimelshein 2018 and FlashAttention (Dao et al. 2022).
//!
//! A workgroup takes one KV head and a few rows, so that the heads of a GQA group share each read of K and V. While
//! scoring, a lane is a cached token; while mixing, a lane is a pair of dimensions (and a share of the tokens, where
//! there are more lanes than pairs). Cache pages are drawn in `heads`.

use half::f16;
use serde::{Deserialize, Serialize};

use crate::spec::{BindingSpec, Number, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one attention pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttentionSpec {
    pub n_kv_heads: usize,
    /// Query heads of one KV head.
    pub gqa: usize,
    pub head_dim: usize,
    pub input_stride: usize,
    pub output_stride: usize,
    pub window: Option<usize>,
    pub softcap: Option<Number>,
    pub page_tokens: usize,
    pub kv_group: usize,
    /// Query heads of one KV head that a workgroup takes; divides `gqa`.
    pub heads_per_group: usize,
    /// Rows of the step in one workgroup; they belong to one sequence.
    pub rows_per_group: usize,
}

/// Lanes, and cached tokens in a tile.
const WORKGROUP: usize = 64;

impl AttentionSpec {
    /// (row, head) pairs that a workgroup carries.
    fn queries(&self) -> usize {
        self.rows_per_group * self.heads_per_group
    }

    /// Pairs of dimensions that one lane mixes.
    fn pairs_per_lane(&self) -> usize {
        (self.head_dim / 2).div_ceil(WORKGROUP)
    }

    /// Lanes that share a pair, each with every so-many-th token.
    fn token_shares(&self) -> usize {
        (WORKGROUP / (self.head_dim / 2)).max(1)
    }

    pub fn shared_bytes(&self) -> usize {
        let queries = self.queries();
        4 * queries * (self.head_dim + WORKGROUP + 3) + 8 * WORKGROUP * usize::from(self.token_shares() > 1)
    }

    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        let roles = [Role::Step, Role::Input, Role::Output, Role::Keys, Role::Values];
        let mut list = bindings(roles);
        for binding in &mut list {
            // The cache is only read here.
            binding.writes = binding.role == Role::Output;
        }
        list
    }

    pub(crate) fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.n_kv_heads * self.gqa / self.heads_per_group, rows.div_ceil(self.rows_per_group), 1]
    }

    pub(crate) fn wgsl(&self) -> String {
        assert_eq!(self.head_dim % 2, 0, "dimensions come in pairs");
        assert_eq!(self.gqa % self.heads_per_group, 0, "workgroups share a KV head evenly");
        assert_eq!(WORKGROUP % self.page_tokens, 0, "a tile is whole pages");
        let values = Values::default()
            .size("KV_HEADS", self.n_kv_heads)
            .size("GQA", self.gqa)
            .size("HEADS", self.heads_per_group)
            .size("HEAD_DIM", self.head_dim)
            .size("PAIRS", self.head_dim / 2)
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WINDOW", self.window.unwrap_or(0))
            .size("PAGE_TOKENS", self.page_tokens)
            .size("KV_GROUP", self.kv_group)
            .size("ROWS", self.rows_per_group)
            .size("QUERIES", self.queries())
            .size("TILE", WORKGROUP)
            .size("TOKEN_SHARES", self.token_shares())
            .number("CAP", self.softcap.map_or(0.0, Number::get))
            .flag("WINDOWED", self.window.is_some())
            .flag("SOFTCAP", self.softcap.is_some())
            .flag("SHARED_PAIRS", self.token_shares() > 1)
            .text("WORKGROUP_SIZE", WORKGROUP)
            .text("DECLARATIONS", declarations(&self.bindings()))
            .text("SCORE", self.score_wgsl())
            .text("MIX_STATE", self.each(|q, j| format!("    var mix_{q}_{j} = vec2<f32>(0.0);\n")))
            .text("MIX_RESCALE", self.each(|q, j| format!("        mix_{q}_{j} *= rescale[{q}u];\n")))
            .text("MIX", self.mix_wgsl())
            .text("STORE", self.each(|q, j| format!("    store(lane, {q}u, {j}u, mix_{q}_{j}, first_row);\n")));
        render(include_str!("wgsl/attention.wgsl"), &values)
    }

    /// Code for each (query, pair of this lane).
    fn each(&self, code: impl Fn(usize, usize) -> String) -> String {
        (0..self.queries())
            .flat_map(|q| (0..self.pairs_per_lane()).map(move |j| (q, j)))
            .map(|(q, j)| code(q, j))
            .collect()
    }

    /// Every query's score against this lane's token, one read of K for all of them.
    fn score_wgsl(&self) -> String {
        let all = |code: fn(usize) -> String| (0..self.queries()).map(code).collect::<String>();
        let start = all(|q| format!("            var score_{q} = 0.0;\n"));
        let step = all(|q| format!("                score_{q} += dot(k, queries[{q}u * PAIRS + i]);\n"));
        let end = all(|q| {
            format!("            scores[{q}u * TILE + lane] = visible_score({q}u, score_{q}, token, first_row);\n")
        });
        format!(
            "{start}            for (var i = 0u; i < PAIRS; i++) {{\n                \
             let k = unpack2x16float(keys[at + i * PAGE_TOKENS]);\n{step}            }}\n{end}"
        )
    }

    fn mix_wgsl(&self) -> String {
        (0..self.pairs_per_lane())
            .map(|j| {
                let load = format!("            let v_{j} = unpack2x16float(values[at + {}u]);\n", j * WORKGROUP);
                let add = |q: usize| format!("            mix_{q}_{j} += scores[{q}u * TILE + t] * v_{j};\n");
                load + &(0..self.queries()).map(add).collect::<String>()
            })
            .collect()
    }
}

/// Buffers of the twin; caches as `heads` writes them.
pub struct AttentionInputs<'a> {
    pub queries: &'a [f32],
    pub keys: &'a [u32],
    pub values: &'a [u32],
    pub positions: &'a [u32],
    pub block_table: &'a [u32],
}

/// The kernel in plain loops, all rows of one sequence: two passes, no online rescaling.
pub fn twin(spec: &AttentionSpec, inputs: &AttentionInputs, output: &mut [f32]) {
    let dim = spec.head_dim;
    let half_of = |word: u32, i: usize| f16::from_bits((word >> (16 * (i % 2))) as u16).to_f32();
    for (row, &position) in inputs.positions.iter().enumerate() {
        let position = position as usize;
        let first = spec.window.map_or(0, |window| (position + 1).saturating_sub(window));
        for head in 0..spec.n_kv_heads * spec.gqa {
            let kv_head = head / spec.gqa;
            let cell = |token: usize| {
                let page = inputs.block_table[token / spec.page_tokens] as usize;
                (page * spec.n_kv_heads + kv_head, token % spec.page_tokens)
            };
            let query = &inputs.queries[row * spec.input_stride + head * dim..][..dim];
            let score = |token: usize| {
                let (page_head, slot) = cell(token);
                let key = |i: usize| half_of(inputs.keys[(page_head * (dim / 2) + i / 2) * spec.page_tokens + slot], i);
                let score: f32 = (0..dim).map(|i| query[i] * key(i)).sum();
                spec.softcap.map_or(score, |cap| cap.get() * (score / cap.get()).tanh())
            };
            let scores: Vec<f32> = (first..=position).map(score).collect();
            let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|score| (score - greatest).exp()).collect();
            let total: f32 = weights.iter().sum();
            for i in 0..dim {
                let value = |token: usize| {
                    let (page_head, slot) = cell(token);
                    half_of(inputs.values[(page_head * spec.page_tokens + slot) * (dim / 2) + i / 2], i)
                };
                let mixed: f32 = weights.iter().zip(first..).map(|(weight, token)| weight * value(token)).sum();
                output[row * spec.output_stride + head * dim + i] = mixed / total;
            }
        }
    }
}
