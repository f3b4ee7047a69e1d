//! A router's matmul that also makes its experts' input and the choice of experts: against the twins of all three, one after the other.

use std::ops::Range;

use proptest::prelude::*;
use proptest::sample::select;
use unicorn_kernels::route::{self, RouteSpec, Scores, SharedExperts, routes_width};

use super::*;

/// Outputs of the dispatch, by number.
const LOGITS: usize = 0;
const SUM: usize = 1;
const CODES: usize = 2;
pub const ROUTES: usize = 3;

#[test]
fn choices_of_a_router() {
    let own = targets().into_iter().filter(|target| target.matmul.sharing_one == Sharing::Own);
    for target in own.filter(Target::has_memory_model) {
        let format = select(vec![WeightFormat::F16, WeightFormat::Int8, WeightFormat::Int4 { group: 64 }]);
        // Whether a norm is in front: with a sum, of sums, with integers for the experts.
        let norm = prop::option::of(any::<(bool, bool, bool)>());
        let flags = (any::<bool>(), any::<bool>());
        let cases = (choices(2..90), norm, (1..80usize, format), select(vec![1, 2, 4usize]), flags);
        check_cases(&format!("router, {}", target.name), 8, &cases, |case, rng| {
            let (choice, norm, (quads, format), split_k, (bias, counter_sync)) = case.clone();
            let layout = WeightLayout { format, rows: choice.logits(), cols: 4 * quads };
            let plain = plain_matmul(&target, layout);
            let choice = RouteSpec { input_stride: plain.output_stride, ..choice };
            let norm = norm.map(|(add, sums, also_f32)| NormSpec {
                width: layout.cols,
                stride: plain.input_stride,
                eps: Number::new(1e-6),
                add,
                stores_sum: add,
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

/// Choices among so many experts.
pub fn choices(experts: Range<usize>) -> impl Strategy<Value = RouteSpec> {
    let scores = prop_oneof![Just((Scores::Softmax, false)), any::<bool>().prop_map(|bias| (Scores::Sigmoid, bias))];
    let cases = (experts, 1..9usize, any::<bool>(), any::<bool>(), scores, shared_experts());
    cases.prop_map(|(experts, chosen, normalized, scaled, (scores, choice_bias), shared)| {
        let chosen = chosen.min(experts);
        RouteSpec {
            experts,
            chosen,
            shared,
            scores,
            normalized,
            factor: Number::new(1.5),
            choice_bias,
            scaled,
            groups: None,
            input_stride: (experts + 1).next_multiple_of(32),
            output_stride: routes_width(chosen + shared.count).next_multiple_of(32),
            counter_sync: false,
        }
    })
}

/// None, or some with a gate or without.
fn shared_experts() -> impl Strategy<Value = SharedExperts> {
    (0..4usize, any::<bool>()).prop_map(|(count, gated)| SharedExperts { count, gated: gated && count > 0 })
}

/// A choice for each of some rows of random logits.
pub struct Choice<'a> {
    spec: &'a RouteSpec,
    logits: Vec<f32>,
    scale: Vec<f32>,
    bias: Vec<f32>,
    /// (rows, output_stride), by the twin.
    pub routes: Vec<u32>,
}

impl<'a> Choice<'a> {
    pub fn random(rng: &mut StdRng, spec: &'a RouteSpec, n_rows: usize) -> Choice<'a> {
        let mut logits = normals(rng, n_rows * spec.input_stride);
        // Equal ones: the first is chosen.
        logits[1] = logits[0];
        let scale = normals(rng, if spec.scaled { spec.experts } else { 0 });
        let bias = normals(rng, if spec.choice_bias { spec.experts } else { 0 });
        let mut routes = vec![POISON.to_bits(); n_rows * spec.output_stride];
        for (row, logits) in routes.chunks_mut(spec.output_stride).zip(logits.chunks(spec.input_stride)) {
            let (experts, weights) = route::twin_row(spec, logits, &scale, &bias);
            let words = experts.into_iter().chain(weights.into_iter().map(f32::to_bits));
            row.iter_mut().zip(words).for_each(|(word, made)| *word = made);
        }
        Choice { spec, logits, scale, bias, routes }
    }

    pub fn operand(&self, role: Role) -> Operand {
        match role {
            Role::Input | Role::RouterLogits => Operand::floats(&self.logits),
            Role::ExpertScale => Operand::floats(&self.scale),
            Role::ChoiceBias => Operand::floats(&self.bias),
            Role::MadeRoutes => Operand::Out { id: ROUTES, words: self.routes.len() },
            other => panic!("a choice has no {other:?}"),
        }
    }

    pub fn check(&self, what: &str, found: &[u32]) {
        let (stride, chosen) = (self.spec.output_stride, self.spec.routes());
        for (found, expected) in found.chunks(stride).zip(self.routes.chunks(stride)) {
            assert_eq!(found[..chosen], expected[..chosen], "{what}");
            let weights = chosen..2 * chosen;
            assert_same(what, &floats(&found[weights.clone()]), &floats(&expected[weights]), TOLERANCE);
            assert_eq!(found[2 * chosen..], expected[2 * chosen..], "{what}");
        }
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
