//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activations::{ACTIVATION_GROUP, ActivationFormat};
use crate::cache::{CacheLayout, KvFormat};
use crate::combine::{MASKED, result_values};
use crate::fragments::matrix;
use crate::kernel::Kernel;
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Most dimensions of a slice, whose queries and sums a subgroup holds in registers. More than 80 spill on RDNA3, where RADV
/// of Mesa 25.0 keeps each f16 of a matrix that outlives a loop in a register of its own.
const SLICE: usize = 80;
/// f16 numbers in one vec4<u32>.
const HALVES_PER_WORD: usize = 8;
/// ln(2^14): the greatest weight is 2^14, far below 65504.
const LIFT: f32 = 9.704_061;

/// Parameters of one flash attention pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlashSpec {
    /// Query heads of one KV head.
    pub gqa: usize,
    /// f16, of heads that [`FlashTile::takes`].
    pub cache: CacheLayout,
    pub kv_group: usize,
    /// A row sees this many tokens, its own included; `None`: all up to its own.
    pub window: Option<usize>,
    /// Query heads of one KV head that a workgroup takes; divides `gqa`.
    pub heads_per_group: usize,
    /// Elements between rows of q, as `heads` leaves it, and of the result.
    pub input_stride: usize,
    pub output_stride: usize,
    /// Of the result.
    pub output: ActivationFormat,
    pub softcap: Option<Number>,
    pub tile: FlashTile,
    /// Lanes of a subgroup; never 0.
    pub subgroup_size: u32,
}

/// How many queries a workgroup carries; chosen per device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlashTile {
    /// Rows and columns of one cooperative matrix, 8 or 16.
    pub fragment: usize,
    /// A multiple of the slices of a head.
    pub subgroups: usize,
}

impl FlashTile {
    /// Whether there is a kernel for such a cache: f16, heads that are cut into slices of whole fragments.
    pub fn takes(&self, cache: &CacheLayout) -> bool {
        let whole = cache.head_dim.is_multiple_of(16) && cache.page_tokens.is_multiple_of(self.fragment);
        whole && cache.format == KvFormat::F16 && self.find_slices(cache).is_some()
    }

    /// Parts of a head's dimensions that a subgroup each takes.
    fn slices(&self, cache: &CacheLayout) -> usize {
        self.find_slices(cache)
            .unwrap_or_else(|| panic!("a kernel for heads of {} dimensions: {self:?}", cache.head_dim))
    }

    fn find_slices(&self, cache: &CacheLayout) -> Option<usize> {
        let (dim, fragments) = (cache.head_dim, cache.head_dim / self.fragment);
        let even = |slices: &usize| fragments.is_multiple_of(*slices) && self.subgroups.is_multiple_of(*slices);
        [1, 2, 4].into_iter().find(|slices| even(slices) && dim / slices <= SLICE)
    }

    /// (row, head) pairs of a workgroup.
    pub fn queries(&self, cache: &CacheLayout) -> usize {
        self.subgroups / self.slices(cache) * self.fragment
    }

    /// Query heads of one KV head that a workgroup takes, of `gqa`.
    pub fn heads(&self, cache: &CacheLayout, gqa: usize) -> usize {
        (1..=gqa.min(self.queries(cache))).rev().find(|heads| gqa.is_multiple_of(*heads)).unwrap_or(1)
    }

    /// Whether it writes a result of so many heads in this format: what is written at a time, a page's tokens of dimensions at most,
    /// is whole groups.
    pub fn writes(&self, output: ActivationFormat, cache: &CacheLayout, n_heads: usize) -> bool {
        let slice = cache.head_dim / self.slices(cache);
        let groups = [slice, cache.page_tokens].iter().all(|dims| dims.is_multiple_of(ACTIVATION_GROUP));
        output == ActivationFormat::F32 || groups && output.lies_in_heads(n_heads, cache.head_dim)
    }

    /// Bytes of workgroup memory.
    pub fn shared_bytes(&self, cache: &CacheLayout) -> usize {
        let words = self.kv_words(cache) + self.queries(cache) * row_words(cache.page_tokens);
        let quads = self.slices(cache) * self.queries(cache) * (cache.page_tokens / 4 + 1);
        16 * (words + quads) + 4 * self.queries(cache)
    }

