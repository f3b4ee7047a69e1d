//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation_format::{ACTIVATION_GROUP, ActivationFormat, Precision};
use crate::cache::CacheLayout;
use crate::combine::{MASKED, partial_quads, result_role, result_values};
use crate::counter_sync;
use crate::fixed_sums;
use crate::fused_tail::{self, FusedTailSpec};
use crate::heads::HeadsSpec;
use crate::kernel::Kernel;
use crate::layout::{WeightFormat, unpacking};
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations_with_sync};
use crate::split::{self, Split, StepRows};
use crate::template::{Values, render};

/// Parameters of one pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DecodeAttentionSpec {
    /// Query heads of one KV head.
    pub gqa: usize,
    /// A subgroup has a lane for each chunk of a head.
    pub cache: CacheLayout,
    /// Index of the cache's KV group, whose block table is read.
    pub kv_group: usize,
    /// Division of the cached tokens of one row between workgroups; `tile` is the number of lanes of a workgroup.
    pub split: Split,
    /// Query heads of one KV head that a workgroup takes; divides `gqa`.
    pub heads_per_group: usize,
    /// Words of K, and of V, that a lane has in flight while it waits for other data.
    pub words_ahead: usize,
    /// q, k and v, one part each.
    pub heads: HeadsSpec,
    /// `cap` in `cap * tanh(score / cap)`; `None`: scores are not capped.
    pub softcap: Option<Number>,
    /// Whether each head has a sink: a logit, bound as [`Role::Sinks`], that takes its share of the softmax and has no value.
    pub sinks: bool,
    /// Words between rows of the output.
    pub output_stride: usize,
    /// Format of the result.
    pub output: ActivationFormat,
    /// The matmul that reads the result of one row: each split loads its weights, and the last split of a head to complete does it.
    pub fused_tail: Option<FusedTailSpec>,
    /// Elements of the sums that the next dispatch adds to, zeroed here, as `MatMulSpec::clears`.
    pub clears: usize,
    /// Divides a page's tokens.
    pub subgroup_size: u32,
    /// Synchronises with the dispatches before and after it by counters, without a barrier: see `counter_sync`.
    pub counter_sync: bool,
}

/// Partial results that a lane has in flight while it combines them.
const GATHERED: usize = 8;

impl Kernel for DecodeAttentionSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let parts = self.split.is_partial().then_some([Role::Exchange, Role::CompletionCounters]);
        let mut roles = vec![Role::Step, Role::Input];
        match self.fused_tail {
            Some(_) => roles.extend(FusedTailSpec::roles()),
            None => roles.push(result_role(self.output)),
        }
        roles.extend([Role::Keys, Role::Values]);
        roles.extend(self.heads.factors());
        roles.extend(self.sinks.then_some(Role::Sinks));
        roles.extend(parts.into_iter().flatten());
        roles.extend((self.clears > 0).then_some(Role::ClearedFixedSums));
        roles.extend(self.counter_sync.then_some(Role::SyncCounters));
        let mut list = bindings(roles);
        for binding in list.iter_mut().filter(|binding| matches!(binding.role, Role::Keys | Role::Values)) {
            binding.writes = self.stores_newest();
        }
        list
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.n_heads() / self.heads_per_group, rows, self.split.splits]
    }

    fn wgsl(&self) -> String {
        assert_eq!(self.gqa % self.heads_per_group, 0, "workgroups share a KV head evenly");
        assert!(self.words_ahead > 0, "a lane has at least one load in flight");
        assert!(self.heads.is_qkv() && self.split.newest_apart, "q, k and v come together");
        assert!(Self::takes(&self.cache, self.subgroup_size), "a subgroup holds a head, and a page whole tiles");
        assert_eq!(self.split.rows_per_group, 1, "each row is a sequence's");
        assert!(self.lanes().is_multiple_of(self.subgroup_size as usize), "whole subgroups");
        assert!((1..=self.split.max_splits).contains(&self.split.splits), "splits are at most max_splits");
        if let Some(next) = &self.fused_tail {
            assert_eq!(self.output, ActivationFormat::Quantized(Precision::Int8), "the next matmul reads codes");
            assert!(FusedTailSpec::takes(&next.layout), "the next matrix is of integers");
            assert_eq!(next.layout.cols, self.n_heads() * self.cache.head_dim, "the next matrix takes the result");
        }
        let (pass, pass_shares) = self.pass();
        let pairs = self.cache.head_dim / 2;
        let groups = if self.fused_tail.is_some() { self.result_groups() } else { 0 };
        let formats: Vec<WeightFormat> = self.fused_tail.iter().map(|next| next.layout.format).collect();
        let values = counter_sync::values(self.counter_sync, fixed_sums::clearing(self.clears, Values::default()));
        let values = fused_tail::values(self.fused_tail.as_ref(), self.lanes(), groups, unpacking(&formats, values))
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
            .size("PARTIAL_SUMS", self.partial_sums_len())
            .size("REPORTS", self.reports_len())
            .size("PASS", pass)
            .size("PASS_SHARES", pass_shares)
            .count("KEYS_AHEAD", self.words_ahead.min(self.cache.chunks()))
            .count("VALUES_AHEAD", self.words_ahead.min(self.steps()))
            .count("STEPS", self.steps())
            .count("GATHERED", GATHERED)
            .number("CAP", self.softcap.map_or(0.0, Number::get))
            .number("MASKED", MASKED)
            .text("QUERY_SCALE", self.heads.parts[0].scale_wgsl())
            .flag("SUBGROUPS", true)
            .flag("SINKS", self.sinks)
            .flag("SOFTCAP", self.softcap.is_some())
            .flag("PARTIAL", self.split.is_partial())
            .text("DECLARATIONS", declarations_with_sync(&self.bindings(), self.counter_sync, &[Role::TailWeights]));
        let values = self.heads.values(self.cache.values(split::image_values(0, self.split.values(values))));
        let values = values.flag("STORES_NEWEST", self.stores_newest());
        let values =
            if self.stores_newest() { values } else { values.flag("STORE_KEYS", false).flag("STORE_VALUES", false) };
        let values = result_values(self.output, self.n_heads(), [self.cache.head_dim; 2], values);
        render(include_str!("kernel.wgsl"), &values)
    }

    fn counter_sync(&mut self) -> Option<&mut bool> {
        Some(&mut self.counter_sync)
    }

    fn clears(&mut self) -> Option<&mut usize> {
        Some(&mut self.clears)
    }

    fn fused_tail(&mut self) -> Option<&mut Option<FusedTailSpec>> {
        Some(&mut self.fused_tail)
    }
}

