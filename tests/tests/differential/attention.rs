//! Attention behind `heads`, or with it as its prologue, over a cache that it and steps before have filled, whole or split:
//! against the twins in turn. On devices with matrix units (`cargo xtask matrices` brings one) also attention of prefill on
//! those.

use unicorn_artifact::KvGroupPlan;
use unicorn_kernels::attention::{self, AttentionInputs, AttentionSpec, TILE};
use unicorn_kernels::combine::{self, CombineSpec, partials_len};
use unicorn_kernels::decode_attention::DecodeAttentionSpec;
use unicorn_kernels::flash::{self, FlashSpec, FlashTile};
use unicorn_kernels::heads::{self, Destination, HeadsInputs, HeadsPart, HeadsSpec, NormOf, rope_coarse, rope_table};
use unicorn_kernels::split::Split;
use unicorn_kernels::{ActivationFormat, CacheLayout, KvFormat, Precision};

use super::*;

/// Caches hold f16: half a unit in the last place of 11 bits.
const F16_TOLERANCE: f64 = 1e-3;
/// Queries and weights hold f16, too.
const FLASH_TOLERANCE: f64 = 2e-3;
/// A code that is a hair from the middle of two may come out as either: a step of a 127th of the greatest, in a row of few heads
/// as much as this.
const CODES_TOLERANCE: f64 = 4e-3;
/// The same where queries and weights hold f16: as much as a third of a step more, so that some codes of a row do.
const FLASH_CODES_TOLERANCE: f64 = 1e-2;
/// Rows of the table that stands for a model's q, k and v.
const VOCAB: usize = 50;
const CONTEXT: usize = tests::launch::CONTEXT as usize;

/// One launch: shapes, ways and tokens.
#[derive(Clone, Debug)]
pub struct Case {
    pub attention: AttentionSpec,
    /// On matrix units, in its place.
    pub flash: Option<FlashTile>,
    /// In one dispatch, in its place: `attention` is its twin.
    pub decode: Option<DecodeAttentionSpec>,
    pub heads: HeadsSpec,
    pub combine_lanes: usize,
    pub n_before: usize,
    pub n_rows: usize,
    /// Rows of the program; longer feeds are cut.
    pub rows: usize,
}

#[test]
fn attention_through_the_paged_cache() {
    let mut rng = StdRng::seed_from_u64(5);
    for (index, target) in targets().iter().cycle().take(15).enumerate() {
        let splits = [1, 4, 1, 9][index % 4];
        let rows = if splits == 1 { 16 } else { 8 };
        let case = Case::random(target, index, any_cache(index, &mut rng), splits, false, &mut rng);
        let (n_before, n_rows) = (rng.random_range(1..200), rng.random_range(1..=rows));
        Case { n_before, n_rows, rows, ..case }.check(target, &mut rng);
    }
}

#[test]
fn attention_that_does_the_work_on_heads() {
    let mut rng = StdRng::seed_from_u64(7);
    for (index, target) in targets().iter().cycle().take(15).enumerate() {
        let splits = [1, 3, 16, 5][index % 4];
        let case = Case::random(target, index, any_cache(index, &mut rng), splits, true, &mut rng);
        // The first token of a sequence, a tile's last, a tile's first, any.
        let n_before = [0, 63, 64, rng.random_range(300..600)][index / 2 % 4];
        Case { n_before, ..case }.check(target, &mut rng);
    }
}