    /// Words of K or of V of a page, or of what queries pass through.
    fn kv_words(&self, cache: &CacheLayout) -> usize {
        let keys = cache.page_tokens * row_words(cache.head_dim);
        let values = cache.head_dim / self.fragment * self.value_words(cache);
        keys.max(values).max(self.subgroups * self.fragment * row_words(self.fragment))
    }

    /// Words of as many dimensions of V as a fragment has; one more keeps neighbouring chunks in different banks.
    fn value_words(&self, cache: &CacheLayout) -> usize {
        self.fragment * row_words(cache.page_tokens) + 1
    }
}

/// Words of a row of so many f16, and one more, so that eight rows lie in different banks.
fn row_words(halves: usize) -> usize {
    halves / HALVES_PER_WORD + 1
}

impl Kernel for FlashSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let output = self.output.output_role();
        let mut list = bindings([Role::Step, Role::InputQuads, output, Role::Keys, Role::Values]);
        for binding in &mut list {
            binding.writes = binding.role == output;
        }
        list
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.n_heads() / self.heads_per_group, rows.div_ceil(self.rows_per_group()), 1]
    }

    fn wgsl(&self) -> String {
        let (tile, cache) = (&self.tile, &self.cache);
        assert!(tile.takes(cache), "a kernel for such heads: {self:?}");
        assert_eq!(self.gqa % self.heads_per_group, 0, "workgroups share a KV head evenly");
        assert!(self.rows_per_group() > 0, "a workgroup has room for its heads");
        assert!(tile.writes(self.output, cache, self.n_heads()), "whole groups at a time: {self:?}");
        let fragment_words = tile.fragment * tile.fragment / HALVES_PER_WORD;
        assert!(self.subgroup_size as usize >= fragment_words, "a lane brings a word of a fragment");
        let tokens = cache.page_tokens / self.lanes_per_query();
        assert!(
            tokens == 4 || tokens.is_multiple_of(HALVES_PER_WORD),
            "a lane makes half a word of weights, or whole ones"
        );
        let slices = tile.slices(cache);
        let values = Values::default()
            .size("GQA", self.gqa)
            .size("HEADS", self.heads_per_group)
            .size("ROWS", self.rows_per_group())
            .size("KV_GROUP", self.kv_group)
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WINDOW", self.window.unwrap_or(0))
            .size("TILE", cache.page_tokens)
            .size("QUERIES", tile.queries(cache))
            .size("FRAGMENT", tile.fragment)
            .size("SLICES", slices)
            .size("SLICE_DIM", cache.head_dim / slices)
            .size("SUBGROUP", self.subgroup_size as usize)
            .size("WORKGROUP", self.lanes())
            .flag("SUBGROUPS", true)
            .size("LANES_PER_QUERY", self.lanes_per_query())
            .size("TOKENS", tokens)
            .size("KV_WORDS", tile.kv_words(cache))
            .size("KEY_WORDS", row_words(cache.head_dim))
            .size("WEIGHT_WORDS", row_words(cache.page_tokens))
            .size("VALUE_WORDS", tile.value_words(cache))
            .size("QUERY_WORDS", row_words(tile.fragment))
            .size("SCORE_QUADS", cache.page_tokens / 4 + 1)
            .number("CAP", self.softcap.map_or(0.0, Number::get))
            .number("MASKED", MASKED)
            .number("LIFT", LIFT)
            .flag("SOFTCAP", self.softcap.is_some())
            .flag("WINDOWED", self.window.is_some())
            .flag("SLICED", slices > 1)
            .text("MATRIX", matrix(tile.fragment))
            .text("WORKGROUP_SIZE", self.lanes())
            .text("DECLARATIONS", declarations(&self.bindings()))
            .text("QUERIES", self.queries_wgsl())
            .text("KEY_VARIABLES", self.key_variables())
            .text("FETCH_FIRST_KEYS", self.fetch_keys("first_tile"))
            .text("FETCH_KEYS", indented(&self.fetch_keys("next")))
            .text("FETCH_VALUES", indented(&self.fetch_values()))
            .text("PUT_KEYS", self.put_keys())
            .text("PUT_VALUES", self.put_values())
            .text("SCORE", self.score_wgsl())
            .text("WEIGH", self.weigh_wgsl(tokens))
            .text("MIX", self.mix_wgsl())
            .text("FINISH", self.finish_wgsl());
        let values = result_values(self.output, self.n_heads(), cache.head_dim, values);
        // Extensions are named before anything else.
        let extensions = "enable f16;\nenable wgpu_cooperative_matrix;\n";
        extensions.to_owned() + &render(include_str!("kernel.wgsl"), &cache.values(values))
    }
}

