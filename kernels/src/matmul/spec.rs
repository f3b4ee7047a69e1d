//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::activation_format::{self, ACTIVATION_GROUP, ActivationFormat, Precision};
use crate::counter_sync;
use crate::expert_rows::ExpertTiles;
use crate::fixed_sums;
use crate::fused_tail::{self, FusedTailSpec};
use crate::kernel::Kernel;
use crate::layout::{TILE_ROWS, WeightFormat, WeightLayout, unpacking};
use crate::norm::NormSpec;
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations_with_sync, rows_of_step};
use crate::route::RouteSpec;
use crate::template::{Values, render};

/// Parameters of one matmul pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MatMulSpec {
    /// Format and shape of the weights W.
    pub layout: WeightLayout,
    /// Words between rows of the input.
    pub input_stride: usize,
    /// Words between rows of the output.
    pub output_stride: usize,
    /// First column of the output that this matrix writes (a large head is cut into several matrices).
    pub output_first: usize,
    /// `F32`, or `Quantized` with INT4 and INT8 weights.
    pub input: ActivationFormat,
    /// The norm that makes the input; needs `tile.tokens_per_lane` of 1. With `also_f32`, the input is f32, and its integers are stored for
    /// other readers.
    pub prologue: Option<NormSpec>,
    /// `F32`, or `Quantized`: then a workgroup makes whole groups.
    pub output: ActivationFormat,
    /// Whether a bias is added, one f32 for each row of the matrix. With experts, it has the rows of every expert in turn, also of
    /// those that are not in the stack.
    pub bias: bool,
    /// Tiles alternate gate, up, gate, up; the output is `act(gate) * up`, half as many rows.
    pub act_mul: Option<Activation>,
    /// The matmul that reads this one's result, codes of one row; the same workgroups compute it.
    pub fused_tail: Option<FusedTailSpec>,
    /// Elements of the sums that the dispatch behind this one adds to, zeroed here; a multiple of 4, or 0.
    pub clears: usize,
    /// `cap` in `cap * tanh(y / cap)`; `None`: the result is not capped.
    pub softcap: Option<Number>,
    /// The choice of experts by the logits of one row, f32. A router's logits are the result, and its last workgroup to complete chooses. In a
    /// matmul of experts, each workgroup chooses, by the logits that a router left, and the first one stores the routes.
    pub choice: Option<RouteSpec>,
    /// The experts, if the matrix is a stack with one matrix for each, which `layout` describes.
    pub experts: Option<ExpertsSpec>,
    /// Rows for each row of the step, without experts.
    pub rows_per_token: usize,
    /// Whether it reads row `StepHeader::logits_row` only and writes row 0.
    pub row_from_step: bool,
    /// How lanes share the work.
    pub tile: MatMulTile,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
    /// Synchronises with the dispatches before and after it by counters, without a barrier: see `counter_sync`.
    pub counter_sync: bool,
}

/// Which matrices of the stack multiply a row: those of the experts that `route` chose for it. The result has a row for each of
/// them; those of the same row of the step follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExpertsSpec {
    /// Experts of a row.
    pub chosen: usize,
    /// Whether the input has a row for each expert of a row, too. Otherwise all experts of a row read the same row.
    pub own_input: bool,
    /// The first expert of the stack: a large stack is cut into several matrices.
    pub first: usize,
    /// Experts of the stack.
    pub count: usize,
    /// Experts of one binding of weights: the stack is bound in parts of so many, up to `MAX_PARTS`, of which the last may have fewer.
    /// At least `count`: it is one.
    pub part: usize,
    /// Words between rows of the routes.
    pub routes_stride: usize,
    /// Tiles of the table (`expert_rows`) from which a workgroup takes several rows of one expert; `None`: a workgroup has one row,
    /// whose expert is in the routes.
    pub tiles: Option<ExpertTiles>,
    /// Whether the result is one row for each row of the step: the sum of its experts' rows, weighted by the routes (as `expert_sum` of them).
    /// Lanes that share a matrix row are divided between the experts. Needs `own_input`, all experts of the stack and no `tiles`.
    pub summed: bool,
}

/// Most parts of a stack that one kernel binds.
pub const MAX_PARTS: usize = 4;

impl ExpertsSpec {
    /// Parts into which the lanes of a matrix row are divided, one an expert of the row; 1: they all have the same expert.
    pub fn lane_parts(&self) -> usize {
        if self.summed { self.chosen } else { 1 }
    }

