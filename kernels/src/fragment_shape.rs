//! Sides of the cooperative matrices that a kernel multiplies.

use serde::{Deserialize, Serialize};

use crate::template::Values;

/// Sides of cooperative matrices: sums of m × n += left matrix of m × k · right matrix of k × n, as Vulkan's MSize, NSize and KSize.
/// Each is 8 or 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FragmentShape {
    /// Rows of the left matrix and of sums.
    pub m: usize,
    /// Columns of the right matrix and of sums.
    pub n: usize,
    /// Columns of the left matrix and rows of the right one.
    pub k: usize,
}

impl FragmentShape {
    /// All sides are equal.
    pub const fn square(side: usize) -> FragmentShape {
        FragmentShape { m: side, n: side, k: side }
    }

    /// WGSL's name of such matrices. naga knows only square ones: of others, this is a larger one, to which `unicorn_spirv` gives its
    /// sides.
    ///
    /// # Panics
    /// With sides that no kernel takes.
    pub(crate) fn matrix(&self) -> String {
        let FragmentShape { m, n, k } = *self;
        assert!([m, n, k].iter().all(|side| matches!(side, 8 | 16)), "fragments have sides of 8 or 16, found {self:?}");
        let side = m.max(n).max(k);
        format!("coop_mat{side}x{side}")
    }

    /// Values for kernels that multiply such matrices.
    pub(crate) fn values(&self, values: Values) -> Values {
        let sides = [("FRAGMENT_M", self.m), ("FRAGMENT_N", self.n), ("FRAGMENT_K", self.k)];
        sides.into_iter().fold(values.text("MATRIX", self.matrix()), |values, (name, side)| values.count(name, side))
    }
}
