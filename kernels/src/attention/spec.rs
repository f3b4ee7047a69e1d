//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activations::ActivationFormat;
use crate::cache::{CacheLayout, KvFormat};
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

    pub(super) fn n_heads(&self) -> usize {
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
        render(include_str!("kernel.wgsl"), &self.texts(values))
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
