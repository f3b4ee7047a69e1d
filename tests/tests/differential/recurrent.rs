//! Layers with recurrent state: convolution and delta rule, whose state goes from one step to the next, and the gated norm.

use std::cell::Cell;

use proptest::prelude::*;
use unicorn_artifact::plan::STATE_PAGE_TOKENS;
use unicorn_artifact::{KvGroupPlan, Tier};
use unicorn_kernels::activation_format::ACTIVATION_GROUP;
use unicorn_kernels::delta_chunks::DeltaChunksSpec;
use unicorn_kernels::delta_rule::{self, DeltaRuleInputs, DeltaRuleSpec};
use unicorn_kernels::gated_norm::{self, GatedForm, GatedNormSpec};
use unicorn_kernels::previous_row::{self, KeptRows, PreviousRowSpec, RowUse};
use unicorn_kernels::short_conv::{self, ConvForm, ShortConvSpec};
use unicorn_kernels::{Number, StateLayout};

use super::*;

/// Steps of one sequence: some whose results are not checked, then one of `n_rows` rows.
#[derive(Clone, Copy, Debug)]
struct Steps {
    n_before: usize,
    n_rows: usize,
    /// The program has one row, and each token a step.
    alone: bool,
}

fn steps() -> impl Strategy<Value = Steps> {
    let of_rows = (0..40usize, 1..40usize).prop_map(|(n_before, n_rows)| Steps { n_before, n_rows, alone: false });
    let alone = (0..5usize).prop_map(|n_before| Steps { n_before, n_rows: 1, alone: true });
    prop_oneof![of_rows, alone]
}

impl Steps {
    /// Rows of each step, all of which read the first rows of the same inputs.
    fn rows(&self) -> Vec<usize> {
        let before = if self.alone { vec![1; self.n_before] } else { vec![self.n_before] };
        before.into_iter().chain([self.n_rows]).filter(|&rows| rows > 0).collect()
    }

    /// Rows that the inputs have.
    fn most(&self) -> usize {
        self.rows().into_iter().max().expect("a step has rows")
    }

    /// Another sequence has the first page of the pool, and has left its state there.
    fn run(&self, target: &Target, spec: KernelSpec, state: &StateLayout, operands: Vec<Operand>) -> Vec<f32> {
        self.run_all(target, vec![(spec, operands)], state)
    }

    /// The same for steps of several kernels, of which one writes the result.
    fn run_all(&self, target: &Target, steps: Vec<(KernelSpec, Vec<Operand>)>, state: &StateLayout) -> Vec<f32> {
        let launch = Launch {
            target: target.clone(),
            steps,
            kv: Some(KvGroupPlan {
                window_tokens: None,
                n_layers: 1,
                page_tokens: STATE_PAGE_TOKENS,
                page_bytes: state.page_bytes() as u64,
                tier: Tier::Vram,
                reason: String::new(),
            }),
            rows: self.most(),
            rows_per_token: 1,
            other: vec![1; self.most()],
            before: vec![1; self.n_before],
            tokens: vec![1; self.n_rows],
        };
        floats(&launch.run()[&0])
    }
}

fn layouts() -> impl Strategy<Value = StateLayout> {
    (1..6usize, 1..8usize, 1..40usize, 1..150usize, 2..6usize).prop_map(|(heads, quads, value_dim, channels, taps)| {
        StateLayout { heads, key_dim: 4 * quads, value_dim, channels, taps }
    })
}

#[test]
fn short_convolutions_go_on_from_step_to_step() {
    let forms = prop_oneof![Just(ConvForm::Activated), Just(ConvForm::Gated)];
    // LFM2 has no heads beside its channels.
    let layouts = (layouts(), any::<bool>()).prop_map(|(layout, alone)| match alone {
        true => StateLayout { heads: 0, key_dim: 0, value_dim: 0, ..layout },
        false => layout,
    });
    check_cases("short conv", 16, &(layouts, forms, steps()), |&(state, form, steps), rng| {
        let input_stride = form.input_width(state.channels).next_multiple_of(32);
        let output_stride = state.channels.next_multiple_of(32);
        let targets = targets();
        let target = counting(&targets);
        let spec = ShortConvSpec {
            state,
            kv_group: 0,
            form,
            input_stride,
            output_stride,
            rows_are_alone: steps.alone,
            counter_sync: target.counter_sync && state.channels % 2 == 0,
        };
        let input = normals(rng, steps.most() * input_stride);
        let taps = normals(rng, state.channels * state.taps);
        let words = steps.most() * output_stride;
        let mut operands = vec![
            Operand::Step,
            Operand::floats(&input),
            Operand::Out { id: 0, words },
            Operand::quads(&taps),
            Operand::Keys,
            Operand::Values,
        ];
        operands.extend(spec.counter_sync.then_some(Operand::SyncCounters));
        let found = steps.run(target, KernelSpec::ShortConv(spec.clone()), &state, operands);
        let mut kept = vec![0.0; state.channels * (state.taps - 1)];
        let mut expected = Vec::new();
        for rows in steps.rows() {
            expected = vec![POISON; words];
            short_conv::twin(&spec, &input[..rows * input_stride], &taps, &mut kept, &mut expected);
        }
        assert_same(&format!("{spec:?} {steps:?}"), &found, &expected, TOLERANCE);
    });
}

