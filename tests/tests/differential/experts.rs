//! Mixtures of experts: the router, matmuls with a matrix for each expert, the weighted sum, and the gate of a shared expert.

use std::ops::Range;

use unicorn_kernels::Number;
use unicorn_kernels::every_matrix::EveryMatrixSpec;
use unicorn_kernels::expert_rows::{self, ExpertRowsSpec, ExpertTiles};
use unicorn_kernels::expert_sum::{self, ExpertSumSpec};
use unicorn_kernels::gemm::{self, GemmInputs, GemmSpec, Product};
use unicorn_kernels::head_columns::{self, HeadBlock, HeadColumnsSpec, HeadPart};
use unicorn_kernels::matmul::ExpertsSpec;
use unicorn_kernels::register_gemm::{self, RegisterGemmSpec};
use unicorn_kernels::route::{self, ExpertGroups, RouteSpec, Scores, SharedExperts, routes_width};

use super::router::{self, Choice};
use super::*;
use tests::launch::device_register_matrices;
use unicorn_kernels::layout::TILE_ROWS;
use unicorn_spirv::target::GemmTuning;

#[test]
fn routes_are_those_of_the_twin() {
    let targets = targets();
    let target = counting(&targets);
    check_cases("route", 16, &(router::choices(2..300), 1..5usize), |(spec, n_rows), rng| {
        let counter_sync = target.counter_sync && spec.experts % 2 == 0;
        let spec = RouteSpec { counter_sync, ..spec.clone() };
        let choice = Choice::random(rng, &spec, *n_rows);
        let kernel = KernelSpec::Route(spec.clone());
        let operand = |role| match role {
            Role::Step => Operand::Step,
            Role::SyncCounters => Operand::SyncCounters,
            role => choice.operand(role),
        };
        let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
        let found = run_twice(launch(target, kernel, operands, *n_rows), counter_sync);
        choice.check(&format!("{spec:?}"), &found[&router::ROUTES]);
    });
}

/// Of some groups of experts, by a softmax and by sigmoids with a bias; equal groups and equal experts among them.
#[test]
fn routes_of_groups_are_those_of_the_twin() {
    let targets = targets();
    let target = counting(&targets);
    let sizes = (1..20usize, 1..20usize, any::<usize>(), any::<usize>());
    let cases = (sizes, any::<bool>(), any::<bool>(), 1..5usize);
    check_cases("route of groups", 16, &cases, |&((count, size, kept, chosen), sigmoid, normalized, n_rows), rng| {
        let kept = 1 + kept % count;
        let groups = ExpertGroups { count, kept, best_of: if sigmoid { size.min(2) } else { 1 } };
        let (experts, chosen) = (count * size, 1 + chosen % (kept * size).min(9));
        // As in DeepSeek's, without a gate.
        let shared = SharedExperts { count: kept % 3, gated: false };
        let spec = RouteSpec {
            experts,
            chosen,
            shared,
            scores: if sigmoid { Scores::Sigmoid } else { Scores::Softmax },
            normalized,
            factor: Number::new(1.5),
            choice_bias: sigmoid,
            scaled: false,
            groups: Some(groups),
            input_stride: experts.next_multiple_of(32),
            output_stride: routes_width(chosen + shared.count).next_multiple_of(32),
            counter_sync: false,
        };
        let mut logits = normals(rng, n_rows * spec.input_stride);
        let mut bias = normals(rng, if sigmoid { experts } else { 0 });
        if count > 1 {
            // The first two groups are equal: the first is kept.
            logits.copy_within(..size, size);
            if sigmoid {
                bias.copy_within(..size, size);
            }
        }
        let words = n_rows * spec.output_stride;
        let mut operands = vec![Operand::Step, Operand::floats(&logits), Operand::Out { id: 0, words }];
        operands.extend(sigmoid.then(|| Operand::floats(&bias)));
        let found = launch(target, KernelSpec::Route(spec.clone()), operands, n_rows).run();
        for (row, found) in found[&0].chunks_exact(spec.output_stride).enumerate() {
            let (experts, weights) = route::twin_row(&spec, &logits[row * spec.input_stride..], &[], &bias);
            let routes = spec.routes();
            assert_eq!(found[..routes], experts, "{spec:?}");
            assert_same(&format!("{spec:?}"), &floats(&found[routes..2 * routes]), &weights, TOLERANCE);
        }
    });
}

