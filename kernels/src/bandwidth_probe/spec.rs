//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::spec::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// There is nothing to choose.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BandwidthProbeSpec {}

/// What every device has: Vulkan promises workgroups of 128.
pub(super) const LANES: usize = 128;
/// Words of 16 bytes that a lane has under way at a time.
pub(super) const LOADS: usize = unicorn_artifact::kernels::READ_BLOCK_BYTES as usize / (16 * LANES);
pub(super) const BLOCK_WORDS: usize = unicorn_artifact::kernels::READ_BLOCK_BYTES as usize / 4;

impl BandwidthProbeSpec {
    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Weights, Role::Folded])
    }

    pub(crate) fn wgsl(&self) -> String {
        let names: Vec<String> = (0..LOADS).map(|load| format!("quad_{load}")).collect();
        let load = |(load, name): (usize, &String)| format!("let {name} = weights[first + {}u];\n", load * LANES);
        let values = Values::default()
            .size("LANES", LANES)
            .size("BLOCK_QUADS", LANES * LOADS)
            .text("LOADS", names.iter().enumerate().map(load).collect::<String>())
            .text("QUADS", names.join(" ^ "))
            .text("WORKGROUP_SIZE", LANES)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
