//! What a GEMM multiplies and where its result goes, however its operands reach the matrix units.

use half::f16;
use serde::{Deserialize, Serialize};

use super::spec::BLOCK;
use crate::activation::Activation;
use crate::activations::{ActivationFormat, Precision, decode_row};
use crate::layout::{TILE_ROWS, WeightLayout, unpacking};
use crate::template::Values;

/// `y[t][n] = Σ_k W[n][k] · x[t][k]`, with bias, and activation·mul of interleaved gate and up tiles.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Product {
    /// Format and shape of the weights W.
    pub layout: WeightLayout,
    /// Of the codes that are read.
    pub input: Precision,
    /// Words between rows of the input.
    pub input_stride: usize,
    /// Elements between rows of the output.
    pub output_stride: usize,
    /// First column of the output that this matrix writes.
    pub output_first: usize,
    /// Whether a bias is added, one f32 for each row of the matrix.
    pub bias: bool,
    /// Tiles alternate gate, up, gate, up; the output is `act(gate) * up`, half as many rows.
    pub act_mul: Option<Activation>,
}

/// Buffers of the twin, as the kernel binds them.
pub struct GemmInputs<'a> {
    /// The packed matrix, in the spec's layout.
    pub packed: &'a [u8],
    /// (rows, input_stride)
    pub codes: &'a [u32],
    /// (rows of the matrix) f32; not read where the spec has no bias.
    pub bias: &'a [f32],
    /// Rows of the step.
    pub n_rows: usize,
}

impl Product {
    /// Rows of the result.
    pub fn output_rows(&self) -> usize {
        if self.act_mul.is_some() { self.layout.rows / 2 } else { self.layout.rows }
    }

    /// Values for the pieces that finish a result and that unpack weights.
    pub(crate) fn values(&self, input: ActivationFormat) -> Values {
        unpacking(&[self.layout.format], Values::default())
            .size("FACTOR_AT", input.factor_at(self.layout.cols))
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("OUTPUT_FIRST", self.output_first)
            .size("OUTPUT_ROWS", self.output_rows())
            .size("BLOCK", BLOCK)
            .size("WRITTEN", if self.act_mul.is_some() { TILE_ROWS } else { BLOCK })
            .flag("BIAS", self.bias)
            .flag("ACT_MUL", self.act_mul.is_some())
            .flag("SILU", self.act_mul == Some(Activation::Silu))
            .flag("HALVES_OUT", false)
    }

    /// The product in plain loops: writes `output` (n_rows, output_stride). `as_halves`: weights are rounded to f16.
    pub(crate) fn twin(&self, input: ActivationFormat, as_halves: bool, inputs: &GemmInputs, output: &mut [f32]) {
        let (rows, cols) = (self.layout.rows, self.layout.cols);
        let activations: Vec<Vec<f32>> =
            (0..inputs.n_rows).map(|row| decode_row(input, &inputs.codes[row * self.input_stride..], cols)).collect();
        let mut products = vec![vec![0f32; rows]; inputs.n_rows];
        let mut weights = vec![0f32; cols];
        for row in 0..rows {
            self.layout.decode_row(inputs.packed, row, &mut weights);
            if as_halves {
                weights.iter_mut().for_each(|weight| *weight = f16::from_f32(*weight).to_f32());
            }
            for (x, products) in activations.iter().zip(&mut products) {
                let sum: f32 = weights.iter().zip(x).map(|(w, x)| w * x).sum();
                products[row] = if self.bias { sum + inputs.bias[row] } else { sum };
            }
        }
        for (step_row, products) in products.iter().enumerate() {
            for row in 0..self.output_rows() {
                let value = match self.act_mul {
                    None => products[row],
                    Some(activation) => {
                        let gate = row / TILE_ROWS * 2 * TILE_ROWS + row % TILE_ROWS;
                        activation.apply(products[gate]) * products[gate + TILE_ROWS]
                    }
                };
                output[step_row * self.output_stride + self.output_first + row] = value;
            }
        }
    }
}