#[test]
fn attention_of_decode_in_one_dispatch() {
    let mut rng = StdRng::seed_from_u64(11);
    let targets = targets();
    let mut with_subgroups = targets.iter().filter(|target| target.subgroup_size > 0).cycle();
    for index in 0..24 {
        let target = with_subgroups.next().expect("a target with subgroups");
        let mut cache = any_cache(index, &mut rng);
        while !DecodeAttentionSpec::takes(&cache, target.subgroup_size) {
            cache.head_dim = [64, 40, 32, 128, 80, 10, 256][rng.random_range(0..7)];
        }
        let splits = [1, 3, 16, 5][index % 4];
        let case = Case::random(target, index, cache, splits, true, &mut rng);
        let AttentionSpec { gqa, split, heads_per_group, softcap, output_stride, output, .. } = case.attention;
        let mut decode = DecodeAttentionSpec {
            gqa,
            cache,
            kv_group: 0,
            split: Split { tile: [64, 128, 32][index % 3], ..split },
            heads_per_group,
            words_ahead: [16, 4, 7, 1][index / 2 % 4],
            heads: case.heads.clone(),
            softcap,
            output_stride,
            output,
            next: None,
            clears: 0,
            subgroup_size: target.subgroup_size,
            chained: index % 3 == 0,
        };
        while decode.shared_bytes() > target.shared_memory_bytes && decode.split.tile > target.subgroup_size as usize {
            decode.split.tile /= 2;
        }
        if decode.shared_bytes() > target.shared_memory_bytes {
            continue;
        }
        if target.next.is_some() && matches!(output, ActivationFormat::Codes(_)) && index % 8 != 6 {
            let format = [WeightFormat::Int4 { group: 32 }, WeightFormat::Int8][rng.random_range(0..2)];
            let (rows, cols) = (rng.random_range(1..200), gqa * cache.n_kv_heads * cache.head_dim);
            decode.next = Some(NextSpec { layout: WeightLayout { format, rows, cols } });
            decode.clears = CLEARS;
        }
        // The first step, and one after others, which finds the counters as they left them.
        let n_before = [0, 31, 64, rng.random_range(300..600)][index / 2 % 4];
        Case { n_before, attention: decode.as_attention(), decode: Some(decode), ..case }.check(target, &mut rng);
    }
}

#[test]
fn flash_attention() {
    let Some(target) = matrix_target() else {
        return skip_matrix_units("f16");
    };
    let small = target.matrix.expect("set above").flash;
    let mut rng = StdRng::seed_from_u64(10);
    for index in 0..13 {
        let head_dim = [64, 256, 16, 128, 32, 80, 96, 160][index % 8];
        // Too few tokens for all lanes of larger subgroups.
        let page_tokens = if index == 9 && target.subgroup_size < 32 { 16 } else { 32 };
        let cache = CacheLayout { format: KvFormat::F16, n_kv_heads: rng.random_range(1..4), head_dim, page_tokens };
        let mut case = Case::random(&target, index / 2, cache, 1, false, &mut rng);
        case.attention.split.room = 1;
        let flash = FlashTile { subgroups: [4, 8][index / 8 % 2], ..small };
        let n_heads = cache.n_kv_heads * case.attention.gqa;
        let formats = [ActivationFormat::Halves(Precision::Int8), ActivationFormat::Factored(Precision::Int8)];
        let written =
            formats.into_iter().cycle().skip(index % 2).take(2).find(|one| flash.writes(*one, &cache, n_heads));
        case.attention.output = written.filter(|_| index % 3 != 2).unwrap_or(ActivationFormat::F32);
        // From the first token on, from any other, in a program that has room for more rows.
        let n_before = [0, rng.random_range(1..600)][index / 3 % 2];
        let n_rows = rng.random_range(1..100);
        Case { flash: Some(flash), n_before, n_rows, rows: n_rows + rng.random_range(0..70), ..case }
            .check(&target, &mut rng);
    }
}

fn any_cache(index: usize, rng: &mut StdRng) -> CacheLayout {
    let head_dim = [64, 32, 96, 40, 256, 128, 10, 80][rng.random_range(0..8)];
    let format = [KvFormat::F16, KvFormat::Int8][index / 3 % 2];
    CacheLayout { format, n_kv_heads: rng.random_range(1..4), head_dim, page_tokens: 32 }
}

