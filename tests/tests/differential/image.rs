//! Kernels of a vision tower.

use proptest::prelude::*;
use rand::rngs::StdRng;
use tests::launch::{Launch, Operand, skip_matrix_units};
use unicorn_kernels::flash::FlashSpec;
use unicorn_kernels::image_attention::{self, ImageAttentionInputs, ImageAttentionSpec};
use unicorn_kernels::image_pool::{self, ImagePoolSpec};
use unicorn_kernels::image_positions::{self, ImagePositionsSpec};
use unicorn_kernels::image_rope::{self, ImageRopeSpec, image_rope_table};
use unicorn_kernels::layer_norm::{self, LayerNormSpec};
use unicorn_kernels::{KernelSpec, Number, Role};
use unicorn_spirv::Target;

use super::cases::check_cases;
use super::{POISON, TOLERANCE, assert_same, floats, launch, matrix_targets, normals, targets};

#[test]
fn layer_norms_are_those_of_the_twin() {
    let targets = targets();
    check_cases(
        "layer norm",
        6,
        &(0..targets.len(), 1..700usize, 1..4usize),
        |&(target, width, rows_per_token), rng| {
            let target = &targets[target];
            let (n_rows, stride) = (2 * rows_per_token, width.next_multiple_of(32));
            let (eps, lanes, subgroup_size) = (Number::new(1e-3), 128, target.subgroup_size);
            let spec = LayerNormSpec { width, stride, eps, rows_per_token, lanes, subgroup_size };
            // Means far from 0.
            let input: Vec<f32> = normals(rng, n_rows * stride).iter().map(|x| x + 3.0).collect();
            let weight_and_bias = normals(rng, 2 * width);
            let operands = vec![
                Operand::Step,
                Operand::floats(&input),
                Operand::Out { id: 0, words: n_rows * stride },
                Operand::floats(&weight_and_bias),
            ];
            let found =
                Launch { rows_per_token, ..launch(target, KernelSpec::LayerNorm(spec.clone()), operands, 2) }.run();
            let mut expected = vec![POISON; n_rows * stride];
            for (row, of_row) in expected.chunks_exact_mut(stride).enumerate() {
                of_row[..width].copy_from_slice(&layer_norm::twin_row(&spec, &input[row * stride..], &weight_and_bias));
            }
            assert_same(&format!("{} {spec:?}", target.name), &floats(&found[&0]), &expected, TOLERANCE);
        },
    );
}

#[test]
fn attention_of_an_image_is_that_of_the_twin() {
    let targets = targets();
    let cases = (0..targets.len(), 1..30usize, 1..4usize, 1..13usize, any::<bool>());
    check_cases("image attention", 6, &cases, |&(target, head_dim, n_heads, rows_per_token, together), rng| {
        let target = &targets[target];
        let spec = attention_spec(head_dim, n_heads, rows_per_token, together);
        check_attention(target, &spec, KernelSpec::ImageAttention(spec.clone()), TOLERANCE, rng);
    });
}

/// Heads of up to 100 elements, which fill fragments or not; queries, keys, values and weights are f16.
#[test]
fn flash_attention_of_an_image_is_that_of_the_twin() {
    const F16_TOLERANCE: f64 = 4e-3;
    let targets = matrix_targets();
    if targets.is_empty() {
        return skip_matrix_units();
    }
    for target in &targets {
        let cases = (1..26usize, 1..4usize, 1..23usize, any::<bool>());
        let name = format!("image flash, {:?}", target.matrix);
        check_cases(&name, 6, &cases, |&(head_quads, n_heads, rows_per_token, together), rng| {
            let spec = attention_spec(4 * head_quads, n_heads, rows_per_token, together);
            let tile = target.matrix.expect("a target with matrices").flash;
            let Some(flash) = FlashSpec::of_patches(&spec, tile, target.subgroup_size) else { return };
            check_attention(target, &spec, KernelSpec::Flash(flash), F16_TOLERANCE, rng);
        });
    }
}

/// Heads of patches, whose queries, keys and values are columns of the same rows or rows of their own.
fn attention_spec(head_dim: usize, n_heads: usize, rows_per_token: usize, together: bool) -> ImageAttentionSpec {
    let width = n_heads * head_dim;
    let stride = if together { 3 * width } else { width }.next_multiple_of(32);
    ImageAttentionSpec {
        n_heads,
        head_dim,
        input_strides: [stride; 3],
        input_firsts: if together { [0, width, 2 * width] } else { [0; 3] },
        output_stride: width.next_multiple_of(32),
        scale: Number::new(0.5),
        rows_per_token,
    }
}