/// Widths of rows, and layouts of state that have room for them.
fn rows_of_state() -> impl Strategy<Value = (StateLayout, usize)> {
    let layout = StateLayout { heads: 3, key_dim: 8, value_dim: 20, channels: 40, taps: 4 };
    let most = layout.half_words() - 1;
    (Just(layout), prop_oneof![1..most, Just(most)])
}

#[test]
fn rows_before_others_go_on_from_step_to_step() {
    check_cases("previous row", 16, &(rows_of_state(), steps()), |&((state, width), steps), rng| {
        let spec = previous_row(state, width, RowUse::Follow, steps.alone);
        let (input, words) = (normals(rng, steps.most() * spec.input_stride), steps.most() * spec.output_stride);
        let operands = vec![Operand::Step, Operand::floats(&input), Operand::Out { id: 0, words }, Operand::Keys];
        let found = steps.run(&targets()[0], KernelSpec::PreviousRow(spec.clone()), &state, operands);
        let mut kept = KeptRows { row: vec![POISON; width], position: None, draft: Vec::new() };
        let (mut expected, mut position) = (Vec::new(), 0);
        for rows in steps.rows() {
            expected = vec![POISON; words];
            previous_row::twin(&spec, position, &input[..rows * spec.input_stride], &mut kept, &mut expected);
            position += rows as u32;
        }
        assert_same(&format!("{spec:?} {steps:?}"), &found, &expected, 0.0);
    });
}

/// A draft reads the row before it, if that was kept last, and otherwise the row of the draft before.
#[test]
fn drafts_recall_the_row_before_them() {
    let cases = (rows_of_state(), 2..6usize, any::<bool>());
    check_cases("previous row of drafts", 12, &cases, |&((state, width), n_before, is_first), rng| {
        let spec = |row_use| previous_row(state, width, row_use, true);
        let [follow, recall, keep] = [RowUse::Follow, RowUse::Recall, RowUse::KeepDraft].map(spec);
        let words = recall.output_stride;
        let (row, draft) = (normals(rng, follow.input_stride), normals(rng, keep.input_stride));
        let out = |id| Operand::Out { id, words };
        let kernel = |spec: &PreviousRowSpec, operands| (KernelSpec::PreviousRow(spec.clone()), operands);
        let follows = kernel(&follow, vec![Operand::Step, Operand::floats(&row), out(1), Operand::Keys]);
        let keeps = kernel(&keep, vec![Operand::Step, Operand::floats(&draft), Operand::Values]);
        let recalls = kernel(&recall, vec![Operand::Step, out(0), Operand::Keys, Operand::Values]);
        // The model's row of this position has been kept already, as behind the first draft, or not.
        let order = if is_first { vec![recalls, keeps, follows] } else { vec![follows, keeps, recalls] };
        let steps = Steps { n_before, n_rows: 1, alone: true };
        let found = steps.run_all(&targets()[0], order, &state);
        let position = n_before as u32;
        let kept_at = if is_first { position - 1 } else { position };
        let mut kept = KeptRows { row: row[..width].to_vec(), position: Some(kept_at), draft: draft[..width].to_vec() };
        let mut expected = vec![POISON; words];
        previous_row::twin(&recall, position, &[], &mut kept, &mut expected);
        assert_same(&format!("{recall:?}, first: {is_first}"), &found, &expected, 0.0);
    });
}

fn previous_row(state: StateLayout, width: usize, row_use: RowUse, rows_are_alone: bool) -> PreviousRowSpec {
    let stride = width.next_multiple_of(32);
    PreviousRowSpec { state, kv_group: 0, row_use, width, input_stride: stride, output_stride: stride, rows_are_alone }
}

