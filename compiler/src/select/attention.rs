//! The kernels of attention: `heads`, what gathers the heads of latent attention, attention itself, and its combine. The choice depends on
//! whether each row of a step is the only one of its sequence, and on the number of workgroups that fill the device.

use unicorn_artifact::step::MAX_SAMPLERS;
use unicorn_kernels::Number;
use unicorn_kernels::attention::{AttentionSpec, TILE};
use unicorn_kernels::combine::{CombineSpec, partials_len};
use unicorn_kernels::completion::COMPLETION_COUNTERS;
use unicorn_kernels::decode_attention::DecodeAttentionSpec;
use unicorn_kernels::flash::FlashSpec;
use unicorn_kernels::head_columns::{HeadBlock, HeadColumnsSpec, HeadPart};
use unicorn_kernels::heads::{HeadsSpec, RopePositions, rope_coarse};
use unicorn_kernels::split::{Split, StepRows};
use unicorn_kernels::{ActivationFormat, CacheLayout, KernelSpec, KvFormat, Role};

use super::{Operand, Selector, operands};
use crate::fuse::{FusedNode, FusedOp, HeadsStep};
use crate::graph::{ColumnsBlock, ColumnsPart, ValueId, column_sources};

/// Most rows of programs whose attention is split over the sequence; with more there is work for all workgroups.
pub(super) const SPLIT_ROWS: usize = 8;
/// Lanes of a workgroup of `combine`: every device supports this many, and no head has this many vectors of four.
const COMBINE_LANES: usize = 128;
/// (row, head) pairs that one attention workgroup carries at most.
const ATTENTION_QUERIES: usize = 8;