impl Case {
    fn random(
        target: &Target,
        index: usize,
        cache: CacheLayout,
        splits: usize,
        folded: bool,
        rng: &mut StdRng,
    ) -> Case {
        let head_dim = cache.head_dim;
        let gqa = [1, 2, 3, 5, 8, 16][rng.random_range(0..6)];
        let heads_per_group = if gqa >= 8 { 4 } else { gqa };
        let n_heads = gqa * cache.n_kv_heads;
        let part = |n_heads, norm, rope, scale, to| HeadsPart { n_heads, norm, rope, scale: Number::new(scale), to };
        let with_norm = index % 3 != 1;
        let with_rope = index % 5 != 4;
        let rotary_dim = if index % 4 == 3 { head_dim / 2 } else { head_dim };
        let width = ((n_heads + 2 * cache.n_kv_heads) * head_dim).next_multiple_of(32);
        let q_width = (n_heads * head_dim).next_multiple_of(32);
        let heads = HeadsSpec {
            parts: vec![
                part(n_heads, with_norm.then_some(NormOf::Query), with_rope, 0.3, Destination::Output),
                part(cache.n_kv_heads, with_norm.then_some(NormOf::Key), with_rope, 1.0, Destination::Keys),
                part(cache.n_kv_heads, None, false, 1.0, Destination::Values),
            ],
            cache,
            input_stride: width,
            output_stride: q_width,
            eps: Number::new(1e-6),
            rotary_dim,
            rope_coarse: rope_coarse(CONTEXT),
            kv_group: 0,
            subgroup_size: target.subgroup_size,
        };
        let window = [None, Some(rng.random_range(2..60)), Some(rng.random_range(60..500)), Some(1)][index % 4];
        let formats = [
            ActivationFormat::Codes(Precision::Int8),
            ActivationFormat::Factored(Precision::Int8),
            ActivationFormat::Halves(Precision::Int8),
        ];
        let given = |format: &ActivationFormat| format.lies_in_heads(n_heads, head_dim);
        let format = formats.into_iter().cycle().skip(index / 2 % 3).take(3).find(given);
        let output = format.filter(|_| index.is_multiple_of(2)).unwrap_or(ActivationFormat::F32);
        let attention = AttentionSpec {
            gqa,
            cache,
            kv_group: 0,
            split: Split {
                tile: TILE,
                rows_per_group: if folded { 1 } else { [1, 2, 3][rng.random_range(0..3)] },
                window,
                splits,
                room: if splits == 1 { [1, 2][index / 3 % 2] } else { splits + index % 3 },
                newest_apart: folded,
            },
            heads_per_group,
            words_ahead: [4, 1, 7][index % 3],
            input_stride: if folded { width } else { q_width },
            prologue: folded.then(|| heads.clone()),
            softcap: index.is_multiple_of(4).then(|| Number::new(2.0)),
            output_stride: q_width,
            output,
            subgroup_size: target.subgroup_size,
        };
        Case { attention, flash: None, decode: None, heads, combine_lanes: 128, n_before: 0, n_rows: 1, rows: 1 }
    }

    fn combine(&self) -> CombineSpec {
        CombineSpec {
            n_heads: self.attention.gqa * self.attention.cache.n_kv_heads,
            head_dim: self.attention.cache.head_dim,
            room: self.attention.split.room,
            output_stride: self.attention.output_stride,
            output: self.attention.output,
            lanes: self.combine_lanes,
            subgroup_size: self.attention.subgroup_size,
        }
    }

