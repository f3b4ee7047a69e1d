//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation_format::ActivationFormat;
use crate::cache::CacheLayout;
use crate::combine::{MASKED, partial_quads, result_role, result_values};
use crate::heads::HeadsSpec;
use crate::kernel::{Kernel, RowAxis};
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::split::{self, Split, StepRows};
use crate::template::{Values, render};

/// Parameters of one attention pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// Query heads of one KV head.
    pub gqa: usize,
    /// Shape of the layer's cache.
    pub cache: CacheLayout,
    /// Index of the cache's KV group, whose block table is read.
    pub kv_group: usize,
    /// Division of the cached tokens between workgroups.
    pub split: Split,
    /// Query heads of one KV head that a workgroup takes; divides `gqa`.
    pub heads_per_group: usize,
    /// Words of K, and of V, that a lane has in flight, at most.
    pub words_ahead: usize,
    /// Elements between rows of `input`: q as `heads` writes it or, with a prologue, q, k and v.
    pub input_stride: usize,
    /// The work of `heads`, if this kernel does it: one part each for q, k and v.
    pub prologue: Option<HeadsSpec>,
    /// `cap` in `cap * tanh(score / cap)`; `None`: scores are not capped.
    pub softcap: Option<Number>,
    /// Whether each head has a sink: a logit, bound as [`Role::Sinks`], that takes its share of the softmax and has no value. If
    /// `split` leaves partial results, `combine` adds it.
    pub sinks: bool,
    /// Rows of an image, which attend to each other in both directions; 0: there are no images.
    pub image_rows: usize,
    /// Words between rows of the output.
    pub output_stride: usize,
    /// Format of the result, if `split` leaves no partial results.
    pub output: ActivationFormat,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
}

/// Cached tokens that are scored at a time, and lanes of a workgroup.
pub const TILE: usize = 64;
/// Runs of a tile whose maximum scores are found separately, without subgroups.
const PARTS: usize = 8;

impl Kernel for AttentionSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let result = if self.split.is_partial() { Role::Partials } else { result_role(self.output) };
        let factors = self.prologue.iter().flat_map(HeadsSpec::factors);
        let roles = [Role::Step, Role::Input, result, Role::Keys, Role::Values];
        let sinks = self.has_sinks().then_some(Role::Sinks);
        let mut list = bindings(roles.into_iter().chain(factors).chain(sinks));
        for binding in &mut list {
            // Without a prologue the cache is only read.
            binding.writes &= binding.role == result || self.prologue.is_some();
        }
        list
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.n_heads() / self.heads_per_group, self.split.groups(rows), self.split.splits]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        // Splits leave partial results, rows apart are of other sequences, and a prologue writes the cache.
        let is_plain = self.split.splits == 1 && self.split.rows == StepRows::All && self.prologue.is_none();
        (is_plain && self.image_rows == 0).then_some(RowAxis { axis: 1, rows: self.split.rows_per_group })
    }

    fn wgsl(&self) -> String {
        assert_eq!(self.gqa % self.heads_per_group, 0, "workgroups share a KV head evenly");
        assert_eq!(self.split.tile, TILE, "a lane scores a token");
        assert!(self.words_ahead > 0, "a lane has at least one load in flight");
        assert_eq!(TILE % self.cache.page_tokens, 0, "a tile is whole pages");
        assert!(self.cache.value_chunks() <= TILE, "a lane takes a chunk of a value");
        let is_latent = self.cache.latent_value.is_some();
        assert!(!is_latent || self.prologue.is_none(), "a prologue has keys and values");
        assert!((1..=self.split.max_splits).contains(&self.split.splits), "splits are at most max_splits");
        assert_eq!(self.split.newest_apart, self.prologue.is_some(), "a prologue has the newest token at hand");
        let values = Values::default()
            .size("N_HEADS", self.n_heads())
            .size("GQA", self.gqa)
            .flag("SINKS", self.has_sinks())
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
            .size("PARTIAL_QUADS", partial_quads(self.cache.value_dim()))
            .size("KEY_UNROLL", self.key_unroll())
            .size("VALUE_UNROLL", self.value_unroll())
            .number("CAP", self.softcap.map_or(0.0, Number::get))
            .number("MASKED", MASKED)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .flag("SOFTCAP", self.softcap.is_some())
            .flag("PARTIAL", self.split.is_partial())
            .flag("FOLD", self.prologue.is_some())
            .text("DECLARATIONS", declarations(&self.bindings()));
        let values = split::image_values(self.image_rows, self.cache.values(self.split.values(values)));
        let values = result_values(self.output, self.n_heads(), [self.cache.value_dim(), self.result_stride()], values);
        let values = match &self.prologue {
            Some(heads) => self.prologue_values(heads, values),
            None => {
                values.flag("QUERY_NORM", false).flag("KEY_NORM", false).flag("VALUE_NORM", false).flag("ROPE", false)
            }
        };
        render(include_str!("kernel.wgsl"), &values)
    }
}

impl AttentionSpec {
    /// Elements between the results of a row's heads: of latent attention each is a row of its own.
    pub(super) fn result_stride(&self) -> usize {
        if self.cache.latent_value.is_some() { self.output_stride / self.n_heads() } else { self.cache.head_dim }
    }

    /// Whether this kernel adds the sinks.
    fn has_sinks(&self) -> bool {
        self.sinks && !self.split.is_partial()
    }

    /// (row, head) pairs of a workgroup.
    fn queries(&self) -> usize {
        self.split.rows_per_group * self.heads_per_group
    }

    pub(super) fn n_heads(&self) -> usize {
        self.cache.n_kv_heads * self.gqa
    }

    /// Lanes that share a chunk of dimensions, each with a strided share of a page's tokens.
    fn token_shares(&self) -> usize {
        let lanes = TILE / self.cache.value_chunks();
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

    /// Words of V that are read together; divides the tokens of a tile whose V a lane accumulates.
    fn value_unroll(&self) -> usize {
        self.unroll(TILE / self.token_shares())
    }

    fn unroll(&self, words: usize) -> usize {
        (1..=self.words_ahead).rev().find(|n| words.is_multiple_of(*n)).unwrap_or(1)
    }

    /// Workgroup memory, the prologue's and the reductions' included.
    pub fn shared_bytes(&self) -> usize {
        // Heads with the newest key and value, and their rotations.
        let prologue = self
            .prologue
            .as_ref()
            .map_or(0, |heads| (self.heads_per_group + 2) * self.cache.padded_dim() + heads.rotary_dim);
        let partial_sums = 4 * TILE * self.chunk_quads();
        4 * (self.queries() * (self.cache.padded_dim() + TILE + self.parts()) + partial_sums + prologue + 2 * TILE)
    }

    fn prologue_values(&self, heads: &HeadsSpec, values: Values) -> Values {
        assert!(heads.is_qkv(), "a prologue makes q, k and v");
        let values = values.size("VECTORS", self.heads_per_group + 2).text("QUERY_SCALE", heads.parts[0].scale_wgsl());
        heads.values(values)
    }
}
