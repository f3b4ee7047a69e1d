//! Attention behind `heads`, or with it as its prologue, over a cache that it and steps before have filled, whole or split:
//! against the twins in turn. On devices with matrix units (`cargo xtask matrices` brings one) also attention of prefill on
//! those.

use unicorn_artifact::KvGroupPlan;
use unicorn_kernels::attention::{self, AttentionInputs, AttentionSpec, TILE};
use unicorn_kernels::combine::{self, CombineSpec, partials_len};
use unicorn_kernels::decode_attention::DecodeAttentionSpec;
use unicorn_kernels::flash::{self, FlashSpec, FlashTile};
use unicorn_kernels::heads::{
    self, Destination, Growth, HeadsInputs, HeadsPart, HeadsSpec, NormOf, RopePositions, rope_coarse, rope_table,
};
use unicorn_kernels::split::{Split, StepRows};
use unicorn_kernels::{ActivationFormat, CacheLayout, KvFormat, Precision};

use super::*;

/// Caches hold f16: half a unit in the last place of 11 bits.
const F16_TOLERANCE: f64 = 1e-3;
/// Queries and weights hold f16, too.
const FLASH_TOLERANCE: f64 = 2e-3;
/// A value near the middle of two codes may be rounded to either: a step of a 127th of the largest, in a row of few heads
/// as much as this.
const CODES_TOLERANCE: f64 = 4e-3;
/// The same where queries and weights hold f16: as much as a third of a step more, so that some codes of a row do.
const FLASH_CODES_TOLERANCE: f64 = 1e-2;
/// Rows of the table that stands for a model's q, k and v.
const VOCAB: usize = 50;
const CONTEXT: usize = tests::launch::CONTEXT as usize;

/// One launch: shapes, kernels and tokens.
#[derive(Clone, Debug)]
pub struct Case {
    pub attention: AttentionSpec,
    /// Tile of the kernel on matrix units, if that runs instead.
    pub flash: Option<FlashTile>,
    /// The kernel in one dispatch, if that runs instead: `attention` is its twin.
    pub decode: Option<DecodeAttentionSpec>,
    pub heads: HeadsSpec,
    pub combine_lanes: usize,
    pub n_before: usize,
    pub n_rows: usize,
    /// Rows of the program; longer feeds are cut.
    pub rows: usize,
}

/// What a case is generated from, in addition to target, cache and splits. Each field stands for one choice, so that it shrinks by
/// itself.
#[derive(Clone, Debug)]
struct Choices {
    heads_per_kv_head: usize,
    /// Values are normed; values are keys.
    values: (bool, bool),
    with_norm: bool,
    with_rope: bool,
    half_rotary: bool,
    /// Queries grow with their position.
    growth: bool,
    window: Option<usize>,
    /// Tokens before this one are seen by none.
    first_token: usize,
    softcap: bool,
    sinks: bool,
    /// Where the search for a format of integers that fits the heads begins; `None`: f32.
    output: Option<usize>,
    rows_per_group: usize,
    unused_room: usize,
    words_ahead: usize,
}

fn choices() -> impl Strategy<Value = Choices> {
    let heads = (select(vec![1, 2, 3, 5, 8, 16usize]), any::<[bool; 4]>(), any::<(bool, bool)>());
    let windows = prop_oneof![Just(Some(1)), (2..60usize).prop_map(Some), (60..500usize).prop_map(Some)];
    let seen = (
        prop_oneof![1 => (0..2usize).prop_map(|first_token| (None, first_token)), 3 => windows.prop_map(|window| (window, 0))],
        any::<bool>(),
        any::<bool>(),
    );
    let ways = (prop::option::of(0..3usize), 1..4usize, 0..3usize, select(vec![1, 4, 7usize]));
    (heads, seen, ways).prop_map(
        |(heads, ((window, first_token), softcap, sinks), (output, rows_per_group, unused_room, words_ahead))| {
            let (heads_per_kv_head, [with_norm, with_rope, half_rotary, growth], values) = heads;
            Choices {
                heads_per_kv_head,
                values,
                with_norm,
                with_rope,
                half_rotary,
                growth,
                window,
                first_token,
                softcap,
                sinks,
                output,
                rows_per_group,
                unused_room,
                words_ahead,
            }
        },
    )
}