/// Whatever the router's logits are, what reads the routes stays inside the stack.
#[test]
fn logits_that_are_no_numbers_choose_experts_that_exist() {
    let spec = RouteSpec {
        experts: 5,
        chosen: 3,
        shared: SharedExperts { count: 2, gated: true },
        scores: Scores::Softmax,
        normalized: true,
        factor: Number::new(1.0),
        choice_bias: false,
        scaled: false,
        groups: None,
        input_stride: 32,
        output_stride: 32,
        counter_sync: false,
    };
    let logits = [[f32::NAN; 32], [f32::INFINITY; 32], [f32::NEG_INFINITY; 32]].concat();
    let operands = vec![Operand::Step, Operand::floats(&logits), Operand::Out { id: 0, words: 96 }];
    let found = launch(&targets()[0], KernelSpec::Route(spec), operands, 3).run();
    let exist = |row: &[u32]| row[..3].iter().all(|&expert| expert < 5) && row[3..5] == [5, 6];
    assert!(found[&0].chunks(32).all(exist), "{:?}", found[&0]);
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

/// Tiles are equal, and each has its pairs, in whatever order: lanes count them as they come.
#[test]
fn rows_by_expert_are_those_of_the_twin() {
    let target = &targets()[0];
    let cases = ((1..40usize, 1..9usize, 1..33usize), 1..70usize, any::<bool>(), 0..3usize);
    check_cases("expert rows", 6, &cases, |&((routed, routed_chosen, tile_rows), n_rows, one, shared), rng| {
        let (experts, chosen) = (routed + shared, routed_chosen + shared);
        // Many more rows of the program than of the step: workgroups of others would find no tile.
        let tiles = ExpertTiles::of((n_rows + 30) * chosen, experts, tile_rows);
        let spec = ExpertRowsSpec { experts, chosen, shared, routes_stride: 32, tiles };
        let known = if one { 0..1 } else { 0..routed as u32 };
        let mut routes = routes(rng, known, [n_rows, chosen, 32]);
        for row in routes.chunks_exact_mut(32) {
            row[routed_chosen..chosen].iter_mut().zip(routed as u32..).for_each(|(route, expert)| *route = expert);
        }
        let words = tiles.table_words((n_rows + 30) * chosen);
        let operands = vec![Operand::Step, Operand::words(&routes), Operand::Out { id: 0, words }];
        let found = launch(target, KernelSpec::ExpertRows(spec.clone()), operands, n_rows).run();
        let table = expert_rows::twin(&spec, &routes, n_rows);
        let sorted = |table: &[u32]| {
            let mut tiles = expert_rows::tiles_of(&spec, table);
            let shape: Vec<_> = tiles.iter().map(|tile| (tile.expert, tile.pairs.len())).collect();
            let mut pairs: Vec<_> =
                tiles.drain(..).flat_map(|tile| tile.pairs.into_iter().map(move |pair| (tile.expert, pair))).collect();
            pairs.sort_unstable();
            (shape, pairs)
        };
        assert_eq!(sorted(&found[&0]), sorted(&table), "{spec:?} rows {n_rows}");
        let (_, pairs) = sorted(&table);
        assert_eq!(pairs.len(), n_rows * chosen, "each pair once");
        assert!(pairs.windows(2).all(|two| two[0].1 != two[1].1), "{spec:?}");
    });
}

#[test]
fn expert_sums_are_those_of_the_twin() {
    let targets = targets();
    let target = counting(&targets);
    check_cases("expert sum", 3, &(1..300usize, 1..9usize, 1..5usize), |&(width, chosen, n_rows), rng| {
        let stride = width.next_multiple_of(32);
        let spec = ExpertSumSpec {
            width,
            chosen,
            stride,
            routes_stride: 32,
            counter_sync: target.counter_sync && width % 2 == 0,
        };
        let input = normals(rng, n_rows * chosen * stride);
        let routes = routes(rng, 0..8, [n_rows, chosen, 32]);
        let words = n_rows * stride;
        let mut operands =
            vec![Operand::Step, Operand::floats(&input), Operand::words(&routes), Operand::Out { id: 0, words }];
        operands.extend(spec.counter_sync.then_some(Operand::SyncCounters));
        let kernel = KernelSpec::ExpertSum(spec.clone());
        let found = run_twice(launch(target, kernel, operands, n_rows), spec.counter_sync);
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

const FORMATS: [WeightFormat; 5] =
    [WeightFormat::Int4 { group: 64 }, WeightFormat::Fp4, WeightFormat::Iq4, WeightFormat::Int8, WeightFormat::F16];

#[test]
fn matmuls_of_experts() {
    for (target, is_integer) in
        targets().iter().map(|target| (target, false)).chain(integer_targets().iter().map(|target| (target, true)))
    {
        let formats: Vec<WeightFormat> =
            FORMATS.into_iter().filter(|format| !is_integer || *format != WeightFormat::F16).collect();
        let shape = (1..5usize, 1..20usize, select(formats), prop::option::of(activations()), any::<bool>());
        // Rows of a tile; 1: each row by itself.
        let tile_rows = select(vec![1, 2, 4, 8]);
        let experts = (1..5usize, 1..12usize, 0..3usize, 1..8usize, 1..5usize, tile_rows);
        let name = format!("experts, integers {is_integer}, {}", target.name);
        check_cases(&name, 5, &(shape, experts), |(shape, (chosen, n_rows, first, count, parts, tile_rows)), rng| {
            let &(tile_pairs, quads, format, activation, own_input) = shape;
            let act_mul = activation.is_some();
            // Without gate and up, the last tile of an expert may be incomplete.
            let rows = if act_mul { 16 * 4 * tile_pairs } else { 8 * tile_pairs + 3 };
            let layout = WeightLayout { format, rows, cols: 4 * quads };
            let plain = plain_matmul(target, layout);
            let quantized = ActivationFormat::Quantized(Precision::Int8);
            let spec = MatMulSpec {
                input: if is_integer { quantized } else { ActivationFormat::F32 },
                output: if is_integer && act_mul { quantized } else { ActivationFormat::F32 },
                bias: tile_pairs % 2 == 0,
                act_mul: activation,
                experts: Some(ExpertsSpec {
                    chosen: *chosen,
                    own_input,
                    first: *first,
                    count: *count,
                    // Only integers are multiplied by a stack in parts.
                    part: if is_integer { count.div_ceil(*parts) } else { *count },
                    routes_stride: 32,
                    tiles: (*tile_rows > 1).then(|| tiles(n_rows * chosen, first + count, *tile_rows)),
                    summed: false,
                }),
                counter_sync: target.counter_sync && *tile_rows == 1 && rows % 3 == 0,
                tile: MatMulTile {
                    tokens_per_lane: *tile_rows,
                    tiles_per_lane: if act_mul { 2 } else { 1 },
                    group_tiles: 4,
                    sharing: if *tile_rows > 1 { target.matmul.sharing_many } else { target.matmul.sharing_one },
                    ..plain.tile
                },
                ..plain
            };
            check_experts(target, &spec, *n_rows, rng);
        });
    }
}

/// The first matrix of each expert, in workgroups that choose the experts.
#[test]
fn matmuls_of_experts_that_they_choose() {
    let own = targets().into_iter().filter(|target| target.matmul.sharing_one == Sharing::Own);
    for (target, is_integer) in
        own.map(|target| (target, false)).chain(integer_targets().into_iter().map(|one| (one, true)))
    {
        let shape = (1..4usize, 1..20usize, activations(), 1..4usize, 1..4usize);
        let name = format!("chosen experts, integers {is_integer}, {}", target.name);
        check_cases(&name, 6, &(router::choices(2..90), shape), |(choice, shape), rng| {
            let &(tile_pairs, quads, activation, parts, n_rows) = shape;
            let layout =
                WeightLayout { format: WeightFormat::Int4 { group: 64 }, rows: 64 * tile_pairs, cols: 4 * quads };
            let plain = plain_matmul(&target, layout);
            let quantized = ActivationFormat::Quantized(Precision::Int8);
            let count = choice.experts + choice.shared.count;
            let spec = MatMulSpec {
                input: if is_integer { quantized } else { ActivationFormat::F32 },
                output: if is_integer { quantized } else { ActivationFormat::F32 },
                bias: tile_pairs % 2 == 0,
                act_mul: Some(activation),
                choice: Some(choice.clone()),
                experts: Some(ExpertsSpec {
                    chosen: choice.routes(),
                    own_input: false,
                    first: 0,
                    count,
                    part: if is_integer { count.div_ceil(parts) } else { count },
                    routes_stride: choice.output_stride,
                    tiles: None,
                    summed: false,
                }),
                counter_sync: target.counter_sync && n_rows == 1,
                tile: MatMulTile { tiles_per_lane: 2, group_tiles: 4, ..plain.tile },
                ..plain
            };
            check_experts(&target, &spec, n_rows, rng);
        });
    }
}

/// The last matrix of each expert, with the weighted sum of their results.
#[test]
fn sums_of_experts_products() {
    let own = targets().into_iter().filter(|target| target.matmul.sharing_one == Sharing::Own);
    for (target, is_integer) in
        own.map(|target| (target, false)).chain(integer_targets().into_iter().map(|one| (one, true)))
    {
        let formats: Vec<WeightFormat> =
            FORMATS.into_iter().filter(|format| !is_integer || *format != WeightFormat::F16).collect();
        let shape = (1..40usize, 1..60usize, select(formats), 1..3usize, 1..3usize);
        // Chosen ones, experts, parts of the stack, lanes of each expert, rows.
        let experts = (1..12usize, 1..9usize, 1..5usize, select(vec![1, 2, 4usize]), 1..4usize);
        let name = format!("sums of experts, integers {is_integer}, {}", target.name);
        check_cases(&name, 6, &(shape, experts), |&(shape, (chosen, count, parts, lanes, n_rows)), rng| {
            let (rows, quads, format, tiles_per_lane, unroll) = shape;
            let layout = WeightLayout { format, rows, cols: 4 * quads };
            let plain = plain_matmul(&target, layout);
            let quantized = ActivationFormat::Quantized(Precision::Int8);
            let experts = ExpertsSpec {
                chosen,
                own_input: true,
                first: 0,
                count,
                part: if is_integer { count.div_ceil(parts) } else { count },
                routes_stride: 32,
                tiles: None,
                summed: true,
            };
            // As many lanes as a workgroup may have.
            let most = target.workgroup_invocations / TILE_ROWS;
            let split_k = MatMulTile::split_of(lanes * experts.lane_parts(), target.subgroup_size).min(most);
            let spec = MatMulSpec {
                input: if is_integer { quantized } else { ActivationFormat::F32 },
                bias: rows % 2 == 0,
                counter_sync: target.counter_sync && rows % 3 == 0,
                experts: Some(experts),
                tile: MatMulTile {
                    tiles_per_lane,
                    split_k,
                    group_tiles: plain.tile.group_tiles.min(most / split_k),
                    unroll: if is_integer { unroll } else { 1 },
                    sharing: Sharing::Own,
                    ..plain.tile
                },
                ..plain
            };
            check_experts(&target, &spec, n_rows, rng);
        });
    }
}

fn activations() -> impl Strategy<Value = Activation> {
    select(vec![Activation::Silu, Activation::GeluTanh, Activation::ClampedSwiGlu])
}

/// Biases of all experts in this part and those before and after it; empty without a bias.
fn biases(rng: &mut StdRng, experts: &ExpertsSpec, rows: usize, has_bias: bool) -> Vec<f32> {
    normals(rng, if has_bias { (experts.first + experts.count + ELSEWHERE) * rows } else { 0 })
}

/// Tiles for the experts in this part and those before and after it.
fn tiles(pairs: usize, experts: usize, tile_rows: usize) -> ExpertTiles {
    ExpertTiles::of(pairs, experts + ELSEWHERE, tile_rows)
}

/// Experts in parts after the one that is tested.
const ELSEWHERE: usize = 2;

/// The table of these routes, as a kernel reads it.
fn table(experts: &ExpertsSpec, routes: &[u32], n_rows: usize) -> Vec<u32> {
    let spec = ExpertRowsSpec {
        experts: experts.first + experts.count + ELSEWHERE,
        chosen: experts.chosen,
        shared: 0,
        routes_stride: experts.routes_stride,
        tiles: experts.tiles.expect("rows by expert"),
    };
    expert_rows::twin(&spec, routes, n_rows)
}

/// GEMMs take the rows of a tile from the table, on devices with matrix units.
#[test]
fn gemms_of_experts() {
    let Some(target) = matrix_target() else {
        return skip_matrix_units();
    };
    let GemmTuning::Workgroup { few, .. } = target.matrix.expect("set above").gemm else {
        unreachable!("matrices of the device at hand go by way of workgroup memory")
    };
    let registers = device_register_matrices();
    let Some(GemmTuning::Registers(tuning)) = registers.map(|matrix| matrix.gemm) else {
        unreachable!("weights from registers")
    };
    let shape = (1..8usize, 17..90usize, select(FORMATS.to_vec()), prop::option::of(activations()), any::<bool>());
    let experts = (1..5usize, 1..60usize, 0..3usize, 1..4usize, any::<bool>());
    check_cases("GEMMs of experts", 8, &(shape, experts), |(shape, experts), rng| {
        let &(eights, quads, format, activation, own_input) = shape;
        let act_mul = activation.is_some();
        let &(chosen, n_rows, first, count, from_registers) = experts;
        let rows = if act_mul { 16 * eights } else { 8 * eights + 3 };
        let cols = 4 * quads;
        let step_rows = if from_registers { tuning.tiles[0].tile.step_rows } else { few.step_rows };
        let product = Product {
            layout: WeightLayout { format, rows, cols },
            input: Precision::Int8,
            input_stride: cols.next_multiple_of(32) + 128,
            output_stride: rows.next_multiple_of(32),
            output_first: 0,
            bias: eights % 2 == 0,
            rows_per_token: 1,
            act_mul: activation,
            experts: Some(ExpertsSpec {
                chosen,
                own_input,
                first,
                count,
                part: count,
                routes_stride: 32,
                tiles: Some(tiles(n_rows * chosen, first + count, step_rows)),
                summed: false,
            }),
        };
        check_gemm_of_experts(&target, product, [n_rows, step_rows], rng, |product| {
            let subgroup_size = target.subgroup_size;
            if from_registers {
                KernelSpec::RegisterGemm(RegisterGemmSpec {
                    product,
                    halves_out: false,
                    tile: tuning.tiles[0].tile,
                    rows: n_rows,
                    splits: 1,
                    subgroup_size,
                    lanes_hold_fragments: tuning.lanes_hold_fragments,
                })
            } else {
                KernelSpec::Gemm(GemmSpec { product, tile: few, subgroup_size })
            }
        });
    });
}

fn check_gemm_of_experts(
    target: &Target,
    product: Product,
    [n_rows, step_rows]: [usize; 2],
    rng: &mut StdRng,
    kernel: impl FnOnce(Product) -> KernelSpec,
) {
    let experts = product.experts.expect("experts");
    let kernel = kernel(product.clone());
    let format = match &kernel {
        KernelSpec::Gemm(_) => ActivationFormat::RowScaled(Precision::Int8),
        _ => ActivationFormat::Halves(Precision::Int8),
    };
    let weights: Vec<u8> = (0..experts.count).flat_map(|_| packed(rng, &product.layout)).collect();
    let known = 0..(experts.first + experts.count + ELSEWHERE) as u32;
    let routes = routes(rng, known, [n_rows, experts.chosen, experts.routes_stride]);
    let input_rows = n_rows * if experts.own_input { experts.chosen } else { 1 };
    let codes = stored_rows(rng, format, [input_rows, product.layout.cols, product.input_stride]);
    let bias = biases(rng, &experts, product.layout.rows, product.bias);
    let words = n_rows * experts.chosen * product.output_stride;
    let operand = |role| match role {
        Role::Step => Operand::Step,
        Role::Weights => Operand::Bytes(weights.clone()),
        Role::Output => Operand::Out { id: 0, words },
        Role::QuantizedInput => Operand::words(&codes),
        Role::ExpertRows => Operand::words(&table(&experts, &routes, n_rows)),
        Role::Bias => Operand::floats(&bias),
        other => panic!("a GEMM of experts has no {other:?}"),
    };
    let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
    let what = format!("{kernel:?} rows {n_rows}, tiles of {step_rows}");
    let found = launch(target, kernel.clone(), operands, n_rows).run();
    let mut expected = vec![POISON; words];
    let inputs = GemmInputs { packed: &weights, codes: &codes, bias: &bias, routes: &routes, n_rows };
    match &kernel {
        KernelSpec::Gemm(spec) => gemm::twin(spec, &inputs, &mut expected),
        KernelSpec::RegisterGemm(spec) => register_gemm::twin(spec, &inputs, &mut expected),
        other => panic!("{} is no GEMM", other.name()),
    }
    assert_same(&what, &floats(&found[&0]), &expected, TOLERANCE);
}

fn check_experts(target: &Target, spec: &MatMulSpec, n_rows: usize, rng: &mut StdRng) {
    let experts = spec.experts.expect("experts");
    let weights: Vec<u8> = (0..experts.count).flat_map(|_| packed(rng, &spec.layout)).collect();
    // Some experts are in parts before and behind this one; a sum has all of them.
    let elsewhere = if experts.summed { 0 } else { ELSEWHERE };
    let known = 0..(experts.first + experts.count + elsewhere) as u32;
    let choice = spec.choice.as_ref().map(|choice| Choice::random(rng, choice, n_rows));
    let routes = match &choice {
        Some(choice) => choice.routes.clone(),
        None => routes(rng, known, [n_rows, experts.chosen, experts.routes_stride]),
    };
    let input_rows = n_rows * if experts.own_input { experts.chosen } else { 1 };
    let input = stored_rows(rng, spec.input, [input_rows, spec.layout.cols, spec.input_stride]);
    let bias = biases(rng, &experts, spec.layout.rows, spec.bias);
    let words = n_rows * if experts.summed { 1 } else { experts.chosen } * spec.output_stride;
    let kernel = KernelSpec::MatMul(spec.clone());
    let parts: Vec<&[u8]> = weights.chunks(weights.len() / experts.count * experts.part).collect();
    let operand = |role| match role {
        Role::Step => Operand::Step,
        Role::Weights => Operand::Bytes(parts[0].to_vec()),
        Role::WeightsPart(part) => Operand::Bytes(parts[usize::from(part)].to_vec()),
        Role::Output | Role::Encoded => Operand::Out { id: 0, words },
        Role::InputQuads | Role::QuantizedInput => Operand::words(&input),
        Role::Routes => Operand::words(&routes),
        Role::ExpertRows => Operand::words(&table(&experts, &routes, n_rows)),
        Role::Bias => Operand::floats(&bias),
        Role::SyncCounters => Operand::SyncCounters,
        other => choice.as_ref().expect("every other role is a choice's").operand(other),
    };
    let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
    let found = run_twice(launch(target, kernel, operands, n_rows), spec.counter_sync);
    let mut expected = vec![POISON.to_bits(); words];
    let inputs = MatMulInputs {
        packed: &weights,
        tail_packed: &[],
        input: &input,
        residual: &[],
        norm_weight: &[],
        post_norm_weight: &[],
        bias: &bias,
        routes: &routes,
        n_rows,
        logits_row: 0,
    };
    unicorn_kernels::matmul::twin(spec, &inputs, &mut expected, &mut []);
    let what = format!("{} {spec:?} rows {n_rows}", target.name);
    if let Some(choice) = &choice {
        choice.check(&what, &found[&router::ROUTES]);
    }
    // Rows of experts elsewhere keep their poison, which is not a code: they are compared as words.
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

#[test]
fn every_row_is_given_to_every_matrix() {
    let spec = EveryMatrixSpec { matrices: 70, output_stride: routes_width(70).next_multiple_of(32) };
    let operands = vec![Operand::Step, Operand::Out { id: 0, words: 3 * spec.output_stride }];
    let found = launch(&targets()[0], KernelSpec::EveryMatrix(spec.clone()), operands, 3).run();
    for row in found[&0].chunks(spec.output_stride) {
        assert_eq!(row[..70], Vec::from_iter(0..70));
        assert!(floats(&row[70..140]).iter().all(|weight| *weight == 1.0));
        assert!(row[140..].iter().all(|&word| word == POISON.to_bits()));
    }
}

/// Two blocks of heads, of which the second is one head of other values.
#[test]
fn columns_of_heads_are_those_of_the_twin() {
    let target = &targets()[0];
    let cases = ((1..7usize, 1..40usize, 1..40usize), (0..9usize, 0..9usize), 1..4usize, any::<bool>());
    check_cases("head columns", 8, &cases, |&((n_heads, left, right), (skipped, behind), n_rows, rows), rng| {
        let of_first = left + skipped + behind;
        // One value has its heads next to each other, the second a row for each, the others are of one head.
        let row_stride = right.next_multiple_of(32);
        let source_strides = vec![
            (n_heads * of_first).next_multiple_of(32),
            n_heads * row_stride,
            left.next_multiple_of(32),
            right.next_multiple_of(32),
        ];
        let part = |source, head_stride, first, width| HeadPart { source, head_stride, first, width };
        let blocks = vec![
            HeadBlock { n_heads, parts: vec![part(0, of_first, skipped, left), part(1, row_stride, 0, right)] },
            HeadBlock { n_heads: 1, parts: vec![part(3, right, 0, right), part(2, left, 0, left)] },
        ];
        let width = left + right;
        let head_stride = if rows { width.next_multiple_of(32) } else { width };
        let output_stride = ((n_heads + 1) * head_stride).next_multiple_of(32);
        let spec = HeadColumnsSpec { blocks, source_strides, head_stride, output_stride };
        let sources: Vec<Vec<f32>> = spec.source_strides.iter().map(|stride| normals(rng, n_rows * stride)).collect();
        let mut operands = vec![Operand::Step];
        operands.extend(sources.iter().map(|source| Operand::floats(source)));
        operands.push(Operand::Out { id: 0, words: n_rows * output_stride });
        let found = launch(target, KernelSpec::HeadColumns(spec.clone()), operands, n_rows).run();
        let mut expected = vec![POISON; n_rows * output_stride];
        let sources: Vec<&[f32]> = sources.iter().map(Vec::as_slice).collect();
        head_columns::twin(&spec, &sources, n_rows, &mut expected);
        let bits: Vec<u32> = expected.iter().map(|value| value.to_bits()).collect();
        assert_eq!(found[&0], bits, "{spec:?}");
    });
}
