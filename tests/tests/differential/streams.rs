//! Kernels of models with several streams of the residual.

use proptest::sample::select;
use rand::rngs::StdRng;
use tests::launch::Operand;
use unicorn_kernels::altup::{self, AltUpForm, AltUpSpec};
use unicorn_kernels::laurel::{self, LaurelSpec};
use unicorn_kernels::sparse_act_mul::{self, SparseActMulSpec};
use unicorn_kernels::streams::{self, StreamsForm, StreamsSpec};
use unicorn_kernels::{Activation, KernelSpec, Number};

use super::cases::check_cases;
use super::{POISON, TOLERANCE, assert_same, floats, launch, normals, targets};

const EPS: f32 = 1e-3;
const LANES: usize = 128;
const N_ROWS: usize = 3;

/// Rows of `stride` elements, of which the first `width` are these.
fn padded(rows: &[Vec<f32>], stride: usize) -> Vec<f32> {
    let pad = |row: &Vec<f32>| [&row[..], &vec![POISON; stride - row.len()]].concat();
    rows.iter().flat_map(pad).collect()
}

/// The rows of streams beside the first that belong to a row.
fn streams_of(rows: &[f32], row: usize, others: usize, stride: usize) -> Vec<&[f32]> {
    rows[row * others * stride..][..others * stride].chunks_exact(stride).collect()
}

/// A router's numbers are neither near 0 nor 1.
fn altup_weights(rng: &mut StdRng, spec: &AltUpSpec) -> Vec<f32> {
    let (width, streams) = (spec.width, spec.streams);
    let coefs = if spec.form == AltUpForm::Predict { streams * streams * streams } else { streams * streams };
    let router = normals(rng, streams * width).into_iter().map(|weight| weight / (width as f32).sqrt());
    [normals(rng, width), router.collect(), normals(rng, coefs), normals(rng, width)].concat()
}

