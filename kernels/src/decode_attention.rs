//! Attention of one row a sequence, from q, k and v to the result in one dispatch: `heads`, `attention` and `combine` for
//! devices whose subgroups hold a head.
//!
//! Formulas, the cache and the splits are those of `attention`. What differs is how little waits: K and V of a subgroup's first
//! tokens are on their way while it norms and turns queries, softmax and mix need no workgroup memory, and the splits of a head
//! count themselves as they leave their parts: the last one puts them together (a part is drawn in `combine`).
//!
//! ```text
//! arrivals   [row][workgroup of heads] u32: splits that have left their part; 0 before and after each dispatch
//! ```

use serde::{Deserialize, Serialize};

use crate::activations::{ACTIVATION_GROUP, ActivationFormat, Precision};
use crate::attention::AttentionSpec;
use crate::cache::{CacheLayout, KvFormat};
use crate::chain;
use crate::combine::{MASKED, partial_quads, result_role, result_values};
use crate::heads::{HeadsSpec, NormOf};
use crate::layout::{WeightFormat, unpacking};
use crate::next::{self, NextSpec};
use crate::spec::{BindingSpec, Number, Role, bindings, declarations_of_chain};
use crate::split::Split;
use crate::sums;
use crate::template::{Values, render};

/// Parameters of one pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DecodeAttentionSpec {
    /// Query heads of one KV head.
    pub gqa: usize,
    /// A subgroup has a lane for each chunk of a head.
    pub cache: CacheLayout,
    pub kv_group: usize,
    /// Of one row; its tile is the workgroup's lanes.
    pub split: Split,
    /// Query heads of one KV head that a workgroup takes; divides `gqa`.
    pub heads_per_group: usize,
    /// Words of K, and of V, that a lane has under way while something else is waited for.
    pub words_ahead: usize,
    /// q, k and v, one part each.
    pub heads: HeadsSpec,
    pub softcap: Option<Number>,
    pub output_stride: usize,
    pub output: ActivationFormat,
    /// The matmul that the result of one row is for: each split has its weights, and the last of a head to arrive does it.
    pub next: Option<NextSpec>,
    /// As `MatMulSpec::clears`.
    pub clears: usize,
    /// Divides a page's tokens.
    pub subgroup_size: u32,
    /// Waits for the dispatch before it, and counts itself for the next, without a barrier: see `chain`.
    pub chained: bool,
}

/// Parts that a lane has under way while it puts them together.
const GATHERED: usize = 8;

impl DecodeAttentionSpec {
    /// The same work as `attention` does it, in one split: its twin is this kernel's.
    pub fn as_attention(&self) -> AttentionSpec {
        AttentionSpec {
            gqa: self.gqa,
            cache: self.cache,
            kv_group: self.kv_group,
            split: Split { splits: 1, room: 1, ..self.split },
            heads_per_group: self.heads_per_group,
            words_ahead: self.words_ahead,
            input_stride: self.heads.input_stride,
            prologue: Some(self.heads.clone()),
            softcap: self.softcap,
            output_stride: self.output_stride,
            output: self.output,
            subgroup_size: self.subgroup_size,
        }
    }

    /// Whether a subgroup of this size holds a head by itself: a lane for each chunk, and all its tokens in one page.
    pub fn takes(cache: &CacheLayout, subgroup_size: u32) -> bool {
        let lanes = subgroup_size as usize;
        lanes > 0
            && cache.chunks() <= lanes
            && cache.page_tokens.is_multiple_of(lanes)
            && cache.head_dim.is_multiple_of(2)
    }

    /// Groups of 32 elements that a workgroup makes.
    pub fn result_groups(&self) -> usize {
        self.heads_per_group * self.cache.head_dim / ACTIVATION_GROUP
    }

    /// Groups of the next matrix' weights that a lane holds; 0: it does none.
    pub fn next_groups_per_lane(&self) -> usize {
        self.next.as_ref().map_or(0, |next| next.groups_per_lane(self.lanes(), self.result_groups()))
    }

    fn n_heads(&self) -> usize {
        self.cache.n_kv_heads * self.gqa
    }

