//! Attention over the paged KV cache, softmax taken online, tile by tile of cached tokens.
//!
//! Formula: `o = Σ_t softmax_t(cap(q·k_t)) · v_t` over the tokens `t` that a row may see: those of its own sequence up to its
//! own position and, in a windowed layer, no more than `window` of them. q arrives scaled. The running maximum and sum
//! follow Milakov and Gimelshein 2018 and FlashAttention (Dao et al. 2022).
//!
//! A workgroup takes one KV head, a few rows and a part of the tokens, so that the heads of a GQA group share each read of
//! K and V. While scoring, a lane is a cached token; while mixing, a lane is a chunk of dimensions and a share of the
//! tokens. With room for one split it writes the result; with more each leaves a maximum, a sum and a mix for `combine`.
//!
//! Where each row of the step is the only one of its sequence, what `heads` does can be done here, as a prologue: every
//! workgroup prepares its own query heads, and split 0 also makes K and V of the newest token, writes them to the cache
//! for later steps and begins with that token. No other workgroup reads that cell in this step.

use serde::{Deserialize, Serialize};

use crate::activations::{ActivationFormat, MIXED_FACTOR, encode_divided_row};
use crate::cache::{CacheLayout, Cell, KvFormat, Side};
use crate::combine::{MASKED, partial_quads, result_role, result_values};
use crate::heads::HeadsSpec;
use crate::spec::{BindingSpec, Number, Role, bindings, declarations};
use crate::split::Split;
use crate::template::{Values, render};

/// Parameters of one attention pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// Query heads of one KV head.
    pub gqa: usize,
    pub cache: CacheLayout,
    pub kv_group: usize,
    pub split: Split,
    /// Query heads of one KV head that a workgroup takes; divides `gqa`.
    pub heads_per_group: usize,
    /// Words of K, and of V, that a lane has under way at a time, at most.
    pub words_ahead: usize,
    /// Rows of `input`: q as `heads` leaves it or, with a prologue, q, k and v.
    pub input_stride: usize,
    /// What `heads` would do, in its place: one part each for q, k and v.
    pub prologue: Option<HeadsSpec>,
    pub softcap: Option<Number>,
    pub output_stride: usize,
    /// Of the result, where `split` has no room for parts of one.
    pub output: ActivationFormat,
    pub subgroup_size: u32,
}

/// Cached tokens that are scored at a time, and lanes of a workgroup.
pub const TILE: usize = 64;
/// Runs of a tile whose greatest scores are found apart, without subgroups.
const PARTS: usize = 8;

impl AttentionSpec {
    /// (row, head) pairs that a workgroup carries.
    fn queries(&self) -> usize {
        self.split.rows_per_group * self.heads_per_group
    }

    fn n_heads(&self) -> usize {
        self.cache.n_kv_heads * self.gqa
    }

    /// Lanes that share a chunk of dimensions, each with every so-many-th token of a page.
    fn token_shares(&self) -> usize {
        let lanes = TILE / self.cache.chunks();
        (lanes + 1).next_power_of_two().div_ceil(2).min(self.cache.page_tokens)
    }

    fn parts(&self) -> usize {
        if self.subgroup_size > 0 { TILE.div_ceil(self.subgroup_size as usize) } else { PARTS }
    }

    /// Vectors of four in a word of the cache.
    fn chunk_quads(&self) -> usize {
        self.cache.format.chunk() / 4
    }

    /// Words of K that are read together; divides those of a token.
    fn key_unroll(&self) -> usize {
        self.unroll(self.cache.chunks())
    }

    /// The same of V; divides the tokens of a tile that a lane mixes.
    fn value_unroll(&self) -> usize {
        self.unroll(TILE / self.token_shares())
    }

    fn unroll(&self, words: usize) -> usize {
        (1..=self.words_ahead).rev().find(|n| words.is_multiple_of(*n)).unwrap_or(1)
    }