fn caches() -> impl Strategy<Value = CacheLayout> {
    let head_dim = select(vec![64, 32, 96, 40, 256, 512, 128, 10, 80usize]);
    (head_dim, 1..4usize, any::<bool>()).prop_map(|(head_dim, n_kv_heads, integers)| {
        let format = if integers { KvFormat::Int8 } else { KvFormat::F16 };
        CacheLayout { format, n_kv_heads, head_dim, page_tokens: 32, latent_value: None }
    })
}

/// Tokens before the step: the first of a sequence, the last and the first of a tile, any.
fn before() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), Just(63), Just(64), 300..600usize]
}

#[test]
fn attention_through_the_paged_cache() {
    for target in targets() {
        for splits in [1, 4, 9] {
            let max_rows = if splits == 1 { 16 } else { 8 };
            let cases = (choices(), caches(), 1..200usize, 1..=max_rows);
            let cases = cases.prop_map(|(choices, cache, n_before, n_rows)| {
                let case = Case::of(&target, cache, splits, false, &choices);
                Case { n_before, n_rows, rows: max_rows, ..case }
            });
            let name = format!("attention in {splits} splits, {}", target.name);
            check_cases(&name, if splits == 1 { 2 } else { 1 }, &cases, |case, rng| case.check_fitting(&target, rng));
        }
    }
}

/// One vector a token, from which all heads take their keys and values.
#[test]
fn latent_attention_through_the_paged_cache() {
    for target in targets() {
        for splits in [1, 5] {
            let max_rows = if splits == 1 { 16 } else { 8 };
            let sizes = (select(vec![(512, 64), (256, 32), (40, 8), (24, 16), (13, 6usize)]), any::<bool>());
            let cases = (choices(), sizes, 1..200usize, 1..=max_rows);
            let cases = cases.prop_map(|(choices, ((rank, rope_dim), integers), n_before, n_rows)| {
                let cache = CacheLayout {
                    format: if integers { KvFormat::Int8 } else { KvFormat::F16 },
                    n_kv_heads: 1,
                    head_dim: rank + rope_dim,
                    page_tokens: 32,
                    latent_value: Some(rank),
                };
                let choices = Choices { values: (false, false), with_norm: false, output: None, ..choices };
                let case = Case::of(&target, cache, splits, false, &choices).with_latent(rank, choices.with_rope);
                Case { n_before, n_rows, rows: max_rows, ..case }
            });
            let name = format!("latent attention in {splits} splits, {}", target.name);
            check_cases(&name, 2, &cases, |case, rng| case.check_fitting(&target, rng));
        }
    }
}

#[test]
fn attention_that_does_the_work_on_heads() {
    for target in targets() {
        let cases = (choices(), caches(), before(), select(vec![1, 3, 5, 16usize]));
        let cases = cases.prop_map(|(choices, cache, n_before, splits)| Case {
            n_before,
            ..Case::of(&target, cache, splits, true, &choices)
        });
        let name = format!("attention with heads, {}", target.name);
        check_cases(&name, 4, &cases, |case, rng| case.check_fitting(&target, rng));
    }
}

/// `None`: what this case needs does not fit the device's workgroup memory.
fn in_one_dispatch(
    target: &Target,
    case: Case,
    (tile, words_ahead, counter_sync): (usize, usize, bool),
    next: Option<(WeightFormat, usize)>,
) -> Option<Case> {
    let AttentionSpec { gqa, cache, split, heads_per_group, softcap, sinks, output_stride, output, .. } =
        case.attention;
    let mut decode = DecodeAttentionSpec {
        gqa,
        cache,
        kv_group: 0,
        split: Split { tile, ..split },
        heads_per_group,
        words_ahead,
        heads: case.heads.clone(),
        softcap,
        sinks,
        output_stride,
        output,
        fused_tail: None,
        clears: 0,
        subgroup_size: target.subgroup_size,
        counter_sync: counter_sync && target.counter_sync,
    };
    while decode.shared_bytes() > target.shared_memory_bytes && decode.split.tile > target.subgroup_size as usize {
        decode.split.tile /= 2;
    }
    if decode.shared_bytes() > target.shared_memory_bytes {
        return None;
    }
    let has_next = target.fused_tail.is_some() && matches!(output, ActivationFormat::Quantized(_));
    if let Some((format, rows)) = next.filter(|_| has_next) {
        let cols = gqa * cache.n_kv_heads * cache.head_dim;
        decode.fused_tail = Some(FusedTailSpec { layout: WeightLayout { format, rows, cols } });
        decode.clears = CLEARS;
    }
    Some(Case { attention: decode.as_attention(), decode: Some(decode), ..case })
}