impl FlashSpec {
    /// The same cut another way.
    pub fn with_tile(&self, tile: FlashTile) -> FlashSpec {
        FlashSpec { heads_per_group: tile.heads(&self.cache, self.gqa), tile, ..self.clone() }
    }

    fn n_heads(&self) -> usize {
        self.cache.n_kv_heads * self.gqa
    }

    pub(super) fn rows_per_group(&self) -> usize {
        self.tile.queries(&self.cache) / self.heads_per_group
    }

    fn lanes(&self) -> usize {
        self.tile.subgroups * self.subgroup_size as usize
    }

    /// Neighbouring lanes that share a query's scores.
    fn lanes_per_query(&self) -> usize {
        self.lanes() / self.tile.queries(&self.cache)
    }

    /// Fragments of a slice of a head.
    fn slice_fragments(&self) -> usize {
        self.cache.head_dim / self.tile.slices(&self.cache) / self.tile.fragment
    }

    /// The type of sums.
    fn sums_type(&self) -> String {
        format!("{}<f32, C>", matrix(self.tile.fragment))
    }

    /// The slice's fragments of the strip, by way of workgroup memory into registers, and sums of 0.
    fn queries_wgsl(&self) -> String {
        let each = |code: &dyn Fn(usize) -> String| (0..self.slice_fragments()).map(code).collect::<String>();
        let ask = each(&|i| format!("    let word_{i} = query_word(query_at + {}u);\n", self.tile.fragment / 4 * i));
        let load = each(&|i| {
            format!(
                "    kv_tile[query_put] = word_{i};\n    subgroupBarrier();\n    \
                 let query_{i} = coop_load_half_a(kv_tile[query_tile], QUERY_WORDS);\n    subgroupBarrier();\n"
            )
        });
        let sums = each(&|i| format!("    var mix_{i}: {};\n", self.sums_type()));
        ask + &load + &sums + &format!("    var zeros: {};\n", self.sums_type())
    }

    /// Words of K, or items of V, that each lane brings.
    fn shares(&self, items: usize) -> usize {
        items.div_ceil(self.lanes())
    }

    fn key_items(&self) -> usize {
        self.cache.page_tokens * self.cache.chunks()
    }

    /// Tokens whose words of a chunk a lane transposes together: as many as leave every lane something to do.
    fn value_tokens(&self) -> usize {
        let enough = |tokens: &usize| self.key_items() / tokens >= self.lanes();
        [8, 4].into_iter().find(enough).unwrap_or(2)
    }

    fn value_items(&self) -> usize {
        self.key_items() / self.value_tokens()
    }

    /// `item`: the lane's share number `i` of `items`; lanes left over do the last again.
    fn item(&self, i: usize, items: usize) -> String {
        let item = format!("lane + {}u", i * self.lanes());
        if items.is_multiple_of(self.lanes()) { item } else { format!("min({item}, {}u)", items - 1) }
    }

    /// Words of K on their way.
    fn key_variables(&self) -> String {
        (0..self.shares(self.key_items())).map(|i| format!("    var key_{i}: vec4<u32>;\n")).collect()
    }

    /// Neighbours read neighbouring tokens.
    fn fetch_keys(&self, tile: &str) -> String {
        let items = self.key_items();
        let head = format!("    let key_head = head_of_page(table, {tile}, kv_head);\n");
        let fetch = |i| format!("    key_{i} = keys[key_head + {}];\n", self.item(i, items));
        head + &(0..self.shares(items)).map(fetch).collect::<String>()
    }