impl DecodeAttentionSpec {
    /// Whether a subgroup of this size holds a head by itself: a lane for each chunk, and all its tokens in one page.
    pub fn takes(cache: &CacheLayout, subgroup_size: u32) -> bool {
        let lanes = subgroup_size as usize;
        lanes > 0
            && cache.latent_value.is_none()
            && cache.chunks() <= lanes
            && cache.page_tokens.is_multiple_of(lanes)
            && cache.head_dim.is_multiple_of(2)
    }

    /// Groups of 32 elements that a workgroup computes.
    pub fn result_groups(&self) -> usize {
        self.heads_per_group * self.cache.head_dim / ACTIVATION_GROUP
    }

    /// Groups of the next matrix' weights that a lane holds; 0: there is no fused tail.
    pub fn tail_groups_per_lane(&self) -> usize {
        self.fused_tail.as_ref().map_or(0, |next| next.groups_per_lane(self.lanes(), self.result_groups()))
    }

    /// Whether it puts the newest K and V into the cache. Those of rows beside others are already there: `heads` has made them with those of
    /// all rows, and dispatches that read the cache need not wait.
    fn stores_newest(&self) -> bool {
        self.split.rows == StepRows::All
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

    /// Lanes of a subgroup that share a chunk of dimensions, each with a strided share of the tokens.
    fn shares(&self) -> usize {
        self.subgroup_size as usize / self.cache.chunks()
    }

    /// Tokens of a tile whose V a lane accumulates.
    fn steps(&self) -> usize {
        (self.subgroup_size as usize).div_ceil(self.shares())
    }

    fn chunk_quads(&self) -> usize {
        self.cache.format.chunk() / 4
    }

    /// Quads of the result that are combined at a time, and lanes that share the splits of each.
    fn pass(&self) -> (usize, usize) {
        let lanes = (self.heads_per_group * self.cache.head_dim.div_ceil(4)).min(self.lanes());
        (lanes, self.lanes() / lanes)
    }

    /// Vectors that subgroups store for the workgroup's sum, and later the shares of a pass.
    fn partial_sums_len(&self) -> usize {
        (self.heads_per_group * self.chunk_quads() * self.lanes()).max(self.lanes())
    }

    /// A pair of numbers for each query and subgroup, and later for each query and split.
    fn reports_len(&self) -> usize {
        let of_splits = if self.split.is_partial() { self.split.splits } else { 0 };
        self.heads_per_group * self.subgroups().max(of_splits)
    }

    /// Workgroup memory.
    pub fn shared_bytes(&self) -> usize {
        let next = if self.fused_tail.is_some() { FusedTailSpec::shared_bytes(self.result_groups()) } else { 0 };
        let vectors = (self.heads_per_group + 2) * self.cache.padded_dim() / 4;
        16 * (vectors + self.partial_sums_len()) + 8 * self.reports_len() + 4 + next
    }

    /// Counters that a program of `rows` rows needs.
    pub fn completion_counters(&self, rows: usize) -> usize {
        rows * self.n_heads() / self.heads_per_group
    }
}
