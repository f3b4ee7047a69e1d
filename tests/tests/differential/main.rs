//! Each kernel on a device against its CPU twin: random shapes, random data, outputs poisoned before. llvmpipe unless
//! `UNICORN_DEVICE` names another.

mod alternatives;
mod attention;
mod cases;
mod counter_sync;
mod experts;
mod gemm;
mod image;
mod matmul;
mod norm;
mod npu;
mod recurrent;
mod router;
mod streams;

use std::collections::BTreeMap;

use cases::check_cases;
use matmul::{check_matmul, clearer, plain_matmul};
use norm::check_norm;
use proptest::prelude::*;
use proptest::sample::select;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tests::launch::{
    Launch, Operand, POISON, device, device_fragments, device_matrices, skip_matrix_units, small_matrices,
    without_what_the_device_lacks,
};
use tests::reference::relative_error;
use unicorn_artifact::fp4::fp4_scale;
use unicorn_artifact::int4::{Int4Params, WideInt4Params};
use unicorn_artifact::step::Sampler;
use unicorn_kernels::Number;
use unicorn_kernels::activation_format::{decode_row, encode_row};
use unicorn_kernels::bandwidth_probe::{self, BandwidthProbeSpec};
use unicorn_kernels::elementwise::{self, ElementwiseOp, ElementwiseSpec};
use unicorn_kernels::embed::{self, EmbedSpec};
use unicorn_kernels::fixed_sums;
use unicorn_kernels::fused_tail::FusedTailSpec;
use unicorn_kernels::matmul::{MatMulInputs, MatMulSpec, MatMulTile, Sharing};
use unicorn_kernels::norm::{NormSpec, norm_row};
use unicorn_kernels::quantize::QuantizeSpec;
use unicorn_kernels::sample::{self, SampleSpec};
use unicorn_kernels::{Activation, ActivationFormat, KernelSpec, Precision, Role, WeightFormat, WeightLayout};
use unicorn_runtime::Sampling;
use unicorn_spirv::Target;
use unicorn_spirv::target::{self, FusedTailTuning, MatrixTuning};

/// The device sums in another order than the twin, and its exp and inverse square root are a few units in the last place
/// off: 1e-5 of the result's norm permits that, and no wrong weight, scale or index.
const TOLERANCE: f64 = 1e-5;
/// An activation near the middle between two codes is rounded the other way where the device's norm differs in the last
/// bit: a few such codes of some hundred permit this much, and no wrong code, scale or sum.
const CODE_TOLERANCE: f64 = 5e-3;

/// llvmpipe's subgroups have 8 lanes: there, and on a GPU's own size, the path of devices with subgroups is checked next to
/// the one without; all do the next matmul, too, where the device has 64-bit atomics.
fn targets() -> Vec<Target> {
    let generic = target::by_name("generic").expect("a preset");
    let device = device();
    let mut subgroups = generic.clone();
    subgroups.subgroup_size = device.subgroup_size;
    let llvmpipe = ["llvmpipe", "llvmpipe-mesa26"].into_iter().filter_map(target::by_name);
    let llvmpipe = llvmpipe.filter(|target| target.subgroup_size == device.subgroup_size);
    let next = Some(FusedTailTuning { max_added: usize::MAX, max_groups: usize::MAX, words_ahead: 1 });
    let mut targets: Vec<Target> = llvmpipe.chain([generic, subgroups]).collect();
    for target in &mut targets {
        (target.fused_tail, target.counter_sync) = (next, true);
        without_what_the_device_lacks(target);
    }
    targets
}

/// The same with integer activations, with and without subgroups.
fn integer_targets() -> Vec<Target> {
    let with_dot = |target: &Target| {
        let mut target = target.clone();
        target.integer_dot = true;
        target
    };
    targets().iter().filter(|target| target.matmul.sharing_many == Sharing::Own).map(with_dot).collect()
}

/// A target with square matrices as the device has them, if it has any.
fn matrix_target() -> Option<Target> {
    Some(with_matrices(device_matrices()?))
}

/// A target for each kind of matrices that the device has.
fn matrix_targets() -> Vec<Target> {
    device_fragments().into_iter().map(|fragment| with_matrices(small_matrices(fragment))).collect()
}