    /// Workgroup memory, the prologue's and the reductions' included.
    pub fn shared_bytes(&self) -> usize {
        // Heads with the newest key and value, and their turns.
        let prologue = self
            .prologue
            .as_ref()
            .map_or(0, |heads| (self.heads_per_group + 2) * self.cache.padded_dim() + heads.rotary_dim);
        let mixed = 4 * TILE * self.chunk_quads();
        4 * (self.queries() * (self.cache.padded_dim() + TILE + self.parts()) + mixed + prologue + 2 * TILE)
    }

    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        let result = if self.split.is_partial() { Role::Partials } else { result_role(self.output) };
        let factors = self.prologue.iter().flat_map(HeadsSpec::factors);
        let roles = [Role::Step, Role::Input, result, Role::Keys, Role::Values];
        let mut list = bindings(roles.into_iter().chain(factors));
        for binding in &mut list {
            // Without a prologue the cache is only read.
            binding.writes &= binding.role == result || self.prologue.is_some();
        }
        list
    }

    pub(crate) fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.n_heads() / self.heads_per_group, rows.div_ceil(self.split.rows_per_group), self.split.splits]
    }

    pub(crate) fn wgsl(&self) -> String {
        assert_eq!(self.gqa % self.heads_per_group, 0, "workgroups share a KV head evenly");
        assert_eq!(self.split.tile, TILE, "a lane scores a token");
        assert!(self.words_ahead > 0, "a lane has something under way");
        assert_eq!(TILE % self.cache.page_tokens, 0, "a tile is whole pages");
        assert!(self.cache.chunks() <= TILE, "a lane takes a chunk of a head");
        assert!((1..=self.split.room).contains(&self.split.splits), "splits have room for what they leave");
        assert_eq!(self.split.newest_apart, self.prologue.is_some(), "a prologue has the newest token at hand");
        let values = Values::default()
            .size("N_HEADS", self.n_heads())
            .size("GQA", self.gqa)
            .size("HEADS", self.heads_per_group)
            .size("QUERIES", self.queries())
            .size("KV_GROUP", self.kv_group)
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WORKGROUP", TILE)
            .size("SUBGROUP", self.subgroup_size as usize)
            .size("SHARES", self.token_shares())
            .size("PARTS", self.parts())
            .size("CHUNK_QUADS", self.chunk_quads())
            .size("PARTIAL_QUADS", partial_quads(self.cache.head_dim))
            .size("KEY_UNROLL", self.key_unroll())
            .size("VALUE_UNROLL", self.value_unroll())
            .number("CAP", self.softcap.map_or(0.0, Number::get))
            .number("MASKED", MASKED)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .flag("SOFTCAP", self.softcap.is_some())
            .flag("PARTIAL", self.split.is_partial())
            .flag("FOLD", self.prologue.is_some())
            .text("WORKGROUP_SIZE", TILE)
            .text("DECLARATIONS", declarations(&self.bindings()));
        let values = self.cache.values(self.split.values(values));
        let values = result_values(self.output, self.n_heads(), self.cache.head_dim, values);
        let values = match &self.prologue {
            Some(heads) => self.prologue_values(heads, values),
            None => values.flag("QUERY_NORM", false).flag("KEY_NORM", false).flag("ROPE", false).text("NEWEST", ""),
        };
        render(include_str!("wgsl/attention.wgsl"), &self.texts(values))
    }

    fn prologue_values(&self, heads: &HeadsSpec, values: Values) -> Values {
        assert!(heads.is_qkv(), "a prologue makes q, k and v");
        let values = values
            .size("VECTORS", self.heads_per_group + 2)
            .number("QUERY_SCALE", heads.parts[0].scale.get())
            .text("NEWEST", self.newest_wgsl());
        heads.values(values)
    }

    /// The inner loops, a copy of each line for each query, so that sums stay in registers.
    fn texts(&self, values: Values) -> Values {
        let slots: Vec<usize> = (0..TILE / self.cache.page_tokens).collect();
        let page = |i: &usize| {
            let first = i * self.cache.page_tokens;
            format!("        let page_{i} = head_of_page(table, tile + clamp({first}u, low, high - 1u), kv_head);\n")
        };
        values
            .text("PAGES", slots.iter().map(page).collect::<String>())
            .text("PAGE_OF_SLOT", self.page_of("slot"))
            .text("STATE", self.state_wgsl())
            .text("SCORES", self.each(|q| format!("        var score_{q} = 0.0;\n")))
            .text("SCORE", self.score_wgsl())
            .text("SCORED", self.scored_wgsl())
            .text("WEIGH", self.weigh_wgsl())
            .text("MIX", self.mix_wgsl())
            .text("FOUND", self.found_wgsl())
    }

    /// The page, of those of a tile, that holds its token `slot`.
    fn page_of(&self, slot: &str) -> String {
        let page_tokens = self.cache.page_tokens;
        (1..TILE / page_tokens).fold("page_0".into(), |before: String, i| {
            format!("select(page_{i}, {before}, {slot} < {}u)", i * page_tokens)
        })
    }

    fn each(&self, code: impl Fn(usize) -> String) -> String {
        (0..self.queries()).map(code).collect()
    }

    fn each_quad(&self, code: impl Fn(usize) -> String) -> String {
        (0..self.chunk_quads()).map(code).collect()
    }

    fn state_wgsl(&self) -> String {
        let rows = (0..self.split.rows_per_group).map(|row| {
            format!("    let position_{row} = step.rows[min(first_row + {row}u, step.header.n_rows - 1u)].position;\n")
        });
        let state = self.each(|q| {
            let mix = self.each_quad(|j| format!("    var mix_{j}_{q} = vec4<f32>(0.0);\n"));
            format!("    var greatest_{q} = MASKED;\n    var total_{q} = 0.0;\n{mix}")
        });
        // With one row the span says it all.
        if self.split.rows_per_group == 1 { state } else { rows.collect::<String>() + &state }
    }

    /// The newest token is the first: its score is the greatest so far, and its weight 1.
    fn newest_wgsl(&self) -> String {
        let newest = self.each_quad(|j| {
            format!(
                "        let key_{j} = {};\n        let value_{j} = value.scale * {};\n",
                self.cache.unpacked_wgsl("key.words", j),
                self.cache.unpacked_wgsl("value.words", j)
            )
        });
        let begin = self.each(|q| {
            let products: Vec<String> = (0..self.chunk_quads())
                .map(|j| format!("dot(key_{j}, queries[{q}u * QUADS + chunk * CHUNK_QUADS + {j}u])"))
                .collect();
            let mix = self
                .each_quad(|j| format!("        mix_{j}_{q} = select(vec4<f32>(0.0), value_{j}, lane < CHUNKS);\n"));
            format!(
                "        let part_{q} = select(0.0, key.scale * ({}), lane < CHUNKS);\n        \
                 greatest_{q} = capped(workgroup_sum(part_{q}, lane));\n        \
                 total_{q} = select(0.0, 1.0, lane == 0u);\n{mix}",
                products.join(" + ")
            )
        });
        newest + &begin
    }

    /// Every query's score against this lane's token, one read of K for all of them.
    fn score_wgsl(&self) -> String {
        let words: String = (0..self.key_unroll())
            .map(|u| format!("            let key_{u} = keys[key_first + (c + {u}u) * PAGE_TOKENS];\n"))
            .collect();
        let products =
            (0..self.key_unroll()).flat_map(|u| (0..self.chunk_quads()).map(move |j| (u, j))).map(|(u, j)| {
                let quad =
                    format!("            let key_{u}_{j} = {};\n", self.cache.unpacked_wgsl(&format!("key_{u}"), j));
                let step = self.each(|q| {
                    let at = format!("{q}u * QUADS + (c + {u}u) * CHUNK_QUADS + {j}u");
                    format!("            score_{q} += dot(key_{u}_{j}, queries[{at}]);\n")
                });
                quad + &step
            });
        words + &products.collect::<String>()
    }

    /// Scores of what a query sees, and the greatest of each part of the tile.
    fn scored_wgsl(&self) -> String {
        let scale = if self.cache.format == KvFormat::Int8 { " * key_scale" } else { "" };
        self.each(|q| {
            let row = q / self.heads_per_group;
            let seen = if self.split.rows_per_group == 1 {
                "inside".into()
            } else {
                format!("inside && sees(position_{row}, tile + lane)")
            };
            let most = if self.subgroup_size > 0 {
                format!(
                    "        let most_{q} = subgroupMax(seen_{q});\n        \
                     if (lane % SUBGROUP == 0u) {{\n            parts[{q}u * PARTS + lane / SUBGROUP] = most_{q};\n        }}\n"
                )
            } else {
                format!("        weights[{q}u * TILE + lane] = seen_{q};\n")
            };
            format!("        let seen_{q} = select(MASKED, capped(score_{q}{scale}), {seen});\n{most}")
        })
    }

    /// The new maximum, what it makes of the sums so far, and the weight of this lane's token.
    fn weigh_wgsl(&self) -> String {
        let scale = if self.cache.format == KvFormat::Int8 { " * value_scale" } else { "" };
        self.each(|q| {
            let parts: String = (0..self.parts())
                .map(|i| format!("        next_{q} = max(next_{q}, parts[{q}u * PARTS + {i}u]);\n"))
                .collect();
            let mix = self.each_quad(|j| format!("        mix_{j}_{q} *= rescale_{q};\n"));
            format!(
                "        var next_{q} = greatest_{q};\n{parts}        \
                 let rescale_{q} = exp(greatest_{q} - next_{q});\n        greatest_{q} = next_{q};\n        \
                 // A row that sees nothing yet has MASKED as its maximum, and weighs nothing.\n        \
                 let weight_{q} = select(exp(seen_{q} - next_{q}), 0.0, seen_{q} == MASKED);\n        \
                 total_{q} = total_{q} * rescale_{q} + weight_{q};\n        \
                 weights[{q}u * TILE + lane] = weight_{q}{scale};\n{mix}"
            )
        })
    }

    fn mix_wgsl(&self) -> String {
        let loads: String = (0..self.value_unroll())
            .map(|u| {
                let page = self.page_of(&format!("slot_{u}"));
                format!(
                    "            let token_{u} = t + {u}u * SHARES + share;\n            \
                     let slot_{u} = clamp(token_{u}, low, high - 1u);\n            \
                     let value_{u} = values[value_at({page}, slot_{u} % PAGE_TOKENS, chunk)];\n"
                )
            })
            .collect();
        let sums = (0..self.value_unroll()).map(|u| {
            let quads = self.each_quad(|j| {
                format!("            let value_{u}_{j} = {};\n", self.cache.unpacked_wgsl(&format!("value_{u}"), j))
            });
            let add = self.each(|q| {
                let weight = format!("            let weight_{u}_{q} = weights[{q}u * TILE + token_{u}];\n");
                weight + &self.each_quad(|j| format!("            mix_{j}_{q} += weight_{u}_{q} * value_{u}_{j};\n"))
            });
            quads + &add
        });
        loads + &sums.collect::<String>()
    }

    /// What query `q` has found, picked by its number: one copy of what follows serves all.
    fn found_wgsl(&self) -> String {
        let pick = |begin: &str, q: usize| {
            let mix = self.each_quad(|j| format!("{begin}mix_{j}_found = mix_{j}_{q};\n"));
            format!("{mix}{begin}greatest = greatest_{q};\n{begin}total = total_{q};\n")
        };
        let first = pick("        var ", 0);
        let others =
            (1..self.queries()).map(|q| format!("        if (q == {q}u) {{\n{}        }}\n", pick("            ", q)));
        let leave = self.each_quad(|j| format!("        mixed[lane * CHUNK_QUADS + {j}u] = mix_{j}_found;\n"));
        first + &others.collect::<String>() + &leave
    }
}

