//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use super::patches::PatchRows;
use crate::activation_format::{ACTIVATION_GROUP, ActivationFormat};
use crate::cache::{CacheLayout, KvFormat};
use crate::combine::{MASKED, result_values};
use crate::fragment_shape::FragmentShape;
use crate::image_attention::ImageAttentionSpec;
use crate::kernel::{Kernel, RowAxis};
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations, rows_of_step};
use crate::split::{self, StepRows, row_groups};
use crate::template::{Values, render};

/// Maximum number of dimensions of a slice, whose queries and sums a subgroup holds in registers. More than 80 spill on RDNA3, where RADV
/// of Mesa 25.0 keeps each f16 of a matrix that outlives a loop in a register of its own.
const SLICE: usize = 80;
/// f16 numbers in one vec4<u32>.
const HALVES_PER_WORD: usize = 8;
/// ln(2^14): the largest weight is 2^14, far below 65504.
const LIFT: f32 = 9.704_061;

/// Parameters of one flash attention pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlashSpec {
    /// Query heads of one KV head.
    pub gqa: usize,
    /// f16, of heads that [`FlashTile::takes`].
    pub cache: CacheLayout,
    /// Index of the cache's KV group, whose block table is read.
    pub kv_group: usize,
    /// Tokens that a row attends to, its own included; `None`: all up to its own.
    pub window: Option<usize>,
    /// Query heads of one KV head that a workgroup takes; divides `gqa`.
    pub heads_per_group: usize,
    /// Elements between rows of q, as `heads` leaves it.
    pub input_stride: usize,
    /// Elements between rows of the result.
    pub output_stride: usize,
    /// Format of the result.
    pub output: ActivationFormat,
    /// Soft cap of scores: `cap * tanh(score / cap)`.
    pub softcap: Option<Number>,
    /// Whether each head has a sink: a logit, bound as [`Role::Sinks`], that takes its share of the softmax and has no value.
    pub sinks: bool,
    /// Rows of an image, which attend to each other in both directions; 0: there are no images.
    pub image_rows: usize,
    /// Patches of one image in place of rows with a cache; every one attends to all.
    pub patches: Option<PatchRows>,
    /// Which rows of the step.
    pub rows: StepRows,
    /// How a workgroup divides queries and dimensions.
    pub tile: FlashTile,
    /// Invocations of a subgroup; not 0.
    pub subgroup_size: u32,
}

/// How many queries a workgroup takes; chosen per device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlashTile {
    /// Sides of its cooperative matrices: queries; tokens of scores and dimensions of results; the summed dimensions or tokens.
    pub fragment: FragmentShape,
    /// Subgroups of a workgroup: a multiple of the slices of a head.
    pub subgroups: usize,
}

impl FlashTile {
    /// Whether the kernel supports such a cache: f16, and heads that are cut into slices of whole fragments.
    pub fn takes(&self, cache: &CacheLayout) -> bool {
        let whole = cache.head_dim.is_multiple_of(16) && cache.page_tokens.is_multiple_of(self.side());
        whole && cache.format == KvFormat::F16 && cache.latent_value.is_none() && self.find_slices(cache).is_some()
    }

    /// Slices of a head's dimensions, one for each subgroup of a strip of queries.
    fn slices(&self, cache: &CacheLayout) -> usize {
        self.find_slices(cache)
            .unwrap_or_else(|| panic!("a kernel for heads of {} dimensions: {self:?}", cache.head_dim))
    }

    /// Dimensions, and tokens, that are whole fragments of either product.
    fn side(&self) -> usize {
        self.fragment.n.max(self.fragment.k)
    }

    fn find_slices(&self, cache: &CacheLayout) -> Option<usize> {
        let (dim, fragments) = (cache.head_dim, cache.head_dim / self.side());
        let even = |slices: &usize| fragments.is_multiple_of(*slices) && self.subgroups.is_multiple_of(*slices);
        [1, 2, 4].into_iter().find(|slices| even(slices) && dim / slices <= SLICE)
    }