#[test]
fn attention_of_decode_in_one_dispatch() {
    for target in targets().into_iter().filter(|target| target.subgroup_size > 0) {
        let is_taken = |cache: &CacheLayout| DecodeAttentionSpec::takes(cache, target.subgroup_size);
        let kernel = (select(vec![32, 64, 128usize]), select(vec![1, 4, 7, 16usize]), any::<bool>());
        let next_format = select(vec![WeightFormat::Int4 { group: 32 }, WeightFormat::Int8]);
        let next = prop::option::weighted(0.8, (next_format, 1..200usize));
        let caches = caches().prop_filter("caches that it takes", is_taken);
        // The first step, and one after others, which finds the counters as they left them.
        let cases = (choices(), caches, before(), select(vec![1, 3, 5, 16usize]), kernel, next);
        let cases = cases.prop_filter_map("fits", |(choices, cache, n_before, splits, kernel, next)| {
            let case = Case::of(&target, cache, splits, true, &choices);
            in_one_dispatch(&target, Case { n_before, ..case }, kernel, next)
        });
        let name = format!("decode attention, {}", target.name);
        check_cases(&name, 8, &cases, |case, rng| case.check(&target, rng));
    }
}

#[test]
fn flash_attention() {
    let targets = matrix_targets();
    if targets.is_empty() {
        return skip_matrix_units();
    }
    for target in &targets {
        check_flash(target);
    }
}

fn check_flash(target: &Target) {
    // Too few tokens in a page for all lanes of larger subgroups.
    let short_pages = (target.subgroup_size < 32).then_some((64, 16));
    for (head_dim, page_tokens) in
        [16, 32, 64, 80, 96, 128, 160, 256].map(|dim| (dim, 32)).into_iter().chain(short_pages)
    {
        let rows = (1..100usize, 0..70usize);
        let cases = (choices(), 1..4usize, prop_oneof![Just(0), 1..600usize], rows, any::<bool>());
        let cases = cases.prop_map(|(choices, n_kv_heads, n_before, (n_rows, unused_rows), many_subgroups)| {
            let cache = CacheLayout { format: KvFormat::F16, n_kv_heads, head_dim, page_tokens, latent_value: None };
            let case = Case::of(
                target,
                cache,
                1,
                false,
                &Choices { output: None, unused_room: 0, first_token: 0, ..choices.clone() },
            );
            let subgroups = if many_subgroups { 8 } else { 4 };
            let flash = FlashTile { subgroups, ..target.matrix.expect("set above").flash };
            let n_heads = cache.n_kv_heads * case.attention.gqa;
            let formats = [ActivationFormat::Halves(Precision::Int8), ActivationFormat::RowScaled(Precision::Int8)];
            let is_written = |format: &ActivationFormat| flash.writes(*format, &cache, n_heads);
            let output =
                choices.output.and_then(|first| formats.into_iter().cycle().skip(first).take(2).find(is_written));
            let attention = AttentionSpec { output: output.unwrap_or(ActivationFormat::F32), ..case.attention };
            Case { attention, flash: Some(flash), n_before, n_rows, rows: n_rows + unused_rows, ..case }
        });
        let fragment = target.matrix.expect("set above").fragment;
        let name = format!("flash attention, heads of {head_dim}, pages of {page_tokens}, {fragment:?}");
        check_cases(&name, 1 + u32::from(head_dim % 64 == 0), &cases, |case, rng| case.check(target, rng));
    }
}