/// Buffers of the twin; caches as `heads` writes them.
pub struct AttentionInputs<'a> {
    /// As `heads` leaves them, in rows of `query_stride`.
    pub queries: &'a [f32],
    pub query_stride: usize,
    pub keys: &'a [u32],
    pub values: &'a [u32],
    pub positions: &'a [u32],
    pub block_table: &'a [u32],
}

/// The kernel in plain loops, all rows of one sequence, behind its prologue: two passes over the tokens of each split, no
/// online rescaling. `output` is in words: the partial results, or rows of the spec's format.
pub fn twin(spec: &AttentionSpec, inputs: &AttentionInputs, output: &mut [u32]) {
    let dim = spec.cache.head_dim;
    let partial_len = 4 * partial_quads(dim);
    for (row, &position) in inputs.positions.iter().enumerate() {
        let position = position as usize;
        let group = row / spec.split.rows_per_group * spec.split.rows_per_group;
        let group_rows = &inputs.positions[group..inputs.positions.len().min(group + spec.split.rows_per_group)];
        let parts = spec.split.parts(group_rows);
        let mut result = Vec::new();
        for head in 0..spec.n_heads() {
            let query = &inputs.queries[row * inputs.query_stride + head * dim..][..dim];
            for (split, part) in parts.iter().enumerate() {
                let newest = (split == 0 && spec.split.newest_apart).then_some(position);
                let seen = |token: &usize| {
                    *token <= position && spec.split.window.is_none_or(|window| token + window > position)
                };
                let tokens: Vec<usize> = part.clone().filter(seen).chain(newest).collect();
                let (mixed, greatest, total) = mix(spec, inputs, query, head / spec.gqa, &tokens);
                if spec.split.is_partial() {
                    let at = ((row * spec.n_heads() + head) * spec.split.room + split) * partial_len;
                    let mut partial = mixed;
                    partial.resize(partial_len - 4, 0.0);
                    partial.extend([greatest, total, parts.len() as f32, 0.0]);
                    output[at..at + partial_len]
                        .copy_from_slice(&partial.iter().map(|x| x.to_bits()).collect::<Vec<u32>>());
                } else {
                    result.extend(mixed.iter().map(|x| x / total));
                }
            }
        }
        if !spec.split.is_partial() {
            let words = encode_divided_row(spec.output, &result, MIXED_FACTOR);
            output[row * spec.output_stride..][..words.len()].copy_from_slice(&words);
        }
    }
}