    /// (row, head) pairs of a workgroup.
    pub fn queries(&self, cache: &CacheLayout) -> usize {
        self.subgroups / self.slices(cache) * self.fragment.m
    }

    /// Query heads of one KV head that a workgroup takes, of `gqa`.
    pub fn heads(&self, cache: &CacheLayout, gqa: usize) -> usize {
        (1..=gqa.min(self.queries(cache))).rev().find(|heads| gqa.is_multiple_of(*heads)).unwrap_or(1)
    }

    /// Whether it can write a result of `n_heads` heads in this format: what it writes at a time, at most as many dimensions as a
    /// page has tokens, is whole groups.
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

    /// Words of workgroup memory for the K or the V of a page, or for queries before they are in registers.
    fn kv_words(&self, cache: &CacheLayout) -> usize {
        let keys = cache.page_tokens * row_words(cache.head_dim);
        let values = cache.head_dim / self.fragment.n * self.value_words(cache);
        keys.max(values).max(self.subgroups * self.fragment.m * row_words(self.fragment.k))
    }

    /// Words of V for the dimensions of a fragment, and one more, so that neighbouring chunks lie in different banks.
    fn value_words(&self, cache: &CacheLayout) -> usize {
        self.fragment.n * row_words(cache.page_tokens) + 1
    }
}

/// Words of a row of `halves` f16, and one more, so that eight rows lie in different banks.
fn row_words(halves: usize) -> usize {
    halves / HALVES_PER_WORD + 1
}