impl Case {
    /// Checks a case that the target has the workgroup memory for; the compiler selects no other.
    fn check_fitting(&self, target: &Target, rng: &mut StdRng) {
        if self.attention.shared_bytes() <= target.shared_memory_bytes {
            self.check(target, rng);
        }
    }

    /// A launch of one row; `folded`: the work on heads is attention's prologue.
    fn of(target: &Target, cache: CacheLayout, splits: usize, folded: bool, choices: &Choices) -> Case {
        let head_dim = cache.head_dim;
        let gqa = choices.heads_per_kv_head;
        let n_heads = gqa * cache.n_kv_heads;
        let grows = choices.growth.then(|| Growth { beta: Number::new(0.2), interval: 50 });
        let part = |n_heads, norm, rope, scale, to| {
            let growth = grows.filter(|_| to == Destination::Output);
            HeadsPart { n_heads, norm, rope, scale: Number::new(scale), growth, to }
        };
        let (norm, rope) = (choices.with_norm, choices.with_rope);
        let (value_norm, values_are_keys) = choices.values;
        let kv_parts = if values_are_keys { 1 } else { 2 };
        let width = ((n_heads + kv_parts * cache.n_kv_heads) * head_dim).next_multiple_of(32);
        let q_width = (n_heads * head_dim).next_multiple_of(32);
        let heads = HeadsSpec {
            parts: vec![
                part(n_heads, norm.then_some(NormOf::Query), rope, 0.3, Destination::Output),
                part(cache.n_kv_heads, norm.then_some(NormOf::Key), rope, 1.0, Destination::Keys),
                part(cache.n_kv_heads, value_norm.then_some(NormOf::Value), false, 1.0, Destination::Values),
            ],
            values_are_keys,
            cache,
            input_stride: width,
            output_stride: q_width,
            eps: Number::new(1e-6),
            rotary_dim: if choices.half_rotary { head_dim / 4 * 2 } else { head_dim },
            rotary_begins: 0,
            rope_coarse: rope_coarse(CONTEXT),
            kv_group: 0,
            positions: RopePositions::Own,
            subgroup_size: target.subgroup_size,
        };
        let formats = [
            ActivationFormat::Quantized(Precision::Int8),
            ActivationFormat::RowScaled(Precision::Int8),
            ActivationFormat::Halves(Precision::Int8),
        ];
        let fits = |format: &ActivationFormat| format.lies_in_heads(n_heads, head_dim);
        let output = choices.output.and_then(|first| formats.into_iter().cycle().skip(first).take(3).find(fits));
        let attention = AttentionSpec {
            gqa,
            cache,
            kv_group: 0,
            split: Split {
                tile: TILE,
                rows_per_group: if folded { 1 } else { choices.rows_per_group },
                rows: StepRows::All,
                window: choices.window,
                first_token: choices.first_token,
                splits,
                max_splits: splits + choices.unused_room,
                newest_apart: folded,
            },
            heads_per_group: if gqa >= 8 { 4 } else { gqa },
            words_ahead: choices.words_ahead,
            input_stride: if folded { width } else { q_width },
            prologue: folded.then(|| heads.clone()),
            softcap: choices.softcap.then(|| Number::new(2.0)),
            sinks: choices.sinks,
            image_rows: 0,
            output_stride: q_width,
            output: output.unwrap_or(ActivationFormat::F32),
            subgroup_size: target.subgroup_size,
        };
        Case { attention, flash: None, decode: None, heads, combine_lanes: 128, n_before: 0, n_rows: 1, rows: 1 }
    }

    /// The same over latent vectors of `rank` elements and, behind them, rotated ones; each head's result is a row of its own.
    fn with_latent(mut self, rank: usize, rope: bool) -> Case {
        let [query, _, _] = self.heads.parts[..] else { panic!("q, k and v") };
        let shared = HeadsPart { n_heads: 1, scale: Number::new(1.0), growth: None, to: Destination::Latent, ..query };
        let rotary_dim = self.heads.cache.head_dim - rank;
        let width = ((query.n_heads + 1) * self.heads.cache.head_dim).next_multiple_of(32);
        self.heads.parts = vec![HeadsPart { rope, ..query }, HeadsPart { rope, ..shared }];
        (self.heads.rotary_begins, self.heads.rotary_dim, self.heads.input_stride) = (rank, rotary_dim, width);
        self.attention.output_stride = query.n_heads * rank.next_multiple_of(32);
        self
    }

