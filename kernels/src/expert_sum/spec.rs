//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::counter_sync;
use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations_with_sync};
use crate::template::{Values, render};

/// Parameters of one weighted sum.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExpertSumSpec {
    /// Elements of a row.
    pub width: usize,
    /// Experts of a row, and so rows of the input for each of the output.
    pub chosen: usize,
    /// Elements between rows of input and output.
    pub stride: usize,
    /// Words between rows of the routes.
    pub routes_stride: usize,
    /// Synchronises with the dispatches before and after it by counters, not by barriers: see `counter_sync`.
    pub counter_sync: bool,
}

const WORKGROUP: usize = 64;

impl Kernel for ExpertSumSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let counters = self.counter_sync.then_some(Role::SyncCounters);
        bindings([Role::Step, Role::Input, Role::Routes, Role::Output].into_iter().chain(counters))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.width.div_ceil(WORKGROUP), rows, 1]
    }

    fn wgsl(&self) -> String {
        let values = counter_sync::values(self.counter_sync, Values::default())
            .size("WIDTH", self.width)
            .size("CHOSEN", self.chosen)
            .size("STRIDE", self.stride)
            .size("ROUTES_STRIDE", self.routes_stride)
            .size("WORKGROUP", WORKGROUP)
            .text("DECLARATIONS", declarations_with_sync(&self.bindings(), self.counter_sync, &[]));
        render(include_str!("kernel.wgsl"), &values)
    }

    fn counter_sync(&mut self) -> Option<&mut bool> {
        Some(&mut self.counter_sync)
    }
}
