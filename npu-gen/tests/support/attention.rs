//! Attention with random values, run by the interpreter.

use half::bf16;
use unicorn_kernels::npu::attention::{AttentionInputs, AttentionShape, AttentionTile, unpack_outputs};
use unicorn_npu::design::Design;
use unicorn_npu::interpret::{Command, RunError, run};
use unicorn_npu::lower::{Lowered, lower};
use unicorn_npu::{attention, legal};

use super::comparison::Comparison;
use super::{commands_from_bytes, values};

/// Relative to the values, which are below 1: probabilities and outputs are rounded to bf16, with 8 bits of mantissa.
pub const ROUNDING: f64 = 8e-3;

/// The host's buffers, and what they stand for.
pub struct AttentionCase {
    pub shape: AttentionShape,
    inputs: AttentionInputs,
}

impl AttentionCase {
    /// Queries that attend to as many keys as a causal order allows, some of them to a window, and one of them to nothing.
    pub fn of(shape: AttentionShape) -> AttentionCase {
        let AttentionTile { depth, .. } = shape.tile;
        let random = |n: usize, factor: f32, seed| -> Vec<bf16> {
            values(n, seed).into_iter().map(|value| bf16::from_f32(factor * value)).collect()
        };
        let limit = |index: usize| {
            let end = (1 + index * 7 % shape.keys) as i32;
            match index % 5 {
                0 => [(end - 9).max(0), end],
                3 if index.is_multiple_of(3) => [end, end],
                _ => [0, end],
            }
        };
        let n_rows = shape.heads * shape.rows;
        let inputs = AttentionInputs {
            queries: random(n_rows * depth, 1.5, 0x1357_9bdf),
            keys: random(shape.heads * shape.keys * depth, 1.0, 0x2468_ace1),
            values: random(shape.heads * shape.keys * depth, 1.0, 0x0f1e_2d3c),
            limits: (0..n_rows).map(limit).collect(),
        };
        AttentionCase { shape, inputs }
    }

    /// The outputs as the array writes them.
    pub fn outputs(&self, design: &Design, lowered: &Lowered, commands: &[Command]) -> Result<Vec<u8>, RunError> {
        // NaN: what is not written shows.
        let output = vec![0xff; 2 * self.shape.output_values()];
        let inputs = &self.inputs;
        let mut arguments = [inputs.pack_queries(&self.shape), inputs.pack_keys_and_values(&self.shape), output];
        run(design, lowered, commands, &mut arguments)?;
        let [_, _, output] = arguments;
        Ok(output)
    }

    /// Outputs beside attention from its definition.
    pub fn compare(&self, outputs: &[u8]) -> Comparison {
        let found = unpack_outputs(&self.shape, outputs);
        let expected = self.inputs.attention(&self.shape);
        Comparison::of(found.into_iter().map(f64::from).zip(expected), ROUNDING)
    }

    /// The same, when the interpreter runs the shape's design from its encoded instructions.
    ///
    /// # Errors
    /// What makes the design illegal, or ends its run.
    pub fn compared(&self) -> Result<Comparison, String> {
        let design = attention::design(&self.shape);
        let lowered = lower(&design);
        legal::check(&design, &lowered).map_err(|faults| format!("{faults:?}"))?;
        let commands = commands_from_bytes(&design, &lowered);
        let outputs = self.outputs(&design, &lowered, &commands).map_err(|error| error.to_string())?;
        Ok(self.compare(&outputs))
    }
}

/// Two heads of each column, two tiles of rows and four blocks of keys.
pub fn small_attention(columns: usize) -> AttentionShape {
    AttentionShape::padded(2 * columns, 16, 64, columns, AttentionTile { rows: 8, keys: 16, depth: 16 })
}