    /// Elements between the results of a row's heads.
    fn result_stride(&self) -> usize {
        let cache = &self.attention.cache;
        let n_heads = self.attention.gqa * cache.n_kv_heads;
        if cache.latent_value.is_some() { self.attention.output_stride / n_heads } else { cache.head_dim }
    }

    fn combine(&self) -> CombineSpec {
        CombineSpec {
            n_heads: self.attention.gqa * self.attention.cache.n_kv_heads,
            head_dim: self.attention.cache.value_dim(),
            head_stride: self.result_stride(),
            max_splits: self.attention.split.max_splits,
            sinks: self.attention.sinks,
            output_stride: self.attention.output_stride,
            output: self.attention.output,
            lanes: self.combine_lanes,
            subgroup_size: self.attention.subgroup_size,
        }
    }

    fn flash(&self, tile: FlashTile) -> FlashSpec {
        let AttentionSpec {
            gqa,
            cache,
            kv_group,
            heads_per_group,
            input_stride,
            softcap,
            sinks,
            output_stride,
            output,
            ..
        } = self.attention;
        let (window, subgroup_size) = (self.attention.split.window, self.attention.subgroup_size);
        FlashSpec {
            gqa,
            cache,
            kv_group,
            window,
            heads_per_group,
            input_stride,
            output_stride,
            output,
            softcap,
            sinks,
            image_rows: 0,
            patches: None,
            rows: StepRows::All,
            tile,
            subgroup_size,
        }
    }