    fn flash(&self, tile: FlashTile) -> FlashSpec {
        let AttentionSpec {
            gqa, cache, kv_group, heads_per_group, input_stride, softcap, output_stride, output, ..
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
        let embed = EmbedSpec { layout, first_token: 0, output_stride: heads.input_stride, scale: Number::new(1.5) };
        let mut text = |len: usize| -> Vec<u32> { (0..len).map(|_| rng.random_range(0..VOCAB as u32)).collect() };
        let (before, tokens, other) = (text(self.n_before), text(self.n_rows), text(70));

        let room = self.decode.as_ref().map_or(self.attention.split.room, |decode| decode.split.room);
        let partials = self.rows * partials_len(1, self.combine().n_heads, cache.head_dim, room);
        let q_len = self.rows * self.attention.output_stride;
        let next = self.decode.as_ref().and_then(|decode| decode.next.as_ref());
        let next_weights = next.map_or(Vec::new(), |next| packed(rng, &next.layout));
        let sum_words = next.map_or(0, |next| sums::WORDS_PER_ELEMENT * next.layout.rows.next_multiple_of(4));
        let operand = |kernel: usize, role| match role {
            Role::Step => Operand::Step,
            Role::NextWeights => Operand::Bytes(next_weights.clone()),
            Role::Sums => Operand::Out { id: RESULT, words: sum_words },
            Role::ClearedSums => Operand::Out { id: CLEARED, words: sums::WORDS_PER_ELEMENT * CLEARS },
            Role::Weights => Operand::Bytes(model.clone()),
            Role::QueryNorm => Operand::floats(&query_norm),
            Role::KeyNorm => Operand::floats(&key_norm),
            Role::RopeTable => Operand::floats(table.as_flattened()),
            Role::Keys => Operand::Keys,
            Role::Values => Operand::Values,
            Role::Partials | Role::Exchange => Operand::Out { id: PARTIALS, words: partials },
            Role::Arrivals => Operand::Arrivals,
            Role::Chain => Operand::Chain,
            Role::Output if kernel == EMBED => Operand::Out { id: EMBED, words: self.rows * heads.input_stride },
            Role::Input if kernel == HEADS || self.attention.prologue.is_some() => {
                Operand::Out { id: EMBED, words: self.rows * heads.input_stride }
            }
            Role::Output if kernel == HEADS => Operand::Out { id: HEADS, words: q_len },
            Role::Input | Role::InputQuads => Operand::Out { id: HEADS, words: q_len },
            Role::Output | Role::OutputQuads | Role::Encoded => Operand::Out { id: RESULT, words: q_len },
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
        let times = 1 + usize::from(self.decode.as_ref().is_some_and(|decode| decode.chained));
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
            other,
            before: before.clone(),
            tokens: tokens.clone(),
        };
        let found = launch.run();

        let all: Vec<u32> = before.iter().chain(&tokens).copied().collect();
        let mut inputs = vec![0.0; all.len() * heads.input_stride];
        embed::twin(&embed, &model, &all, &mut inputs);
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
            block_table: &block_table,
        };
        let mut twin = vec![POISON.to_bits(); if self.attention.split.is_partial() { partials } else { q_len }];
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
            let used = partials_len(self.n_rows, self.combine().n_heads, cache.head_dim, self.attention.split.room);
            twin = vec![POISON.to_bits(); q_len];
            let partials = floats(&found[&PARTIALS][..used]);
            combine::twin(&self.combine(), &partials, self.n_rows, &mut twin);
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
        let width = self.combine().n_heads * self.attention.cache.head_dim;
        for (row, (found, twin)) in found.chunks(stride).zip(twin.chunks(stride)).enumerate() {
            if row >= self.n_rows {
                assert_eq!(found, twin, "{what}: written where nothing belongs, row {row}");
                continue;
            }
            let values = |words| unicorn_kernels::activations::decode_row(format, words, width);
            assert_same(&format!("row {row} of {what}"), &values(found), &values(twin), tolerance);
        }
    }
}

/// Outputs of a launch, and kernels by what they leave.
const EMBED: usize = 0;
const HEADS: usize = 1;
const PARTIALS: usize = 2;
const RESULT: usize = 3;
const CLEARED: usize = 4;

/// Sums that an attention with a next matmul zeroes.
const CLEARS: usize = 100;