fn with_matrices(matrices: MatrixTuning) -> Target {
    let mut target = targets().pop().expect("a target with subgroups");
    // Enough memory for the tiles of every target: heads of 256 elements take more than 32 KiB where a tile has many rows.
    (target.workgroup_invocations, target.shared_memory_bytes) = (256, device().shared_memory_bytes as usize);
    target.matrix = Some(matrices);
    target
}

fn normals(rng: &mut StdRng, count: usize) -> Vec<f32> {
    (0..count).map(|_| (0..4).map(|_| rng.random_range(-1.0f32..1.0)).sum::<f32>()).collect()
}

/// A packed matrix of random codes with sensible scales.
fn packed(rng: &mut StdRng, layout: &WeightLayout) -> Vec<u8> {
    let mut bytes = vec![0u8; layout.bytes()];
    rng.fill_bytes(&mut bytes);
    let scale = |rng: &mut StdRng| half::f16::from_f32(rng.random_range(0.001f32..0.02));
    for tile in bytes.chunks_exact_mut(layout.tile_bytes()) {
        for block in 0..layout.blocks_per_tile() {
            for row in 0..8 {
                let param = match layout.format {
                    WeightFormat::F16 => None,
                    WeightFormat::Int8 => Some(scale(rng).to_bits().into()),
                    WeightFormat::Fp4 => {
                        Some(fp4_scale(rng.random_range(116..123u8)).expect("an f16").to_bits().into())
                    }
                    WeightFormat::Iq4 => {
                        // Of either sign, around what makes weights as large as INT4's.
                        let eighth = half::f16::from_f32(scale(rng).to_f32() / 8.0);
                        Some(if rng.random() { eighth } else { -eighth }.to_bits().into())
                    }
                    WeightFormat::Int4 { .. } => {
                        let zero = rng.random_range(0..16u8);
                        Some(Int4Params::new(scale(rng).to_f32(), zero).0.into())
                    }
                    WeightFormat::WideInt4 { .. } => {
                        let zero = rng.random_range(0..16u8);
                        Some(WideInt4Params::new(scale(rng), zero).0)
                    }
                };
                let param: Option<u32> = param;
                if let Some(param) = param {
                    let (at, bytes) = (layout.param_offset(block, row), layout.format.param_bytes());
                    tile[at..at + bytes].copy_from_slice(&param.to_le_bytes()[..bytes]);
                }
            }
        }
        if layout.format == WeightFormat::F16 {
            for pair in tile.chunks_exact_mut(2) {
                pair.copy_from_slice(&half::f16::from_f32(rng.random_range(-0.05f32..0.05)).to_le_bytes());
            }
        }
    }
    zero_padding(layout, &mut bytes);
    bytes
}

/// Columns past `cols` hold weights of value 0, as the compiler packs them: code = zero point, or 0. IQ4 has no such level, and the compiler
/// no such columns of it: their blocks have a scale of 0.
fn zero_padding(layout: &WeightLayout, bytes: &mut [u8]) {
    let chunk_cols = layout.format.chunk_cols();
    for tile in bytes.chunks_exact_mut(layout.tile_bytes()) {
        for row in 0..8 {
            for column in layout.cols..layout.padded_cols() {
                let (block, within) = (column / layout.format.block_cols(), column % layout.format.block_cols());
                let at = layout.chunk_offset(block, within / chunk_cols, row);
                let inside = within % chunk_cols;
                match layout.format {
                    WeightFormat::Int4 { .. } | WeightFormat::WideInt4 { .. } | WeightFormat::Fp4 => {
                        let params_at = layout.param_offset(block, row);
                        let zero = match layout.format {
                            WeightFormat::Fp4 => 0,
                            WeightFormat::WideInt4 { .. } => tile[params_at + 2],
                            _ => tile[params_at + 1] >> 4,
                        };
                        let byte = &mut tile[at + inside / 8 * 4 + inside % 4];
                        *byte = if inside % 8 < 4 { (*byte & 0xf0) | zero } else { (*byte & 0x0f) | (zero << 4) };
                    }
                    WeightFormat::Iq4 => tile[layout.param_offset(block, row)..][..2].fill(0),
                    WeightFormat::Int8 => tile[at + inside] = 0,
                    WeightFormat::F16 => tile[at + 2 * inside..][..2].fill(0),
                }
            }
        }
    }
}

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&word| f32::from_bits(word)).collect()
}