    pub fn check(&self, target: &Target, rng: &mut StdRng) {
        let what = format!("{} {self:?}", target.name);
        let (cache, heads) = (self.attention.cache, &self.heads);
        let rotary = heads.rotary_dim;
        let freqs: Vec<f64> = (0..rotary / 2).map(|i| 10000f64.powf(-2.0 * i as f64 / rotary as f64)).collect();
        let table = rope_table(&[&freqs], 1.1, CONTEXT);
        let (query_norm, key_norm) = (normals(rng, cache.head_dim), normals(rng, cache.head_dim));
        let layout = WeightLayout { format: WeightFormat::F16, rows: VOCAB, cols: heads.input_stride };
        let mut model = vec![0u8; layout.bytes()];
        for pair in model.chunks_exact_mut(2) {
            pair.copy_from_slice(&half::f16::from_f32(rng.random_range(-1f32..1.0)).to_le_bytes());
        }
        let embed = EmbedSpec {
            layout,
            first_token: 0,
            table_tokens: None,
            output_stride: heads.input_stride,
            scale: Number::new(1.5),
            image_stride: None,
        };
        let mut text = |len: usize| -> Vec<u32> { (0..len).map(|_| rng.random_range(0..VOCAB as u32)).collect() };
        let (before, tokens, other) = (text(self.n_before), text(self.n_rows), text(70));

        // Some far above the scores of their heads, and some below.
        let n_sinks = if self.attention.sinks { self.combine().n_heads } else { 0 };
        let sinks: Vec<f32> = normals(rng, n_sinks).iter().map(|sink| 3.0 * sink).collect();
        let max_splits = self.decode.as_ref().map_or(self.attention.split.max_splits, |decode| decode.split.max_splits);
        let partials = self.rows * partials_len(1, self.combine().n_heads, cache.value_dim(), max_splits);
        let q_len = self.rows * heads.output_stride;
        let result_len = self.rows * self.attention.output_stride;
        let next = self.decode.as_ref().and_then(|decode| decode.fused_tail.as_ref());
        let next_weights = next.map_or(Vec::new(), |next| packed(rng, &next.layout));
        let sum_words = next.map_or(0, |next| fixed_sums::WORDS_PER_ELEMENT * next.layout.rows.next_multiple_of(4));
        let operand = |kernel: usize, role| match role {
            Role::Step => Operand::Step,
            Role::TailWeights => Operand::Bytes(next_weights.clone()),
            Role::FixedSums => Operand::Out { id: RESULT, words: sum_words },
            Role::ClearedFixedSums => Operand::Out { id: CLEARED, words: fixed_sums::WORDS_PER_ELEMENT * CLEARS },
            Role::Weights => Operand::Bytes(model.clone()),
            Role::QueryNorm => Operand::floats(&query_norm),
            Role::KeyNorm => Operand::floats(&key_norm),
            Role::Sinks => Operand::floats(&sinks),
            Role::RopeTable => Operand::floats(table.as_flattened()),
            Role::Keys => Operand::Keys,
            Role::Values => Operand::Values,
            Role::Partials | Role::Exchange => Operand::Out { id: PARTIALS, words: partials },
            Role::CompletionCounters => Operand::CompletionCounters,
            Role::SyncCounters => Operand::SyncCounters,
            Role::Output if kernel == EMBED => Operand::Out { id: EMBED, words: self.rows * heads.input_stride },
            Role::Input if kernel == HEADS || self.attention.prologue.is_some() => {
                Operand::Out { id: EMBED, words: self.rows * heads.input_stride }
            }
            Role::Output if kernel == HEADS => Operand::Out { id: HEADS, words: q_len },
            Role::Input | Role::InputQuads => Operand::Out { id: HEADS, words: q_len },
            Role::Output | Role::OutputQuads | Role::Encoded => Operand::Out { id: RESULT, words: result_len },
            other => panic!("attention has no {other:?}"),
        };
        let step = |number: usize, kernel: KernelSpec| {
            let operands = kernel.bindings().into_iter().map(|binding| operand(number, binding.role)).collect();
            (kernel, operands)
        };
        let mut steps = vec![step(EMBED, KernelSpec::Embed(embed.clone()))];
        if self.attention.prologue.is_none() {
            steps.push(step(HEADS, KernelSpec::Heads(heads.clone())));
        }
        if next.is_some() {
            steps.push(clearer(target, (RESULT, sum_words)));
        }
        steps.push(match (self.flash, &self.decode) {
            (Some(tile), _) => step(RESULT, KernelSpec::Flash(self.flash(tile))),
            (None, Some(decode)) => step(RESULT, KernelSpec::DecodeAttention(decode.clone())),
            (None, None) => step(RESULT, KernelSpec::Attention(self.attention.clone())),
        });
        let times = 1 + usize::from(self.decode.as_ref().is_some_and(|decode| decode.counter_sync));
        if times > 1 {
            // Once more, to wait for the first time: it writes the same token to the same place.
            steps.push(steps[steps.len() - 1].clone());
        }
        if self.attention.split.is_partial() && next.is_none() {
            steps.push(step(RESULT, KernelSpec::Combine(self.combine())));
        }
        let launch = Launch {
            target: target.clone(),
            steps,
            kv: Some(KvGroupPlan {
                window_tokens: self.attention.split.window.map(|window| window as u32),
                n_layers: 1,
                page_tokens: cache.page_tokens as u32,
                page_bytes: cache.page_bytes() as u64,
                tier: unicorn_artifact::Tier::Vram,
                reason: String::new(),
            }),
            rows: self.rows,
            rows_per_token: 1,
            other,
            before: before.clone(),
            tokens: tokens.clone(),
        };
        let found = launch.run();

        let all: Vec<u32> = before.iter().chain(&tokens).copied().collect();
        let mut inputs = vec![0.0; all.len() * heads.input_stride];
        embed::twin(&embed, &model, &all, &[], &mut inputs);
        let block_table: Vec<u32> = (0..all.len().div_ceil(cache.page_tokens) as u32).rev().collect();
        let mut keys = vec![0; block_table.len() * cache.page_bytes() / 4];
        let mut values = keys.clone();
        let mut queries = vec![POISON; all.len() * heads.output_stride];
        let positions: Vec<u32> = (0..all.len() as u32).collect();
        let heads_inputs = HeadsInputs {
            input: &inputs,
            query_norm: &query_norm,
            key_norm: &key_norm,
            rope_table: &table,
            positions: &positions,
            block_table: &block_table,
            tokens: &[],
            rope_variant: 0,
        };
        heads::twin(heads, &heads_inputs, &mut queries, &mut keys, &mut values);
        let queries = &queries[self.n_before * heads.output_stride..];
        let attention_inputs = AttentionInputs {
            queries,
            query_stride: heads.output_stride,
            keys: &keys,
            values: &values,
            positions: &positions[self.n_before..],
            last_seen: &positions[self.n_before..],
            block_table: &block_table,
            sinks: &sinks,
        };
        let mut twin = vec![POISON.to_bits(); if self.attention.split.is_partial() { partials } else { result_len }];
        match self.flash {
            Some(tile) => flash::twin(&self.flash(tile), &attention_inputs, &mut twin),
            None => attention::twin(&self.attention, &attention_inputs, &mut twin),
        }
        if self.attention.prologue.is_none() {
            let used = self.n_rows * heads.output_stride;
            assert_same(&format!("queries of {what}"), &floats(&found[&HEADS])[..used], &queries[..used], TOLERANCE);
        }
        let tolerance = match (self.flash, cache.format) {
            (Some(_), _) => FLASH_TOLERANCE,
            (None, KvFormat::F16) => F16_TOLERANCE,
            (None, KvFormat::Int8) => CODES_TOLERANCE,
        };
        if self.attention.split.is_partial() {
            let maxima_bounded = |words: &[u32]| -> Vec<f32> {
                floats(words).iter().map(|x| if *x == -1e30 { 0.0 } else { *x }).collect()
            };
            let (device, expected) = (maxima_bounded(&found[&PARTIALS]), maxima_bounded(&twin));
            assert_same(&format!("partial results of {what}"), &device, &expected, tolerance);
            let used =
                partials_len(self.n_rows, self.combine().n_heads, cache.value_dim(), self.attention.split.max_splits);
            twin = vec![POISON.to_bits(); result_len];
            let partials = floats(&found[&PARTIALS][..used]);
            combine::twin(&self.combine(), &partials, &sinks, self.n_rows, &mut twin);
        }
        if let Some(cleared) = found.get(&CLEARED) {
            assert!(cleared.iter().all(|&word| word == 0), "{what} clears sums");
        }
        let Some(next) = next else { return self.assert_rows_same(&what, &found[&RESULT], &twin, tolerance) };
        let mut expected = vec![0; sum_words];
        next.twin(&next_weights, &twin, &mut expected);
        let added: Vec<f32> = values_of_sums(&found[&RESULT]).iter().map(|sum| sum / times as f32).collect();
        assert_same(&what, &added, &values_of_sums(&expected), CODES_TOLERANCE);
    }

