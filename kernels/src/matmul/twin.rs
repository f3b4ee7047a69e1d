//! The kernel in plain loops, to check it by.

use super::spec::{ExpertsSpec, MatMulSpec};
use crate::activation_format::{ActivationFormat, decode_row, encode_row};
use crate::layout::TILE_ROWS;
use crate::norm::norm_row;

/// Buffers of the twin, as the kernel binds them.
#[derive(Clone, Copy)]
pub struct MatMulInputs<'a> {
    /// The packed matrix, in the spec's layout.
    pub packed: &'a [u8],
    /// The matrix of the next matmul; empty without a fused tail.
    pub tail_packed: &'a [u8],
    /// Words of (rows, input_stride): f32 that the norm reads, or the input in its format.
    pub input: &'a [u32],
    /// (rows, input_stride), the residual stream before the sum; empty unless the prologue adds it.
    pub residual: &'a [f32],
    /// (cols), weight of the prologue's norm; empty without a prologue.
    pub norm_weight: &'a [f32],
    /// (cols), weight of the norm on the input before the sum; empty if there is none.
    pub post_norm_weight: &'a [f32],
    /// (rows of the matrix) f32, or (experts, rows); empty if there is no bias.
    pub bias: &'a [f32],
    /// (rows, routes_stride), experts of each row; empty without experts.
    pub routes: &'a [u32],
    /// Rows of the step.
    pub n_rows: usize,
    /// The only row that is read where the spec has `row_from_step`.
    pub logits_row: usize,
}

/// The kernel in plain loops: writes the words of `output` (n_rows, output_stride), or of the next matmul's sums (next rows, 2),
/// and, if the prologue adds the residual, `sum`. A choice of experts is `route::twin_row` of the output.
pub fn twin(spec: &MatMulSpec, inputs: &MatMulInputs, output: &mut [u32], sum: &mut [f32]) {
    if let Some(experts) = spec.experts {
        return twin_of_experts(spec, experts, inputs, output);
    }
    let cols = spec.layout.cols;
    let step_rows = if spec.row_from_step { spec_row(inputs) } else { 0..inputs.n_rows };
    for (output_row, step_row) in step_rows.enumerate() {
        let at = step_row * spec.input_stride;
        let words = &inputs.input[at..at + spec.input_stride];
        let x = match &spec.prologue {
            None => decode_row(spec.input, words, cols),
            Some(norm) => {
                let x = decode_row(ActivationFormat::F32, words, cols);
                let residual = if norm.add { &inputs.residual[at..at + cols] } else { &[][..] };
                let (new_sum, normed) = norm_row(norm, &x, residual, inputs.post_norm_weight, inputs.norm_weight);
                if norm.stores_sum {
                    sum[at..at + cols].copy_from_slice(&new_sum);
                }
                decode_row(spec.input, &encode_row(spec.input, &normed), cols)
            }
        };
        let mut weights = vec![0f32; cols];
        let mut products = vec![0f32; spec.layout.rows];
        for (row, product) in products.iter_mut().enumerate() {
            spec.layout.decode_row(inputs.packed, row, &mut weights);
            *product = weights.iter().zip(&x).map(|(w, x)| w * x).sum();
            if spec.bias {
                *product += inputs.bias[row];
            }
        }
        let finished = |row: usize| {
            let mut value = products[row];
            if let Some(activation) = spec.act_mul {
                let (tile, row_in_tile) = (row / TILE_ROWS, row % TILE_ROWS);
                let gate = products[2 * tile * TILE_ROWS + row_in_tile];
                let up = products[(2 * tile + 1) * TILE_ROWS + row_in_tile];
                value = activation.gated(gate, up);
            }
            spec.softcap.map_or(value, |cap| cap.get() * (value / cap.get()).tanh())
        };
        let row: Vec<f32> = (0..spec.output_rows()).map(finished).collect();
        let words = encode_row(spec.output, &row);
        if let Some(next) = &spec.fused_tail {
            next.twin(inputs.tail_packed, &words, output);
            continue;
        }
        output[output_row * spec.output_stride + spec.output_first..][..words.len()].copy_from_slice(&words);
    }
}

/// Computes each row by the plain matmul with its expert's matrix, and the weighted sum of a row's experts where the kernel makes that.
fn twin_of_experts(spec: &MatMulSpec, experts: ExpertsSpec, inputs: &MatMulInputs, output: &mut [u32]) {
    if experts.summed {
        let stride = spec.output_stride;
        let apart = MatMulSpec { experts: Some(ExpertsSpec { summed: false, ..experts }), ..spec.clone() };
        let mut products = vec![0u32; inputs.n_rows * experts.chosen * stride];
        twin(&apart, inputs, &mut products, &mut []);
        for (row, of_row) in products.chunks(experts.chosen * stride).enumerate() {
            let weights = &inputs.routes[row * experts.routes_stride + experts.chosen..];
            for (column, word) in output[row * stride..][..spec.layout.rows].iter_mut().enumerate() {
                let weighted =
                    |(product, weight): (&[u32], &u32)| f32::from_bits(*weight) * f32::from_bits(product[column]);
                *word = of_row.chunks(stride).zip(weights).map(weighted).sum::<f32>().to_bits();
            }
        }
        return;
    }
    let one = MatMulSpec { experts: None, ..spec.clone() };
    for row in 0..inputs.n_rows * experts.chosen {
        let Some((expert, input_row)) = experts.matrix_and_input(inputs.routes, row) else { continue };
        let packed = &inputs.packed[expert * spec.layout.bytes()..][..spec.layout.bytes()];
        let input = &inputs.input[input_row * spec.input_stride..];
        let bias = experts.bias_of(inputs.bias, expert, spec.layout.rows, spec.bias);
        let of_row = MatMulInputs { packed, input, bias, n_rows: 1, ..*inputs };
        twin(&one, &of_row, &mut output[row * spec.output_stride..], &mut []);
    }
}

fn spec_row(inputs: &MatMulInputs) -> std::ops::Range<usize> {
    inputs.logits_row..inputs.logits_row + 1
}