/// Compares what the twin wrote; elsewhere the poison must still be there.
fn assert_same(what: &str, found: &[f32], expected: &[f32], tolerance: f64) {
    let written = |values: &[f32]| -> Vec<f32> {
        values.iter().zip(expected).filter(|(_, twin)| **twin != POISON).map(|(value, _)| *value).collect()
    };
    let error = relative_error(&written(expected), &written(found));
    assert!(error <= tolerance, "{what}: relative error {error}");
    let kept = found.iter().zip(expected).filter(|(_, twin)| **twin == POISON).all(|(value, _)| *value == POISON);
    assert!(kept, "{what}: written where nothing belongs");
}

fn launch(target: &Target, spec: KernelSpec, operands: Vec<Operand>, n_rows: usize) -> Launch {
    let tokens = vec![1; n_rows];
    Launch {
        target: target.clone(),
        steps: vec![(spec, operands)],
        kv: None,
        rows: n_rows,
        rows_per_token: 1,
        other: Vec::new(),
        before: Vec::new(),
        tokens,
    }
}

/// Random rows as a matmul's input format stores them, in `stride` words each.
fn stored_rows(rng: &mut StdRng, format: ActivationFormat, [rows, cols, stride]: [usize; 3]) -> Vec<u32> {
    let one = |_| {
        let mut words = encode_row(format, &normals(rng, cols));
        words.resize(stride, POISON.to_bits());
        words
    };
    (0..rows).flat_map(one).collect()
}

/// Compares rows in `format` as values, and checks that the words after them hold poison.
fn assert_same_rows(
    what: &str,
    format: ActivationFormat,
    found: &[u32],
    expected: &[u32],
    [cols, stride]: [usize; 2],
    tolerance: f64,
) {
    if format == ActivationFormat::F32 {
        return assert_same(what, &floats(found), &floats(expected), tolerance);
    }
    let used = encode_row(format, &vec![0.0; cols]).len();
    let values =
        |words: &[u32]| -> Vec<f32> { words.chunks(stride).flat_map(|row| decode_row(format, row, cols)).collect() };
    assert_same(what, &values(found), &values(expected), tolerance);
    let kept = found.chunks(stride).all(|row| row[used..].iter().all(|&word| word == POISON.to_bits()));
    assert!(kept, "{what}: written where nothing belongs");
}

/// A target whose dispatches wait for each other by counters, if there is one.
fn counting(targets: &[Target]) -> &Target {
    targets.iter().find(|target| target.counter_sync).unwrap_or(&targets[0])
}

/// Runs a step; with counters, twice, so that the second time waits for the first.
fn run_twice(mut launch: Launch, counter_sync: bool) -> BTreeMap<usize, Vec<u32>> {
    if counter_sync {
        launch.steps.push(launch.steps[0].clone());
    }
    launch.run()
}

fn words_of_sums(values: &[f32]) -> Vec<u32> {
    values.iter().flat_map(|&value| fixed_sums::words_of(fixed_sums::fixed(value))).collect()
}

fn values_of_sums(words: &[u32]) -> Vec<f32> {
    words.as_chunks().0.iter().map(|&words| fixed_sums::value(fixed_sums::of_words(words))).collect()
}

/// Norms write whole quads of a row's first `width` elements, zeros past the end.
fn padded_quads(row: &[f32], width: usize) -> Vec<f32> {
    let mut row = row.to_vec();
    row[width..width.next_multiple_of(4)].fill(0.0);
    row
}

/// More blocks than workgroups and fewer, and a rest that is not a whole block.
#[test]
fn bandwidth_probe_reads_every_block() {
    let mut rng = StdRng::seed_from_u64(15);
    let block_words = unicorn_artifact::kernels::READ_BLOCK_BYTES as usize / 4;
    for (words, workgroups) in [(block_words, 1), (9 * block_words, 4), (3 * block_words + 8, 2), (2 * block_words, 5)]
    {
        let source: Vec<u32> = (0..words).map(|_| rng.random()).collect();
        let operands = vec![Operand::words(&source), Operand::Out { id: 0, words: workgroups }];
        let target = target::by_name("generic").expect("a preset");
        let folded = launch(&target, KernelSpec::BandwidthProbe(BandwidthProbeSpec {}), operands, workgroups).run();
        assert_eq!(folded[&0], bandwidth_probe::folded(&source, workgroups), "{words} words, {workgroups} workgroups");
    }
}

