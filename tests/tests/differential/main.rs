//! Each kernel on a device against its CPU twin: random shapes, random data, outputs poisoned before. llvmpipe unless
//! `UNICORN_DEVICE` names another.

mod alternatives;
mod attention;
mod chain;
mod gemm;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tests::launch::{
    Launch, Operand, POISON, device, device_matrices, skip_matrix_units, without_what_the_device_lacks,
};
use tests::reference::relative_error;
use unicorn_artifact::step::Sampler;
use unicorn_kernels::Number;
use unicorn_kernels::activations::{decode_row, encode_row};
use unicorn_kernels::bandwidth_probe::{self, BandwidthProbeSpec};
use unicorn_kernels::elementwise::{self, ElementwiseOp, ElementwiseSpec};
use unicorn_kernels::embed::{self, EmbedSpec};
use unicorn_kernels::fused_tail::NextSpec;
use unicorn_kernels::matmul::{self, MatMulInputs, MatMulSpec, MatMulTile, Sharing};
use unicorn_kernels::norm::{NormSpec, norm_row};
use unicorn_kernels::quantize::QuantizeSpec;
use unicorn_kernels::sample::{self, SampleSpec};
use unicorn_kernels::sums;
use unicorn_kernels::{Activation, ActivationFormat, KernelSpec, Precision, Role, WeightFormat, WeightLayout};
use unicorn_runtime::Sampling;
use unicorn_spirv::Target;
use unicorn_spirv::target::{self, NextTuning};

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
    let next = Some(NextTuning { most_added: usize::MAX, most_groups: usize::MAX, words_ahead: 1 });
    let mut targets: Vec<Target> = llvmpipe.chain([generic, subgroups]).collect();
    for target in &mut targets {
        (target.next, target.chains) = (next, true);
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

/// A target with matrix units as the device has them, if it has any.
fn matrix_target() -> Option<Target> {
    let mut target = targets().pop().expect("a target with subgroups");
    target.workgroup_invocations = 256;
    target.matrix = Some(device_matrices()?);
    Some(target)
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
                    WeightFormat::Int8 => Some(scale(rng).to_bits()),
                    WeightFormat::Int4 { .. } => {
                        let zero = rng.random_range(0..16u8);
                        Some(unicorn_artifact::int4::Int4Params::new(scale(rng).to_f32(), zero).0)
                    }
                };
                if let Some(param) = param {
                    let at = layout.param_offset(block, row);
                    tile[at..at + 2].copy_from_slice(&param.to_le_bytes());
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

/// Columns past `cols` hold weights of value 0, as the compiler packs them: code = zero point, or 0.
fn zero_padding(layout: &WeightLayout, bytes: &mut [u8]) {
    let chunk_cols = layout.format.chunk_cols();
    for tile in bytes.chunks_exact_mut(layout.tile_bytes()) {
        for row in 0..8 {
            for column in layout.cols..layout.padded_cols() {
                let (block, within) = (column / layout.format.block_cols(), column % layout.format.block_cols());
                let at = layout.chunk_offset(block, within / chunk_cols, row);
                let inside = within % chunk_cols;
                match layout.format {
                    WeightFormat::Int4 { .. } => {
                        let zero = tile[layout.param_offset(block, row) + 1] >> 4;
                        let byte = &mut tile[at + inside / 8 * 4 + inside % 4];
                        *byte = if inside % 8 < 4 { (*byte & 0xf0) | zero } else { (*byte & 0x0f) | (zero << 4) };
                    }
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
        other: Vec::new(),
        before: Vec::new(),
        tokens,
    }
}

#[test]
fn matmul_of_every_format_and_folding() {
    let mut rng = StdRng::seed_from_u64(1);
    let formats = [
        WeightFormat::Int4 { group: 32 },
        WeightFormat::Int4 { group: 64 },
        WeightFormat::Int4 { group: 128 },
        WeightFormat::Int8,
        WeightFormat::F16,
    ];
    for (index, target) in targets().iter().cycle().take(30).enumerate() {
        let format = formats[index % formats.len()];
        let prologue = index % 3 == 0;
        let act_mul = [None, Some(Activation::Silu), Some(Activation::GeluTanh)][index / 3 % 3];
        let pairs = if act_mul.is_some() { 16 } else { 1 };
        let rows = rng.random_range(1..9) * pairs * if act_mul.is_some() { 1 } else { rng.random_range(1..9) };
        let cols = rng.random_range(1..9usize) * [32, 5][index % 2];
        let columns = if prologue { 1 } else { [1, 4, 8][index % 3] };
        let n_rows = if prologue { 1 } else { rng.random_range(1..columns + 1) };
        let layout = WeightLayout { format, rows, cols };
        // A part of a matrix that was cut writes behind the part before.
        let output_first = 8 * rng.random_range(0..4usize);
        let stride = cols.next_multiple_of(32);
        let norm = prologue.then(|| NormSpec {
            width: cols,
            stride,
            eps: Number::new(1e-6),
            add: index % 2 == 0,
            post_norm: index % 4 == 0,
            sums: false,
            format: ActivationFormat::F32,
            lanes: 64,
            subgroup_size: target.subgroup_size,
            chained: false,
        });
        let spec = MatMulSpec {
            layout,
            input_stride: stride,
            output_stride: (rows + output_first).next_multiple_of(32),
            output_first,
            input: ActivationFormat::F32,
            output: ActivationFormat::F32,
            prologue: norm.clone(),
            bias: act_mul.is_none() && index % 2 == 1,
            act_mul,
            next: None,
            clears: 0,
            softcap: (act_mul.is_none() && index % 4 == 1).then(|| Number::new(0.7)),
            row_from_step: false,
            tile: MatMulTile {
                columns,
                tiles_per_lane: if act_mul.is_some() { 2 } else { 1 + index % 2 },
                k_slices: if target.matmul.k_slices == 1 { 1 } else { [1, 2, 4][index % 3] },
                // A subgroup at least.
                group_tiles: (target.subgroup_size as usize / 8).max(2),
                unroll: 1,
                passes: if prologue { 1 + index % 2 } else { 1 },
                early: false,
                sharing: if columns == 1 { target.matmul.sharing_one } else { target.matmul.sharing_many },
            },
            subgroup_size: target.subgroup_size,
            chained: false,
        };
        check_matmul(target, &spec, n_rows, columns, &mut rng);
    }
}

/// Integer activations: read from memory or made by the prologue, and made again by the epilogue.
#[test]
fn matmul_of_integer_activations() {
    let mut rng = StdRng::seed_from_u64(11);
    let formats = [
        WeightFormat::Int4 { group: 32 },
        WeightFormat::Int8,
        WeightFormat::Int4 { group: 64 },
        WeightFormat::Int4 { group: 128 },
    ];
    for (index, target) in integer_targets().iter().cycle().take(32).enumerate() {
        let prologue = index % 3 == 0;
        let act_mul = [None, Some(Activation::GeluTanh)][index / 2 % 2];
        let precision = [Precision::Int8, Precision::Int11][index / 4 % 2];
        let encoded = act_mul.is_some() && (!prologue || precision == Precision::Int8);
        let passes = if prologue { 3 - index / 3 % 3 } else { 1 };
        let columns = if prologue { 1 } else { [1, 3, 8][index % 3] };
        let (cols, rows) = (4 * rng.random_range(1..90usize), 16 * rng.random_range(1..20usize) + index % 2 * 3);
        let layout = WeightLayout {
            format: formats[index % 4],
            rows: if act_mul.is_some() { rows / 16 * 16 } else { rows },
            cols,
        };
        let can_go_on = target.next.is_some() && encoded && columns * passes == 1;
        let next = can_go_on.then(|| WeightLayout {
            format: formats[rng.random_range(0..4usize)],
            rows: rng.random_range(1..300),
            cols: layout.rows / 2,
        });
        let stride = cols.next_multiple_of(32);
        let input = ActivationFormat::Codes(precision);
        let norm = prologue.then(|| NormSpec {
            width: cols,
            stride,
            eps: Number::new(1e-6),
            add: index % 2 == 0,
            post_norm: index % 4 == 0,
            sums: target.next.is_some() && index % 2 == 1,
            format: input,
            lanes: 64,
            subgroup_size: target.subgroup_size,
            chained: false,
        });
        let spec = MatMulSpec {
            layout,
            input_stride: stride,
            output_stride: rows.next_multiple_of(32),
            output_first: 0,
            input,
            output: if encoded { ActivationFormat::Codes(Precision::Int8) } else { ActivationFormat::F32 },
            prologue: norm,
            bias: act_mul.is_none() && index % 2 == 1,
            act_mul,
            next: next.map(|layout| NextSpec { layout }),
            clears: if target.next.is_some() { [0, 4, 200][index % 3] } else { 0 },
            softcap: None,
            row_from_step: false,
            tile: MatMulTile {
                columns,
                tiles_per_lane: if act_mul.is_some() { 2 } else { 1 + index % 2 },
                k_slices: [1, 2, 4][index / 3 % 3],
                group_tiles: 4,
                unroll: 1 + index / 6 % 3,
                passes,
                early: index % 8 == 1,
                sharing: Sharing::Own,
            },
            subgroup_size: target.subgroup_size,
            chained: index % 4 == 1,
        };
        check_matmul(target, &spec, rng.random_range(1..columns + 1), columns, &mut rng);
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

/// Compares rows in `format` as values, and what lies behind them as poison.
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

fn check_matmul(target: &Target, spec: &MatMulSpec, n_rows: usize, columns: usize, rng: &mut StdRng) {
    let weights = packed(rng, &spec.layout);
    let next_weights = spec.next.as_ref().map_or(Vec::new(), |next| packed(rng, &next.layout));
    let room = columns.max(n_rows);
    let width = room * spec.input_stride;
    // A norm reads f32 whatever it makes.
    let input_format = if spec.prologue.is_some() { ActivationFormat::F32 } else { spec.input };
    let input = stored_rows(rng, input_format, [room, spec.layout.cols, spec.input_stride]);
    let residual = normals(rng, width);
    let (norm_weight, post_weight) = (normals(rng, spec.layout.cols), normals(rng, spec.layout.cols));
    let bias = normals(rng, spec.layout.rows);
    // Rows of a column tile past the last one are computed and thrown away: give them room.
    let out_words = spec
        .next
        .as_ref()
        .map_or(room * spec.output_stride, |next| sums::WORDS_PER_ELEMENT * next.layout.rows.next_multiple_of(4));
    let kernel = KernelSpec::MatMul(spec.clone());
    let operand = |role| match role {
        Role::Step => Operand::Step,
        Role::Weights => Operand::Bytes(weights.clone()),
        Role::NextWeights => Operand::Bytes(next_weights.clone()),
        Role::Output | Role::Encoded | Role::Sums => Operand::Out { id: 0, words: out_words },
        Role::InputQuads | Role::Codes => Operand::words(&input),
        Role::InputSums => Operand::words(&words_of_sums(&floats(&input))),
        Role::Residual => Operand::floats(&residual),
        Role::Sum => Operand::Out { id: 1, words: width },
        Role::ClearedSums => Operand::Out { id: 2, words: sums::WORDS_PER_ELEMENT * spec.clears },
        Role::NormWeight => Operand::quads(&norm_weight),
        Role::PostNormWeight => Operand::quads(&post_weight),
        Role::Bias => Operand::floats(&bias),
        Role::Chain => Operand::Chain,
        other => panic!("a matmul has no {other:?}"),
    };
    let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
    let mut launch = launch(target, kernel, operands, n_rows);
    if spec.chained {
        // Once more, to wait for the first time.
        launch.steps.push(launch.steps[0].clone());
    }
    let times = launch.steps.len();
    if spec.next.is_some() {
        launch.steps.insert(0, clearer(target, (0, out_words)));
    }
    let found = launch.run();
    let mut expected = vec![POISON.to_bits(); out_words];
    let mut sum = vec![POISON; width];
    let inputs = MatMulInputs {
        packed: &weights,
        next_packed: &next_weights,
        input: &input,
        residual: &residual,
        norm_weight: &norm_weight,
        post_norm_weight: &post_weight,
        bias: &bias,
        n_rows,
        logits_row: 0,
    };
    matmul::twin(spec, &inputs, &mut expected, &mut sum);
    let what = format!("{} {spec:?} rows {n_rows}", target.name);
    let rounds =
        (spec.prologue.is_some() && spec.input != ActivationFormat::F32) || spec.output != ActivationFormat::F32;
    let tolerance = if rounds { CODE_TOLERANCE } else { TOLERANCE };
    if let Some(next) = &spec.next {
        let added: Vec<f32> = values_of_sums(&found[&0]).iter().map(|sum| sum / times as f32).collect();
        let rows = next.layout.rows;
        assert_same(&what, &added[..rows], &values_of_sums(&expected)[..rows], tolerance);
    } else {
        let used = n_rows * spec.output_stride;
        let shape = [spec.output_rows(), spec.output_stride];
        assert_same_rows(&what, spec.output, &found[&0][..used], &expected[..used], shape, tolerance);
    }
    if let Some(sums) = found.get(&1) {
        assert_same(&format!("sum of {what}"), &floats(sums), &padded_quads(&sum, spec.layout.cols), TOLERANCE);
    }
    assert!(found.get(&2).is_none_or(|cleared| cleared.iter().all(|&word| word == 0)), "{what} clears sums");
}

fn words_of_sums(values: &[f32]) -> Vec<u32> {
    values.iter().flat_map(|&value| sums::words_of(sums::fixed(value))).collect()
}

fn values_of_sums(words: &[u32]) -> Vec<f32> {
    words.as_chunks().0.iter().map(|&words| sums::value(sums::of_words(words))).collect()
}

/// A kernel that zeroes an output, of so many words, as sums.
fn clearer(target: &Target, (id, words): (usize, usize)) -> (KernelSpec, Vec<Operand>) {
    let layout = WeightLayout { format: WeightFormat::F16, rows: 8, cols: 32 };
    let tile = MatMulTile {
        columns: 1,
        tiles_per_lane: 1,
        k_slices: 1,
        group_tiles: (target.subgroup_size as usize / 8).max(1),
        unroll: 1,
        passes: 1,
        ..MatMulTile::default()
    };
    let spec = MatMulSpec {
        layout,
        input_stride: 32,
        output_stride: 32,
        output_first: 0,
        input: ActivationFormat::F32,
        output: ActivationFormat::F32,
        prologue: None,
        bias: false,
        act_mul: None,
        next: None,
        clears: words / sums::WORDS_PER_ELEMENT,
        softcap: None,
        row_from_step: false,
        tile,
        subgroup_size: target.subgroup_size,
        chained: false,
    };
    let operands = vec![
        Operand::Step,
        Operand::Bytes(vec![0; layout.bytes()]),
        Operand::Out { id: usize::MAX, words: 32 },
        Operand::floats(&[0.0; 32]),
        Operand::Out { id, words },
    ];
    (KernelSpec::MatMul(spec), operands)
}

/// Norms write whole quads of a row's first `width` elements, zeros past the end.
fn padded_quads(row: &[f32], width: usize) -> Vec<f32> {
    let mut row = row.to_vec();
    row[width..width.next_multiple_of(4)].fill(0.0);
    row
}

#[test]
fn norm_alone_and_with_sums() {
    let mut rng = StdRng::seed_from_u64(2);
    for (index, target) in targets().iter().cycle().take(28).enumerate() {
        let (width, n_rows) = (rng.random_range(3..400usize), rng.random_range(1..6));
        let (add, post_norm) = (index % 3 > 0, index % 3 > 1);
        let eps = Number::new(1e-5);
        let format = [
            ActivationFormat::F32,
            ActivationFormat::Codes(Precision::Int8),
            ActivationFormat::Codes(Precision::Int11),
            ActivationFormat::Factored(Precision::Int8),
            ActivationFormat::Factored(Precision::Int11),
            ActivationFormat::Halves(Precision::Int8),
            ActivationFormat::Halves(Precision::Int11),
        ][index % 7];
        let stride = (format.factor_at(width) + 1).max(width).next_multiple_of(32);
        let spec = NormSpec {
            width,
            stride,
            eps,
            add,
            post_norm,
            sums: target.next.is_some() && index % 4 == 1,
            format,
            lanes: target.norm.lanes.max(target.subgroup_size as usize),
            subgroup_size: target.subgroup_size,
            chained: target.chains && index % 3 == 0,
        };
        check_norm(target, &spec, n_rows, &mut rng);
    }
}

fn check_norm(target: &Target, spec: &NormSpec, n_rows: usize, rng: &mut StdRng) {
    let &NormSpec { width, stride, format, add, .. } = spec;
    let (input, residual) = (normals(rng, n_rows * stride), normals(rng, n_rows * stride));
    let (weight, post_weight) = (normals(rng, width), normals(rng, width));
    let kernel = KernelSpec::Norm(spec.clone());
    let operand = |role| match role {
        Role::Step => Operand::Step,
        Role::OutputQuads | Role::Encoded => Operand::Out { id: 0, words: n_rows * stride },
        Role::InputQuads => Operand::floats(&input),
        Role::InputSums => Operand::words(&words_of_sums(&input)),
        Role::Residual => Operand::floats(&residual),
        Role::Sum => Operand::Out { id: 1, words: n_rows * stride },
        Role::NormWeight => Operand::quads(&weight),
        Role::PostNormWeight => Operand::quads(&post_weight),
        Role::Chain => Operand::Chain,
        other => panic!("a norm has no {other:?}"),
    };
    let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
    let mut launch = launch(target, kernel, operands, n_rows);
    if spec.chained {
        // Once more, to wait for the first time.
        launch.steps.push(launch.steps[0].clone());
    }
    let found = launch.run();
    let (mut sums, mut normed) = (Vec::new(), Vec::new());
    for at in (0..n_rows).map(|row| row * stride) {
        let row = at..at + width;
        let (mut sum, out) = norm_row(spec, &input[row.clone()], &residual[row.clone()], &post_weight, &weight);
        sum.resize(stride, POISON);
        sums.extend(padded_quads(&sum, width));
        let mut words = encode_row(format, &out);
        if format == ActivationFormat::F32 {
            words.resize(width.next_multiple_of(4), 0);
        }
        words.resize(stride, POISON.to_bits());
        normed.extend(words);
    }
    let tolerance = if format == ActivationFormat::F32 { TOLERANCE } else { CODE_TOLERANCE };
    assert_same_rows(&format!("{spec:?}"), format, &found[&0], &normed, [width, stride], tolerance);
    if add {
        assert_same(&format!("sum of {spec:?}"), &floats(&found[&1]), &sums, TOLERANCE);
    }
}

#[test]
fn quantize_to_every_format() {
    let mut rng = StdRng::seed_from_u64(12);
    let formats = [ActivationFormat::Codes, ActivationFormat::Factored, ActivationFormat::Halves];
    for (index, target) in targets().iter().cycle().take(18).enumerate() {
        let format = formats[index % 3]([Precision::Int8, Precision::Int11][index / 3 % 2]);
        let (width, n_rows) = (rng.random_range(1..1500usize), rng.random_range(1..5));
        let stride = (format.factor_at(width) + 1).max(width).next_multiple_of(32);
        let lanes = [128, target.workgroup_invocations][index % 2];
        let spec = QuantizeSpec { width, stride, format, lanes, subgroup_size: target.subgroup_size };
        let input = normals(&mut rng, n_rows * stride);
        let operands = vec![Operand::Step, Operand::floats(&input), Operand::Out { id: 0, words: n_rows * stride }];
        let found = launch(target, KernelSpec::Quantize(spec.clone()), operands, n_rows).run();
        let row = |row: &[f32]| {
            let mut words = encode_row(format, &row[..width]);
            words.resize(stride, POISON.to_bits());
            words
        };
        let expected: Vec<u32> = input.chunks(stride).flat_map(row).collect();
        assert_same_rows(&format!("{spec:?}"), format, &found[&0], &expected, [width, stride], CODE_TOLERANCE);
    }
}

/// More blocks than workgroups and fewer, and a rest that is no whole block.
#[test]
fn reads_of_every_block() {
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
    let mut rng = StdRng::seed_from_u64(3);
    let formats = [WeightFormat::Int4 { group: 64 }, WeightFormat::Int8, WeightFormat::F16];
    for (index, target) in targets().iter().cycle().take(9).enumerate() {
        let layout = WeightLayout {
            format: formats[index / 3],
            rows: rng.random_range(20..300),
            cols: rng.random_range(3..200),
        };
        let output_stride = layout.cols.next_multiple_of(32);
        let spec = EmbedSpec { layout, first_token: 7, output_stride, scale: Number::new(3.5) };
        let weights = packed(&mut rng, &layout);
        // Tokens before, inside and behind this part of the table.
        let tokens: Vec<u32> = (0..6).map(|_| rng.random_range(0..layout.rows as u32 + 20)).chain([0, 7]).collect();
        let words = tokens.len() * output_stride;
        let operands = vec![Operand::Step, Operand::Bytes(weights.clone()), Operand::Out { id: 0, words }];
        let mut one = launch(target, KernelSpec::Embed(spec.clone()), operands, tokens.len());
        one.tokens = tokens.clone();
        let mut expected = vec![POISON; words];
        embed::twin(&spec, &weights, &tokens, &mut expected);
        assert_same(&format!("{spec:?}"), &floats(&one.run()[&0]), &expected, TOLERANCE);
    }
}

#[test]
fn elementwise_operations() {
    let mut rng = StdRng::seed_from_u64(4);
    let ops = [
        ElementwiseOp::Add,
        ElementwiseOp::Bias,
        ElementwiseOp::ActMul(Activation::Silu),
        ElementwiseOp::ActMul(Activation::GeluTanh),
        ElementwiseOp::SoftCap(Number::new(2.0)),
    ];
    for op in ops {
        let target = &targets()[0];
        let (width, n_rows) = (rng.random_range(1..300usize), 3);
        let input_stride = width.next_multiple_of(32);
        let spec = ElementwiseSpec { op, width, input_stride, output_stride: input_stride };
        // Large values too: exp and tanh must not overflow into NaN.
        let mut input = normals(&mut rng, n_rows * input_stride);
        input[0] = 300.0;
        input[input_stride] = -300.0;
        let second = normals(&mut rng, n_rows * input_stride);
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
            let second = if op == ElementwiseOp::Bias { &second[..] } else { &second[at..] };
            expected[at..at + width].copy_from_slice(&elementwise::twin_row(&spec, &input[at..], second));
        }
        assert_same(&format!("{spec:?}"), &floats(&found[&0]), &expected, TOLERANCE);
    }
}

#[test]
fn sampling_draws_what_the_twin_draws() {
    let mut rng = StdRng::seed_from_u64(6);
    for (index, target) in targets().iter().cycle().take(24).enumerate() {
        let vocab = [1003, 320, 5000, 17][index % 4];
        let logits: Vec<f32> = normals(&mut rng, vocab).iter().map(|x| 3.0 * x).collect();
        let sampling = Sampling {
            temperature: if index % 6 == 0 { 0.0 } else { rng.random_range(0.2..1.5) },
            top_k: [0, 40, 5][index % 3],
            top_p: [1.0, 0.9, 0.5][index / 3 % 3],
            min_p: [0.0, 0.05][index % 2],
            repeat_penalty: [1.0, 1.3][index / 2 % 2],
            repeat_last_n: 64,
            seed: rng.random_range(0..u64::MAX),
        };
        let history: Vec<u32> = (0..5).map(|_| rng.random_range(0..vocab as u32)).collect();
        // Logits reach the buffer by adding nothing to them.
        let copy = ElementwiseSpec { op: ElementwiseOp::Add, width: vocab, input_stride: 0, output_stride: 0 };
        let zeros = Operand::floats(&vec![0.0; vocab]);
        let buffer = Operand::Out { id: 0, words: vocab };
        let spec = SampleSpec {
            vocab,
            logits_stride: vocab,
            workgroup: 64,
            subgroup_size: target.subgroup_size,
            chained: false,
        };
        let mut one = launch(
            target,
            KernelSpec::Elementwise(copy),
            vec![Operand::Step, Operand::floats(&logits), buffer.clone(), zeros],
            1,
        );
        one.steps.push((KernelSpec::Sample(spec), vec![Operand::Step, buffer, Operand::Drawn]));
        one.tokens = history.clone();
        let found = one.sample(vocab, &sampling);
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
        let draw = sample::twin(&sampler, &history, &mut twin_logits);
        assert_eq!(found.token, draw.token, "{sampling:?}, vocab {vocab}");
        assert_eq!(found.candidates as usize, draw.candidates.len(), "{sampling:?}, vocab {vocab}");
        assert_eq!(found.logit, twin_logits[found.token as usize], "{sampling:?}");
    }
}