impl Selector<'_> {
    pub(super) fn heads(&mut self, node: &FusedNode, step: &HeadsStep) {
        let spec = KernelSpec::Heads(self.heads_spec(node, step));
        let operands = operands(&spec, |role| match role {
            Role::Output => Operand::Value(step.out.expect("an output")),
            role => self.heads_operand(node, step, role),
        });
        self.push(node, spec, self.kind.rows, 0, |role| operands[&role]);
    }

    fn heads_spec(&self, node: &FusedNode, step: &HeadsStep) -> HeadsSpec {
        let rope = step.rope.map(|index| &self.config.ropes[index]);
        HeadsSpec {
            parts: step.parts.clone(),
            values_are_keys: step.values_are_keys,
            cache: self.cache_layout_of(node),
            input_stride: self.stride_of(step.input),
            output_stride: step.out.map_or(0, |out| self.stride_of(out)),
            eps: Number::new(self.config.rms_norm_eps),
            rotary_dim: rope.map_or(0, |rope| 2 * rope.inv_freq.len()),
            rotary_begins: self.config.latent.map_or(0, |latent| latent.rank),
            rope_coarse: rope_coarse(self.config.max_positions),
            kv_group: self.cache_of(node).0,
            positions: if step.rope.is_some() { self.rope_positions() } else { RopePositions::Own },
            subgroup_size: self.target.subgroup_size,
        }
    }

    /// Where angles of rotary embeddings come from: rows of images of any size have places, and what follows them other positions.
    pub(super) fn rope_positions(&self) -> RopePositions {
        let vision = self.config.vision.as_ref();
        match vision.and_then(|vision| Some((vision.grid.as_ref()?, vision.image_rows))) {
            None => RopePositions::Own,
            Some(_) if !self.kind.images => RopePositions::Shifted,
            Some((grid, image_rows)) => RopePositions::OfImages { sections: grid.sections, image_rows },
        }
    }

    fn heads_operand(&self, node: &FusedNode, step: &HeadsStep, role: Role) -> Operand {
        let (group, layer) = self.cache_of(node);
        match role {
            Role::Input => Operand::Value(step.input),
            Role::QueryNorm => Operand::Weight(self.weights.vector(step.query_norm.expect("query norm"))),
            Role::KeyNorm => Operand::Weight(self.weights.vector(step.key_norm.expect("key norm"))),
            Role::RopeTable => Operand::Weight(self.weights.rope(step.rope.expect("rope"))),
            Role::Keys => Operand::Keys { group, layer },
            Role::Values => Operand::Values { group, layer },
            other => unreachable!("heads have no {other:?}"),
        }
    }

    /// Whether each row of a step is the only one of its sequence.
    pub(super) fn rows_are_alone(&self) -> bool {
        self.kind.rows == 1 || self.kind.batch
    }

    /// Whether attention computes this step as its prologue: in a program whose rows are alone, where one step makes q, k and v
    /// and an attention follows. (The last layer of a program without logits only fills its cache.)
    pub(super) fn folds_into_attention(&self, step: &HeadsStep) -> bool {
        let (Some(heads), true) = (step.out, self.options.fold && self.rows_are_alone()) else { return false };
        let is_attention = |&&node: &&usize| matches!(self.graph.nodes[node].op, FusedOp::Attention { .. });
        let Some(&index) = self.verified.readers(heads).iter().find(is_attention) else { return false };
        let node = &self.graph.nodes[index];
        let FusedOp::Attention { query, out, .. } = node.op else { unreachable!("just matched") };
        let fits = |spec: AttentionSpec| spec.shared_bytes() <= self.target.shared_memory_bytes;
        self.live[index]
            && self.heads_spec(node, step).is_qkv()
            && fits(self.attention_spec(node, query, out, Some(step)))
    }

    fn heads_before(&self, query: ValueId) -> Option<&HeadsStep> {
        match &self.verified.producer(query)?.op {
            FusedOp::Heads(step) if self.folds_into_attention(step) => Some(step),
            _ => None,
        }
    }

    pub(super) fn attention(&mut self, node: &FusedNode, query: ValueId, out: ValueId) {
        if let Some(spec) = self.flash_spec(node, query, out) {
            return self.flash(node, spec, query, out);
        }
        let (group, layer) = self.cache_of(node);
        let heads = self.heads_before(query).cloned();
        if let Some(step) = &heads
            && let Some(spec) = self.decode_attention_spec(node, out, step)
        {
            let output = spec.output;
            self.decode_attention(node, spec, step, out);
            return self.quantize_f32(node, out, output);
        }
        let spec = self.attention_spec(node, query, out, heads.as_ref());
        let value_dim = spec.cache.value_dim();
        let len = partials_len(self.kind.rows, self.config.n_heads, value_dim, spec.split.max_splits);
        let partials = Operand::Partials { of: out, len };
        let combine = CombineSpec {
            n_heads: self.config.n_heads,
            head_dim: value_dim,
            head_stride: if self.config.latent.is_some() { self.stride_of(out) } else { value_dim },
            max_splits: spec.split.max_splits,
            sinks: spec.sinks,
            output_stride: spec.output_stride,
            output: spec.output,
            lanes: COMBINE_LANES,
            subgroup_size: spec.subgroup_size,
        };
        let output = spec.output;
        let spec = KernelSpec::Attention(spec);
        let of_attention = operands(&spec, |role| match (role, &heads) {
            (Role::Output, _) => Operand::Value(out),
            (Role::Encoded, _) => Operand::Encoded(out),
            (Role::Partials, _) => partials,
            (Role::Keys, _) => Operand::Keys { group, layer },
            (Role::Values, _) => Operand::Values { group, layer },
            (Role::Sinks, _) => self.sinks(node),
            (role, Some(step)) => self.heads_operand(node, step, role),
            (_, None) => Operand::Value(query),
        });
        self.push(node, spec, self.kind.rows, 0, |role| of_attention[&role]);
        if combine.max_splits > 1 {
            let spec = KernelSpec::Combine(combine);
            let operands = operands(&spec, |role| match role {
                Role::Partials => partials,
                Role::Sinks => self.sinks(node),
                Role::Encoded => Operand::Encoded(out),
                _ => Operand::Value(out),
            });
            self.push(node, spec, self.kind.rows, 0, |role| operands[&role]);
        }
        self.quantize_f32(node, out, output);
    }

    /// Attention that computes the result from q, k and v in one dispatch, where target and cache format allow it.
    fn decode_attention_spec(&self, node: &FusedNode, out: ValueId, step: &HeadsStep) -> Option<DecodeAttentionSpec> {
        let tuning = self.target.decode_attention?;
        let (config, rows) = (self.config, self.rows_of_sequences());
        let cache = self.cache_layout_of(node);
        if !DecodeAttentionSpec::takes(&cache, self.target.subgroup_size) {
            return None;
        }
        let (group, _) = self.cache_of(node);
        let gqa = config.n_heads / cache.n_kv_heads;
        let heads_per_group = shared_heads(gqa, tuning.heads(rows));
        let window = self.groups[group].window;
        let alone = config.n_heads / heads_per_group * rows;
        let (splits, max_splits) = self.splits(tuning.workgroups / alone, window, tuning.lanes);
        let spec = DecodeAttentionSpec {
            gqa,
            cache,
            kv_group: group,
            split: Split {
                rows_per_group: 1,
                rows: self.rows_if_mixed(StepRows::Apart),
                tile: tuning.lanes,
                window,
                first_token: self.first_token(node),
                splits,
                max_splits,
                newest_apart: true,
            },
            heads_per_group,
            words_ahead: tuning.words_ahead,
            heads: self.heads_spec(node, step),
            softcap: config.attention_softcap.map(Number::new),
            sinks: config.attention_sinks,
            output_stride: self.stride_of(out),
            output: self.attention_format(out, &cache),
            subgroup_size: self.target.subgroup_size,
            fused_tail: None,
            clears: 0,
            counter_sync: false,
        };
        let fits = spec.shared_bytes() <= self.target.shared_memory_bytes
            && spec.completion_counters(rows) <= COMPLETION_COUNTERS;
        fits.then_some(spec)
    }

    fn decode_attention(&mut self, node: &FusedNode, spec: DecodeAttentionSpec, step: &HeadsStep, out: ValueId) {
        let (group, layer) = self.cache_of(node);
        let rows = self.rows_of_sequences();
        let len = partials_len(rows, self.config.n_heads, spec.cache.head_dim, spec.split.max_splits);
        let spec = KernelSpec::DecodeAttention(spec);
        let operands = operands(&spec, |role| match role {
            Role::Output => Operand::Value(out),
            Role::Encoded => Operand::Encoded(out),
            Role::Exchange => Operand::Partials { of: out, len },
            Role::CompletionCounters => Operand::CompletionCounters,
            Role::Keys => Operand::Keys { group, layer },
            Role::Values => Operand::Values { group, layer },
            Role::Sinks => self.sinks(node),
            role => self.heads_operand(node, step, role),
        });
        self.push(node, spec, rows, 0, |role| operands[&role]);
    }

    /// `mixed` in programs some of whose rows are apart, all rows in others.
    fn rows_if_mixed(&self, mixed: StepRows) -> StepRows {
        if self.kind.is_mixed() { mixed } else { StepRows::All }
    }

    /// Most rows of a step each of which is a sequence's newest.
    fn rows_of_sequences(&self) -> usize {
        self.kind.rows.min(MAX_SAMPLERS)
    }

    /// Attention on matrix units, where the target has them: in programs of many rows of one sequence, over a cache whose
    /// format allows it.
    fn flash_spec(&self, node: &FusedNode, query: ValueId, out: ValueId) -> Option<FlashSpec> {
        let tile = self.target.matrix?.flash;
        let cache = self.cache_layout_of(node);
        let many = self.kind.rows > SPLIT_ROWS && !self.rows_are_alone();
        let fits = tile.takes(&cache) && tile.shared_bytes(&cache) <= self.target.shared_memory_bytes;
        let output = self.attention_format(out, &cache);
        if !(many && fits && !matches!(output, ActivationFormat::Quantized(_))) {
            return None;
        }
        let (group, _) = self.cache_of(node);
        let gqa = self.config.n_heads / cache.n_kv_heads;
        Some(FlashSpec {
            gqa,
            cache,
            kv_group: group,
            window: self.groups[group].window,
            heads_per_group: tile.heads(&cache, gqa),
            input_stride: self.stride_of(query),
            output_stride: self.stride_of(out),
            output: if tile.writes(output, &cache, self.config.n_heads) { output } else { ActivationFormat::F32 },
            softcap: self.config.attention_softcap.map(Number::new),
            sinks: self.config.attention_sinks,
            image_rows: self.image_rows(),
            patches: None,
            rows: self.rows_if_mixed(StepRows::EachApart),
            tile,
            subgroup_size: self.target.subgroup_size,
        })
    }

    fn flash(&mut self, node: &FusedNode, mut spec: FlashSpec, query: ValueId, out: ValueId) {
        let (group, layer) = self.cache_of(node);
        let output = spec.output;
        let of_sequences = self.attention_beside_flash(node, query, out, output);
        if of_sequences.is_some() {
            spec.rows = StepRows::Behind;
        }
        let spec = KernelSpec::Flash(spec);
        let operands = operands(&spec, |role| match role {
            Role::Keys => Operand::Keys { group, layer },
            Role::Values => Operand::Values { group, layer },
            Role::Sinks => self.sinks(node),
            Role::OutputQuads => Operand::Value(out),
            Role::Encoded => Operand::Encoded(out),
            _ => Operand::Value(query),
        });
        self.push(node, spec, self.kind.rows, 0, |role| operands[&role]);
        if let Some((spec, step)) = of_sequences {
            self.decode_attention(node, spec, &step, out);
            self.mark_part(1);
        }
        self.quantize_f32(node, out, output);
    }

    /// Attention of the rows apart in a mixed step, by the kernel of steps that only decode, at the same time as `flash` takes the rows of the prompt. In `flash`,
    /// a tile would hold the heads of one such row alone, and take as long as a full one.
    fn attention_beside_flash(
        &self,
        node: &FusedNode,
        query: ValueId,
        out: ValueId,
        output: ActivationFormat,
    ) -> Option<(DecodeAttentionSpec, HeadsStep)> {
        let FusedOp::Heads(step) = &self.verified.producer(query)?.op else { return None };
        if !(self.options.fold && self.kind.is_mixed() && self.heads_spec(node, step).is_qkv()) {
            return None;
        }
        let spec = self.decode_attention_spec(node, out, step)?;
        Some((DecodeAttentionSpec { output, ..spec }, step.clone()))
    }

    /// The format that matmuls read, of a result that attention has written in `output`.
    fn quantize_f32(&mut self, node: &FusedNode, out: ValueId, output: ActivationFormat) {
        if output == ActivationFormat::F32 {
            self.quantize(node, out);
        }
    }

    fn attention_spec(
        &self,
        node: &FusedNode,
        query: ValueId,
        out: ValueId,
        heads: Option<&HeadsStep>,
    ) -> AttentionSpec {
        let (group, _) = self.cache_of(node);
        let (config, rows) = (self.config, self.kind.rows);
        let cache = self.cache_layout_of(node);
        let gqa = config.n_heads / cache.n_kv_heads;
        let window = self.groups[group].window;
        let with = |queries: usize| {
            let heads_per_group = shared_heads(gqa, queries);
            let rows_per_group = if self.rows_are_alone() { 1 } else { (queries / heads_per_group).min(rows) };
            let alone = config.n_heads / heads_per_group * rows.div_ceil(rows_per_group);
            let (splits, max_splits) = self.splits(self.target.attention_workgroups / alone, window, TILE);
            AttentionSpec {
                gqa,
                cache,
                kv_group: group,
                split: Split {
                    rows_per_group,
                    rows: if rows_per_group > 1 { self.rows_if_mixed(StepRows::EachApart) } else { StepRows::All },
                    tile: TILE,
                    window,
                    first_token: self.first_token(node),
                    splits,
                    max_splits,
                    newest_apart: heads.is_some(),
                },
                heads_per_group,
                words_ahead: self.target.attention_words_ahead,
                input_stride: self.stride_of(heads.map_or(query, |step| step.input)),
                prologue: heads.map(|step| self.heads_spec(node, step)),
                softcap: config.attention_softcap.map(Number::new),
                sinks: config.attention_sinks,
                image_rows: self.image_rows(),
                output_stride: self.stride_of(out) * self.graph.values[out.0].rows_per_token,
                output: self.attention_format(out, &cache),
                subgroup_size: self.target.subgroup_size,
            }
        };
        // Fewer where the vectors of as many are longer than a workgroup's memory.
        let fits = |queries: &usize| with(*queries).shared_bytes() <= self.target.shared_memory_bytes;
        with((1..=ATTENTION_QUERIES).rev().find(fits).unwrap_or(1))
    }

    /// The first token that attention of a node's layer attends to: the predictor has nothing of a sequence's first.
    fn first_token(&self, node: &FusedNode) -> usize {
        usize::from(self.config.predictor_layer() == node.layer && node.layer.is_some())
    }

    /// Rows of an image that attend to each other, if rows of the step may be of such images; else 0.
    fn image_rows(&self) -> usize {
        let both_ways = self.config.vision.as_ref().filter(|vision| self.kind.images && vision.grid.is_none());
        both_ways.map_or(0, |vision| vision.image_rows)
    }

    /// Heads that are made of columns of several values' heads.
    pub(super) fn head_columns(&mut self, node: &FusedNode, blocks: &[ColumnsBlock], out: ValueId) {
        let sources = column_sources(blocks);
        let part = |part: &ColumnsPart, n_heads: usize| {
            let value = &self.graph.values[part.value.0];
            HeadPart {
                source: sources.iter().position(|source| *source == part.value).expect("a source"),
                head_stride: if value.rows_per_token > 1 { self.stride_of(part.value) } else { value.width / n_heads },
                first: part.first,
                width: part.width,
            }
        };
        let block = |block: &ColumnsBlock| HeadBlock {
            n_heads: block.n_heads,
            parts: block.parts.iter().map(|one| part(one, block.n_heads)).collect(),
        };
        let blocks: Vec<HeadBlock> = blocks.iter().map(block).collect();
        let row_stride = |value: ValueId| self.stride_of(value) * self.graph.values[value.0].rows_per_token;
        let is_row = self.graph.values[out.0].rows_per_token == 1;
        let spec = HeadColumnsSpec {
            head_stride: if is_row { blocks[0].width() } else { self.stride_of(out) },
            output_stride: row_stride(out),
            source_strides: sources.iter().map(|source| row_stride(*source)).collect(),
            blocks,
        };
        let result = self.value(out);
        self.push(node, KernelSpec::HeadColumns(spec), self.kind.rows, 0, |role| match role {
            Role::Input => Operand::Value(sources[0]),
            Role::Second => Operand::Value(sources[1]),
            Role::Third => Operand::Value(sources[2]),
            Role::Fourth => Operand::Value(sources[3]),
            _ => result,
        });
        self.quantize(node, out);
    }

    /// The sinks of an attention: a logit for each head that takes a share of its softmax.
    fn sinks(&self, node: &FusedNode) -> Operand {
        let FusedOp::Attention { sinks: Some(sinks), .. } = node.op else {
            unreachable!("called for heads with sinks")
        };
        Operand::Weight(self.weights.vector(sinks))
    }

    /// The format in which attention or its combine writes: the format that readers need, where possible. A row's factor is known
    /// before the row only if the cache bounds its values.
    fn attention_format(&self, out: ValueId, cache: &CacheLayout) -> ActivationFormat {
        let wanted = self.stored_format(out);
        let known = match wanted {
            ActivationFormat::F32 | ActivationFormat::Quantized(_) => true,
            ActivationFormat::RowScaled(_) | ActivationFormat::Halves(_) => self.options.kv == KvFormat::F16,
        };
        if cache.latent_value.is_some() {
            return ActivationFormat::F32;
        }
        let whole = wanted.lies_in_heads(self.config.n_heads, cache.head_dim);
        if whole && known { wanted } else { ActivationFormat::F32 }
    }

    /// Number of parts of the cached tokens: `wanted`, which fill the device, or the largest number of tiles if that is less.
    /// Second: the number for which memory is reserved, so that `tune` may double them.
    fn splits(&self, wanted: usize, window: Option<usize>, tile: usize) -> (usize, usize) {
        if self.kind.rows > SPLIT_ROWS && !self.rows_are_alone() {
            return (1, 1);
        }
        // A window that begins and ends within a tile overlaps one more.
        let tokens = window.map_or(self.config.max_positions, |window| window + tile).min(self.config.max_positions);
        let tiles = tokens.div_ceil(tile);
        let splits = wanted.clamp(1, tiles);
        (splits, if splits > 1 && self.options.alternatives { (2 * splits).min(tiles) } else { splits })
    }
}

/// The most of `gqa` query heads, at most `max`, that share a KV head evenly.
fn shared_heads(gqa: usize, max: usize) -> usize {
    (1..=gqa.min(max)).rev().find(|n| gqa.is_multiple_of(*n)).unwrap_or(1)
}