    /// Rows of the result for each row of the step.
    fn rows_per_token(&self) -> usize {
        if self.summed { 1 } else { self.chosen }
    }

    /// Bindings of weights.
    fn parts(&self) -> usize {
        self.count.div_ceil(self.part)
    }

    /// The matrix of the stack and the row of the input that give row `row` of the result; `None`: its expert is in another stack.
    pub(crate) fn matrix_and_input(&self, routes: &[u32], row: usize) -> Option<(usize, usize)> {
        let step_row = row / self.chosen;
        let expert = routes[step_row * self.routes_stride + row % self.chosen] as usize;
        let matrix = expert.checked_sub(self.first).filter(|&matrix| matrix < self.count)?;
        Some((matrix, if self.own_input { row } else { step_row }))
    }

    /// The biases of matrix `matrix` of the stack, (rows); empty if there is no bias.
    pub(crate) fn bias_of<'a>(&self, biases: &'a [f32], matrix: usize, rows: usize, has_bias: bool) -> &'a [f32] {
        if has_bias { &biases[(self.first + matrix) * rows..][..rows] } else { &[] }
    }

    /// Role of the buffer that assigns rows to experts.
    pub(crate) fn role(&self) -> Role {
        if self.tiles.is_some() { Role::ExpertRows } else { Role::Routes }
    }

    /// Values for kernels that multiply by the matrices of experts.
    pub(crate) fn values(experts: Option<&ExpertsSpec>, values: Values) -> Values {
        let tiles = experts.and_then(|experts| experts.tiles);
        let values = values
            .flag("EXPERTS", experts.is_some())
            .flag("BY_EXPERT", tiles.is_some())
            .flag("SUMMED", experts.is_some_and(|experts| experts.summed))
            .flag("OWN_INPUT", experts.is_some_and(|experts| experts.own_input))
            .count("CHOSEN", experts.map_or(0, |experts| experts.chosen))
            .count("FIRST_EXPERT", experts.map_or(0, |experts| experts.first))
            .count("EXPERTS_HERE", experts.map_or(0, |experts| experts.count))
            .count("PART_EXPERTS", experts.map_or(1, |experts| experts.part))
            .count("WEIGHT_PARTS", experts.map_or(1, ExpertsSpec::parts))
            .count("ROUTES_STRIDE", experts.map_or(0, |experts| experts.routes_stride));
        match tiles {
            Some(tiles) => tiles.values(values),
            None => values,
        }
    }
}

/// How lanes share the work; chosen per device and shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MatMulTile {
    /// Rows of the step that one lane handles: each weight is unpacked once for all of them.
    pub tokens_per_lane: usize,
    /// Tiles of 8 matrix rows that one lane handles: each activation is loaded once for all of them.
    pub tiles_per_lane: usize,
    /// Lanes that share a matrix row, each with every `split_k`-th block; see [`MatMulTile::split_of`].
    pub split_k: usize,
    /// Lane groups of 8 · split_k in a workgroup.
    pub group_tiles: usize,
    /// Groups of 32 columns that a lane has in flight, where the input is integers.
    pub unroll: usize,
    /// Passes of a workgroup, each over the matrix rows after those of the last: a prologue then serves that many times more rows.
    pub passes: usize,
    /// With `counter_sync`, whether the kernel loads its first weights before it waits, and keeps them in registers. Otherwise the
    /// driver may load them later, which saves these registers.
    pub early: bool,
    /// How the lanes of a subgroup share what they load.
    pub sharing: Sharing,
}

/// How the lanes of a subgroup share what they load, where activations are f32. All but `Own` need subgroups of 8 lanes and
/// `split_k` of 1, and are for devices that are a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Sharing {
    /// Each lane loads what it needs itself.
    #[default]
    Own,
    /// A lane loads one of every eight activations and receives the others from its neighbours: for devices where each lane's load
    /// has a cost.
    Broadcast,
    /// Lanes take eight columns of a row, the rows of a tile follow one another: for devices that load a value which all lanes
    /// share only once, and on which other loads are slow. Needs `tokens_per_lane` of 1.
    Across,
}

impl MatMulTile {
    /// The least `split_k`, `lanes` or more, whose lanes add up within subgroups: a power of two, or the lanes of whole subgroups.
    pub fn split_of(lanes: usize, subgroup_size: u32) -> usize {
        let of_subgroup = (subgroup_size as usize / TILE_ROWS).max(1);
        if lanes > of_subgroup { lanes.next_multiple_of(of_subgroup) } else { lanes.next_power_of_two() }
    }

