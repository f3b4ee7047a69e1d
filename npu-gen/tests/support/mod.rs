//! A GEMM with random values, run by the interpreter and by its definition.

// Each test program uses a part of it.
#![allow(dead_code)]

use unicorn_kernels::npu::quantize::{Activations, Weights};
use unicorn_kernels::npu::tile::{CoreTile, Epilogue, GemmShape};
use unicorn_kernels::npu::twin;
use unicorn_npu::design::Design;
use unicorn_npu::interpret::{Command, RunError, run};
use unicorn_npu::lower::Lowered;

/// The host's buffers of a GEMM, and what its output must be.
pub struct Case {
    pub shape: GemmShape,
    pub activations: Vec<u8>,
    pub weights: Vec<u8>,
    /// bf16.
    pub expected: Vec<u8>,
}

impl Case {
    pub fn of(shape: GemmShape) -> Case {
        let a = values(shape.rows * shape.depth, 0x1234_5678);
        let w = values(shape.cols * shape.depth, 0x9abc_def1);
        let activations = Activations::quantize(&shape, &a, shape.depth);
        let weights = Weights::quantize(&shape, &w, shape.cols, shape.depth);
        let expected = twin::product(&shape, &activations, &weights);
        Case {
            shape,
            activations: activations.pack(&shape),
            weights: weights.pack(&shape),
            expected: expected.into_iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    /// Whether the design's output is the expected one, bit for bit.
    pub fn run(&self, design: &Design, lowered: &Lowered, commands: &[Command]) -> Result<bool, RunError> {
        let output = vec![0xff; self.expected.len()];
        let mut arguments = [self.activations.clone(), self.weights.clone(), output];
        run(design, lowered, commands, &mut arguments)?;
        Ok(arguments[2] == self.expected)
    }
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

pub fn small(columns: usize, depth: usize, epilogue: Epilogue) -> GemmShape {
    let core = CoreTile { rows: 16, cols: 16, depth, epilogue };
    // Two row tiles, three column tiles and four objects of k.
    GemmShape::padded(128, 3 * 16 * columns, 4 * depth, columns, core)
}