#[test]
fn the_delta_rule_goes_on_from_step_to_step() {
    let cases = (layouts(), 1..4usize, steps());
    check_cases("delta rule", 16, &cases, |&(layout, shared, steps), rng| {
        let targets = targets();
        let target = counting(&targets);
        let counter_sync = target.counter_sync && layout.value_dim % 2 == 0;
        let rule = DeltaRuleSpec { counter_sync, ..delta_rule(layout, shared, steps) };
        check_delta_rule(target, KernelSpec::DeltaRule(rule.clone()), &rule, steps, TOLERANCE, rng);
    });
}

/// Sums of f32, but operands are rounded to f16.
const CHUNKS_TOLERANCE: f64 = 2e-3;

#[test]
fn the_delta_rule_in_chunks() {
    let targets = matrix_targets();
    if targets.is_empty() {
        return skip_matrix_units();
    }
    let layouts = (1..4usize, 1..5usize, 1..4usize).prop_map(|(heads, keys, values)| StateLayout {
        heads,
        key_dim: 32 * keys,
        value_dim: 32 * values,
        channels: 8,
        taps: 4,
    });
    for target in &targets {
        let (fragment, checked) = (target.matrix.expect("set above").fragment, Cell::new(0));
        let steps = (0..80usize, 1..80usize).prop_map(|(n_before, n_rows)| Steps { n_before, n_rows, alone: false });
        let cases = (layouts.clone(), 1..4usize, steps);
        check_cases(&format!("delta rule in chunks, {fragment:?}"), 5, &cases, |&(layout, shared, steps), rng| {
            let rule = delta_rule(layout, shared, steps);
            let spec = DeltaChunksSpec { rule: rule.clone(), fragment, subgroup_size: target.subgroup_size };
            assert!(spec.is_possible(), "{spec:?}");
            // Long keys need more workgroup memory than some devices have.
            if spec.shared_bytes() <= target.shared_memory_bytes {
                check_delta_rule(target, KernelSpec::DeltaChunks(spec), &rule, steps, CHUNKS_TOLERANCE, rng);
                checked.set(checked.get() + 1);
            }
        });
        assert!(checked.get() > 0, "no case fits into {} bytes", target.shared_memory_bytes);
    }
}

/// The rule with `shared` value heads a key head of `layout`.
fn delta_rule(layout: StateLayout, shared: usize, steps: Steps) -> DeltaRuleSpec {
    let key_heads = layout.heads;
    let state = StateLayout { heads: key_heads * shared, ..layout };
    let stride = |width: usize| width.next_multiple_of(32);
    DeltaRuleSpec {
        state,
        key_heads,
        kv_group: 0,
        input_stride: stride(2 * key_heads * state.key_dim + state.heads * state.value_dim),
        gate_stride: stride(2 * state.heads),
        decay_first: state.heads,
        strength_first: 0,
        output_stride: stride(state.heads * state.value_dim),
        rows_are_alone: steps.alone,
        counter_sync: false,
    }
}

/// A kernel for `rule`, step after step, against the twin.
fn check_delta_rule(
    target: &Target,
    kernel: KernelSpec,
    rule: &DeltaRuleSpec,
    steps: Steps,
    tolerance: f64,
    rng: &mut StdRng,
) {
    let (state, rows) = (rule.state, steps.most());
    // Exact in f16: a kernel that rounds them multiplies the same queries and keys, whose product may be small.
    let to_half = |x: &f32| half::f16::from_f32(*x).to_f32();
    let input: Vec<f32> = normals(rng, rows * rule.input_stride).iter().map(to_half).collect();
    let (decay, strength) = (normals(rng, rows * rule.gate_stride), normals(rng, rows * rule.gate_stride));
    let (mut decay_rate, bias) = (normals(rng, state.heads), normals(rng, state.heads));
    // One that decays at once.
    decay_rate[0] = 5.0;
    let words = rows * rule.output_stride;
    let mut operands = vec![
        Operand::Step,
        Operand::floats(&input),
        Operand::floats(&decay),
        Operand::floats(&strength),
        Operand::Out { id: 0, words },
        Operand::quads(&decay_rate),
        Operand::quads(&bias),
        Operand::Keys,
        Operand::Values,
    ];
    operands.extend(rule.counter_sync.then_some(Operand::SyncCounters));
    let what = format!("{kernel:?} {steps:?}");
    let found = steps.run(target, kernel, &state, operands);
    let mut states = vec![0.0; state.heads * state.head_words()];
    let mut expected = Vec::new();
    for rows in steps.rows() {
        expected = vec![POISON; words];
        let inputs = DeltaRuleInputs {
            input: &input[..rows * rule.input_stride],
            decay: &decay,
            strength: &strength,
            decay_rate: &decay_rate,
            bias: &bias,
        };
        delta_rule::twin(rule, &inputs, &mut states, &mut expected);
    }
    assert_same(&what, &found, &expected, tolerance);
}

