//! Matmuls: of f32 and of integer activations, behind a norm, with what follows them in the same dispatch.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

/// A matmul of f32 activations and nothing else; cases are what they change in it.
pub fn plain_matmul(target: &Target, layout: WeightLayout) -> MatMulSpec {
    MatMulSpec {
        layout,
        input_stride: layout.cols.next_multiple_of(32),
        output_stride: layout.rows.next_multiple_of(32),
        output_first: 0,
        input: ActivationFormat::F32,
        output: ActivationFormat::F32,
        prologue: None,
        bias: false,
        act_mul: None,
        fused_tail: None,
        clears: 0,
        softcap: None,
        choice: None,
        experts: None,
        rows_per_token: 1,
        row_from_step: false,
        tile: MatMulTile {
            tokens_per_lane: 1,
            tiles_per_lane: 1,
            split_k: 1,
            // A subgroup at least.
            group_tiles: (target.subgroup_size as usize / 8).max(2),
            unroll: 1,
            passes: 1,
            ..MatMulTile::default()
        },
        subgroup_size: target.subgroup_size,
        counter_sync: false,
    }
}

/// The norm in front of a matmul: with a sum, with a norm before that, of sums.
fn prologue() -> impl Strategy<Value = Option<(bool, bool, bool)>> {
    prop::option::of(any::<(bool, bool, bool)>())
}

fn norm_before(spec: &MatMulSpec, (add, post_norm, sums): (bool, bool, bool)) -> NormSpec {
    NormSpec {
        width: spec.layout.cols,
        stride: spec.input_stride,
        eps: Number::new(1e-6),
        add,
        // Where another matmul computes the same norm first, it does.
        stores_sum: add && !spec.layout.rows.is_multiple_of(5),
        post_norm: add && post_norm,
        scale_sum: add && post_norm && spec.layout.rows.is_multiple_of(3),
        // Where a post norm stands alone.
        norm_sum: !(add && post_norm && sums),
        fixed_sums: sums,
        format: spec.input,
        also_f32: false,
        lanes: 64,
        subgroup_size: spec.subgroup_size,
        counter_sync: false,
    }
}

/// A spec, and how many rows the step has.
type Case = (MatMulSpec, usize);

fn of_floats(target: &Target, format: WeightFormat) -> impl Strategy<Value = Case> {
    let target = target.clone();
    // A part of a matrix that was cut writes behind the part before.
    let shape = (1..9usize, 1..9usize, 1..9usize, select(vec![5, 32usize]), 0..4usize);
    let after = (select(vec![None, Some(Activation::Silu), Some(Activation::GeluTanh)]), any::<bool>(), any::<bool>());
    let tile = (select(vec![1, 4, 8usize]), 1..3usize, select(vec![1, 2, 4usize]), 1..3usize);
    (shape, prologue(), after, tile, any::<Index>()).prop_map(move |(shape, prologue, after, tile, rows)| {
        let (tiles, times, blocks, block_cols, parts) = shape;
        let (act_mul, bias, softcap) = after;
        let (columns, tiles_per_lane, split_k, passes) = tile;
        let matrix_rows = if act_mul.is_some() { 16 * tiles } else { tiles * times };
        let layout = WeightLayout { format, rows: matrix_rows, cols: blocks * block_cols };
        let plain = plain_matmul(&target, layout);
        let columns = if prologue.is_some() { 1 } else { columns };
        let output_first = 8 * parts;
        let spec = MatMulSpec {
            output_stride: (layout.rows + output_first).next_multiple_of(32),
            output_first,
            prologue: prologue.map(|norm| NormSpec { fixed_sums: false, ..norm_before(&plain, norm) }),
            bias: act_mul.is_none() && bias,
            act_mul,
            softcap: (act_mul.is_none() && softcap).then(|| Number::new(0.7)),
            tile: MatMulTile {
                tokens_per_lane: columns,
                tiles_per_lane: if act_mul.is_some() { 2 } else { tiles_per_lane },
                split_k: if target.matmul.split_k == 1 || prologue.is_some() { 1 } else { split_k },
                passes: if prologue.is_some() { passes } else { 1 },
                sharing: if columns == 1 { target.matmul.sharing_one } else { target.matmul.sharing_many },
                ..plain.tile
            },
            ..plain
        };
        (spec, 1 + rows.index(columns))
    })
}

