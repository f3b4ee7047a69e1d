//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// The kernel has no parameters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BandwidthProbeSpec {}

/// Invocations of a workgroup: Vulkan guarantees 128 on every device.
pub(super) const LANES: usize = 128;
/// Words of 16 bytes that a lane has in flight.
pub(super) const LOADS: usize = unicorn_artifact::kernels::READ_BLOCK_BYTES as usize / (16 * LANES);
pub(super) const BLOCK_WORDS: usize = unicorn_artifact::kernels::READ_BLOCK_BYTES as usize / 4;

impl Kernel for BandwidthProbeSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Weights, Role::Folded])
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows, 1, 1]
    }

    fn wgsl(&self) -> String {
        let values = Values::default()
            .size("LANES", LANES)
            .size("BLOCK_QUADS", LANES * LOADS)
            .count("LOADS", LOADS)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }

    fn is_of_runtime(&self) -> bool {
        true
    }
}
