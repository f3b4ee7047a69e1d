//! What every kernel family provides: [`KernelSpec`](crate::KernelSpec) delegates each method to the family's spec.

use crate::fused_tail::FusedTailSpec;
use crate::role::BindingSpec;

/// One family's spec. What a family cannot do, it leaves at its default.
pub(crate) trait Kernel {
    /// The buffers of descriptor set 0, in order.
    fn bindings(&self) -> Vec<BindingSpec>;

    /// Workgroups (x, y, z) for at most `rows` rows of the step.
    fn workgroups(&self, rows: usize) -> [usize; 3];

    /// WGSL with entry point `main`.
    fn wgsl(&self) -> String;

    /// Whether the runtime starts it by itself, in no program.
    fn is_of_runtime(&self) -> bool {
        false
    }

    /// Whether it waits for the dispatch before it without a barrier.
    fn counter_sync(&mut self) -> Option<&mut bool> {
        None
    }

    /// How many elements of the next dispatch's sums it zeroes.
    fn clears(&mut self) -> Option<&mut usize> {
        None
    }

    /// The matmul behind it that it does, too.
    fn fused_tail(&mut self) -> Option<&mut Option<FusedTailSpec>> {
        None
    }

    /// Whether the norm with which it begins reads sums instead of f32.
    fn reads_fixed_sums(&mut self) -> Option<&mut bool> {
        None
    }
}