#[test]
fn gated_norms_are_those_of_the_twin() {
    for target in targets() {
        let name = format!("gated norm, {}", target.name);
        let formats = [Precision::Int8, Precision::Int11].map(|precision| Some(ActivationFormat::Quantized(precision)));
        let formats = select([None].into_iter().chain(formats).collect::<Vec<_>>());
        let forms = select(vec![GatedForm::Silu, GatedForm::Sum]);
        let cases = (1..7usize, 1..200usize, 1..5usize, (forms, formats, any::<bool>()));
        check_cases(&name, 9, &cases, |&(heads, head_dim, n_rows, (form, format, counter_sync)), rng| {
            // Integers are made of heads of whole groups.
            let head_dim = if format.is_some() { head_dim.next_multiple_of(ACTIVATION_GROUP) } else { head_dim };
            let output = format.unwrap_or(ActivationFormat::F32);
            let counter_sync = counter_sync && target.counter_sync;
            let stride = (heads * head_dim).next_multiple_of(32);
            let subgroup_size = target.subgroup_size;
            // The gate is behind other columns of its rows.
            let (gate_first, gate_stride) = (heads * head_dim, 2 * stride);
            let eps = Number::new(1e-5);
            let spec = GatedNormSpec {
                heads,
                head_dim,
                stride,
                gate_stride,
                gate_first,
                eps,
                subgroup_size,
                form,
                output,
                counter_sync,
            };
            let (input, gate) = (normals(rng, n_rows * stride), normals(rng, n_rows * gate_stride));
            let weight = normals(rng, head_dim);
            let words = n_rows * stride;
            let mut operands = vec![
                Operand::Step,
                Operand::floats(&input),
                Operand::floats(&gate),
                Operand::Out { id: 0, words },
                Operand::quads(&weight),
            ];
            operands.extend(counter_sync.then_some(Operand::SyncCounters));
            let found = run_twice(launch(&target, KernelSpec::GatedNorm(spec.clone()), operands, n_rows), counter_sync);
            let width = heads * head_dim;
            let mut expected = vec![POISON.to_bits(); words];
            for (row, expected) in expected.chunks_exact_mut(stride).enumerate() {
                let gate = &gate[row * gate_stride + gate_first..][..width];
                let normed = gated_norm::twin_row(&spec, &input[row * stride..][..width], gate, &weight);
                let encoded = encode_row(output, &normed);
                expected[..encoded.len()].copy_from_slice(&encoded);
            }
            let tolerance = if output == ActivationFormat::F32 { TOLERANCE } else { CODE_TOLERANCE };
            assert_same_rows(&format!("{spec:?}"), output, &found[&0], &expected, [width, stride], tolerance);
        });
    }
}

#[test]
fn a_gate_for_each_element() {
    let spec = ElementwiseSpec {
        op: ElementwiseOp::GateEach,
        width: 70,
        input_stride: 96,
        output_stride: 96,
        rows_per_token: 1,
    };
    let mut rng = StdRng::seed_from_u64(4);
    let (input, mut gates) = (normals(&mut rng, 3 * 96), normals(&mut rng, 3 * 96));
    (gates[5], gates[100]) = (200.0, -200.0);
    let operands =
        vec![Operand::Step, Operand::floats(&input), Operand::Out { id: 0, words: 3 * 96 }, Operand::floats(&gates)];
    let found = launch(&targets()[0], KernelSpec::Elementwise(spec.clone()), operands, 3).run();
    let mut expected = vec![POISON; 3 * 96];
    for row in 0..3 {
        let gated = elementwise::twin_row(&spec, &input[96 * row..], &gates[96 * row..]);
        expected[96 * row..][..70].copy_from_slice(&gated);
    }
    assert_same("gate", &floats(&found[&0]), &expected, TOLERANCE);
}
