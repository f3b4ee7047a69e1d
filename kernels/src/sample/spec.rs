//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use unicorn_artifact::step::KEPT_SAMPLES;

use crate::counter_sync;
use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one sampler.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SampleSpec {
    /// Tokens of the vocabulary: logits of a row.
    pub vocab: usize,
    /// Elements between rows of the logits.
    pub logits_stride: usize,
    /// Lanes of the workgroup; each has a run of consecutive tokens while it samples.
    pub workgroup: usize,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
    /// Whether a row's [`unicorn_artifact::step::Row::rope_variant`] stays as it is when the next token takes the row, see
    /// `unicorn_artifact::step::rope_word`.
    pub keeps_rope_word: bool,
    /// Whether the program synchronises by counters: the output then reports waits that timed out (`Output::stalled`).
    pub counter_sync: bool,
}

impl Kernel for SampleSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        // The logits are rewritten with penalties and masks applied.
        let counters = self.counter_sync.then_some(Role::AllSyncCounters);
        bindings([Role::StepState, Role::Output, Role::Sampled, Role::Masks].into_iter().chain(counters))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows, 1, 1]
    }

    fn wgsl(&self) -> String {
        let values = counter_sync::values(self.counter_sync, Values::default())
            .flag("KEEPS_ROPE_WORD", self.keeps_rope_word)
            .size("SLOTS", counter_sync::SLOTS)
            .size("KEPT_SAMPLES", KEPT_SAMPLES)
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
