//! What a GEMM multiplies and where its result goes, however its operands reach the matrix units.

use half::f16;
use serde::{Deserialize, Serialize};

use super::spec::BLOCK;
use crate::activation::Activation;
use crate::activation_format::{ActivationFormat, Precision, decode_row};
use crate::layout::{TILE_ROWS, WeightLayout, unpacking};
use crate::matmul::ExpertsSpec;
use crate::role::rows_of_step;
use crate::template::Values;

/// `y[t][n] = Σ_k W[n][k] · x[t][k]`, with bias, and activation·mul of interleaved gate and up tiles.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Product {
    /// Format and shape of the weights W.
    pub layout: WeightLayout,
    /// Precision of the activations' codes.
    pub input: Precision,
    /// Words between rows of the input.
    pub input_stride: usize,
    /// Elements between rows of the output.
    pub output_stride: usize,
    /// First column of the output that this matrix writes.
    pub output_first: usize,
    /// Whether a bias is added, one f32 for each row of the matrix. With experts, it has the rows of every expert in turn, also of
    /// those that are not in the stack.
    pub bias: bool,
    /// Tiles alternate gate, up, gate, up; the output is `act(gate) * up`, half as many rows.
    pub act_mul: Option<Activation>,
    /// Rows for each row of the step, without experts.
    pub rows_per_token: usize,
    /// The experts, if the matrix is a stack of one for each, which `layout` describes; its `tiles` have as many rows as the
    /// GEMM's.
    pub experts: Option<ExpertsSpec>,
}

/// Buffers of the twin, as the kernel binds them.
pub struct GemmInputs<'a> {
    /// The packed matrix, in the spec's layout.
    pub packed: &'a [u8],
    /// (rows, input_stride)
    pub codes: &'a [u32],
    /// (rows of the matrix) f32, or (experts, rows); not read where the spec has no bias.
    pub bias: &'a [f32],
    /// (rows, routes_stride), experts of each row; not read without experts.
    pub routes: &'a [u32],
    /// Rows of the step.
    pub n_rows: usize,
}

impl Product {
    /// Rows of the result.
    pub fn output_rows(&self) -> usize {
        if self.act_mul.is_some() { self.layout.rows / 2 } else { self.layout.rows }
    }

    /// Workgroups side by side along the rows of the step, for at most `rows` of them.
    pub(crate) fn step_tiles(&self, rows: usize, step_rows: usize) -> usize {
        let Some(experts) = self.experts else { return rows.div_ceil(step_rows) };
        let tiles = experts.tiles.expect("a GEMM has many rows of an expert");
        assert_eq!(tiles.tile_rows, step_rows, "a tile of rows is one of the GEMM's");
        tiles.max_tiles
    }

    /// Values for the pieces that finish a result and that unpack weights.
    pub(crate) fn values(&self, input: ActivationFormat) -> Values {
        assert!(self.experts.is_none() || self.output_first == 0, "experts make whole rows of all rows");
        let values = ExpertsSpec::values(self.experts.as_ref(), unpacking(&[self.layout.format], Values::default()));
        Activation::values(self.act_mul, values)
            .count("EXPERT_ROWS", self.layout.rows)
            .size("FACTOR_AT", input.factor_at(self.layout.cols))
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("OUTPUT_FIRST", self.output_first)
            .size("OUTPUT_ROWS", self.output_rows())
            .size("BLOCK", BLOCK)
            .size("WRITTEN", if self.act_mul.is_some() { TILE_ROWS } else { BLOCK })
            .flag("BIAS", self.bias)
            .text("ROWS_IN_USE", rows_of_step(self.rows_per_token))
            .flag("ACT_MUL", self.act_mul.is_some())
            .flag("HALVES_OUT", false)
    }

    /// The product in plain loops: writes `output` (n_rows, output_stride). `as_halves`: weights are rounded to f16.
    pub(crate) fn twin(&self, input: ActivationFormat, as_halves: bool, inputs: &GemmInputs, output: &mut [f32]) {
        if let Some(experts) = self.experts {
            return self.twin_of_experts(experts, (input, as_halves), inputs, output);
        }
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
                        activation.gated(products[gate], products[gate + TILE_ROWS])
                    }
                };
                output[step_row * self.output_stride + self.output_first + row] = value;
            }
        }
    }

    /// Computes each row by the plain product with its expert's matrix.
    fn twin_of_experts(
        &self,
        experts: ExpertsSpec,
        (input, as_halves): (ActivationFormat, bool),
        inputs: &GemmInputs,
        output: &mut [f32],
    ) {
        let one = Product { experts: None, ..self.clone() };
        for row in 0..inputs.n_rows * experts.chosen {
            let Some((expert, input_row)) = experts.matrix_and_input(inputs.routes, row) else { continue };
            let packed = &inputs.packed[expert * self.layout.bytes()..][..self.layout.bytes()];
            let codes = &inputs.codes[input_row * self.input_stride..];
            let bias = experts.bias_of(inputs.bias, expert, self.layout.rows, self.bias);
            let of_row = GemmInputs { packed, codes, bias, n_rows: 1, ..*inputs };
            one.twin(input, as_halves, &of_row, &mut output[row * self.output_stride..]);
        }
    }
}
