//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::fragment_shape::FragmentShape;
use crate::kernel::Kernel;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// The extensions that a module on matrix units enables, before anything else.
pub(crate) const EXTENSIONS: &str = "enable f16;\nenable wgpu_cooperative_matrix;\n";

/// Lanes that share a row of a fragment.
pub(crate) const ROW_LANES: usize = 4;

/// A cooperative matrix on the right of a product, spread over the lanes of a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fragment {
    /// Rows and columns.
    pub side: usize,
    /// Lanes of the subgroup: a multiple of 4.
    pub subgroup_size: u32,
}

impl Fragment {
    /// Rows of which a lane holds a part.
    pub(crate) fn rows(&self) -> usize {
        self.side / self.rows_apart()
    }

    /// Distance between two rows of a lane, in rows.
    pub(crate) fn rows_apart(&self) -> usize {
        self.subgroup_size as usize / ROW_LANES
    }

    /// Words of two columns that a lane holds of each of its rows.
    pub(crate) fn words(&self) -> usize {
        self.side / ROW_LANES / 2
    }

    /// Words of a fragment that a lane holds.
    pub(crate) fn lane_words(&self) -> usize {
        self.rows() * self.words()
    }

    /// WGSL's name of such matrices.
    pub(crate) fn matrix(&self) -> String {
        FragmentShape::square(self.side).matrix()
    }
}

/// Parameters of the kernel that checks the layout.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FragmentsSpec {
    /// The layout that is expected.
    pub fragment: Fragment,
}

impl Kernel for FragmentsSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        bindings([Role::Folded])
    }

    fn workgroups(&self, _rows: usize) -> [usize; 3] {
        [1, 1, 1]
    }

    fn wgsl(&self) -> String {
        let Fragment { side, subgroup_size } = self.fragment;
        let values = Values::default()
            .size("SIDE", side)
            .size("SUBGROUP", subgroup_size as usize)
            .size("LANE_WORDS", self.fragment.lane_words())
            .text("MATRIX", self.fragment.matrix())
            .count("ROW_PAIRS", self.fragment.words())
            .count("ROWS_APART", self.fragment.rows_apart())
            .text("WORKGROUP_SIZE", subgroup_size)
            .text("DECLARATIONS", declarations(&self.bindings()));
        EXTENSIONS.to_owned() + &render(include_str!("kernel.wgsl"), &values)
    }

    fn is_of_runtime(&self) -> bool {
        true
    }
}