    fn lanes(&self) -> usize {
        self.split.tile
    }

    fn subgroups(&self) -> usize {
        self.lanes() / self.subgroup_size as usize
    }

    /// Lanes of a subgroup that share a chunk of dimensions, each with every so-many-th token.
    fn shares(&self) -> usize {
        self.subgroup_size as usize / self.cache.chunks()
    }

    /// Tokens that a lane mixes of a piece.
    fn steps(&self) -> usize {
        (self.subgroup_size as usize).div_ceil(self.shares())
    }

    fn chunk_quads(&self) -> usize {
        self.cache.format.chunk() / 4
    }

    /// Quads of the result that are put together at a time, and lanes that share the splits of each.
    fn pass(&self) -> (usize, usize) {
        let lanes = (self.heads_per_group * self.cache.head_dim.div_ceil(4)).min(self.lanes());
        (lanes, self.lanes() / lanes)
    }

    /// Vectors that subgroups leave for the workgroup's sum, and later the shares of a pass.
    fn mixed_len(&self) -> usize {
        (self.heads_per_group * self.chunk_quads() * self.lanes()).max(self.lanes())
    }

    /// A pair of numbers for each query and subgroup, and later for each query and split.
    fn reports_len(&self) -> usize {
        let of_splits = if self.split.is_partial() { self.split.splits } else { 0 };
        self.heads_per_group * self.subgroups().max(of_splits)
    }

    /// Workgroup memory.
    pub fn shared_bytes(&self) -> usize {
        let next = if self.next.is_some() { NextSpec::shared_bytes(self.result_groups()) } else { 0 };
        let vectors = (self.heads_per_group + 2) * self.cache.padded_dim() / 4;
        16 * (vectors + self.mixed_len()) + 8 * self.reports_len() + 4 + next
    }

