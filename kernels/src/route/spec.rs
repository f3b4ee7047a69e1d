//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::counter_sync;
use crate::kernel::Kernel;
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations_with_sync};
use crate::template::{Values, render};

/// Parameters of one router.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RouteSpec {
    /// Experts that are chosen from, a logit of a row for each.
    pub experts: usize,
    /// Experts that are chosen for a row.
    pub chosen: usize,
    /// Experts behind those that are chosen from, which every row is given to, too.
    pub shared: SharedExperts,
    /// What the router's logits become.
    pub scores: Scores,
    /// Whether the weights of a row's experts are divided by their sum.
    pub normalized: bool,
    /// Factor of all weights, after that.
    pub factor: Number,
    /// Whether experts are chosen by their score plus a number of the expert; weights are without it.
    pub choice_bias: bool,
    /// Whether each weight is multiplied by a number of its expert.
    pub scaled: bool,
    /// Whether experts are chosen among those of some groups.
    pub groups: Option<ExpertGroups>,
    /// Elements between rows of the logits.
    pub input_stride: usize,
    /// Words between rows of the routes.
    pub output_stride: usize,
    /// Synchronises with the dispatches before and after it by counters, not by barriers: see `counter_sync`.
    pub counter_sync: bool,
}

/// Scores of the experts of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Scores {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each expert's logit.
    Sigmoid,
}

/// Groups of consecutive experts, all of the same size. A row is given to experts of some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Groups whose experts may be chosen; of equal ones the first.
    pub kept: usize,
    /// Experts, 1 or 2, whose ranks' sum is that of their group: those of the highest ranks.
    pub best_of: usize,
}

/// Experts that every row is given to, numbered behind those that it is given to by choice. No factor or scale of those applies to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SharedExperts {
    /// Number of experts; 0: there are none.
    pub count: usize,
    /// Whether their weight is the sigmoid of one more logit, behind those of the others; otherwise it is 1.
    pub gated: bool,
}

impl SharedExperts {
    /// Logits of a row that are theirs.
    pub fn logits(&self) -> usize {
        usize::from(self.gated)
    }
}

/// Words of a row of routes to `experts` experts.
pub fn routes_width(experts: usize) -> usize {
    2 * experts
}

const WORKGROUP: usize = 128;
/// Quads of experts that a lane looks at together: a block.
const TOGETHER: usize = 8;

impl Kernel for RouteSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let counters = self.counter_sync.then_some(Role::SyncCounters);
        bindings([Role::Step, Role::Input].into_iter().chain(self.choice_roles()).chain(counters))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows, 1, 1]
    }

    fn wgsl(&self) -> String {
        let values = counter_sync::values(self.counter_sync, Values::default())
            .size("INPUT_STRIDE", self.input_stride)
            .size("WORKGROUP", WORKGROUP)
            .text("DECLARATIONS", declarations_with_sync(&self.bindings(), self.counter_sync, &[]));
        render(include_str!("kernel.wgsl"), &self.choice_values(values))
    }

    fn counter_sync(&mut self) -> Option<&mut bool> {
        Some(&mut self.counter_sync)
    }
}

impl RouteSpec {
    /// Logits of a row.
    pub fn logits(&self) -> usize {
        self.experts + self.shared.logits()
    }

    /// Experts that a row is given to.
    pub fn routes(&self) -> usize {
        self.chosen + self.shared.count
    }

    /// Roles of the operands of a choice, without the logits.
    pub(crate) fn choice_roles(&self) -> impl Iterator<Item = Role> {
        let scale = self.scaled.then_some(Role::ExpertScale);
        let bias = self.choice_bias.then_some(Role::ChoiceBias);
        [Role::MadeRoutes].into_iter().chain(scale).chain(bias)
    }

    /// Bytes of workgroup memory that a choice takes.
    pub(crate) fn choice_bytes(&self) -> usize {
        let finalists = (16 + 16) * self.finalist_quads();
        let logits = if self.has_logits_apart() { 16 * self.quads() } else { 0 };
        16 * self.quads() + finalists + logits + 4 * self.routes() + self.groups.map_or(0, |groups| 4 * groups.count)
    }

    /// Whether ranks are not the logits, or not all of them.
    fn has_logits_apart(&self) -> bool {
        self.choice_bias || self.groups.is_some()
    }

    /// Quads of experts, in whole steps of a lane.
    fn quads(&self) -> usize {
        self.experts.div_ceil(4).next_multiple_of(TOGETHER)
    }

    /// Runs of experts, each with finalists of its own.
    fn blocks(&self) -> usize {
        self.quads() / TOGETHER
    }

    /// Finalists of a block: as many as a row is given to.
    fn finalists(&self) -> usize {
        self.chosen.min(4 * TOGETHER)
    }

    /// Quads of all blocks' finalists, in whole steps of a lane; of one block none.
    fn finalist_quads(&self) -> usize {
        let all = (self.blocks() * self.finalists()).div_ceil(4);
        if self.blocks() > 1 { all.next_multiple_of(TOGETHER) } else { 0 }
    }

    /// Values of the piece `choose_experts`.
    pub(crate) fn choice_values(&self, values: Values) -> Values {
        assert!((1..=self.experts).contains(&self.chosen), "a row has experts, and no more than there are");
        assert!(self.shared.count > 0 || !self.shared.gated, "a gate is of shared experts");
        assert!(!self.choice_bias || self.scores == Scores::Sigmoid, "a softmax is chosen from by its logits");
        let values = match self.groups {
            Some(groups) => self.group_values(groups, values),
            None => values.flag("GROUPED", false),
        };
        values
            .flag("LOGITS_APART", self.has_logits_apart())
            .text("LOGITS", if self.has_logits_apart() { "logits" } else { "ranks" })
            .size("ROUTED_EXPERTS", self.experts)
            .size("ROUTED_QUADS", self.quads())
            .size("RANK_QUADS", self.quads() + self.finalist_quads())
            .count("ROUTED_TOGETHER", TOGETHER)
            .count("ROUTED_BLOCKS", self.blocks())
            .count("FINALISTS", self.finalists())
            .size("ROUTED_CHOSEN", self.chosen)
            .size("ROW_ROUTES", self.routes())
            .flag("SHARED_EXPERTS", self.shared.count > 0)
            .flag("SHARED_GATE", self.shared.gated)
            .size("MADE_ROUTES_STRIDE", self.output_stride)
            .number("ROUTE_FACTOR", self.factor.get())
            .flag("SIGMOID", self.scores == Scores::Sigmoid)
            .flag("CHOICE_BIAS", self.choice_bias)
            .number("LOWEST", f32::MIN)
            .flag("NORMALIZED", self.normalized)
            .flag("SCALED", self.scaled)
    }

    fn group_values(&self, groups: ExpertGroups, values: Values) -> Values {
        let ExpertGroups { count, kept, best_of } = groups;
        let size = self.experts / count;
        assert!(
            size * count == self.experts && (1..=size.min(2)).contains(&best_of),
            "groups are equal, and have such experts"
        );
        assert!(
            (1..=count).contains(&kept) && self.chosen <= kept * size,
            "a row's experts are in groups that it keeps"
        );
        assert!(best_of == 1 || self.scores == Scores::Sigmoid, "a sum of logits is not ordered as one of shares");
        values
            .flag("GROUPED", true)
            .flag("BEST_OF_TWO", best_of == 2)
            .size("ROUTED_GROUPS", count)
            .size("GROUP_EXPERTS", size)
            .size("GROUPS_KEPT", kept)
    }
}