#[test]
fn embed_of_every_format() {
    let targets = targets();
    let formats = [
        WeightFormat::Int4 { group: 64 },
        WeightFormat::WideInt4 { group: 32 },
        WeightFormat::Fp4,
        WeightFormat::Iq4,
        WeightFormat::Int8,
        WeightFormat::F16,
    ];
    for format in formats {
        let cases = (0..targets.len(), 20..300usize, 3..200usize, any::<bool>());
        check_cases(&format!("embed of {format:?}"), 4, &cases, |&(target, rows, cols, beyond), rng| {
            let target = &targets[target];
            let layout = WeightLayout { format, rows, cols };
            let output_stride = layout.cols.next_multiple_of(32);
            let table_tokens = beyond.then_some(rows + 12);
            let spec = EmbedSpec {
                layout,
                first_token: if beyond { 0 } else { 7 },
                table_tokens,
                output_stride,
                scale: Number::new(3.5),
                image_stride: None,
            };
            let weights = packed(rng, &layout);
            // Tokens before, inside and behind this part of the table, and behind the whole.
            let tokens: Vec<u32> = (0..6).map(|_| rng.random_range(0..layout.rows as u32 + 20)).chain([0, 7]).collect();
            let words = tokens.len() * output_stride;
            let operands = vec![Operand::Step, Operand::Bytes(weights.clone()), Operand::Out { id: 0, words }];
            let mut one = launch(target, KernelSpec::Embed(spec.clone()), operands, tokens.len());
            one.tokens = tokens.clone();
            let mut expected = vec![POISON; words];
            embed::twin(&spec, &weights, &tokens, &[], &mut expected);
            assert_same(&format!("{spec:?}"), &floats(&one.run()[&0]), &expected, TOLERANCE);
        });
    }
}

#[test]
fn elementwise_operations() {
    let target = &targets()[0];
    let ops = [
        ElementwiseOp::Copy,
        ElementwiseOp::Add,
        ElementwiseOp::Bias,
        ElementwiseOp::RowBias,
        ElementwiseOp::Scale,
        ElementwiseOp::Activate(Activation::GeluTanh),
        ElementwiseOp::Activate(Activation::Gelu),
        ElementwiseOp::ActMul(Activation::Silu),
        ElementwiseOp::ActMul(Activation::GeluTanh),
        ElementwiseOp::ActMul(Activation::ClampedSwiGlu),
        ElementwiseOp::SoftCap(Number::new(2.0)),
        ElementwiseOp::ActMulPart { activation: Activation::GeluTanh, first: 301, second_stride: 640 },
    ];
    for op in ops {
        check_cases(&format!("{op:?}"), 1, &(1..300usize), |&width, rng| {
            let n_rows = 3;
            let input_stride = width.next_multiple_of(32);
            let spec = ElementwiseSpec { op, width, input_stride, output_stride: input_stride, rows_per_token: 1 };
            // Large values too: exp and tanh must not overflow into NaN.
            let mut input = normals(rng, n_rows * input_stride);
            input[0] = 300.0;
            input[input_stride] = -300.0;
            let second_stride = match op {
                ElementwiseOp::ActMulPart { second_stride, .. } => second_stride,
                ElementwiseOp::RowBias => width,
                _ => input_stride,
            };
            let second = normals(rng, n_rows * second_stride);
            let kernel = KernelSpec::Elementwise(spec.clone());
            let operand = |role| match role {
                Role::Step => Operand::Step,
                Role::Input => Operand::floats(&input),
                Role::Output => Operand::Out { id: 0, words: n_rows * input_stride },
                _ => Operand::floats(&second),
            };
            let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
            let found = launch(target, kernel, operands, n_rows).run();
            let mut expected = vec![POISON; n_rows * input_stride];
            for row in 0..n_rows {
                let at = row * input_stride;
                let is_one_row = matches!(op, ElementwiseOp::Bias | ElementwiseOp::Scale);
                let second = if is_one_row { &second[..] } else { &second[row * second_stride..] };
                expected[at..at + width].copy_from_slice(&elementwise::twin_row(&spec, &input[at..], second));
            }
            assert_same(&format!("{spec:?}"), &floats(&found[&0]), &expected, TOLERANCE);
        });
    }
}