/// Σ e^(score - greatest) · v over `tokens`, the greatest score, and Σ e^(score - greatest).
fn mix(
    spec: &AttentionSpec,
    inputs: &AttentionInputs,
    query: &[f32],
    kv_head: usize,
    tokens: &[usize],
) -> (Vec<f32>, f32, f32) {
    let page_tokens = spec.cache.page_tokens;
    let cell = |token: usize| Cell {
        page: inputs.block_table[token / page_tokens] as usize,
        kv_head,
        slot: token % page_tokens,
    };
    let score = |token: &usize| {
        let key = |i: usize| spec.cache.get(Side::Keys, inputs.keys, cell(*token), i);
        let score: f32 = query.iter().enumerate().map(|(i, x)| x * key(i)).sum();
        spec.softcap.map_or(score, |cap| cap.get() * (score / cap.get()).tanh())
    };
    let scores: Vec<f32> = tokens.iter().map(score).collect();
    let greatest = scores.iter().copied().fold(MASKED, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - greatest).exp()).collect();
    let value = |token: usize, i: usize| spec.cache.get(Side::Values, inputs.values, cell(token), i);
    let mixed = |i: usize| weights.iter().zip(tokens).map(|(weight, &token)| weight * value(token, i)).sum();
    ((0..query.len()).map(mixed).collect(), greatest, weights.iter().sum())
}