/// Integer activations: read from memory or made by the prologue, and made again for the matmul that follows.
fn of_integers(target: &Target, format: WeightFormat) -> impl Strategy<Value = Case> {
    let target = target.clone();
    let next_formats = FORMATS_WITH_SCALES.into_iter().filter(|format| format.unpacks_with_others());
    let next_format = select(next_formats.collect::<Vec<_>>());
    let shape = (1..90usize, 1..20usize, any::<bool>());
    let after =
        (any::<bool>(), any::<bool>(), prop::option::of((next_format, 1..300usize)), select(vec![0, 4, 200usize]));
    let tile = (select(vec![1, 3, 8usize]), 1..3usize, select(vec![1, 2, 4usize]), 1..4usize, 1..4usize);
    let order = any::<(bool, bool)>();
    let cases = (shape, prologue(), any::<bool>(), after, tile, order, any::<Index>());
    cases.prop_map(move |(shape, prologue, precise, after, tile, (counter_sync, early), rows)| {
        let (quads, tiles, odd) = shape;
        let (act_mul, bias, next, clears) = after;
        let (columns, tiles_per_lane, split_k, unroll, passes) = tile;
        let act_mul = act_mul.then_some(Activation::GeluTanh);
        let precision = if precise { Precision::Int11 } else { Precision::Int8 };
        let matrix_rows = 16 * tiles + if odd && act_mul.is_none() { 3 } else { 0 };
        let layout = WeightLayout { format, rows: matrix_rows, cols: 4 * quads };
        let columns = if prologue.is_some() { 1 } else { columns };
        let passes = if prologue.is_some() { passes } else { 1 };
        let encoded = act_mul.is_some() && (prologue.is_none() || precision == Precision::Int8);
        let can_go_on =
            target.fused_tail.is_some() && format.unpacks_with_others() && encoded && prologue.is_some() && passes == 1;
        let next = next.filter(|_| can_go_on);
        let counter_sync = counter_sync && target.counter_sync;
        let plain = MatMulSpec { input: ActivationFormat::Quantized(precision), ..plain_matmul(&target, layout) };
        let with_sums = |(add, post_norm, sums)| (add, post_norm, sums && target.fused_tail.is_some());
        let spec = MatMulSpec {
            output: if encoded { ActivationFormat::Quantized(Precision::Int8) } else { ActivationFormat::F32 },
            prologue: prologue.map(|norm| norm_before(&plain, with_sums(norm))),
            bias: act_mul.is_none() && bias,
            act_mul,
            fused_tail: next
                .map(|(format, rows)| FusedTailSpec { layout: WeightLayout { format, rows, cols: layout.rows / 2 } }),
            clears: if target.fused_tail.is_some() { clears } else { 0 },
            tile: MatMulTile {
                tokens_per_lane: columns,
                tiles_per_lane: if act_mul.is_some() { 2 } else { tiles_per_lane },
                split_k,
                group_tiles: 4,
                unroll,
                passes,
                early: counter_sync && early,
                sharing: Sharing::Own,
            },
            counter_sync,
            ..plain
        };
        (spec, 1 + rows.index(columns))
    })
}

const FORMATS_WITH_SCALES: [WeightFormat; 7] = [
    WeightFormat::Int4 { group: 32 },
    WeightFormat::Int4 { group: 64 },
    WeightFormat::Int4 { group: 128 },
    WeightFormat::WideInt4 { group: 64 },
    WeightFormat::Fp4,
    WeightFormat::Iq4,
    WeightFormat::Int8,
];

#[test]
fn matmul_of_every_format_and_folding() {
    for target in targets() {
        for format in FORMATS_WITH_SCALES.into_iter().chain([WeightFormat::F16]) {
            let name = format!("matmul of f32, {format:?}, {}", target.name);
            check_cases(&name, 2, &of_floats(&target, format), |(spec, n_rows), rng| {
                check_matmul(&target, spec, *n_rows, spec.tile.tokens_per_lane, rng);
            });
        }
    }
}

#[test]
fn matmul_of_one_weight_and_of_a_padded_block() {
    let target = targets().pop().expect("a target with subgroups");
    let mut rng = StdRng::seed_from_u64(1);
    for (rows, cols) in [(1, 1), (9, 33)] {
        let layout = WeightLayout { format: WeightFormat::Int4 { group: 32 }, rows, cols };
        let tile = MatMulTile { sharing: target.matmul.sharing_one, ..plain_matmul(&target, layout).tile };
        check_matmul(&target, &MatMulSpec { tile, ..plain_matmul(&target, layout) }, 1, 1, &mut rng);
    }
}