/// A mask that allows this share of the tokens, at least one, and bits behind the vocabulary, which mean nothing.
fn random_mask(rng: &mut StdRng, vocab: usize, share: f64) -> Vec<u32> {
    let mut mask = vec![0u32; vocab.div_ceil(32)];
    let one = rng.random_range(0..vocab);
    for token in 0..32 * mask.len() {
        if token == one || token >= vocab || rng.random_bool(share) {
            mask[token / 32] |= 1 << (token % 32);
        }
    }
    mask
}

#[test]
fn sampling_is_that_of_the_twin() {
    let targets = targets();
    let where_from = (0..targets.len(), select(vec![17, 320, 1003, 5000usize]));
    let temperature = prop_oneof![1 => Just(0.0), 5 => 0.2..1.5f32];
    let limits = (select(vec![0, 40, 5]), select(vec![1.0, 0.9, 0.5f32]), select(vec![0.0, 0.05f32]));
    // The share of the tokens that a mask allows.
    let allowed = select(vec![None, None, Some(0.5), Some(0.01)]);
    let cases = (where_from, temperature, limits, select(vec![1.0, 1.3f32]), allowed, any::<u64>());
    check_cases(
        "sampling",
        48,
        &cases,
        |&((target, vocab), temperature, (top_k, top_p, min_p), repeat_penalty, allowed, seed), rng| {
            let target = &targets[target];
            let logits: Vec<f32> = normals(rng, vocab).iter().map(|x| 3.0 * x).collect();
            let sampling = Sampling::default().with(|sampling| {
                sampling.temperature = temperature;
                sampling.top_k = top_k;
                sampling.top_p = top_p;
                sampling.min_p = min_p;
                sampling.repeat_penalty = repeat_penalty;
                sampling.repeat_last_n = 64;
                sampling.seed = seed;
            });
            let mask = allowed.map(|share| random_mask(rng, vocab, share));
            let history: Vec<u32> = (0..5).map(|_| rng.random_range(0..vocab as u32)).collect();
            // Logits reach the buffer by adding nothing to them.
            let copy = ElementwiseSpec {
                op: ElementwiseOp::Add,
                width: vocab,
                input_stride: 0,
                output_stride: 0,
                rows_per_token: 1,
            };
            let zeros = Operand::floats(&vec![0.0; vocab]);
            let buffer = Operand::Out { id: 0, words: vocab };
            let spec = SampleSpec {
                vocab,
                logits_stride: vocab,
                workgroup: 64,
                subgroup_size: target.subgroup_size,
                keeps_rope_word: false,
                counter_sync: false,
            };
            let mut one = launch(
                target,
                KernelSpec::Elementwise(copy),
                vec![Operand::Step, Operand::floats(&logits), buffer.clone(), zeros],
                1,
            );
            one.steps.push((KernelSpec::Sample(spec), vec![Operand::Step, buffer, Operand::Samples, Operand::Step]));
            one.tokens = history.clone();
            let found = one.sample(vocab, &sampling, mask.as_deref());
            let sampler = Sampler {
                temperature: sampling.temperature,
                top_k: sampling.top_k,
                top_p: sampling.top_p,
                min_p: sampling.min_p,
                repeat_penalty: sampling.repeat_penalty,
                seed_low: sampling.seed as u32,
                seed_high: (sampling.seed >> 32) as u32,
                ..Sampler::default()
            };
            let mut twin_logits = logits.clone();
            let expected = sample::twin(&sampler, &history, mask.as_deref(), &mut twin_logits);
            assert_eq!(found.token, expected.token, "{sampling:?}, vocab {vocab}");
            assert_eq!(found.candidates as usize, expected.candidates.len(), "{sampling:?}, vocab {vocab}");
            assert_eq!(found.logit, twin_logits[found.token as usize], "{sampling:?}");
        },
    );
}
