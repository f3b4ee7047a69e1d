//! Kernels of a vision tower.

use proptest::prelude::*;
use tests::launch::{Launch, Operand};
use unicorn_kernels::image_attention::{self, ImageAttentionInputs, ImageAttentionSpec};
use unicorn_kernels::image_pool::{self, ImagePoolSpec};
use unicorn_kernels::image_positions::{self, ImagePositionsSpec};
use unicorn_kernels::image_rope::{self, ImageRopeSpec, image_rope_table};
use unicorn_kernels::layer_norm::{self, LayerNormSpec};
use unicorn_kernels::{KernelSpec, Number};

use super::cases::check_cases;
use super::{POISON, TOLERANCE, assert_same, floats, launch, normals, targets};

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
        let n_rows = 9 * rows_per_token;
        let width = n_heads * head_dim;
        let stride = if together { 3 * width } else { width }.next_multiple_of(32);
        let spec = ImageAttentionSpec {
            n_heads,
            head_dim,
            input_strides: [stride; 3],
            input_firsts: if together { [0, width, 2 * width] } else { [0; 3] },
            output_stride: width.next_multiple_of(32),
            scale: Number::new(0.5),
            rows_per_token,
        };
        let values: Vec<Vec<f32>> = (0..3).map(|_| normals(rng, n_rows * stride)).collect();
        let of = |which: usize| if together { &values[0] } else { &values[which] };
        let words = n_rows * spec.output_stride;
        let operands = [Operand::Step]
            .into_iter()
            .chain((0..3).map(|which| Operand::floats(of(which))))
            .chain([Operand::Out { id: 0, words }]);
        let launch = launch(target, KernelSpec::ImageAttention(spec.clone()), operands.collect(), 9);
        let found = Launch { rows_per_token, ..launch }.run();
        let mut expected = vec![POISON; words];
        let inputs = ImageAttentionInputs { values: [of(0), of(1), of(2)], n_rows };
        image_attention::twin(&spec, &inputs, &mut expected);
        assert_same(&format!("{} {spec:?}", target.name), &floats(&found[&0]), &expected, TOLERANCE);
    });
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