    fn put_keys(&self) -> String {
        let items = self.key_items();
        let put = |i| {
            let item = self.item(i, items);
            format!(
                "        let key_item_{i} = {item};\n        \
                 kv_tile[key_item_{i} % TILE * KEY_WORDS + key_item_{i} / TILE] = key_{i};\n"
            )
        };
        (0..self.shares(items)).map(put).collect()
    }

    /// Neighbours read neighbouring chunks.
    fn fetch_values(&self) -> String {
        let (items, tokens) = (self.value_items(), self.value_tokens());
        let fetch = |i| {
            let item = self.item(i, items);
            let place = format!(
                "    let value_item_{i} = {item};\n    let value_token_{i} = value_item_{i} / CHUNKS * {tokens}u;\n"
            );
            let words = (0..tokens).map(|t| {
                let slot = format!("value_token_{i} + {t}u");
                format!(
                    "    let fetched_{i}_{t} = select(vec4<u32>(0u), \
                     values[value_at(head, {slot}, value_item_{i} % CHUNKS)], tile + {slot} < end);\n"
                )
            });
            place + &words.collect::<String>()
        };
        (0..self.shares(items)).map(fetch).collect()
    }

    /// A lane's words of some tokens become parts of rows of eight dimensions.
    fn put_values(&self) -> String {
        let tokens = self.value_tokens();
        let per_word = HALVES_PER_WORD / tokens;
        let put = |i| {
            let place = format!(
                "        let value_block_{i} = value_item_{i} / CHUNKS;\n        \
                 let value_put_{i} = value_row(value_item_{i} % CHUNKS) + value_block_{i} / {per_word}u;\n"
            );
            let pairs = (0..tokens / 2).map(|m| {
                let (a, b) = (format!("fetched_{i}_{}", 2 * m), format!("fetched_{i}_{}", 2 * m + 1));
                format!("        let pair_{i}_{m} = pairs({a}, {b});\n")
            });
            let rows = (0..HALVES_PER_WORD).map(|d| {
                let half = |m: usize| {
                    let side = if d % 2 == 0 { "low" } else { "high" };
                    format!("pair_{i}_{m}.{side}.{}", ["x", "y", "z", "w"][d / 2])
                };
                let row = format!("kv_tile[value_put_{i} + {d}u * WEIGHT_WORDS]");
                if per_word == 1 {
                    return format!("        {row} = vec4<u32>({}, {}, {}, {});\n", half(0), half(1), half(2), half(3));
                }
                let part = |m| {
                    let lane = format!("value_block_{i} % {per_word}u * {}u + {m}u", tokens / 2);
                    format!("        {row}[{lane}] = {};\n", half(m))
                };
                (0..tokens / 2).map(part).collect()
            });
            place + &pairs.collect::<String>() + &rows.collect::<String>()
        };
        (0..self.shares(self.value_items())).map(put).collect()
    }

    /// Fragments along the tokens of a tile.
    fn token_fragments(&self) -> usize {
        self.cache.page_tokens / self.tile.fragment
    }

    /// The slice's part of the strip's scores.
    fn score_wgsl(&self) -> String {
        let fragment = self.tile.fragment;
        let mut code = String::new();
        for n in 0..self.token_fragments() {
            let mut sum = "zeros".to_owned();
            for i in 0..self.slice_fragments() {
                let at = format!("{}u * KEY_WORDS + slice * (SLICE_DIM / 8u) + {}u", fragment * n, fragment / 8 * i);
                code += &format!("        let part_{n}_{i} = coop_load_half_b(kv_tile[{at}], KEY_WORDS);\n");
                code += &format!("        let score_{n}_{i} = coopMultiplyAdd(query_{i}, part_{n}_{i}, {sum});\n");
                sum = format!("score_{n}_{i}");
            }
            let at = format!("plane + {}u", fragment / 4 * n);
            code += &format!("        coopStoreT({sum}, &scores[{at}], SCORE_QUADS);\n");
        }
        code
    }

