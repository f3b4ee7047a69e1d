//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::counter_sync;
use crate::kernel::Kernel;
use crate::recurrent_state::StateLayout;
use crate::role::{BindingSpec, Role, bindings, declarations_with_sync};
use crate::template::{Values, render};

/// Parameters of one short convolution.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShortConvSpec {
    /// Channels, taps, and where a channel's last inputs are kept.
    pub state: StateLayout,
    /// Index of the KV group whose block table names the page.
    pub kv_group: usize,
    /// Which inputs it convolves, and what it computes from the sums.
    pub form: ConvForm,
    /// Elements between rows of the input.
    pub input_stride: usize,
    /// Elements between rows of the output.
    pub output_stride: usize,
    /// Whether each row is the only one of its sequence; otherwise all rows are of one sequence.
    pub rows_are_alone: bool,
    /// Synchronises with the dispatches before and after it by counters, not by barriers: see `counter_sync`.
    pub counter_sync: bool,
}

/// Where a convolution's inputs come from, and where its sums go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ConvForm {
    /// The input has a column a channel; SiLU of the sums.
    Activated,
    /// The input has three blocks of a column a channel: the first times the third is convolved, and the second multiplies the sums.
    Gated,
}

impl ConvForm {
    /// Columns of the input for `channels` channels.
    pub fn input_width(self, channels: usize) -> usize {
        match self {
            ConvForm::Activated => channels,
            ConvForm::Gated => 3 * channels,
        }
    }
}

const WORKGROUP: usize = 64;
/// Rows of a lane where all are of one sequence, unless a channel keeps more.
const ROWS: usize = 16;

impl ShortConvSpec {
    fn rows_per_lane(&self) -> usize {
        if self.rows_are_alone { 1 } else { ROWS.max(self.state.taps - 1) }
    }
}

impl Kernel for ShortConvSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let roles = [Role::Step, Role::Input, Role::Output, Role::Taps, Role::StateLow, Role::StateHigh];
        bindings(roles.into_iter().chain(self.counter_sync.then_some(Role::SyncCounters)))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.state.channels.div_ceil(WORKGROUP), rows.div_ceil(self.rows_per_lane()), 1]
    }

    fn wgsl(&self) -> String {
        let values = counter_sync::values(self.counter_sync, Values::default());
        let values = Activation::values(Some(Activation::Silu), values)
            .size("CHANNELS", self.state.channels)
            .size("KEPT", self.state.taps - 1)
            .size("ROWS", self.rows_per_lane())
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("WORKGROUP", WORKGROUP)
            .flag("ALONE", self.rows_are_alone)
            .flag("GATED", self.form == ConvForm::Gated)
            .text("DECLARATIONS", declarations_with_sync(&self.bindings(), self.counter_sync, &[Role::Taps]));
        render(include_str!("kernel.wgsl"), &self.state.values(self.kv_group, values))
    }

    fn counter_sync(&mut self) -> Option<&mut bool> {
        Some(&mut self.counter_sync)
    }
}