#[test]
fn matmul_of_integer_activations() {
    for target in integer_targets() {
        for format in FORMATS_WITH_SCALES {
            let name = format!("matmul of integers, {format:?}, {}", target.name);
            check_cases(&name, 4, &of_integers(&target, format), |(spec, n_rows), rng| {
                check_matmul(&target, spec, *n_rows, spec.tile.tokens_per_lane, rng);
            });
        }
    }
}

pub fn check_matmul(target: &Target, spec: &MatMulSpec, n_rows: usize, columns: usize, rng: &mut StdRng) {
    let weights = packed(rng, &spec.layout);
    let next_weights = spec.fused_tail.as_ref().map_or(Vec::new(), |next| packed(rng, &next.layout));
    let room = columns.max(n_rows);
    let width = room * spec.input_stride;
    // A norm reads f32, whatever it writes.
    let input_format = if spec.prologue.is_some() { ActivationFormat::F32 } else { spec.input };
    let input = stored_rows(rng, input_format, [room, spec.layout.cols, spec.input_stride]);
    let residual = normals(rng, width);
    let (norm_weight, post_weight) = (normals(rng, spec.layout.cols), normals(rng, spec.layout.cols + 1));
    let bias = normals(rng, spec.layout.rows);
    // Rows of a column tile past the last one are computed and discarded: they need memory, too.
    let out_words = spec
        .fused_tail
        .as_ref()
        .map_or(room * spec.output_stride, |next| fixed_sums::WORDS_PER_ELEMENT * next.layout.rows.next_multiple_of(4));
    let kernel = KernelSpec::MatMul(spec.clone());
    let operand = |role| match role {
        Role::Step => Operand::Step,
        Role::Weights => Operand::Bytes(weights.clone()),
        Role::TailWeights => Operand::Bytes(next_weights.clone()),
        Role::Output | Role::Encoded | Role::FixedSums => Operand::Out { id: 0, words: out_words },
        Role::InputQuads | Role::QuantizedInput => Operand::words(&input),
        Role::InputFixedSums => Operand::words(&words_of_sums(&floats(&input))),
        Role::Residual => Operand::floats(&residual),
        Role::Sum => Operand::Out { id: 1, words: width },
        Role::ClearedFixedSums => Operand::Out { id: 2, words: fixed_sums::WORDS_PER_ELEMENT * spec.clears },
        Role::NormWeight => Operand::quads(&norm_weight),
        Role::PostNormWeight => Operand::quads(&post_weight),
        Role::Bias => Operand::floats(&bias),
        Role::SyncCounters => Operand::SyncCounters,
        other => panic!("a matmul has no {other:?}"),
    };
    let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
    let mut launch = launch(target, kernel, operands, n_rows);
    if spec.counter_sync {
        // Once more, to wait for the first time.
        launch.steps.push(launch.steps[0].clone());
    }
    let times = launch.steps.len();
    if spec.fused_tail.is_some() {
        launch.steps.insert(0, clearer(target, (0, out_words)));
    }
    let found = launch.run();
    let mut expected = vec![POISON.to_bits(); out_words];
    let mut sum = vec![POISON; width];
    let inputs = MatMulInputs {
        packed: &weights,
        tail_packed: &next_weights,
        input: &input,
        residual: &residual,
        norm_weight: &norm_weight,
        post_norm_weight: &post_weight,
        bias: &bias,
        routes: &[],
        n_rows,
        logits_row: 0,
    };
    unicorn_kernels::matmul::twin(spec, &inputs, &mut expected, &mut sum);
    let what = format!("{} {spec:?} rows {n_rows}", target.name);
    let rounds =
        (spec.prologue.is_some() && spec.input != ActivationFormat::F32) || spec.output != ActivationFormat::F32;
    let tolerance = if rounds { CODE_TOLERANCE } else { TOLERANCE };
    if let Some(next) = &spec.fused_tail {
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

/// A kernel that zeroes an output of `words` words, as sums.
pub fn clearer(target: &Target, (id, words): (usize, usize)) -> (KernelSpec, Vec<Operand>) {
    let layout = WeightLayout { format: WeightFormat::F16, rows: 8, cols: 32 };
    let plain = plain_matmul(target, layout);
    let tile = MatMulTile { group_tiles: (target.subgroup_size as usize / 8).max(1), ..plain.tile };
    let spec = MatMulSpec { clears: words / fixed_sums::WORDS_PER_ELEMENT, tile, ..plain };
    let operands = vec![
        Operand::Step,
        Operand::Bytes(vec![0; layout.bytes()]),
        Operand::Out { id: usize::MAX, words: 32 },
        Operand::floats(&[0.0; 32]),
        Operand::Out { id, words },
    ];
    (KernelSpec::MatMul(spec), operands)
}