/// Compares what a kernel for `spec` makes of nine rows of the step with what its twin makes.
fn check_attention(target: &Target, spec: &ImageAttentionSpec, kernel: KernelSpec, tolerance: f64, rng: &mut StdRng) {
    let n_rows = 9 * spec.rows_per_token;
    let is_together = spec.input_firsts[2] > 0;
    let values: Vec<Vec<f32>> = (0..3).map(|_| normals(rng, n_rows * spec.input_strides[0])).collect();
    let of: [&[f32]; 3] = [0, 1, 2].map(|which| &values[if is_together { 0 } else { which }][..]);
    let words = n_rows * spec.output_stride;
    let operands = kernel.bindings().into_iter().map(|binding| match binding.role {
        Role::Step => Operand::Step,
        Role::Input | Role::InputQuads => Operand::floats(of[0]),
        Role::Second | Role::PatchKeys => Operand::floats(of[1]),
        Role::Third | Role::PatchValues => Operand::floats(of[2]),
        _ => Operand::Out { id: 0, words },
    });
    let launch = launch(target, kernel.clone(), operands.collect(), 9);
    let found = Launch { rows_per_token: spec.rows_per_token, ..launch }.run();
    let mut expected = vec![POISON; words];
    image_attention::twin(spec, &ImageAttentionInputs { values: of, n_rows }, &mut expected);
    assert_same(&format!("{} {kernel:?}", target.name), &floats(&found[&0]), &expected, tolerance);
}

#[test]
fn means_of_squares_are_those_of_the_twin() {
    let targets = targets();
    check_cases(
        "image pool",
        4,
        &(0..targets.len(), 1..200usize, 1..4usize, 1..4usize),
        |&(target, width, across, side), rng| {
            let target = &targets[target];
            let (n_rows, stride) = (across * across, width.next_multiple_of(32));
            let spec = ImagePoolSpec { width, stride, across, side };
            let input = normals(rng, n_rows * side * side * stride);
            let operands = vec![Operand::Step, Operand::floats(&input), Operand::Out { id: 0, words: n_rows * stride }];
            let found = launch(target, KernelSpec::ImagePool(spec.clone()), operands, n_rows).run();
            let mut expected = vec![POISON; n_rows * stride];
            image_pool::twin(&spec, &input, n_rows, &mut expected);
            assert_same(&format!("{} {spec:?}", target.name), &floats(&found[&0]), &expected, TOLERANCE);
        },
    );
}

/// Steps of this test have images of one row of squares from left to right; `tests/image_grids.rs` has others.
#[test]
fn positions_of_patches_are_those_of_the_twin() {
    let targets = targets();
    let cases = (0..targets.len(), 1..200usize, 2..9usize, 1..3usize, 1..7usize);
    check_cases("image positions", 4, &cases, |&(target, width, positions, side, n_rows), rng| {
        let target = &targets[target];
        let spec = ImagePositionsSpec { width, stride: width.next_multiple_of(32), positions, side };
        let rows_per_token = side * side;
        let words = n_rows * rows_per_token * spec.stride;
        let (input, learned) = (normals(rng, words), normals(rng, positions * positions * width));
        let out = Operand::Out { id: 0, words };
        let operands = vec![Operand::Step, Operand::floats(&input), Operand::floats(&learned), out];
        let launch = launch(target, KernelSpec::ImagePositions(spec.clone()), operands, n_rows);
        let found = Launch { rows_per_token, ..launch }.run();
        let mut expected = vec![POISON; words];
        image_positions::twin(&spec, &input, &learned, n_rows, 1, &mut expected);
        assert_same(&format!("{} {spec:?}", target.name), &floats(&found[&0]), &expected, TOLERANCE);
    });
}

#[test]
fn rotated_patches_are_those_of_the_twin() {
    let targets = targets();
    let cases = (0..targets.len(), 1..6usize, 1..4usize, 1..3usize, 1..7usize);
    check_cases("image rope", 4, &cases, |&(target, quads, n_heads, side, n_rows), rng| {
        let target = &targets[target];
        let (head_dim, rows_per_token) = (4 * quads, side * side);
        let width = n_heads * head_dim;
        let strides = [(width + 5).next_multiple_of(32), width.next_multiple_of(32)];
        let [input_stride, output_stride] = strides;
        let spec = ImageRopeSpec { n_heads, head_dim, input_stride, output_stride, side };
        let frequencies: Vec<f64> = (0..quads).map(|pair| 0.5_f64.powi(pair as i32)).collect();
        let table = image_rope_table(&frequencies, n_rows * side);
        let input = normals(rng, n_rows * rows_per_token * input_stride);
        let words = n_rows * rows_per_token * output_stride;
        let operands = vec![
            Operand::Step,
            Operand::floats(&input),
            Operand::floats(table.as_flattened()),
            Operand::Out { id: 0, words },
        ];
        let launch = launch(target, KernelSpec::ImageRope(spec.clone()), operands, n_rows);
        let found = Launch { rows_per_token, ..launch }.run();
        let mut expected = vec![POISON; words];
        image_rope::twin(&spec, &input, &table, n_rows, 1, &mut expected);
        assert_same(&format!("{} {spec:?}", target.name), &floats(&found[&0]), &expected, TOLERANCE);
    });
}
