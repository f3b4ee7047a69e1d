//! GEMMs on matrix units, on devices that have some (`cargo xtask matrices` brings one), by packed dot products, and in f32.

use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tests::launch::{Operand, POISON, device, device_register_matrices, skip_matrix_units};
use unicorn_kernels::activation_format::{decode_row, encode_row};
use unicorn_kernels::dot_gemm::{self, DotGemmSpec};
use unicorn_kernels::float_gemm::{self, FloatGemmSpec};
use unicorn_kernels::gemm::{self, GemmInputs, GemmSpec, GemmTile, Product};
use unicorn_kernels::lane_tile::LaneTile;
use unicorn_kernels::register_gemm::{self, RegisterGemmSpec};
use unicorn_kernels::{Activation, ActivationFormat, KernelSpec, Precision, Role, WeightFormat, WeightLayout};
use unicorn_spirv::target::GemmTuning;
use unicorn_spirv::{Target, target};

use crate::{
    TOLERANCE, assert_same, check_cases, floats, integer_targets, launch, matrix_target, matrix_targets, normals,
    packed, targets,
};

const FORMATS: [WeightFormat; 8] = [
    WeightFormat::Int4 { group: 32 },
    WeightFormat::Int4 { group: 64 },
    WeightFormat::Int4 { group: 128 },
    WeightFormat::WideInt4 { group: 128 },
    WeightFormat::Fp4,
    WeightFormat::Iq4,
    WeightFormat::Int8,
    WeightFormat::F16,
];

/// Half a unit in the last of 11 bits.
const HALVES_TOLERANCE: f64 = 5e-4;

#[test]
fn every_format_tile_and_folding() {
    let targets = matrix_targets();
    if targets.is_empty() {
        return skip_matrix_units();
    }
    for target in &targets {
        check_tiles(target);
    }
}

fn check_tiles(target: &Target) {
    let GemmTuning::Workgroup { many: square, .. } = target.matrix.expect("set above").gemm else {
        unreachable!("matrices of the device at hand go by way of workgroup memory")
    };
    let tall = GemmTile { matrix_rows: 16, step_rows: 64, k: 64, subgroups_across: 1, subgroups_down: 4, ..square };
    let wide = GemmTile { matrix_rows: 64, step_rows: 16, subgroups_down: 1, double_buffered: false, ..square };
    // The tiles of real targets, where the device is like them.
    let alike = |tile: &GemmTile, size: u32| (tile.fragment, size) == (square.fragment, target.subgroup_size);
    let presets = target::presets().into_iter().filter_map(|one| Some((one.matrix?, one.subgroup_size)));
    let presets = presets.flat_map(|(tuning, size)| tuning.gemm_tiles().into_iter().map(move |tile| (tile, size)));
    let tiles: Vec<GemmTile> = [square, tall, wide]
        .into_iter()
        .chain(presets.filter(|(tile, size)| alike(tile, *size)).map(|(tile, _)| tile))
        .collect();
    let checked = Cell::new(0);
    let check = |spec: &GemmSpec, n_rows: usize, rng: &mut StdRng| {
        // Lanes of large subgroups have no whole words to share out of the smallest tiles.
        if spec.shares_out() {
            check_gemm(target, spec, n_rows, rng);
            checked.set(checked.get() + 1);
        }
    };
    let spec = |product, tile| GemmSpec { product, tile, subgroup_size: target.subgroup_size };
    check(&spec(large_product(), square), 70, &mut StdRng::seed_from_u64(9));
    for tile in tiles {
        for format in FORMATS {
            let cases = (products(format, 1..400), 1..150usize);
            check_cases(&format!("GEMM of {format:?}, {tile:?}"), 1, &cases, |(product, n_rows), rng| {
                check(&spec(product.clone(), tile), *n_rows, rng);
            });
        }
    }
    assert!(checked.get() >= 5, "{} kernels checked", checked.get());
}

/// A product with matrix rows and columns that fill no tile.
fn large_product() -> Product {
    Product {
        layout: WeightLayout { format: FORMATS[0], rows: 1003, cols: 300 },
        input: Precision::Int8,
        input_stride: 320,
        output_stride: 1024,
        output_first: 0,
        bias: false,
        rows_per_token: 1,
        act_mul: None,
        experts: None,
    }
}

fn products(format: WeightFormat, cols: std::ops::Range<usize>) -> impl Strategy<Value = Product> {
    let shape = (1..300usize, cols, 0..4usize);
    let act_mul = select(vec![None, Some(Activation::Silu), Some(Activation::GeluTanh)]);
    (shape, act_mul, any::<bool>(), any::<bool>()).prop_map(move |((rows, cols, parts), act_mul, precise, bias)| {
        let rows = if act_mul.is_some() { rows.next_multiple_of(16) } else { rows };
        let output_first = 8 * parts;
        Product {
            layout: WeightLayout { format, rows, cols },
            input: if precise { Precision::Int11 } else { Precision::Int8 },
            input_stride: cols.next_multiple_of(32),
            output_stride: (rows + output_first).next_multiple_of(32),
            output_first,
            bias,
            rows_per_token: 1,
            act_mul,
            experts: None,
        }
    })
}