    /// Invocations of a workgroup.
    pub fn workgroup_size(&self) -> usize {
        TILE_ROWS * self.split_k * self.group_tiles
    }
}

impl Kernel for MatMulSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let mut roles = vec![Role::Step, Role::Weights];
        let parts = self.experts.map_or(1, |experts| experts.parts());
        roles.extend((1..parts).map(|part| Role::WeightsPart(part as u8)));
        match (&self.fused_tail, self.output) {
            (Some(_), _) => roles.extend(FusedTailSpec::roles()),
            (None, ActivationFormat::F32) if self.is_router() => roles.push(Role::ExchangedOutput),
            (None, ActivationFormat::F32) => roles.push(Role::Output),
            (None, _) => roles.push(Role::Encoded),
        }
        roles.extend(self.encoded_input().map(|_| Role::Encoded));
        match (&self.prologue, self.input) {
            (Some(norm), _) => roles.extend(norm.data_roles()),
            (None, ActivationFormat::F32) => roles.push(Role::InputQuads),
            (None, _) => roles.push(Role::QuantizedInput),
        }
        roles.extend(match (&self.experts, &self.choice) {
            (Some(_), Some(_)) => Some(Role::RouterLogits),
            (Some(experts), None) => Some(experts.role()),
            (None, Some(_)) => Some(Role::CompletionCounters),
            (None, None) => None,
        });
        roles.extend(self.bias.then_some(Role::Bias));
        roles.extend(self.choice.iter().flat_map(RouteSpec::choice_roles));
        roles.extend((self.clears > 0).then_some(Role::ClearedFixedSums));
        roles.extend(self.counter_sync.then_some(Role::SyncCounters));
        bindings(roles)
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        let tiles_per_group = self.tile.group_tiles * self.tile.tiles_per_lane;
        let rows = if self.row_from_step { 1 } else { rows };
        // Workgroups that share weights are neighbours, so that all but the first find them in a cache.
        let across = match self.experts {
            None => rows.div_ceil(self.tile.tokens_per_lane),
            Some(experts) => experts.tiles.map_or(rows * experts.rows_per_token(), |tiles| tiles.max_tiles),
        };
        [across, self.layout.tiles().div_ceil(tiles_per_group * self.tile.passes), 1]
    }

    fn wgsl(&self) -> String {
        self.check();
        let layout = &self.layout;
        let norm = self.prologue.as_ref();
        // What a workgroup quantises: its normed input, its output, or both; and how many elements it stores so.
        let (encoded, encoded_elements) = match (norm, self.encoded_input()) {
            (Some(norm), Some(format)) => (format, norm.width),
            (Some(_), None) if self.input != ActivationFormat::F32 => (self.input, self.output_rows()),
            _ => (self.output, self.output_rows()),
        };
        let groups = if self.fused_tail.is_some() { self.group_rows() / ACTIVATION_GROUP } else { 0 };
        let values = counter_sync::values(self.counter_sync, fixed_sums::clearing(self.clears, Values::default()));
        let values = fused_tail::values(self.fused_tail.as_ref(), self.tile.workgroup_size(), groups, values);
        let values = unpacking(&self.formats(), values)
            .size("COLS", layout.cols)
            .size("PADDED_COLS", layout.padded_cols())
            .size("BLOCKS", layout.blocks_per_tile())
            .size("BLOCK_WORDS", layout.format.block_words())
            .size("TILES", layout.tiles())
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("OUTPUT_FIRST", self.output_first)
            .size("OUTPUT_ROWS", self.output_rows())
            .size("INPUT_GROUPS", activation_format::groups(layout.cols))
            .size("INPUT_GROUP_WORDS_AT", self.input_group_words_at())
            .size("INPUT_PLANES", self.input.precision().map_or(1, Precision::planes))
            .size("GROUP_ROWS", self.group_rows())
            .size("TOKENS_PER_LANE", self.tile.tokens_per_lane)
            .size("TILES_PER_LANE", self.tile.tiles_per_lane)
            .size("SPLIT_K", self.tile.split_k)
            .size("PASSES", self.tile.passes)
            .size("GROUP_TILES", self.tile.group_tiles)
            .size("PARTS", self.parts_per_row())
            .size("PARTIALS", self.partials())
            .size("WORKGROUP", self.tile.workgroup_size())
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("EPS", norm.map_or(0.0, |norm| norm.eps.get()))
            .number("CAP", self.softcap.map_or(0.0, Number::get))
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .flag("PROLOGUE", norm.is_some())
            .flag("CODES", self.input != ActivationFormat::F32)
            .flag("ENCODED_OUTPUT", self.output != ActivationFormat::F32)
            .flag("ENCODED_INPUT", self.encoded_input().is_some())
            .flag("CHOICE", self.choice.is_some())
            .count("ROUTER_WORKGROUPS", self.workgroups(1)[1])
            .count("ROUTER_LOGITS_STRIDE", self.choice.as_ref().map_or(0, |choice| choice.input_stride))
            .flag("TAIL", layout.cols != layout.padded_cols())
            .flag("OWN_LOADS", self.tile.sharing == Sharing::Own)
            .flag("SPLIT", self.tile.split_k > 1)
            .flag("MANY_PASSES", self.tile.passes > 1)
            .flag("MANY_PARTS", self.parts_per_row() > 1)
            .flag("ACT_MUL", self.act_mul.is_some())
            .flag("SOFTCAP", self.softcap.is_some())
            .flag("ROW_FROM_STEP", self.row_from_step)
            .text("ROWS_IN_USE", rows_of_step(self.rows_per_token))
            .text("DECLARATIONS", declarations_with_sync(&self.bindings(), self.counter_sync, self.guarded()));
        let values = Activation::values(self.act_mul, ExpertsSpec::values(self.experts.as_ref(), values));
        let values = self.loop_values(layout.format.values("MATRIX", values));
        let values = match norm {
            Some(norm) => norm.row_values(self.prologue_slots(), values),
            None => values,
        };
        let values = match &self.choice {
            Some(choice) => choice.choice_values(values),
            None => values,
        };
        render(include_str!("kernel.wgsl"), &encoded.row_values(encoded_elements, values))
    }

    fn counter_sync(&mut self) -> Option<&mut bool> {
        // Tiles of rows by expert are made by a kernel that does not count.
        let by_expert = self.experts.is_some_and(|experts| experts.tiles.is_some());
        (!by_expert).then_some(&mut self.counter_sync)
    }

    fn clears(&mut self) -> Option<&mut usize> {
        self.experts.is_none().then_some(&mut self.clears)
    }

    fn fused_tail(&mut self) -> Option<&mut Option<FusedTailSpec>> {
        let goes_on = self.experts.is_none() && self.choice.is_none();
        (goes_on && self.layout.format.unpacks_with_others()).then_some(&mut self.fused_tail)
    }

    fn reads_fixed_sums(&mut self) -> Option<&mut bool> {
        self.prologue.as_mut().map(|norm| &mut norm.fixed_sums)
    }
}

