//! Mixtures of experts: the router, matmuls with a matrix for each expert, the weighed sum, and the gate of a shared expert.

use std::ops::Range;

use unicorn_kernels::expert_sum::{self, ExpertSumSpec};
use unicorn_kernels::matmul::ExpertsSpec;
use unicorn_kernels::route::{self, RouteSpec, routes_width};

use super::*;

#[test]
fn routes_are_those_of_the_twin() {
    let target = &targets()[0];
    let cases = (2..300usize, 1..9usize, any::<bool>(), 1..5usize);
    check_cases("route", 6, &cases, |&(experts, chosen, normalized, n_rows), rng| {
        let chosen = chosen.min(experts);
        let spec = RouteSpec {
            experts,
            chosen,
            normalized,
            input_stride: experts.next_multiple_of(32),
            output_stride: routes_width(chosen).next_multiple_of(32),
        };
        let mut logits = normals(rng, n_rows * spec.input_stride);
        // Equal ones: the first is chosen.
        logits[1] = logits[0];
        let words = n_rows * spec.output_stride;
        let operands = vec![Operand::Step, Operand::floats(&logits), Operand::Out { id: 0, words }];
        let found = launch(target, KernelSpec::Route(spec.clone()), operands, n_rows).run();
        for row in 0..n_rows {
            let (experts, weights) = route::twin_row(&spec, &logits[row * spec.input_stride..]);
            let row = &found[&0][row * spec.output_stride..][..spec.output_stride];
            assert_eq!(row[..chosen], experts, "{spec:?}");
            assert_same(&format!("{spec:?}"), &floats(&row[chosen..2 * chosen]), &weights, TOLERANCE);
            assert!(row[2 * chosen..].iter().all(|&word| word == POISON.to_bits()), "{spec:?}");
        }
    });
}

/// Whatever the router's logits are, what reads the routes stays inside the stack.
#[test]
fn logits_that_are_no_numbers_choose_experts_that_exist() {
    let spec = RouteSpec { experts: 5, chosen: 3, normalized: true, input_stride: 32, output_stride: 32 };
    let logits = [[f32::NAN; 32], [f32::INFINITY; 32], [f32::NEG_INFINITY; 32]].concat();
    let operands = vec![Operand::Step, Operand::floats(&logits), Operand::Out { id: 0, words: 96 }];
    let found = launch(&targets()[0], KernelSpec::Route(spec), operands, 3).run();
    assert!(found[&0].chunks(32).all(|row| row[..3].iter().all(|&expert| expert < 5)), "{:?}", found[&0]);
}

/// Random routes: `chosen` experts of `experts` for each row, and their weights.
fn routes(rng: &mut StdRng, experts: Range<u32>, [n_rows, chosen, stride]: [usize; 3]) -> Vec<u32> {
    let mut words = vec![POISON.to_bits(); n_rows * stride];
    for row in words.chunks_mut(stride) {
        row[..chosen].fill_with(|| rng.random_range(experts.clone()));
        row[chosen..2 * chosen].fill_with(|| rng.random_range(0.0f32..1.0).to_bits());
    }
    words
}

#[test]
fn expert_sums_are_those_of_the_twin() {
    let target = &targets()[0];
    check_cases("expert sum", 3, &(1..300usize, 1..9usize, 1..5usize), |&(width, chosen, n_rows), rng| {
        let stride = width.next_multiple_of(32);
        let spec = ExpertSumSpec { width, chosen, stride, routes_stride: 32 };
        let input = normals(rng, n_rows * chosen * stride);
        let routes = routes(rng, 0..8, [n_rows, chosen, 32]);
        let words = n_rows * stride;
        let operands =
            vec![Operand::Step, Operand::floats(&input), Operand::words(&routes), Operand::Out { id: 0, words }];
        let found = launch(target, KernelSpec::ExpertSum(spec.clone()), operands, n_rows).run();
        let mut expected = vec![POISON; words];
        for row in 0..n_rows {
            let weights = floats(&routes[row * 32 + chosen..][..chosen]);
            let own = &input[row * chosen * stride..][..chosen * stride];
            expected[row * stride..][..width].copy_from_slice(&expert_sum::twin_row(&spec, own, &weights));
        }
        assert_same(&format!("{spec:?}"), &floats(&found[&0]), &expected, TOLERANCE);
    });
}

#[test]
fn a_gate_multiplies_a_row() {
    let op = ElementwiseOp::Gate { second_stride: 32 };
    let spec = ElementwiseSpec { op, width: 70, input_stride: 96, output_stride: 96, rows_per_token: 1 };
    let mut rng = StdRng::seed_from_u64(3);
    let (input, mut gates) = (normals(&mut rng, 3 * 96), vec![POISON; 3 * 32]);
    (gates[0], gates[32], gates[64]) = (0.4, 200.0, -200.0);
    let operands =
        vec![Operand::Step, Operand::floats(&input), Operand::Out { id: 0, words: 3 * 96 }, Operand::floats(&gates)];
    let found = launch(&targets()[0], KernelSpec::Elementwise(spec.clone()), operands, 3).run();
    let mut expected = vec![POISON; 3 * 96];
    for row in 0..3 {
        let gated = elementwise::twin_row(&spec, &input[96 * row..], &gates[32 * row..]);
        expected[96 * row..][..70].copy_from_slice(&gated);
    }
    assert_same("gate", &floats(&found[&0]), &expected, TOLERANCE);
}

