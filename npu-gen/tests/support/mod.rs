//! A GEMM with random values, run by the interpreter and by its definition.

// Each test program uses a part of it.
#![allow(dead_code)]

pub mod attention;
pub mod body_mutants;
pub mod comparison;
pub mod configured;
pub mod models;
pub mod mutants;
pub mod odd;
pub mod parallel;
pub mod walk;

use unicorn_kernels::npu::quantize::{Activations, Weights};
use unicorn_kernels::npu::tile::{CoreTile, Epilogue, GEMV_ROWS, GemmShape};
use unicorn_kernels::npu::twin;
use unicorn_npu::design::Design;
use unicorn_npu::interpret::{Command, RunError, run};
use unicorn_npu::lower::{Lowered, lower};
use unicorn_npu::{gemm, legal, stream};

use comparison::Comparison;

/// The host's buffers of a GEMM, and what its output must be.
#[derive(Clone)]
pub struct Case {
    pub shape: GemmShape,
    pub activations: Vec<u8>,
    pub weights: Vec<u8>,
    /// Every `row_step`-th row of the output is compared.
    row_step: usize,
    /// Those rows, bf16.
    expected: Vec<u8>,
}

impl Case {
    pub fn of(shape: GemmShape) -> Case {
        Case::of_every(1, shape)
    }