impl MatMulSpec {
    /// Rows of the result.
    pub fn output_rows(&self) -> usize {
        if self.act_mul.is_some() { self.layout.rows / 2 } else { self.layout.rows }
    }

    /// Rows of the result that one workgroup computes in a pass.
    pub fn group_rows(&self) -> usize {
        let rows = TILE_ROWS * self.tile.group_tiles * self.tile.tiles_per_lane;
        if self.act_mul.is_some() { rows / 2 } else { rows }
    }

    /// Whether it makes logits and chooses experts by them.
    pub fn is_router(&self) -> bool {
        self.choice.is_some() && self.experts.is_none()
    }

    /// The format in which the normed input is stored for other readers.
    fn encoded_input(&self) -> Option<ActivationFormat> {
        self.prologue.as_ref().filter(|norm| norm.also_f32).map(|norm| norm.format)
    }

    /// Lanes that share a row of one matrix, and take the runs of its columns in turn; those that are left over have none.
    pub fn column_lanes(&self) -> usize {
        self.tile.split_k / self.experts.map_or(1, |experts| experts.lane_parts())
    }

    /// Bytes of workgroup memory.
    pub fn shared_bytes(&self) -> usize {
        let normed = match (&self.prologue, self.input.precision()) {
            (None, _) => 0,
            (Some(_), None) => 4 * self.layout.padded_cols(),
            (Some(_), Some(precision)) => activation_format::groups(self.layout.cols) * (32 * precision.planes() + 4),
        };
        let staged =
            if self.output == ActivationFormat::F32 { 0 } else { 4 * self.tile.tokens_per_lane * self.group_rows() };
        let next = if self.fused_tail.is_some() {
            FusedTailSpec::shared_bytes(self.group_rows() / ACTIVATION_GROUP)
        } else {
            0
        };
        let choice = self.choice.as_ref().map_or(0, RouteSpec::choice_bytes);
        // Partial sums, and the parts of a norm's and a group's reduction.
        normed + staged + next + choice + 4 * self.partials() + 8 * self.tile.workgroup_size()
    }

