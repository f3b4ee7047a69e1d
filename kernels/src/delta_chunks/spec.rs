//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::delta_rule::DeltaRuleSpec;
use crate::fragment_shape::FragmentShape;
use crate::kernel::Kernel;
use crate::role::{BindingSpec, declarations};
use crate::template::render;

/// Parameters of one gated delta rule of many rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeltaChunksSpec {
    /// The rule, whose rows are all of one sequence.
    pub rule: DeltaRuleSpec,
    /// Sides of its cooperative matrices.
    pub fragment: FragmentShape,
    /// Invocations of a subgroup; not 0.
    pub subgroup_size: u32,
}

/// Rows of a chunk.
const CHUNK: usize = 32;
/// Columns of a head's state in one workgroup, as many as rows of a chunk: products of both have the same fragments.
const COLUMNS: usize = CHUNK;
/// Subgroups of a workgroup.
const SUBGROUPS: usize = 4;
/// Quads of a row of `CHUNK` sums, and one more, so that rows lie in different banks; likewise below.
const ROW_QUADS: usize = CHUNK / 4 + 1;
const PLANE_QUADS: usize = CHUNK * ROW_QUADS;
/// Words, of eight f16, of a row of `CHUNK` elements.
const CHUNK_WORDS: usize = CHUNK / 8 + 1;

impl DeltaChunksSpec {
    /// Whether the kernel can compute this rule: heads are cut evenly, and a lane has a column.
    pub fn is_possible(&self) -> bool {
        let (state, lanes) = (&self.rule.state, self.lanes());
        let even = state.key_dim.is_multiple_of(32) && state.value_dim.is_multiple_of(COLUMNS);
        !self.rule.rows_are_alone && even && self.rule.input_stride.is_multiple_of(4) && lanes >= COLUMNS
    }

    /// Bytes of workgroup memory.
    pub fn shared_bytes(&self) -> usize {
        let words = (2 * CHUNK + COLUMNS) * self.key_words() + (2 * COLUMNS + CHUNK) * CHUNK_WORDS;
        16 * (words + 3 * PLANE_QUADS + CHUNK) + 4 * (4 * CHUNK + self.fragment.m)
    }

    fn lanes(&self) -> usize {
        SUBGROUPS * self.subgroup_size as usize
    }

    /// Words of a row of K or Q.
    fn key_words(&self) -> usize {
        self.rule.state.key_dim / 8 + 1
    }
}

impl Kernel for DeltaChunksSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        self.rule.bindings()
    }

    fn workgroups(&self, _rows: usize) -> [usize; 3] {
        [self.rule.state.heads * (self.rule.state.value_dim / COLUMNS), 1, 1]
    }

    fn wgsl(&self) -> String {
        assert!(self.is_possible(), "a kernel for such heads: {self:?}");
        let (key_dim, fragment) = (self.rule.state.key_dim, self.fragment);
        let across = COLUMNS / fragment.n;
        let key_items = CHUNK * key_dim / 8;
        let state_fragments = key_dim / fragment.m * across / SUBGROUPS;
        let fragment_quads = fragment.m * fragment.n / 4;
        let values = (self.rule.values())
            .size("KEY_DIM", key_dim)
            .size("CHUNK", CHUNK)
            .size("COLUMNS", COLUMNS)
            .size("BLOCKS", self.rule.state.value_dim / COLUMNS)
            .size("KEY_WORDS", self.key_words())
            .size("CHUNK_WORDS", CHUNK_WORDS)
            .size("ROW_QUADS", ROW_QUADS)
            .size("PLANE_QUADS", PLANE_QUADS)
            .size("FRAGMENT_QUADS", fragment_quads)
            .size("SUBGROUP", self.subgroup_size as usize)
            .size("WORKGROUP", self.lanes())
            .count("FRAGMENTS", CHUNK / fragment.m * across / SUBGROUPS)
            .count("FRAGMENTS_ACROSS", across)
            .count("KEY_FRAGMENTS", key_dim / fragment.k)
            .count("STATE_FRAGMENTS", state_fragments)
            .count("ROUND_FRAGMENTS", state_fragments.min(2 * PLANE_QUADS / (SUBGROUPS * fragment_quads)))
            .count("KEY_ITEMS", key_items)
            .count("KEY_LOADS", key_items.div_ceil(self.lanes()))
            .flag("SUBGROUPS", true)
            .text("WORKGROUP_SIZE", self.lanes())
            .text("DECLARATIONS", declarations(&self.bindings()));
        // Extensions are enabled before anything else.
        let extensions = "enable f16;\nenable wgpu_cooperative_matrix;\n";
        extensions.to_owned() + &render(include_str!("kernel.wgsl"), &fragment.values(values))
    }

    fn fragment_shape(&self) -> Option<FragmentShape> {
        Some(self.fragment)
    }
}