impl Kernel for FlashSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let output = self.output.output_role();
        let [keys, values] =
            if self.patches.is_some() { [Role::PatchKeys, Role::PatchValues] } else { [Role::Keys, Role::Values] };
        let mut list = bindings(
            [Role::Step, Role::InputQuads, output, keys, values].into_iter().chain(self.sinks.then_some(Role::Sinks)),
        );
        for binding in &mut list {
            binding.writes = binding.role == output;
        }
        list
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.n_heads() / self.heads_per_group, row_groups(rows, self.rows_per_group(), self.rows), 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        let is_plain = self.rows == StepRows::All && self.image_rows == 0 && self.patches.is_none();
        is_plain.then_some(RowAxis { axis: 1, rows: self.rows_per_group() })
    }

    fn wgsl(&self) -> String {
        let (tile, cache) = (&self.tile, &self.cache);
        assert!(tile.takes(cache), "a kernel for such heads: {self:?}");
        assert_eq!(self.gqa % self.heads_per_group, 0, "workgroups share a KV head evenly");
        assert!(self.rows_per_group() > 0, "a workgroup has room for its heads");
        assert!(tile.writes(self.output, cache, self.n_heads()), "whole groups at a time: {self:?}");
        if let Some(patches) = &self.patches {
            let is_plain = self.window.is_none() && self.rows == StepRows::All && self.image_rows == 0;
            assert!(is_plain && self.gqa == 1 && self.output == ActivationFormat::F32, "patches attend to all");
            assert!(patches.are_quads(self.input_stride), "rows in whole quads: {self:?}");
        }
        let fragment_words = tile.fragment.m * tile.fragment.k / HALVES_PER_WORD;
        let lanes = self.subgroup_size as usize;
        assert!(lanes >= fragment_words || fragment_words.is_multiple_of(lanes), "a lane loads words of a fragment");
        let tokens = cache.page_tokens / self.lanes_per_query();
        assert!(
            tokens == 4 || tokens.is_multiple_of(HALVES_PER_WORD),
            "a lane makes half a word of weights, or whole ones"
        );
        let slices = tile.slices(cache);
        let value_items = self.key_items() / self.value_tokens();
        let values = Values::default()
            .size("GQA", self.gqa)
            .size("HEADS", self.heads_per_group)
            .size("KV_GROUP", self.kv_group)
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WINDOW", self.window.unwrap_or(0))
            .size("TILE", cache.page_tokens)
            .size("QUERIES", tile.queries(cache))
            .size("STRIP", tile.fragment.m)
            .size("SLICES", slices)
            .size("SLICE_DIM", cache.head_dim / slices)
            .size("SUBGROUP", self.subgroup_size as usize)
            .size("WORKGROUP", self.lanes())
            .flag("SUBGROUPS", true)
            .count("QUERY_SHARES", fragment_words.div_ceil(lanes))
            .count("QUERY_FRAGMENTS", cache.head_dim / slices / tile.fragment.k)
            .count("SCORE_FRAGMENTS", cache.page_tokens / tile.fragment.n)
            .count("WEIGHT_FRAGMENTS", cache.page_tokens / tile.fragment.k)
            .count("SUM_FRAGMENTS", cache.head_dim / slices / tile.fragment.n)
            .count("LANE_QUADS", tokens / 4)
            .count("KEY_ITEMS", self.key_items())
            .count("KEY_SHARES", self.key_items().div_ceil(self.lanes()))
            .count("VALUE_TOKENS", self.value_tokens())
            .count("VALUE_ITEMS", value_items)
            .count("VALUE_SHARES", value_items.div_ceil(self.lanes()))
            .size("LANES_PER_QUERY", self.lanes_per_query())
            .size("TOKENS", tokens)
            .size("KV_WORDS", tile.kv_words(cache))
            .size("KEY_WORDS", row_words(cache.head_dim))
            .size("WEIGHT_WORDS", row_words(cache.page_tokens))
            .size("VALUE_WORDS", tile.value_words(cache))
            .size("QUERY_WORDS", row_words(tile.fragment.k))
            .size("SCORE_QUADS", cache.page_tokens / 4 + 1)
            .number("CAP", self.softcap.map_or(0.0, Number::get))
            .number("MASKED", MASKED)
            .number("LIFT", LIFT)
            .flag("SINKS", self.sinks)
            .flag("SOFTCAP", self.softcap.is_some())
            .flag("WINDOWED", self.window.is_some())
            .flag("SLICED", slices > 1)
            .text("WORKGROUP_SIZE", self.lanes())
            .text("DECLARATIONS", declarations(&self.bindings()));
        let values = split::row_values(self.rows_per_group(), self.rows, values);
        let values = tile.fragment.values(split::image_values(self.image_rows, values));
        let values = result_values(self.output, self.n_heads(), [cache.head_dim; 2], values);
        let values = cache
            .values(values)
            .size("HEAD_ELEMENTS", self.patches.map_or(cache.head_dim, |patches| patches.head_dim))
            .text("ALL_ROWS", rows_of_step(1));
        let values = PatchRows::values(self.patches.as_ref(), values);
        // Extensions are enabled before anything else.
        let extensions = "enable f16;\nenable wgpu_cooperative_matrix;\n";
        extensions.to_owned() + &render(include_str!("kernel.wgsl"), &values)
    }

    fn fragment_shape(&self) -> Option<FragmentShape> {
        Some(self.tile.fragment)
    }
}

impl FlashSpec {
    /// Attention of an image's patches on matrix units; `None`: its rows or heads do not fit the kernel.
    pub fn of_patches(spec: &ImageAttentionSpec, tile: FlashTile, subgroup_size: u32) -> Option<FlashSpec> {
        let (patches, cache) = PatchRows::of(spec)?;
        tile.takes(&cache).then_some(FlashSpec {
            gqa: 1,
            cache,
            kv_group: 0,
            window: None,
            heads_per_group: 1,
            input_stride: spec.input_strides[0],
            output_stride: spec.output_stride,
            output: ActivationFormat::F32,
            softcap: None,
            sinks: false,
            image_rows: 0,
            patches: Some(patches),
            rows: StepRows::All,
            tile,
            subgroup_size,
        })
    }

    /// The same spec with another tile.
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

    /// 16-byte words of K of a page.
    fn key_items(&self) -> usize {
        self.cache.page_tokens * self.cache.chunks()
    }

    /// Tokens whose words of a chunk a lane transposes together: as many as leave every lane something to do.
    fn value_tokens(&self) -> usize {
        let enough = |tokens: &usize| self.key_items() / tokens >= self.lanes();
        [8, 4].into_iter().find(enough).unwrap_or(2)
    }
}