    /// A lane's tokens of a query: scores, the new maximum, weights.
    fn weigh_wgsl(&self, tokens: usize) -> String {
        let quads = tokens / 4;
        let each = |code: &dyn Fn(usize) -> String| (0..quads).map(code).collect::<String>();
        let sum = each(&|i| {
            let slices = (0..self.tile.slices(&self.cache))
                .map(|slice| format!("scores[score_at + {slice}u * QUERIES * SCORE_QUADS + {i}u]"));
            let sum = slices.collect::<Vec<_>>().join(" + ");
            format!("        var seen_{i} = capped({sum});\n")
        });
        let mask = each(&|i| format!("            seen_{i} = masked(seen_{i}, position, first_token + {}u);\n", 4 * i));
        let most = (0..quads).map(|i| format!("seen_{i}")).reduce(|most, one| format!("max({most}, {one})"));
        let weights = each(&|i| format!("        let weight_{i} = weights_of(seen_{i}, greatest);\n"));
        let total = (0..quads).map(|i| format!("weight_{i}")).collect::<Vec<_>>().join(" + ");
        let put = if quads == 1 {
            ["xy", "zw"]
                .iter()
                .enumerate()
                .map(|(i, half)| {
                    format!("        weights[weight_at][share % 2u * 2u + {i}u] = pair_of(weight_0.{half});\n")
                })
                .collect::<String>()
        } else {
            let word = |i| format!("word_of(weight_{}, weight_{})", 2 * i, 2 * i + 1);
            (0..quads / 2).map(|i| format!("        weights[weight_at + {i}u] = {};\n", word(i))).collect()
        };
        let most = most.expect("a lane has tokens");
        format!(
            "{sum}        if (!whole) {{\n{mask}        }}\n        let most = query_max({most});\n        \
             let before = greatest;\n        greatest = max(before, most);\n        \
             let rescale = exp(before - greatest);\n\
             {weights}        total = total * rescale + dot({total}, vec4<f32>(1.0));\n{put}"
        )
    }

    /// What was mixed so far, by how much less it weighs now, and the tile's values by their weights.
    fn mix_wgsl(&self) -> String {
        let fragment = self.tile.fragment;
        let mut code = self.factor_wgsl();
        code += &(0..self.slice_fragments())
            .map(|i| format!("        mix_{i} = coop_multiply_elements(mix_{i}, factor);\n"))
            .collect::<String>();
        for n in 0..self.token_fragments() {
            let word = fragment / 8 * n;
            code += &format!(
                "        let strip_weight_{n} = coop_load_half_a(weights[strip * FRAGMENT * WEIGHT_WORDS + {word}u], WEIGHT_WORDS);\n"
            );
            for i in 0..self.slice_fragments() {
                let at = format!("(slice * (SLICE_DIM / FRAGMENT) + {i}u) * VALUE_WORDS + {word}u");
                code += &format!("        let value_{n}_{i} = coop_load_half_b(kv_tile[{at}], WEIGHT_WORDS);\n");
                code += &format!("        mix_{i} = coopMultiplyAdd(strip_weight_{n}, value_{n}_{i}, mix_{i});\n");
            }
        }
        code
    }

    fn factor_wgsl(&self) -> String {
        let kind = self.sums_type();
        format!("        let factor = coopLoad<{kind}>(&factors[strip * FRAGMENT], 0u);\n")
    }

    /// A tile's width of dimensions at a time.
    fn finish_wgsl(&self) -> String {
        let (fragments, fragment) = (self.slice_fragments(), self.tile.fragment);
        let mut code = self.factor_wgsl().trim_start().to_owned();
        for first in (0..fragments).step_by(self.token_fragments()) {
            let count = self.token_fragments().min(fragments - first);
            for i in 0..count {
                let at = format!("plane + {}u", fragment / 4 * i);
                code += &format!(
                    "    coopStoreT(coop_multiply_elements(mix_{}, factor), &scores[{at}], SCORE_QUADS);\n",
                    first + i
                );
            }
            let (dim, quads) = (fragment * first, fragment / 4 * count);
            code += &format!(
                "    write(plane, strip, first_row, last_row, first_head, slice * SLICE_DIM + {dim}u, {quads}u, subgroup_lane);\n"
            );
        }
        format!("    {code}")
    }
}

/// Lines one level deeper.
fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("    {line}\n")).collect()
}