    /// Rows of the result; a code may differ by one where f32 differs in the last place.
    fn assert_rows_same(&self, what: &str, found: &[u32], twin: &[u32], tolerance: f64) {
        let stride = self.attention.output_stride;
        let format = self.attention.output;
        let tolerance = match (format, self.flash) {
            (ActivationFormat::F32, _) => tolerance,
            (_, None) => CODES_TOLERANCE,
            (_, Some(_)) => FLASH_CODES_TOLERANCE,
        };
        let combine = self.combine();
        let width = (combine.n_heads - 1) * combine.head_stride + combine.head_dim;
        for (row, (found, twin)) in found.chunks(stride).zip(twin.chunks(stride)).enumerate() {
            if row >= self.n_rows {
                assert_eq!(found, twin, "{what}: written where nothing belongs, row {row}");
                continue;
            }
            let values = |words| unicorn_kernels::activation_format::decode_row(format, words, width);
            assert_same(&format!("row {row} of {what}"), &values(found), &values(twin), tolerance);
        }
    }
}

/// Outputs of a launch, which also number the kernels that write them.
const EMBED: usize = 0;
const HEADS: usize = 1;
const PARTIALS: usize = 2;
const RESULT: usize = 3;
const CLEARED: usize = 4;

/// Sums that an attention with a next matmul zeroes.
const CLEARS: usize = 100;