#[test]
fn matmuls_of_experts() {
    let formats = [WeightFormat::Int4 { group: 64 }, WeightFormat::Int8, WeightFormat::F16];
    for (target, is_integer) in
        targets().iter().map(|target| (target, false)).chain(integer_targets().iter().map(|target| (target, true)))
    {
        let formats: Vec<WeightFormat> =
            formats.into_iter().filter(|format| !is_integer || *format != WeightFormat::F16).collect();
        let shape = (1..5usize, 1..20usize, select(formats), any::<bool>(), any::<bool>());
        let experts = (1..5usize, 1..4usize, 0..3usize, 1..4usize);
        let name = format!("experts, integers {is_integer}, {}", target.name);
        check_cases(&name, 3, &(shape, experts), |(shape, (chosen, n_rows, first, count)), rng| {
            let &(tiles, quads, format, act_mul, own_input) = shape;
            // Of experts that are not gate and up, the last tile may be a part.
            let rows = if act_mul { 16 * 4 * tiles } else { 8 * tiles + 3 };
            let layout = WeightLayout { format, rows, cols: 4 * quads };
            let plain = plain_matmul(target, layout);
            let quantized = ActivationFormat::Quantized(Precision::Int8);
            let spec = MatMulSpec {
                input: if is_integer { quantized } else { ActivationFormat::F32 },
                output: if is_integer && act_mul { quantized } else { ActivationFormat::F32 },
                act_mul: act_mul.then_some(Activation::Silu),
                experts: Some(ExpertsSpec {
                    chosen: *chosen,
                    own_input,
                    first: *first,
                    count: *count,
                    routes_stride: 32,
                }),
                tile: MatMulTile {
                    tiles_per_lane: if act_mul { 2 } else { 1 },
                    group_tiles: 4,
                    sharing: target.matmul.sharing_one,
                    ..plain.tile
                },
                ..plain
            };
            check_experts(target, &spec, *n_rows, rng);
        });
    }
}

fn check_experts(target: &Target, spec: &MatMulSpec, n_rows: usize, rng: &mut StdRng) {
    let experts = spec.experts.expect("experts");
    let weights: Vec<u8> = (0..experts.count).flat_map(|_| packed(rng, &spec.layout)).collect();
    // Some experts are in parts before and behind this one.
    let known = 0..(experts.first + experts.count + 2) as u32;
    let routes = routes(rng, known, [n_rows, experts.chosen, experts.routes_stride]);
    let input_rows = n_rows * if experts.own_input { experts.chosen } else { 1 };
    let input = stored_rows(rng, spec.input, [input_rows, spec.layout.cols, spec.input_stride]);
    let words = n_rows * experts.chosen * spec.output_stride;
    let kernel = KernelSpec::MatMul(spec.clone());
    let operand = |role| match role {
        Role::Step => Operand::Step,
        Role::Weights => Operand::Bytes(weights.clone()),
        Role::Output | Role::Encoded => Operand::Out { id: 0, words },
        Role::InputQuads | Role::QuantizedInput => Operand::words(&input),
        Role::Routes => Operand::words(&routes),
        other => panic!("a matmul of experts has no {other:?}"),
    };
    let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
    let found = launch(target, kernel, operands, n_rows).run();
    let mut expected = vec![POISON.to_bits(); words];
    let inputs = MatMulInputs {
        packed: &weights,
        tail_packed: &[],
        input: &input,
        residual: &[],
        norm_weight: &[],
        post_norm_weight: &[],
        bias: &[],
        routes: &routes,
        n_rows,
        logits_row: 0,
    };
    unicorn_kernels::matmul::twin(spec, &inputs, &mut expected, &mut []);
    let what = format!("{} {spec:?} rows {n_rows}", target.name);
    // Rows of experts elsewhere keep their poison, which is no code: they are compared as words.
    let stride = spec.output_stride;
    for (found, expected) in found[&0].chunks(stride).zip(expected.chunks(stride)) {
        if expected.iter().all(|&word| word == POISON.to_bits()) {
            assert_eq!(found, expected, "{what}: a row of an expert that is elsewhere");
            continue;
        }
        let tolerance = if spec.output == ActivationFormat::F32 { TOLERANCE } else { CODE_TOLERANCE };
        assert_same_rows(&what, spec.output, found, expected, [spec.output_rows(), stride], tolerance);
    }
}
