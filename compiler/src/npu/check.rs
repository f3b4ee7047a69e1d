//! Products of an artifact from their definition, to check an NPU by.

use unicorn_artifact::npu::ACTIVATIONS;
use unicorn_artifact::{NpuProduct, NpuProgram};
use unicorn_kernels::npu::quantize::{Activations, Weights};
use unicorn_kernels::npu::tile::GemmShape;
use unicorn_kernels::npu::twin;

/// One product on activations that are a function of their place alone.
pub struct NpuCheck {
    shape: GemmShape,
    activations: Activations,
    weights: Weights,
}

impl NpuCheck {
    /// For a product of `program`, whose weights are `weights`, as the artifact has them; `None`: its activation is unknown, or
    /// its activations have the layout of another version.
    ///
    /// # Panics
    /// If the number of weights is not the program's.
    pub fn of(program: &NpuProgram, product: &NpuProduct, weights: &[u8]) -> Option<NpuCheck> {
        let shape = shape_of(program)?;
        let depth = product.depth as usize;
        // Groups of several sizes, so that their multipliers differ.
        let size = |index: u32| 1 + index / shape.core.depth as u32 % 5;
        let value = |index: u32| (index.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
        let values = (0..(shape.rows * depth) as u32).map(|index| value(index) / size(index) as f32);
        let values: Vec<f32> = values.collect();
        let activations = Activations::quantize(&shape, &values, depth);
        Some(NpuCheck { shape, activations, weights: Weights::unpack(&shape, weights) })
    }

    /// The activations in the program's layout.
    pub fn activations(&self) -> Vec<u8> {
        self.activations.pack(&self.shape)
    }

    /// Compares `rows` rows of the program's `outputs`, spread over all, with the definition. Returns the number of values that
    /// differ, and of all that were compared.
    pub fn wrong(&self, outputs: &[u8], rows: usize) -> (usize, usize) {
        let GemmShape { rows: all, .. } = self.shape;
        let rows: Vec<usize> = (0..all).step_by(all.div_ceil(rows).max(1)).collect();
        let expected = twin::product_of_rows(&self.shape, &self.activations, &self.weights, rows.iter().copied());
        let row_bytes = 2 * self.shape.outputs();
        let found = rows.iter().flat_map(|row| outputs[row * row_bytes..][..row_bytes].chunks_exact(2));
        let wrong = found.zip(&expected).filter(|(found, expected)| **found != expected.to_le_bytes()).count();
        (wrong, expected.len())
    }
}

/// The outputs of `program`, bf16, from the definition of its product, by all threads of the host. `activations` and `weights` are as the program reads them;
/// rows whose scale is 0 are 0. `None`: its activation is unknown, or its activations have the layout of another version.
///
/// # Panics
/// If the number of activations or of weights is not the program's.
pub fn npu_product(program: &NpuProgram, activations: &[u8], weights: &[u8]) -> Option<Vec<u8>> {
    let shape = shape_of(program)?;
    let (activations, weights) = (Activations::unpack(&shape, activations), Weights::unpack(&shape, weights));
    let row_bytes = 2 * shape.outputs();
    let mut outputs = vec![0; shape.rows * row_bytes];
    let with_values = |(row, _): &(usize, &mut [u8])| activations.row_scales[*row] != 0.0;
    let mut rows: Vec<(usize, &mut [u8])> =
        outputs.chunks_exact_mut(row_bytes).enumerate().filter(with_values).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let each = rows.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for rows in rows.chunks_mut(each) {
            scope.spawn(|| {
                let indices = rows.iter().map(|(row, _)| *row);
                let values = twin::product_of_rows(&shape, &activations, &weights, indices);
                let bytes = rows.iter_mut().flat_map(|(_, bytes)| bytes.chunks_exact_mut(2));
                bytes.zip(values).for_each(|(to, value)| to.copy_from_slice(&value.to_le_bytes()));
            });
        }
    });
    Some(outputs)
}

/// The shape of a program whose activations have this version's layout.
fn shape_of(program: &NpuProgram) -> Option<GemmShape> {
    let has_layout = |shape: &GemmShape| program.arguments[ACTIVATIONS].bytes == shape.activation_bytes() as u64;
    GemmShape::of_program(program).filter(has_layout)
}
