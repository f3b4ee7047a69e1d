//! What every kernel family provides: [`KernelSpec`](crate::KernelSpec) delegates each method to the family's spec.

use crate::fragment_shape::FragmentShape;
use crate::fused_tail::FusedTailSpec;
use crate::role::BindingSpec;

/// An axis of a dispatch's workgroups along which they count rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowAxis {
    /// The axis: 0 to 2.
    pub axis: usize,
    /// Consecutive rows of each workgroup: workgroup `i` takes rows `i * rows` and following. It writes only these rows of its outputs, and reads only
    /// these of its inputs, but for keys and values of the cache, of which it reads those of these and of earlier rows.
    pub rows: usize,
}

impl RowAxis {
    /// A row a workgroup.
    pub(crate) fn each_row(axis: usize) -> Option<RowAxis> {
        Some(RowAxis { axis, rows: 1 })
    }
}

/// The spec of a kernel family. Methods that do not apply to a family keep their default.
pub(crate) trait Kernel {
    /// The buffers of descriptor set 0, in order.
    fn bindings(&self) -> Vec<BindingSpec>;

    /// Workgroups (x, y, z) for at most `rows` rows of the step.
    fn workgroups(&self, rows: usize) -> [usize; 3];

    /// The axis of `workgroups` that counts rows; `None`: none does, or a workgroup reads or writes other rows, too.
    fn row_axis(&self) -> Option<RowAxis> {
        None
    }

    /// WGSL with entry point `main`.
    fn wgsl(&self) -> String;

    /// Sides of the cooperative matrices that it multiplies; `None`: those in its WGSL, if it has any.
    fn fragment_shape(&self) -> Option<FragmentShape> {
        None
    }

    /// Whether the runtime dispatches it outside of programs.
    fn is_of_runtime(&self) -> bool {
        false
    }

    /// The flag for counter synchronisation with the dispatches before and after it; `None`: not supported.
    fn counter_sync(&mut self) -> Option<&mut bool> {
        None
    }

    /// Number of elements of the next dispatch's sums that it zeroes; `None`: not supported.
    fn clears(&mut self) -> Option<&mut usize> {
        None
    }

    /// The next matmul, if it computes that, too; `None`: not supported.
    fn fused_tail(&mut self) -> Option<&mut Option<FusedTailSpec>> {
        None
    }

    /// Whether the norm with which it begins reads sums instead of f32; `None`: it does not begin with a norm.
    fn reads_fixed_sums(&mut self) -> Option<&mut bool> {
        None
    }
}
