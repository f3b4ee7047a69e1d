//! A router's matmul that also makes its experts' input and the choice of experts: against the twins of all three, one after the other.

use proptest::prelude::*;
use proptest::sample::select;
use unicorn_kernels::route::{self, RouteSpec, Scores, routes_width};

use super::*;

/// Outputs of the dispatch, by number.
const LOGITS: usize = 0;
const SUM: usize = 1;
const CODES: usize = 2;
const ROUTES: usize = 3;

#[test]
fn choices_of_a_router() {
    let own = targets().into_iter().filter(|target| target.matmul.sharing_one == Sharing::Own);
    for target in own.filter(Target::has_memory_model) {
        let format = select(vec![WeightFormat::F16, WeightFormat::Int8, WeightFormat::Int4 { group: 64 }]);
        let scores =
            prop_oneof![Just((Scores::Softmax, false)), any::<bool>().prop_map(|bias| (Scores::Sigmoid, bias))];
        let choice = (2..90usize, 1..9usize, any::<bool>(), any::<bool>(), scores);
        // Whether a norm is in front: with a sum, of sums, with integers for the experts.
        let norm = prop::option::of(any::<(bool, bool, bool)>());
        let flags = (any::<bool>(), any::<bool>(), super::experts::shared_experts());
        let cases = (choice, norm, (1..80usize, format), select(vec![1, 2, 4usize]), flags);
        check_cases(&format!("router, {}", target.name), 8, &cases, |case, rng| {
            let &((experts, chosen, normalized, scaled, (scores, choice_bias)), norm, shape, split_k, flags) = case;
            let (quads, format) = shape;
            let (bias, counter_sync, shared) = flags;
            let layout = WeightLayout { format, rows: experts + shared.logits(), cols: 4 * quads };
            let plain = plain_matmul(&target, layout);
            let chosen = chosen.min(experts);
            let choice = RouteSpec {
                experts,
                chosen,
                shared,
                scores,
                normalized,
                factor: Number::new(1.5),
                choice_bias,
                scaled,
                groups: None,
                input_stride: plain.output_stride,
                output_stride: routes_width(chosen + shared.count).next_multiple_of(32),
                counter_sync: false,
            };
            let norm = norm.map(|(add, sums, also_f32)| NormSpec {
                width: layout.cols,
                stride: plain.input_stride,
                eps: Number::new(1e-6),
                add,
                post_norm: false,
                scale_sum: false,
                norm_sum: true,
                fixed_sums: sums && target.fused_tail.is_some(),
                format: if also_f32 { ActivationFormat::Quantized(Precision::Int8) } else { ActivationFormat::F32 },
                also_f32,
                lanes: 64,
                subgroup_size: target.subgroup_size,
                counter_sync: false,
            });
            let spec = MatMulSpec {
                prologue: norm,
                bias,
                choice: Some(choice),
                counter_sync: counter_sync && target.counter_sync,
                tile: MatMulTile { split_k, sharing: Sharing::Own, ..plain.tile },
                ..plain
            };
            check_router(&target, &spec, rng);
        });
    }
}

fn check_router(target: &Target, spec: &MatMulSpec, rng: &mut StdRng) {
    let (choice, cols) = (spec.choice.as_ref().expect("a router"), spec.layout.cols);
    let weights = packed(rng, &spec.layout);
    let input = stored_rows(rng, ActivationFormat::F32, [1, cols, spec.input_stride]);
    let (residual, norm_weight) = (normals(rng, spec.input_stride), normals(rng, cols));
    let bias = normals(rng, choice.logits());
    let scale = normals(rng, if choice.scaled { choice.experts } else { 0 });
    let choice_bias = normals(rng, if choice.choice_bias { choice.experts } else { 0 });
    let kernel = KernelSpec::MatMul(spec.clone());
    let operand = |role| match role {
        Role::Step => Operand::Step,
        Role::Weights => Operand::Bytes(weights.clone()),
        Role::ExchangedOutput => Operand::Out { id: LOGITS, words: spec.output_stride },
        Role::Sum => Operand::Out { id: SUM, words: spec.input_stride },
        Role::Encoded => Operand::Out { id: CODES, words: spec.input_stride },
        Role::MadeRoutes => Operand::Out { id: ROUTES, words: choice.output_stride },
        Role::InputQuads => Operand::words(&input),
        Role::InputFixedSums => Operand::words(&words_of_sums(&floats(&input))),
        Role::Residual => Operand::floats(&residual),
        Role::NormWeight => Operand::quads(&norm_weight),
        Role::Bias => Operand::floats(&bias),
        Role::ExpertScale => Operand::floats(&scale),
        Role::ChoiceBias => Operand::floats(&choice_bias),
        Role::CompletionCounters => Operand::CompletionCounters,
        Role::SyncCounters => Operand::SyncCounters,
        other => panic!("a router has no {other:?}"),
    };
    let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
    let mut launch = launch(target, kernel, operands, 1);
    // Once more: the completion counters are 0 again, and a wait for the first time ends.
    launch.steps.push(launch.steps[0].clone());
    let found = launch.run();

    let what = format!("{} {spec:?}", target.name);
    let mut logits = vec![POISON.to_bits(); spec.output_stride];
    let mut sum = vec![POISON; spec.input_stride];
    let inputs = MatMulInputs {
        packed: &weights,
        tail_packed: &[],
        input: &input,
        residual: &residual,
        norm_weight: &norm_weight,
        post_norm_weight: &[],
        bias: &bias,
        routes: &[],
        n_rows: 1,
        logits_row: 0,
    };
    unicorn_kernels::matmul::twin(spec, &inputs, &mut logits, &mut sum);
    assert_same(&what, &floats(&found[&LOGITS]), &floats(&logits), TOLERANCE);
    if let Some(sums) = found.get(&SUM) {
        assert_same(&format!("sum of {what}"), &floats(sums), &padded_quads(&sum, cols), TOLERANCE);
    }
    if let (Some(codes), Some(norm)) = (found.get(&CODES), &spec.prologue) {
        let residual = if norm.add { &residual[..cols] } else { &[][..] };
        let (_, normed) = norm_row(norm, &floats(&input)[..cols], residual, &[], &norm_weight);
        let mut expected = encode_row(norm.format, &normed);
        expected.resize(spec.input_stride, POISON.to_bits());
        assert_same_rows(&what, norm.format, codes, &expected, [cols, spec.input_stride], CODE_TOLERANCE);
    }
    // Of the device's own logits: of two that are nearly equal, either may be the larger.
    let (experts, shares) = route::twin_row(choice, &floats(&found[&LOGITS]), &scale, &choice_bias);
    let (routes, chosen) = (&found[&ROUTES], choice.routes());
    assert_eq!(routes[..chosen], experts, "{what}");
    assert_same(&what, &floats(&routes[chosen..2 * chosen]), &shares, TOLERANCE);
    assert!(routes[2 * chosen..].iter().all(|&word| word == POISON.to_bits()), "{what}");
}