    /// Counters that a program of so many rows needs.
    pub fn arrivals_len(&self, rows: usize) -> usize {
        rows * self.n_heads() / self.heads_per_group
    }

    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        let parts = self.split.is_partial().then_some([Role::Exchange, Role::Arrivals]);
        let mut roles = vec![Role::Step, Role::Input];
        match self.next {
            Some(_) => roles.extend(NextSpec::roles()),
            None => roles.push(result_role(self.output)),
        }
        roles.extend([Role::Keys, Role::Values]);
        roles.extend(self.heads.factors());
        roles.extend(parts.into_iter().flatten());
        roles.extend((self.clears > 0).then_some(Role::ClearedSums));
        roles.extend(self.chained.then_some(Role::Chain));
        bindings(roles)
    }

    pub(crate) fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.n_heads() / self.heads_per_group, rows, self.split.splits]
    }

    pub(crate) fn wgsl(&self) -> String {
        assert_eq!(self.gqa % self.heads_per_group, 0, "workgroups share a KV head evenly");
        assert!(self.words_ahead > 0, "a lane has something under way");
        assert!(self.heads.is_qkv() && self.split.newest_apart, "q, k and v come together");
        assert!(Self::takes(&self.cache, self.subgroup_size), "a subgroup holds a head, and a page pieces");
        assert_eq!(self.split.rows_per_group, 1, "each row is a sequence's");
        assert!(self.lanes().is_multiple_of(self.subgroup_size as usize), "whole subgroups");
        assert!((1..=self.split.room).contains(&self.split.splits), "splits have room for what they leave");
        if let Some(next) = &self.next {
            assert_eq!(self.output, ActivationFormat::Codes(Precision::Int8), "the next matmul reads codes");
            assert!(NextSpec::takes(&next.layout), "the next matrix is of integers");
            assert_eq!(next.layout.cols, self.n_heads() * self.cache.head_dim, "the next matrix takes the result");
        }
        let (pass, pass_shares) = self.pass();
        let pairs = self.cache.head_dim / 2;
        let groups = if self.next.is_some() { self.result_groups() } else { 0 };
        let first_group = format!("group.x * {groups}u");
        let workgroup = next::Workgroup { lane: "index", lanes: self.lanes(), groups, first_group: &first_group };
        let formats: Vec<WeightFormat> = self.next.iter().map(|next| next.layout.format).collect();
        let values = chain::values(self.chained, sums::clearing(self.clears, Values::default()));
        let values = next::values(self.next.as_ref(), workgroup, unpacking(&formats, values))
            .size("N_HEADS", self.n_heads())
            .size("GQA", self.gqa)
            .size("HEADS", self.heads_per_group)
            .size("KV_GROUP", self.kv_group)
            .size("INPUT_STRIDE", self.heads.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WORKGROUP", self.lanes())
            .size("SUBGROUP", self.subgroup_size as usize)
            .size("SUBGROUPS", self.subgroups())
            .size("SHARES", self.shares())
            .size("CHUNK_QUADS", self.chunk_quads())
            .size("PARTIAL_QUADS", partial_quads(self.cache.head_dim))
            .size("PAIRS", pairs)
            .size("PAIR_SLOTS", pairs.div_ceil(self.subgroup_size as usize))
            .size("MIXED", self.mixed_len())
            .size("REPORTS", self.reports_len())
            .size("PASS", pass)
            .size("PASS_SHARES", pass_shares)
            .number("CAP", self.softcap.map_or(0.0, Number::get))
            .number("MASKED", MASKED)
            .number("QUERY_SCALE", self.heads.parts[0].scale.get())
            .flag("SUBGROUPS", true)
            .flag("SOFTCAP", self.softcap.is_some())
            .flag("PARTIAL", self.split.is_partial())
            .text("WORKGROUP_SIZE", self.lanes())
            .text("DECLARATIONS", declarations_of_chain(&self.bindings(), self.chained, &[Role::NextWeights]));
        let values = self.heads.values(self.cache.values(self.split.values(values)));
        let values = result_values(self.output, self.n_heads(), self.cache.head_dim, values);
        render(include_str!("wgsl/decode_attention.wgsl"), &self.texts(values))
    }

    /// The inner loops, a copy of each line for each query and word, so that all stay in registers.
    fn texts(&self, values: Values) -> Values {
        values
            .text("LOADERS", self.loaders_wgsl())
            .text("WORDS", self.words_wgsl())
            .text("LOAD_KEYS", self.load_keys_wgsl())
            .text("LOAD_VALUES", self.load_values_wgsl())
            .text("STATE", self.state_wgsl())
            .text("NEWEST", self.newest_wgsl())
            .text("SCORE", self.score_wgsl())
            .text("WEIGH", self.weigh_wgsl())
            .text("MIX", self.mix_wgsl())
            .text("LEAVE", self.leave_wgsl())
            .text("GATHERED", GATHERED)
            .text("GATHER", gather_wgsl())
    }

    fn each(&self, code: impl Fn(usize) -> String) -> String {
        (0..self.heads_per_group).map(code).collect()
    }

    fn each_quad(&self, code: impl Fn(usize) -> String) -> String {
        (0..self.chunk_quads()).map(code).collect()
    }

    fn keys_ahead(&self) -> usize {
        self.words_ahead.min(self.cache.chunks())
    }

    fn values_ahead(&self) -> usize {
        self.words_ahead.min(self.steps())
    }

    fn is_int8(&self) -> bool {
        self.cache.format == KvFormat::Int8
    }

    /// How a lane's pairs come from each buffer that vectors lie in.
    fn loaders_wgsl(&self) -> String {
        let norm = |of, name| self.heads.norms(of).then(|| loader_wgsl(name, "", &format!("{name}[")));
        let input = loader_wgsl("input", "at: u32, ", "input[at + ");
        [Some(input), norm(NormOf::Query, "query_norm"), norm(NormOf::Key, "key_norm")].into_iter().flatten().collect()
    }

    fn words_wgsl(&self) -> String {
        let words =
            |name: &str, n: usize| -> String { (0..n).map(|u| format!("    var {name}_{u}: vec4<u32>;\n")).collect() };
        let scales = if self.is_int8() { "    var key_scale = 0.0;\n    var value_scale = 0.0;\n" } else { "" };
        words("key", self.keys_ahead()) + &words("value", self.values_ahead()) + scales
    }

    fn key_wgsl(&self, chunk: usize) -> String {
        format!("keys[key_at(page, slot, {chunk}u)]")
    }

    fn value_wgsl(&self, step: usize) -> String {
        let token = format!("piece + {step}u * SHARES + share");
        format!("values[value_at(page, clamp({token}, span.begin, end - 1u) % PAGE_TOKENS, chunk)]")
    }

    /// Of the piece, whose lane's token is `slot` of `page`.
    fn load_keys_wgsl(&self) -> String {
        let keys = (0..self.keys_ahead()).map(|u| format!("        key_{u} = {};\n", self.key_wgsl(u)));
        keys.collect::<String>() + &self.load_scale_wgsl("key_scale", "keys")
    }

    fn load_values_wgsl(&self) -> String {
        let values = (0..self.values_ahead()).map(|u| format!("        value_{u} = {};\n", self.value_wgsl(u)));
        values.collect::<String>() + &self.load_scale_wgsl("value_scale", "values")
    }

    fn load_scale_wgsl(&self, name: &str, side: &str) -> String {
        let word = format!("{side}[scale_at(page, slot)][slot % 4u]");
        if self.is_int8() { format!("        {name} = bitcast<f32>({word});\n") } else { String::new() }
    }

    fn state_wgsl(&self) -> String {
        self.each(|q| {
            let mix = self.each_quad(|j| format!("    var mix_{j}_{q} = vec4<f32>(0.0);\n"));
            format!("    var greatest_{q} = MASKED;\n    var total_{q} = 0.0;\n{mix}")
        })
    }

    /// The newest token is the first: its score is the greatest so far, and its weight 1.
    fn newest_wgsl(&self) -> String {
        let newest = self.each_quad(|j| {
            format!(
                "        let newest_key_{j} = {};\n        let newest_value_{j} = value.scale * {};\n",
                self.cache.unpacked_wgsl("key.words", j),
                self.cache.unpacked_wgsl("value.words", j)
            )
        });
        let begin = self.each(|q| {
            let products: Vec<String> = (0..self.chunk_quads())
                .map(|j| format!("dot(newest_key_{j}, vectors[{q}u * QUADS + chunk * CHUNK_QUADS + {j}u])"))
                .collect();
            let mix = self.each_quad(|j| {
                format!("        mix_{j}_{q} = select(vec4<f32>(0.0), newest_value_{j}, lane < CHUNKS);\n")
            });
            format!(
                "        let part_{q} = select(0.0, key.scale * ({}), lane < CHUNKS);\n        \
                 greatest_{q} = capped(subgroupAdd(part_{q}));\n        \
                 total_{q} = select(0.0, 1.0, lane == 0u);\n{mix}",
                products.join(" + ")
            )
        });
        newest + &begin
    }

    /// Every query's score against this lane's token.
    fn score_wgsl(&self) -> String {
        let begin = self.each(|q| format!("        var score_{q} = 0.0;\n"));
        let late: String = (self.keys_ahead()..self.cache.chunks())
            .map(|u| format!("        let key_{u} = {};\n", self.key_wgsl(u)))
            .collect();
        let slot = "        let slot = clamp(token, span.begin, end - 1u) % PAGE_TOKENS;\n";
        let late = if late.is_empty() { late } else { slot.to_owned() + &late };
        let products =
            (0..self.cache.chunks()).flat_map(|u| (0..self.chunk_quads()).map(move |j| (u, j))).map(|(u, j)| {
                let quad = format!("        let key_{u}_{j} = {};\n", self.cache.unpacked_wgsl(&format!("key_{u}"), j));
                let at = u * self.chunk_quads() + j;
                quad + &self
                    .each(|q| format!("        score_{q} += dot(key_{u}_{j}, vectors[{q}u * QUADS + {at}u]);\n"))
            });
        let scaled =
            self.each(|q| if self.is_int8() { format!("        score_{q} *= key_scale;\n") } else { String::new() });
        late + &begin + &products.collect::<String>() + &scaled
    }

    /// The new maximum, what it makes of the sums so far, and the weight of this lane's token.
    fn weigh_wgsl(&self) -> String {
        let value_scale = if self.is_int8() { " * value_scale" } else { "" };
        self.each(|q| {
            let mix = self.each_quad(|j| format!("        mix_{j}_{q} *= rescale_{q};\n"));
            format!(
                "        let seen_{q} = select(MASKED, capped(score_{q}), inside);\n        \
                 let next_{q} = max(greatest_{q}, subgroupMax(seen_{q}));\n        \
                 let rescale_{q} = exp(greatest_{q} - next_{q});\n        greatest_{q} = next_{q};\n        \
                 let weight_{q} = select(0.0, exp(seen_{q} - next_{q}), inside);\n        \
                 total_{q} = total_{q} * rescale_{q} + weight_{q};\n        \
                 let factor_{q} = weight_{q}{value_scale};\n{mix}"
            )
        })
    }

    fn mix_wgsl(&self) -> String {
        let late: String = (self.values_ahead()..self.steps())
            .map(|u| format!("        let value_{u} = {};\n", self.value_wgsl(u)))
            .collect();
        let sums = (0..self.steps()).map(|u| {
            let quads = self.each_quad(|j| {
                format!("        let value_{u}_{j} = {};\n", self.cache.unpacked_wgsl(&format!("value_{u}"), j))
            });
            let add = self.each(|q| {
                self.factor_wgsl(u, q)
                    + &self.each_quad(|j| format!("        mix_{j}_{q} += factor_{u}_{q} * value_{u}_{j};\n"))
            });
            quads + &add
        });
        late + &sums.collect::<String>()
    }

    /// The weight of the `u`-th token that this lane mixes, from the lane that scored it.
    fn factor_wgsl(&self, u: usize, q: usize) -> String {
        let (token, shuffle) = (format!("{u}u * SHARES + share"), "subgroupShuffle");
        if (u + 1) * self.shares() <= self.subgroup_size as usize {
            return format!("        let factor_{u}_{q} = {shuffle}(factor_{q}, {token});\n");
        }
        format!(
            "        let factor_{u}_{q} = select(0.0, {shuffle}(factor_{q}, min({token}, SUBGROUP - 1u)), \
             {token} < SUBGROUP);\n"
        )
    }

    fn leave_wgsl(&self) -> String {
        self.each(|q| {
            let leave =
                self.each_quad(|j| format!("    mixed[({q}u * CHUNK_QUADS + {j}u) * TILE + index] = mix_{j}_{q};\n"));
            format!(
                "    let sum_{q} = subgroupAdd(total_{q});\n    if (lane == 0u) {{\n        \
                 reports[{q}u * SUBGROUPS + subgroup] = vec2<f32>(greatest_{q}, sum_{q});\n    }}\n{leave}"
            )
        })
    }
}

fn loader_wgsl(name: &str, parameter: &str, from: &str) -> String {
    format!(
        "fn pairs_of_{name}({parameter}lane: u32) -> Pairs {{\n    var pairs: Pairs;\n    \
         for (var slot = 0u; slot < PAIR_SLOTS; slot++) {{\n        let pair = lane + slot * SUBGROUP;\n        \
         if (pair < PAIRS) {{\n            \
         pairs[slot] = vec2<f32>({from}first_of(pair)], {from}second_of(pair)]);\n        }}\n    }}\n    \
         return pairs;\n}}\n"
    )
}

/// The parts of several splits, all under way before the first is weighed.
fn gather_wgsl() -> String {
    let load = |u: usize| {
        format!(
            "                let split_{u} = i + {u}u * PASS_SHARES;\n                \
             let place_{u} = min(split_{u}, splits - 1u);\n                \
             let part_{u} = partials[at + place_{u} * PARTIAL_QUADS];\n"
        )
    };
    let weigh = |u: usize| {
        format!(
            "                sum += select(0.0, exp(reports[query * splits + place_{u}].x - greatest), \
             split_{u} < splits) * part_{u};\n"
        )
    };
    (0..GATHERED).map(load).chain((0..GATHERED).map(weigh)).collect()
}
