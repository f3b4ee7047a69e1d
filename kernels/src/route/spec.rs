//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one router.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RouteSpec {
    /// Logits of a row.
    pub experts: usize,
    /// Experts of a row.
    pub chosen: usize,
    /// Whether the weights of a row's experts sum to 1.
    pub normalized: bool,
    /// Whether each weight is multiplied by a number of its expert.
    pub scaled: bool,
    /// Elements between rows of the logits.
    pub input_stride: usize,
    /// Words between rows of the routes.
    pub output_stride: usize,
}

/// Words of a row of routes.
pub fn routes_width(chosen: usize) -> usize {
    2 * chosen
}

const WORKGROUP: usize = 128;

impl Kernel for RouteSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let scale = self.scaled.then_some(Role::ExpertScale);
        bindings([Role::Step, Role::Input, Role::MadeRoutes].into_iter().chain(scale))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows, 1, 1]
    }

    fn wgsl(&self) -> String {
        assert!((1..=self.experts).contains(&self.chosen), "a row has experts, and no more than there are");
        let values = Values::default()
            .size("EXPERTS", self.experts)
            .size("CHOSEN", self.chosen)
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WORKGROUP", WORKGROUP)
            .flag("NORMALIZED", self.normalized)
            .flag("SCALED", self.scaled)
            .text("DECLARATIONS", declarations(&self.bindings()));
        render(include_str!("kernel.wgsl"), &values)
    }
}
