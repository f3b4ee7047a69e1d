//! The GEMM on matrix units, on devices that have some: `cargo xtask matrices` brings one.

use kernels::activations::encode_row;
use kernels::gemm::{self, GemmInputs, GemmSpec, GemmTile};
use kernels::{Activation, ActivationFormat, KernelSpec, Precision, Role, WeightFormat, WeightLayout};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shaders_gen::{Target, target};
use tests::launch::{Operand, POISON, device};

use crate::{TOLERANCE, assert_same, floats, launch, matrix_target, normals, packed};

#[test]
fn every_format_tile_and_folding() {
    let Some(target) = matrix_target() else {
        eprintln!("GEMM kernels did not run: {} multiplies no f16 matrices", device().name);
        return;
    };
    let square = target.matrix.expect("set above").many;
    let tall = GemmTile { matrix_rows: 16, step_rows: 64, k: 64, subgroups_across: 1, subgroups_down: 4, ..square };
    let wide = GemmTile { matrix_rows: 64, step_rows: 16, subgroups_down: 1, double_buffered: false, ..square };
    // The tiles of real targets, where the device is like them.
    let alike = |tile: &GemmTile, size: u32| (tile.fragment, size) == (square.fragment, target.subgroup_size);
    let presets = target::presets().into_iter().filter_map(|one| Some((one.matrix?, one.subgroup_size)));
    let presets = presets.flat_map(|(tuning, size)| [(tuning.many, size), (tuning.few, size)]);
    let tiles: Vec<GemmTile> = [square, tall, wide]
        .into_iter()
        .chain(presets.filter(|(tile, size)| alike(tile, *size)).map(|(tile, _)| tile))
        .collect();
    let formats = [
        WeightFormat::Int4 { group: 32 },
        WeightFormat::Int4 { group: 64 },
        WeightFormat::Int4 { group: 128 },
        WeightFormat::Int8,
        WeightFormat::F16,
    ];
    let mut rng = StdRng::seed_from_u64(9);
    let mut checked = 0;
    for index in 0..5 * (tiles.len() - 1) {
        let act_mul = [None, Some(Activation::Silu), None, Some(Activation::GeluTanh)][index % 4];
        let rows = if act_mul.is_some() { 16 * rng.random_range(1..20usize) } else { rng.random_range(1..300) };
        let (rows, cols) = if index == 0 { (1003, 300) } else { (rows, rng.random_range(1..400usize)) };
        let output_first = 8 * rng.random_range(0..4usize);
        let spec = GemmSpec {
            layout: WeightLayout { format: formats[index % 5], rows, cols },
            input: [Precision::Int8, Precision::Int11][rng.random_range(0..2)],
            input_stride: cols.next_multiple_of(32),
            output_stride: (rows + output_first).next_multiple_of(32),
            output_first,
            bias: index % 3 == 1,
            act_mul,
            tile: tiles[index % tiles.len()],
            subgroup_size: target.subgroup_size,
        };
        let n_rows = rng.random_range(1..150);
        let depth = target.matrix.expect("set above").integer_depth.filter(|_| spec.layout.format.has_params());
        let on_integers = depth.map(|depth| spec.tile.on_integers(depth, spec.subgroup_size));
        let of_both = [Some(spec.tile), on_integers].into_iter().flatten();
        // Lanes of large subgroups have no whole words to share out of the smallest tiles.
        for spec in of_both.map(|tile| GemmSpec { tile, ..spec.clone() }).filter(GemmSpec::shares_out) {
            check_gemm(&target, &spec, n_rows, &mut rng);
            checked += 1;
        }
    }
    assert!(checked >= 5, "{checked} kernels checked");
}

pub fn check_gemm(target: &Target, spec: &GemmSpec, n_rows: usize, rng: &mut StdRng) {
    let weights = packed(rng, &spec.layout);
    let bias = normals(rng, spec.layout.rows);
    // The program has room for more rows than the step; what lies behind a row is no number.
    let program_rows = n_rows + 70;
    let mut codes = vec![0x7e00_7e00; program_rows * spec.input_stride];
    for row in codes.chunks_mut(spec.input_stride) {
        let words = encode_row(ActivationFormat::Factored(spec.input), &normals(rng, spec.layout.cols));
        row[..words.len()].copy_from_slice(&words);
    }
    let out_words = program_rows * spec.output_stride;
    let kernel = KernelSpec::Gemm(spec.clone());
    let operand = |role| match role {
        Role::Step => Operand::Step,
        Role::Weights => Operand::Bytes(weights.clone()),
        Role::Output => Operand::Out { id: 0, words: out_words },
        Role::Codes => Operand::Bytes(codes.iter().flat_map(|word| word.to_le_bytes()).collect()),
        Role::Bias => Operand::floats(&bias),
        other => panic!("a GEMM has no {other:?}"),
    };
    let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
    let mut one = launch(target, kernel, operands, n_rows);
    one.before = vec![1; program_rows];
    let mut expected = vec![POISON; out_words];
    gemm::twin(spec, &GemmInputs { packed: &weights, codes: &codes, bias: &bias, n_rows }, &mut expected);
    assert_same(&format!("{spec:?} rows {n_rows}"), &floats(&one.run()[&0]), &expected, TOLERANCE);
}