/// Every format, in a tile whose lanes load unequal parts of a stage; and the tiles of targets.
#[test]
fn packed_dot_products() {
    let mut target = integer_targets().pop().expect("one with subgroups");
    (target.workgroup_invocations, target.shared_memory_bytes) = (256, 32 << 10);
    let odd = LaneTile { matrix_rows: 32, step_rows: 24, lane_tiles: 2, lane_rows: 3 };
    for format in FORMATS.into_iter().filter(|format| *format != WeightFormat::F16) {
        let cases = (products(format, 1..400), 1..150usize);
        check_cases(&format!("dot GEMM of {format:?}"), 2, &cases, |(product, n_rows), rng| {
            check_dot_gemm(&target, &DotGemmSpec { product: product.clone(), tile: odd }, *n_rows, rng);
        });
    }
    for tile in lane_tiles(true) {
        let product = Product { bias: true, ..large_product() };
        check_dot_gemm(&target, &DotGemmSpec { product, tile }, 150, &mut StdRng::seed_from_u64(23));
    }
}

/// The same in f32, for the formats that `float_gemm` supports.
#[test]
fn products_in_f32() {
    let mut target = targets().pop().expect("one with subgroups");
    (target.workgroup_invocations, target.shared_memory_bytes) = (256, 32 << 10);
    let odd = LaneTile { matrix_rows: 64, step_rows: 24, lane_tiles: 4, lane_rows: 4 };
    for format in FORMATS.into_iter().filter(|format| *format != WeightFormat::F16) {
        let cases = (products(format, 1..400), 1..150usize);
        check_cases(&format!("float GEMM of {format:?}"), 2, &cases, |(product, n_rows), rng| {
            let cols = product.layout.cols.next_multiple_of(32);
            let product = Product { layout: WeightLayout { cols, ..product.layout }, ..product.clone() };
            check_float_gemm(&target, &FloatGemmSpec { product, tile: odd }, *n_rows, rng);
        });
    }
    for tile in lane_tiles(false) {
        let layout = WeightLayout { cols: 320, ..large_product().layout };
        let product = Product { layout, bias: true, ..large_product() };
        check_float_gemm(&target, &FloatGemmSpec { product, tile }, 150, &mut StdRng::seed_from_u64(29));
    }
}

/// Tiles of the targets with or without packed dot products.
fn lane_tiles(integer_dot: bool) -> BTreeSet<LaneTile> {
    let tunings = target::presets().into_iter().filter(|one| one.integer_dot == integer_dot);
    tunings.filter_map(|one| one.lane_gemm).flat_map(|tuning| [tuning.many, tuning.few]).collect()
}

/// Weights from registers: through workgroup memory on any device with matrices, and directly on devices whose lanes are known to
/// hold matrices in that layout.
#[test]
fn weights_from_registers() {
    let Some(mut target) = matrix_target() else {
        return skip_matrix_units();
    };
    target.matrix = device_register_matrices();
    let mut targets = vec![target];
    let own = target::by_name("nvidia").expect("a preset");
    if device().name.contains("NVIDIA") && device().features.multiplies_f16_matrices([16; 3]) {
        targets.push(own);
    }
    for target in targets {
        let Some(GemmTuning::Registers(tuning)) = target.matrix.map(|matrix| matrix.gemm) else {
            unreachable!("both have weights from registers")
        };
        let spec = |product: Product, tile, halves_out, rows| RegisterGemmSpec {
            product,
            halves_out,
            tile,
            rows,
            splits: 1,
            subgroup_size: target.subgroup_size,
            lanes_hold_fragments: tuning.lanes_hold_fragments,
        };
        let tiles = tuning.tiles.iter().map(|one| one.tile);
        let large = spec(large_product(), tuning.tiles[0].tile, false, 70);
        check_register_gemm(&target, &large, 70, &mut StdRng::seed_from_u64(33));
        for (tile, format) in tiles.flat_map(|tile| FORMATS.map(|format| (tile, format))) {
            let cases = (products(format, 65..900), 1..150usize, any::<bool>(), any::<Index>());
            let cases = cases.prop_map(|(product, n_rows, halves_out, splits)| {
                let halves_out = halves_out && product.act_mul.is_some();
                let product = if halves_out { written_as_halves(product) } else { product };
                let spec = spec(product, tile, halves_out, n_rows);
                RegisterGemmSpec { splits: 1 + splits.index(spec.stages()), ..spec }
            });
            let name = format!("register GEMM of {format:?}, {tile:?}, {}", target.name);
            check_cases(&name, 1, &cases, |spec, rng| check_register_gemm(&target, spec, spec.rows, rng));
        }
    }
}

/// Halves are written in whole blocks, from the first column on.
fn written_as_halves(product: Product) -> Product {
    let layout = WeightLayout { rows: 256, ..product.layout };
    Product { layout, output_first: 0, output_stride: layout.rows, ..product }
}

