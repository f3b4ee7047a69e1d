//! A tensor as f32.

/// Values in row order.
pub struct Tensor {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}
