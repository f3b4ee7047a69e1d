//! Norms, with the sum before them and in every format, and `quantize`, which writes the same formats.

use proptest::prelude::*;

use super::*;

const FORMATS: [ActivationFormat; 7] = [
    ActivationFormat::F32,
    ActivationFormat::Quantized(Precision::Int8),
    ActivationFormat::Quantized(Precision::Int11),
    ActivationFormat::RowScaled(Precision::Int8),
    ActivationFormat::RowScaled(Precision::Int11),
    ActivationFormat::Halves(Precision::Int8),
    ActivationFormat::Halves(Precision::Int11),
];

/// Elements between rows of `width` elements in `format`, some of them unused.
fn stride(format: ActivationFormat, width: usize) -> usize {
    (format.factor_at(width) + 1).max(width).next_multiple_of(32)
}

/// A spec, and how many rows the step has.
fn norms(target: &Target, format: ActivationFormat) -> impl Strategy<Value = (NormSpec, usize)> {
    let target = target.clone();
    let flags = any::<(bool, bool, bool, bool, bool, bool)>();
    (3..400usize, 1..6usize, flags).prop_map(
        move |(width, n_rows, (add, post_norm, scaled, plain, sums, counter_sync))| {
            let spec = NormSpec {
                width,
                stride: stride(format, width),
                eps: Number::new(1e-5),
                add,
                stores_sum: add,
                post_norm: add && post_norm,
                scale_sum: add && post_norm && scaled,
                norm_sum: !(add && plain),
                fixed_sums: sums && target.fused_tail.is_some(),
                format,
                also_f32: width % 2 == 1 && format != ActivationFormat::F32,
                lanes: target.norm.lanes.max(target.subgroup_size as usize),
                subgroup_size: target.subgroup_size,
                counter_sync: counter_sync && target.counter_sync,
            };
            (spec, n_rows)
        },
    )
}

#[test]
fn norm_alone_and_with_sums() {
    for target in targets() {
        for format in FORMATS {
            let name = format!("norm to {format:?}, {}", target.name);
            check_cases(&name, 1, &norms(&target, format), |(spec, n_rows), rng| {
                check_norm(&target, spec, *n_rows, rng)
            });
        }
    }
}

#[test]
fn quantize_to_every_format() {
    let targets = targets();
    for &format in &FORMATS[1..] {
        let cases = (0..targets.len(), 1..1500usize, 1..5usize, any::<bool>());
        check_cases(&format!("quantize to {format:?}"), 3, &cases, |&(target, width, n_rows, all_lanes), rng| {
            let target = &targets[target];
            let lanes = if all_lanes { target.workgroup_invocations } else { 128 };
            let stride = stride(format, width);
            let spec =
                QuantizeSpec { width, stride, format, lanes, subgroup_size: target.subgroup_size, rows_per_token: 1 };
            let input = normals(rng, n_rows * stride);
            let operands = vec![Operand::Step, Operand::floats(&input), Operand::Out { id: 0, words: n_rows * stride }];
            let found = launch(target, KernelSpec::Quantize(spec.clone()), operands, n_rows).run();
            let row = |row: &[f32]| {
                let mut words = encode_row(format, &row[..width]);
                words.resize(stride, POISON.to_bits());
                words
            };
            let expected: Vec<u32> = input.chunks(stride).flat_map(row).collect();
            assert_same_rows(&format!("{spec:?}"), format, &found[&0], &expected, [width, stride], CODE_TOLERANCE);
        });
    }
}

pub fn check_norm(target: &Target, spec: &NormSpec, n_rows: usize, rng: &mut StdRng) {
    let &NormSpec { width, stride, format, add, .. } = spec;
    let (input, residual) = (normals(rng, n_rows * stride), normals(rng, n_rows * stride));
    let (weight, post_weight) = (normals(rng, width), normals(rng, width + 1));
    let kernel = KernelSpec::Norm(spec.clone());
    let operand = |role| match role {
        Role::Step => Operand::Step,
        Role::OutputQuads if spec.also_f32 => Operand::Out { id: 2, words: n_rows * stride },
        Role::OutputQuads | Role::Encoded => Operand::Out { id: 0, words: n_rows * stride },
        Role::InputQuads => Operand::floats(&input),
        Role::InputFixedSums => Operand::words(&words_of_sums(&input)),
        Role::Residual => Operand::floats(&residual),
        Role::Sum => Operand::Out { id: 1, words: n_rows * stride },
        Role::NormWeight => Operand::quads(&weight),
        Role::PostNormWeight => Operand::quads(&post_weight),
        Role::SyncCounters => Operand::SyncCounters,
        other => panic!("a norm has no {other:?}"),
    };
    let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
    let mut launch = launch(target, kernel, operands, n_rows);
    if spec.counter_sync {
        // Once more, to wait for the first time.
        launch.steps.push(launch.steps[0].clone());
    }
    let found = launch.run();
    let (mut sums, mut normed, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for at in (0..n_rows).map(|row| row * stride) {
        let row = at..at + width;
        let (mut sum, out) = norm_row(spec, &input[row.clone()], &residual[row.clone()], &post_weight, &weight);
        sum.resize(stride, POISON);
        sums.extend(padded_quads(&sum, width));
        let mut of_row = out.clone();
        of_row.resize(stride, POISON);
        plain.extend(padded_quads(&of_row, width));
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
    if spec.also_f32 {
        assert_same(&format!("f32 of {spec:?}"), &floats(&found[&2]), &plain, TOLERANCE);
    }
}