    /// Sums of one row that a workgroup adds up through its memory: one a subgroup where there are subgroups.
    fn parts_per_row(&self) -> usize {
        (TILE_ROWS * self.tile.split_k / (self.subgroup_size as usize).max(TILE_ROWS)).max(1)
    }

    fn partials(&self) -> usize {
        let parts = self.parts_per_row();
        let of_one = self.tile.group_tiles * parts * TILE_ROWS;
        if parts > 1 { of_one * self.tile.tiles_per_lane * self.tile.tokens_per_lane } else { 0 }
    }

    /// Buffers from which it loads before it waits; it keeps what it loaded.
    fn guarded(&self) -> &[Role] {
        if self.tile.early { &[Role::Weights, Role::TailWeights] } else { &[Role::TailWeights] }
    }

    /// Groups of the next matrix' weights that a lane holds; 0: there is no fused tail.
    pub fn tail_groups_per_lane(&self) -> usize {
        let groups = self.group_rows() / ACTIVATION_GROUP;
        self.fused_tail.as_ref().map_or(0, |next| next.groups_per_lane(self.tile.workgroup_size(), groups))
    }

    /// Formats of the matrices that it multiplies by.
    fn formats(&self) -> Vec<WeightFormat> {
        [Some(&self.layout), self.fused_tail.as_ref().map(|next| &next.layout)]
            .into_iter()
            .flatten()
            .map(|one| one.format)
            .collect()
    }

    /// Preconditions that `unicorn_compiler::select` ensures.
    fn check(&self) {
        let tile = &self.tile;
        assert!(self.prologue.is_none() || tile.tokens_per_lane == 1, "a prologue norms one row");
        assert!(self.prologue.is_some() || tile.passes == 1, "passes share a prologue");
        if let Some(experts) = self.experts {
            let rows = experts.tiles.map_or(1, |tiles| tiles.tile_rows);
            assert_eq!(tile.tokens_per_lane, rows, "a workgroup has rows of one expert");
            let is_plain = self.softcap.is_none() && self.prologue.is_none() && !self.row_from_step;
            assert!(is_plain && self.output_first == 0, "experts make whole rows of all rows");
            assert!(
                experts.tiles.is_none() || !self.counter_sync,
                "tiles of rows come from a kernel that does not count"
            );
            assert!(experts.parts() == 1 || self.input != ActivationFormat::F32, "parts of a stack take integers");
            assert!((1..=MAX_PARTS).contains(&experts.parts()), "a stack has parts");
            if experts.summed {
                let is_whole = experts.own_input && experts.first == 0 && experts.tiles.is_none();
                let is_plain = self.act_mul.is_none() && self.output == ActivationFormat::F32;
                assert!(is_whole && is_plain, "a sum has the products of all experts of a row");
                assert!(tile.split_k >= experts.lane_parts(), "each expert has lanes of a row");
            }
        }
        let whole = MatMulTile::split_of(tile.split_k, self.subgroup_size);
        assert_eq!(tile.split_k, whole, "lanes of a row add up within subgroups, and these add up in turn");
        assert!(!self.row_from_step || tile.tokens_per_lane == 1, "logits_row is one row");
        assert!(tile.sharing == Sharing::Own || tile.split_k == 1, "neighbours work on the same block");
        assert!(
            tile.sharing != Sharing::Across || tile.tokens_per_lane == 1,
            "lanes across columns have one row of the step"
        );
        assert!(self.act_mul.is_none() || tile.tiles_per_lane.is_multiple_of(2), "gate and up tiles come in pairs");
        let made = |norm: &NormSpec| if norm.also_f32 { ActivationFormat::F32 } else { norm.format };
        assert!(self.prologue.as_ref().is_none_or(|norm| made(norm) == self.input), "a prologue makes the input");
        if let Some(format) = self.encoded_input() {
            assert!(matches!(format, ActivationFormat::Quantized(_)), "integers are stored without a row's factor");
            assert_eq!(self.output, ActivationFormat::F32, "a kernel stores one row of integers");
        }
        match (&self.choice, &self.experts) {
            (Some(choice), None) => {
                let is_plain = self.softcap.is_none() && self.act_mul.is_none();
                let is_of_one_row = tile.tokens_per_lane == 1 && self.rows_per_token == 1 && !self.row_from_step;
                let is_whole = self.output_first == 0 && self.output == ActivationFormat::F32;
                assert!(is_plain && is_of_one_row && is_whole, "experts are chosen by the logits of one row");
                let fits = (choice.logits(), choice.input_stride) == (self.layout.rows, self.output_stride);
                assert!(fits, "a row for each logit");
            }
            (Some(choice), Some(experts)) => {
                let takes_choice = !experts.summed && experts.tiles.is_none() && experts.chosen == choice.routes();
                assert!(takes_choice, "a workgroup chooses for the row that it multiplies");
            }
            (None, _) => {}
        }
        match self.input {
            ActivationFormat::F32 => {}
            ActivationFormat::Quantized(_) => {
                assert!(self.layout.format != WeightFormat::F16, "quantized activations take integer weights")
            }
            ActivationFormat::RowScaled(_) | ActivationFormat::Halves(_) => {
                panic!("rows with a factor are for matrix units")
            }
        }
        if let Some(next) = &self.fused_tail {
            assert_eq!(self.output, ActivationFormat::Quantized(Precision::Int8), "the next matmul reads codes");
            assert!(tile.tokens_per_lane * tile.passes == 1, "one row, and one group of its elements a workgroup");
            assert!(
                FusedTailSpec::takes(&next.layout) && next.layout.cols == self.output_rows(),
                "the next matrix fits"
            );
        }
        if self.output != ActivationFormat::F32 {
            assert!(self.group_rows().is_multiple_of(ACTIVATION_GROUP), "a workgroup makes whole groups");
            assert_eq!(self.output_first, 0, "codes of a matrix that is cut");
            let both = self.prologue.is_some() && self.input != ActivationFormat::F32;
            assert!(!both || self.input == self.output, "a kernel quantises its input or its output, in one format");
        }
    }

