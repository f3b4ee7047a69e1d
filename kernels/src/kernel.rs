//! What every kernel family provides: [`KernelSpec`](crate::KernelSpec) delegates each method to the family's spec.

use crate::fragment_shape::FragmentShape;
use crate::fused_tail::FusedTailSpec;
use crate::role::BindingSpec;

/// The spec of a kernel family. Methods that do not apply to a family keep their default.
pub(crate) trait Kernel {
    /// The buffers of descriptor set 0, in order.
    fn bindings(&self) -> Vec<BindingSpec>;

    /// Workgroups (x, y, z) for at most `rows` rows of the step.
    fn workgroups(&self, rows: usize) -> [usize; 3];

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