#[test]
fn predictions_and_corrections_are_those_of_the_twin() {
    let targets = targets();
    let forms = select(vec![AltUpForm::Predict, AltUpForm::Correct]);
    let cases = (0..targets.len(), forms, 1..700usize, 2..9usize);
    check_cases("altup", 12, &cases, |&(target, form, width, streams), rng| {
        let target = &targets[target];
        let (stride, eps, subgroup_size) = (width.next_multiple_of(32), Number::new(EPS), target.subgroup_size);
        let spec = AltUpSpec { form, width, stride, streams, eps, lanes: LANES, subgroup_size };
        let (others, words) = (streams - 1, N_ROWS * stride);
        let input = normals(rng, words);
        let (active, of_others) = (normals(rng, words), normals(rng, others * words));
        let weights = altup_weights(rng, &spec);
        let mut operands = vec![
            Operand::Step,
            Operand::floats(&input),
            Operand::floats(&of_others),
            Operand::Out { id: 0, words },
            Operand::Out { id: 1, words: others * words },
            Operand::floats(&weights),
        ];
        if form == AltUpForm::Correct {
            operands.extend([Operand::floats(&active), Operand::Out { id: 2, words }]);
        }
        let found = launch(target, KernelSpec::AltUp(spec.clone()), operands, N_ROWS).run();
        let (mut firsts, mut scaled, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..N_ROWS {
            let (input, streams) = (&input[row * stride..], streams_of(&of_others, row, others, stride));
            match form {
                AltUpForm::Predict => {
                    let expected = altup::predict_row(&spec, input, &streams, &weights);
                    firsts.push(expected.active);
                    rest.extend(expected.others);
                }
                AltUpForm::Correct => {
                    let expected = altup::correct_row(&spec, input, &active[row * stride..], &streams, &weights);
                    firsts.push(expected.active);
                    scaled.push(expected.scaled);
                    rest.extend(expected.others);
                }
            }
        }
        let what = format!("{} {spec:?}", target.name);
        assert_same(&what, &floats(&found[&0]), &padded(&firsts, stride), TOLERANCE);
        assert_same(&what, &floats(&found[&1]), &padded(&rest, stride), TOLERANCE);
        if form == AltUpForm::Correct {
            assert_same(&what, &floats(&found[&2]), &padded(&scaled, stride), TOLERANCE);
        }
    });
}

#[test]
fn sums_of_streams_are_those_of_the_twin() {
    let targets = targets();
    let forms = select(vec![StreamsForm::Begin, StreamsForm::Add, StreamsForm::End]);
    let cases = (0..targets.len(), forms, 1..700usize, 1..8usize);
    check_cases("streams", 12, &cases, |&(target, form, width, others), rng| {
        let target = &targets[target];
        let (stride, eps, subgroup_size) = (width.next_multiple_of(32), Number::new(EPS), target.subgroup_size);
        let spec = StreamsSpec { form, width, stride, others, eps, lanes: LANES, subgroup_size };
        let words = N_ROWS * stride;
        let (input, mut of_others) = (normals(rng, words), normals(rng, others * words));
        // A stream of nearly nothing does not become one of something.
        of_others[..stride].iter_mut().for_each(|value| *value *= 1e-4);
        let weight = normals(rng, width);
        let made = if form == StreamsForm::End { words } else { others * words };
        let mut operands = vec![
            Operand::Step,
            Operand::floats(&input),
            Operand::floats(&of_others),
            Operand::Out { id: 0, words: made },
        ];
        operands.extend((form == StreamsForm::Add).then(|| Operand::floats(&weight)));
        let found = launch(target, KernelSpec::Streams(spec.clone()), operands, N_ROWS).run();
        let expected = (0..N_ROWS).flat_map(|row| {
            let streams = streams_of(&of_others, row, others, stride);
            streams::twin_row(&spec, &input[row * stride..], &streams, &weight)
        });
        let expected = padded(&expected.collect::<Vec<_>>(), stride);
        assert_same(&format!("{} {spec:?}", target.name), &floats(&found[&0]), &expected, TOLERANCE);
    });
}

#[test]
fn sums_behind_attention_are_those_of_the_twin() {
    let targets = targets();
    check_cases("laurel", 6, &(0..targets.len(), 1..700usize), |&(target, width), rng| {
        let target = &targets[target];
        let (stride, eps, subgroup_size) = (width.next_multiple_of(32), Number::new(EPS), target.subgroup_size);
        let spec = LaurelSpec { width, stride, eps, lanes: LANES, subgroup_size };
        let words = N_ROWS * stride;
        let [stream, attended, laurel] = [1.0, 30.0, 0.1]
            .map(|scale| normals(rng, words).into_iter().map(|value| scale * value).collect::<Vec<f32>>());
        let weights = normals(rng, 3 * width);
        let operands = vec![
            Operand::Step,
            Operand::floats(&stream),
            Operand::floats(&attended),
            Operand::floats(&laurel),
            Operand::Out { id: 0, words },
            Operand::floats(&weights),
        ];
        let found = launch(target, KernelSpec::Laurel(spec.clone()), operands, N_ROWS).run();
        let expected = (0..N_ROWS)
            .map(|row| row * stride)
            .map(|at| laurel::twin_row(&spec, &stream[at..], &attended[at..], &laurel[at..], &weights));
        let expected = padded(&expected.collect::<Vec<_>>(), stride);
        assert_same(&format!("{} {spec:?}", target.name), &floats(&found[&0]), &expected, TOLERANCE);
    });
}

#[test]
fn products_of_large_gates_are_those_of_the_twin() {
    let targets = targets();
    let activations = select(vec![Activation::GeluTanh, Activation::Silu]);
    let cases = (0..targets.len(), 1..700usize, -2.0..2.5f32, activations);
    check_cases("sparse act mul", 8, &cases, |&(target, width, deviations, activation), rng| {
        let target = &targets[target];
        let (stride, subgroup_size) = (width.next_multiple_of(32), target.subgroup_size);
        let deviations = Number::new(deviations);
        let spec = SparseActMulSpec { width, stride, activation, deviations, lanes: LANES, subgroup_size };
        let words = N_ROWS * stride;
        // Means far from 0.
        let gate: Vec<f32> = normals(rng, words).iter().map(|x| x + 3.0).collect();
        let up = normals(rng, words);
        let operands = vec![Operand::Step, Operand::floats(&gate), Operand::floats(&up), Operand::Out { id: 0, words }];
        let found = launch(target, KernelSpec::SparseActMul(spec.clone()), operands, N_ROWS).run();
        let expected = (0..N_ROWS)
            .map(|row| row * stride)
            .map(|at| sparse_act_mul::twin_row(&spec, &gate[at..], &up[at..]))
            .collect::<Vec<_>>();
        assert_same(&format!("{} {spec:?}", target.name), &floats(&found[&0]), &padded(&expected, stride), TOLERANCE);
    });
}