    fn input_group_words_at(&self) -> usize {
        self.input.precision().map_or(0, |precision| activation_format::group_words_at(self.layout.cols, precision))
    }

    /// Numbers by which loops are unrolled.
    fn loop_values(&self, values: Values) -> Values {
        let (tile, format) = (&self.tile, self.layout.format);
        // Groups that a lane has in flight, and rounds after which it has processed all of its own.
        let own = activation_format::groups(self.layout.cols).div_ceil(self.column_lanes());
        let unroll = tile.unroll.min(own).max(1);
        // Lanes of a row that are in one subgroup add up by shuffles.
        let in_subgroup = (TILE_ROWS * tile.split_k).min((self.subgroup_size as usize).max(TILE_ROWS)) / TILE_ROWS;
        values
            .count("UNROLL", unroll)
            .count("COLUMN_LANES", self.column_lanes())
            .text("FIRST_RUN", if self.experts.is_some_and(|experts| experts.summed) { "first_run" } else { "slice" })
            .count("ROUNDS", own.div_ceil(unroll))
            .count("SHUFFLES", in_subgroup.next_power_of_two().ilog2() as usize)
            .count("CHUNKS_PER_BLOCK", format.chunks_per_block())
            .count("CHUNK_COLS", format.chunk_cols())
            .count("BLOCK_COLS", format.block_cols())
            .count("MATRIX_ROWS", self.layout.rows)
            .flag("MATRIX_INT4", format.has_nibbles())
            .flag("MATRIX_F16", format == WeightFormat::F16)
            .flag(
                "BLOCK_SUMS",
                tile.sharing == Sharing::Own && tile.tokens_per_lane == 1 && format != WeightFormat::F16,
            )
            .flag("BROADCAST", tile.sharing == Sharing::Broadcast)
            .flag("ACROSS", tile.sharing == Sharing::Across)
            .flag("BIAS", self.bias)
    }

    /// Quads of the normed row that a lane computes.
    fn prologue_slots(&self) -> usize {
        let in_groups = activation_format::groups(self.layout.cols) * ACTIVATION_GROUP;
        let elements = match (self.input, self.encoded_input()) {
            (ActivationFormat::F32, None) => self.layout.padded_cols(),
            (ActivationFormat::F32, Some(_)) => self.layout.padded_cols().max(in_groups),
            _ => in_groups,
        };
        (elements / 4).div_ceil(self.tile.workgroup_size())
    }
}