    /// A case of which each `row_step`th row is compared: the product from its definition takes long.
    pub fn of_every(row_step: usize, shape: GemmShape) -> Case {
        let w = values(shape.cols * shape.depth, 0x9abc_def1);
        let activations = activations(&shape, 0x1234_5678);
        let weights = Weights::quantize(&shape, &w, shape.cols, shape.depth);
        let rows = (0..shape.rows).step_by(row_step);
        let expected = twin::product_of_rows(&shape, &activations, &weights, rows);
        Case {
            shape,
            activations: activations.pack(&shape),
            weights: weights.pack(&shape),
            row_step,
            expected: expected.into_iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    /// Whether the design's output is the expected one, bit for bit.
    pub fn run(&self, design: &Design, lowered: &Lowered, commands: &[Command]) -> Result<bool, RunError> {
        Ok(self.outputs(design, lowered, commands)? == self.expected)
    }

    /// The same product with operands in which one rule of the layout is broken, in every object: a body that reads by the broken rule, of operands that
    /// keep it, computes the same.
    pub fn layout_mutants(&self) -> Vec<(&'static str, Case)> {
        let core = self.shape.core;
        let codes = |object: &mut [u8], change: fn(&mut [u8])| change(&mut object[..core.multipliers_at()]);
        let weights = |change: &dyn Fn(&mut [u8])| {
            let mut changed = self.weights.clone();
            changed.chunks_exact_mut(core.weight_bytes()).for_each(change);
            Case { weights: changed, ..self.clone() }
        };
        let activations = |change: &dyn Fn(&mut [u8])| {
            let mut changed = self.activations.clone();
            changed.chunks_exact_mut(core.activation_bytes()).for_each(change);
            Case { activations: changed, ..self.clone() }
        };
        let (multipliers, columns) = (core.multipliers_at(), core.column_scales_at());
        let (of_rows, rows) = (core.row_multipliers_at(), core.row_scales_at());
        vec![
            (
                "order of nibbles",
                weights(&|object| codes(object, |codes| codes.iter_mut().for_each(|byte| *byte = byte.rotate_left(4)))),
            ),
            (
                "order of the values of k of weights",
                weights(&|object| codes(object, |codes| codes.chunks_exact_mut(64).for_each(<[u8]>::reverse))),
            ),
            ("order of the blocks of weights", weights(&|object| codes(object, |codes| codes.rotate_left(64)))),
            ("multipliers of the next column", weights(&|object| object[multipliers..columns].rotate_left(1))),
            ("scales of the next column", weights(&|object| object[columns..].rotate_left(4))),
            (
                "order of the bytes of a scale",
                weights(&|object| object[columns..].chunks_exact_mut(4).for_each(<[u8]>::reverse)),
            ),
            (
                "order of the values of k of activations",
                activations(&|object| object[..of_rows].chunks_exact_mut(16).for_each(<[u8]>::reverse)),
            ),
            ("order of the blocks of activations", activations(&|object| object[..of_rows].rotate_left(64))),
            ("multipliers of the next row", activations(&|object| object[of_rows..rows].rotate_left(8))),
            ("scales of the next row", activations(&|object| object[rows..].rotate_left(4))),
        ]
    }

    /// The outputs beside the expected ones, when the interpreter runs the shape's design from its encoded instructions. The index of a value is that in the
    /// compared rows.
    ///
    /// # Errors
    /// What makes the design illegal, or ends its run.
    pub fn compared(&self) -> Result<Comparison, String> {
        let design = gemm::design(&self.shape);
        let lowered = lower(&design);
        legal::check(&design, &lowered).map_err(|faults| format!("{faults:?}"))?;
        let commands = commands_from_bytes(&design, &lowered);
        let outputs = self.outputs(&design, &lowered, &commands).map_err(|error| error.to_string())?;
        // bf16 is the upper half of an f32.
        let value = |bytes: &[u8]| f64::from(f32::from_le_bytes([0, 0, bytes[0], bytes[1]]));
        let pairs = outputs.chunks_exact(2).zip(self.expected.chunks_exact(2));
        Ok(Comparison::of(pairs.map(|(found, expected)| (value(found), value(expected))), 0.0))
    }

    /// The rows that are compared.
    fn outputs(&self, design: &Design, lowered: &Lowered, commands: &[Command]) -> Result<Vec<u8>, RunError> {
        let row_bytes = 2 * self.shape.outputs();
        // NaN: what is not written shows.
        let output = vec![0xff; self.shape.rows * row_bytes];
        let mut arguments = [self.activations.clone(), self.weights.clone(), output];
        run(design, lowered, commands, &mut arguments)?;
        let [_, _, output] = arguments;
        Ok(output.chunks_exact(row_bytes).step_by(self.row_step).flatten().copied().collect())
    }
}

/// The host's steps of a legal design, read back from its instruction stream.
pub fn commands_from_bytes(design: &Design, lowered: &Lowered) -> Vec<Command> {
    let instructions = stream::decode(&stream::encode(design, lowered)).expect("a stream of this project");
    stream::commands(&instructions, lowered).expect("a stream of this design")
}

/// Quantised rows whose groups have multipliers of many sizes.
pub fn activations(shape: &GemmShape, seed: u32) -> Activations {
    let mut values = values(shape.rows * shape.depth, seed);
    for (row, values) in values.chunks_exact_mut(shape.depth).enumerate() {
        for (group, values) in values.chunks_exact_mut(shape.core.depth).enumerate() {
            let factor = 1.0 / (1 + (row + 3 * group) % 7) as f32;
            values.iter_mut().for_each(|value| *value *= factor);
        }
    }
    Activations::quantize(shape, &values, shape.depth)
}

/// Deterministic values in -1..1.
pub fn values(n: usize, mut state: u32) -> Vec<f32> {
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// A GEMV of three column tiles and four objects of k.
pub fn small_gemv(columns: usize, depth: usize, epilogue: Epilogue) -> GemmShape {
    let core = CoreTile::new(GEMV_ROWS, 16, depth, epilogue);
    GemmShape::padded(GEMV_ROWS, 3 * 16 * (2 * columns - 1), 4 * depth, columns, core)
}

pub fn small(columns: usize, depth: usize, epilogue: Epilogue) -> GemmShape {
    let core = CoreTile::new(16, 16, depth, epilogue);
    // Two row tiles, three column tiles and four objects of k.
    GemmShape::padded(128, 3 * 16 * columns, 4 * depth, columns, core)
}