pub fn check_gemm(target: &Target, spec: &GemmSpec, n_rows: usize, rng: &mut StdRng) {
    let format = ActivationFormat::RowScaled(spec.product.input);
    let inputs = Inputs::random(&spec.product, format, n_rows + 70, rng);
    inputs.check(target, KernelSpec::Gemm(spec.clone()), n_rows, |inputs, expected| gemm::twin(spec, inputs, expected));
}

pub fn check_dot_gemm(target: &Target, spec: &DotGemmSpec, n_rows: usize, rng: &mut StdRng) {
    let format = ActivationFormat::Quantized(spec.product.input);
    let inputs = Inputs::random(&spec.product, format, n_rows + 70, rng);
    let kernel = KernelSpec::DotGemm(spec.clone());
    inputs.check(target, kernel, n_rows, |inputs, expected| dot_gemm::twin(spec, inputs, expected));
}

pub fn check_float_gemm(target: &Target, spec: &FloatGemmSpec, n_rows: usize, rng: &mut StdRng) {
    let inputs = Inputs::random(&spec.product, ActivationFormat::F32, n_rows + 70, rng);
    let kernel = KernelSpec::FloatGemm(spec.clone());
    inputs.check(target, kernel, n_rows, |inputs, expected| float_gemm::twin(spec, inputs, expected));
}

pub fn check_register_gemm(target: &Target, spec: &RegisterGemmSpec, n_rows: usize, rng: &mut StdRng) {
    let format = ActivationFormat::Halves(spec.product.input);
    let inputs = Inputs::random(&spec.product, format, spec.rows, rng);
    let kernel = KernelSpec::RegisterGemm(spec.clone());
    inputs.check(target, kernel, n_rows, |inputs, expected| register_gemm::twin(spec, inputs, expected));
}

/// Inputs of both computations of a product.
struct Inputs {
    weights: Vec<u8>,
    /// Words of all rows of the program; those after the end of a row are NaN.
    codes: Vec<u32>,
    bias: Vec<f32>,
    program_rows: usize,
    output_stride: usize,
}

impl Inputs {
    fn random(product: &Product, format: ActivationFormat, program_rows: usize, rng: &mut StdRng) -> Inputs {
        let weights = packed(rng, &product.layout);
        let bias = normals(rng, product.layout.rows);
        let mut codes = vec![0x7e00_7e00; program_rows * product.input_stride];
        for row in codes.chunks_mut(product.input_stride) {
            let words = encode_row(format, &normals(rng, product.layout.cols));
            row[..words.len()].copy_from_slice(&words);
        }
        Inputs { weights, codes, bias, program_rows, output_stride: product.output_stride }
    }

    fn check(&self, target: &Target, kernel: KernelSpec, n_rows: usize, twin: impl FnOnce(&GemmInputs, &mut [f32])) {
        let out_words = self.program_rows * self.output_stride;
        let partials = if let KernelSpec::RegisterGemm(spec) = &kernel { spec.partials_len() } else { 0 };
        let operand = |role| match role {
            Role::Step => Operand::Step,
            Role::Weights => Operand::Bytes(self.weights.clone()),
            Role::Output | Role::Encoded => Operand::Out { id: 0, words: out_words },
            Role::ProductFactor => Operand::floats(&[8.0; 4]),
            Role::QuantizedInput | Role::InputQuads => Operand::words(&self.codes),
            Role::Bias => Operand::floats(&self.bias),
            Role::ExchangedSums => Operand::Out { id: 1, words: partials },
            Role::CompletionCounters => Operand::CompletionCounters,
            other => panic!("a GEMM has no {other:?}"),
        };
        let operands = kernel.bindings().into_iter().map(|binding| operand(binding.role)).collect();
        let what = format!("{kernel:?} rows {n_rows}");
        let mut one = launch(target, kernel.clone(), operands, n_rows);
        one.before = vec![1; self.program_rows];
        let mut expected = vec![POISON; out_words];
        let inputs = GemmInputs { packed: &self.weights, codes: &self.codes, bias: &self.bias, routes: &[], n_rows };
        twin(&inputs, &mut expected);
        let found = &one.run()[&0];
        match &kernel {
            KernelSpec::RegisterGemm(spec) if spec.halves_out => {
                let found = self.values_of_halves(found, spec.product.output_rows(), n_rows);
                assert_same(&what, &found, &expected, HALVES_TOLERANCE);
            }
            _ => assert_same(&what, &floats(found), &expected, TOLERANCE),
        }
    }

    /// Rows of halves, decoded to f32.
    fn values_of_halves(&self, words: &[u32], cols: usize, n_rows: usize) -> Vec<f32> {
        let of_row = |(row, words): (usize, &[u32])| {
            let used = if row < n_rows { cols / 2 + 1 } else { 0 };
            assert!(
                floats(&words[used..]).iter().all(|&word| word == POISON),
                "row {row}: written where nothing belongs"
            );
            let mut values = vec![POISON; words.len()];
            if row < n_rows {
                let decoded = decode_row(ActivationFormat::Halves(Precision::Int8), words, cols);
                values[..cols].copy_from_slice(&decoded);
            }
            values
        };
        words.chunks(self.output_stride).enumerate().flat_map(of_row).collect()
    }
}
