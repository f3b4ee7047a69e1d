//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use unicorn_artifact::step::KEPT_DRAWS;

use crate::chain;
use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one sampler.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SampleSpec {
    pub vocab: usize,
    /// Elements between rows of the logits.
    pub logits_stride: usize,
    /// Lanes; each owns a run of consecutive tokens while drawing.
    pub workgroup: usize,
    pub subgroup_size: u32,
    /// The program has chains: where a dispatch gave up waiting, the draw says so (`Output::stalled`).
    pub chained: bool,
}

impl Kernel for SampleSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        // The logits are rewritten with the penalties applied.
        let chain = self.chained.then_some(Role::ChainSlots);
        bindings([Role::StepState, Role::Output, Role::Drawn].into_iter().chain(chain))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows, 1, 1]
    }

    fn wgsl(&self) -> String {
        let values = chain::values(self.chained, Values::default())
            .size("SLOTS", chain::SLOTS)
            .size("KEPT_DRAWS", KEPT_DRAWS)
            .size("VOCAB", self.vocab)
            .size("LOGITS_STRIDE", self.logits_stride)
            .size("WORKGROUP", self.workgroup)
            .size("RUN", self.vocab.div_ceil(self.workgroup))
            .size("SUBGROUP", self.subgroup_size as usize)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
