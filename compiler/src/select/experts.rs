//! Mixtures of experts: which experts each row is given to, their matmuls, and the sum of their results.

use unicorn_kernels::every_matrix::EveryMatrixSpec;
use unicorn_kernels::expert_rows::{ExpertRowsSpec, ExpertTiles};
use unicorn_kernels::expert_sum::ExpertSumSpec;
use unicorn_kernels::gemm::{GemmSpec, GemmTile, Product};
use unicorn_kernels::layout::TILE_ROWS;
use unicorn_kernels::matmul::{ExpertsSpec, MAX_PARTS, MatMulSpec, MatMulTile, Sharing};
use unicorn_kernels::register_gemm::{RegisterGemmSpec, RegisterTile};
use unicorn_kernels::route::RouteSpec;
use unicorn_kernels::{ActivationFormat, KernelSpec, Number, Precision, Role, WeightLayout};
use unicorn_spirv::target::{GemmTuning, MatrixTuning, RegisterTuning};

use super::tile::tile;
use super::{Operand, Selector, operands};
use crate::fuse::{FusedNode, FusedOp};
use crate::graph::ValueId;
use crate::weights::PackedId;

/// How a step's rows are multiplied by their experts' matrices: a table of rows by expert, cut into tiles of one kernel.
#[derive(Clone, Copy)]
pub(super) struct ByExpert {
    tiles: ExpertTiles,
    kernel: TileKernel,
}

/// The kernel that multiplies an expert's matrix by a tile of its rows.
#[derive(Clone, Copy)]
enum TileKernel {
    MatMul,
    Gemm(GemmTile),
    RegisterGemm(RegisterTile),
}

/// Matrices of a stack, and how many of them each row is given to; the last of both are shared by all rows.
struct Routed {
    experts: usize,
    chosen: usize,
    shared: usize,
}

impl Selector<'_> {
    pub(super) fn route(&mut self, node: &FusedNode) {
        let FusedOp::Route { out, .. } = node.op else { unreachable!("called for routers") };
        if self.chooser(node).is_some() {
            return;
        }
        let spec = KernelSpec::Route(self.route_spec(node));
        let operands = operands(&spec, |role| self.choice_operand(node, role));
        self.push(node, spec, self.kind.rows, 0, |role| operands[&role]);
        self.rows_by_expert(node, out);
    }

    /// The choice of experts that a matmul's dispatch makes, too.
    pub(super) fn choice(&self, matmul: &FusedNode) -> Option<&FusedNode> {
        let route = match matmul.op {
            FusedOp::MatMul { out, .. } => self.readers(out).next(),
            FusedOp::ExpertMatMul { routes, .. } => self.verified.producer(routes),
            _ => None,
        };
        route.filter(|route| self.chooser(route).is_some_and(|chooser| std::ptr::eq(chooser, matmul)))
    }

    /// The matmul whose dispatch also makes this choice of experts, in programs of one row. Where dispatches wait for each other by counters, it
    /// is the experts' first one: each of its workgroups makes the choice in less time than it takes until one workgroup's choice is visible to
    /// the others. Elsewhere it is the router, if workgroups can exchange data.
    pub(super) fn chooser(&self, route: &FusedNode) -> Option<&FusedNode> {
        let FusedOp::Route { input, out, .. } = route.op else { return None };
        if self.kind.rows > 1 || !self.options.fold || !self.target.has_memory_model() {
            return None;
        }
        let router = self.verified.producer(input).filter(|router| self.makes_whole_logits(router))?;
        let experts = self.readers(out).next().filter(|first| self.target.counter_sync && self.can_choose(first));
        Some(experts.unwrap_or(router))
    }

    /// Whether one dispatch makes all logits, for the choice alone.
    fn makes_whole_logits(&self, router: &FusedNode) -> bool {
        let FusedOp::MatMul { matrix, out, act_mul: None, softcap: None, .. } = router.op else { return false };
        self.readers(out).count() == 1 && self.weights.matrix(matrix).len() == 1
    }

    /// Whether one dispatch multiplies a row by the matrices of all its experts.
    fn can_choose(&self, node: &FusedNode) -> bool {
        let FusedOp::ExpertMatMul { input, matrix, .. } = node.op else { return false };
        let parts = self.weights.matrix(matrix);
        let is_whole = parts.len() == 1 || self.binds_whole_stacks(parts, node, None);
        is_whole && self.graph.values[input.0].rows_per_token == 1
    }

    pub(super) fn route_spec(&self, node: &FusedNode) -> RouteSpec {
        let FusedOp::Route { input, chosen, shared, scores, normalized, factor, scale, choice_bias, groups, out } =
            node.op
        else {
            unreachable!("called for routers")
        };
        RouteSpec {
            experts: self.graph.values[input.0].width - shared.logits(),
            chosen,
            shared,
            scores,
            normalized,
            factor: Number::new(factor),
            choice_bias: choice_bias.is_some(),
            scaled: scale.is_some(),
            groups,
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(out),
            counter_sync: false,
        }
    }

    /// What a choice of experts reads and writes.
    pub(super) fn choice_operand(&self, node: &FusedNode, role: Role) -> Operand {
        let FusedOp::Route { input, scale, choice_bias, out, .. } = node.op else { unreachable!("called for routers") };
        match role {
            Role::Input | Role::RouterLogits => Operand::Value(input),
            Role::ExpertScale => Operand::Weight(self.weights.vector(scale.expect("experts with a scale"))),
            Role::ChoiceBias => Operand::Weight(self.weights.vector(choice_bias.expect("experts with a bias"))),
            Role::MadeRoutes => Operand::Value(out),
            other => unreachable!("a choice has no {other:?}"),
        }
    }

    pub(super) fn every_matrix(&mut self, node: &FusedNode, matrices: usize, out: ValueId) {
        let spec = EveryMatrixSpec { matrices, output_stride: self.stride_of(out) };
        self.push(node, KernelSpec::EveryMatrix(spec), self.kind.rows, 0, |_| Operand::Value(out));
        self.rows_by_expert(node, out);
    }

    /// The table of the rows of each expert, where experts' matrices are multiplied by tiles of rows.
    fn rows_by_expert(&mut self, node: &FusedNode, routes: ValueId) {
        let Some(ByExpert { tiles, .. }) = self.by_expert(routes) else { return };
        let Routed { experts, chosen, shared } = self.routed(routes);
        let spec = ExpertRowsSpec { experts, chosen, shared, routes_stride: self.stride_of(routes), tiles };
        let table = self.table(routes, tiles);
        self.push(node, KernelSpec::ExpertRows(spec), self.kind.rows, 0, |role| match role {
            Role::Routes => Operand::Value(routes),
            _ => table,
        });
        self.dispatches.last_mut().expect("pushed above").label += " by expert";
    }

    /// The routes' rows by expert.
    fn table(&self, routes: ValueId, tiles: ExpertTiles) -> Operand {
        let Routed { chosen, .. } = self.routed(routes);
        Operand::ExpertRows { routes, len: tiles.table_words(self.kind.rows * chosen) }
    }

    fn routed(&self, routes: ValueId) -> Routed {
        match self.verified.producer(routes).map(|node| &node.op) {
            Some(&FusedOp::Route { input, chosen, shared, .. }) => Routed {
                experts: self.graph.values[input.0].width - shared.logits() + shared.count,
                chosen: chosen + shared.count,
                shared: shared.count,
            },
            Some(&FusedOp::EveryMatrix { matrices, .. }) => Routed { experts: matrices, chosen: matrices, shared: 0 },
            _ => unreachable!("routes are a router's, or those of every matrix"),
        }
    }

    /// Whether the matrices are those of attention's heads, which every row is given to.
    fn is_of_heads(&self, routes: ValueId) -> bool {
        matches!(self.verified.producer(routes).map(|node| &node.op), Some(FusedOp::EveryMatrix { .. }))
    }

    /// How the rows of a program are grouped by expert, so that one read of an expert's weights serves several rows. `None`: each
    /// pair of a row and an expert is computed alone, in programs of one row and in graphs without fusion, the reference.
    fn by_expert(&self, routes: ValueId) -> Option<ByExpert> {
        if self.kind.rows == 1 || !self.options.fold {
            return None;
        }
        let Routed { experts, chosen, shared } = self.routed(routes);
        let pairs = self.kind.rows * chosen;
        // If all experts that are chosen from are chosen equally often.
        let rows = (self.kind.rows * (chosen - shared)).div_ceil(experts - shared);
        let with = |kernel, tile_rows| ByExpert { kernel, tiles: ExpertTiles::of(pairs, experts, tile_rows) };
        let fits = |tuning: &MatrixTuning| {
            rows >= tuning.min_rows.large && !self.is_of_heads(routes) && self.experts_fit_matrices(routes, tuning)
        };
        if let Some(tuning) = self.target.matrix.filter(fits) {
            return Some(match tuning.gemm {
                GemmTuning::Workgroup { many, few, .. } => {
                    let tile = if rows > few.step_rows { many } else { few };
                    with(TileKernel::Gemm(tile), tile.step_rows)
                }
                GemmTuning::Registers(tuning) => {
                    let tile = expert_tile(tuning, rows);
                    with(TileKernel::RegisterGemm(tile), tile.step_rows)
                }
            });
        }
        // Twice the average, because some are chosen more often.
        let tile_rows = (2 * rows).next_power_of_two().min(self.target.matmul.tokens_per_lane);
        (tile_rows > 1).then(|| with(TileKernel::MatMul, tile_rows))
    }

    /// Whether all inputs of these routes' experts can have the format of matrix units.
    fn experts_fit_matrices(&self, routes: ValueId, tuning: &MatrixTuning) -> bool {
        let mut inputs = self.readers(routes).filter_map(|node| match node.op {
            FusedOp::ExpertMatMul { input, .. } => Some(input),
            _ => None,
        });
        inputs.all(|input| {
            let width = self.graph.values[input.0].width;
            self.reads_integers(input) && matrix_format(tuning).factor_at(width) < super::stride(width)
        })
    }

    pub(super) fn expert_sum(&mut self, node: &FusedNode) {
        let FusedOp::ExpertSum { input, routes, out } = node.op else { unreachable!("called for sums") };
        if self.verified.producer(input).is_some_and(|producer| self.summed(producer).is_some()) {
            return;
        }
        let value = &self.graph.values[input.0];
        let spec = ExpertSumSpec {
            width: value.width,
            chosen: value.rows_per_token,
            stride: self.stride_of(input),
            routes_stride: self.stride_of(routes),
            counter_sync: false,
        };
        self.push(node, KernelSpec::ExpertSum(spec), self.kind.rows, 0, |role| match role {
            Role::Input => Operand::Value(input),
            Role::Routes => Operand::Value(routes),
            _ => Operand::Value(out),
        });
        self.quantize(node, out);
    }

    /// The sum of a row's experts that the matmul of their last matrix makes itself, in programs of one row. The lanes of a matrix row,
    /// which a target has as many of as `split_k` permits, are then divided between the experts.
    fn summed(&self, node: &FusedNode) -> Option<ValueId> {
        let FusedOp::ExpertMatMul { routes, matrix, out, act_mul: None, .. } = node.op else { return None };
        let mut readers = self.readers(out);
        let (Some(FusedOp::ExpertSum { out: sum, .. }), None) = (readers.next().map(|node| &node.op), readers.next())
        else {
            return None;
        };
        let parts = self.weights.matrix(matrix);
        let is_whole = parts.len() == 1 || self.binds_whole_stacks(parts, node, None);
        let tuning = self.target.matmul;
        let lanes = tuning.split_k.min(tuning.workgroup / TILE_ROWS);
        let has_lanes = tuning.sharing_one == Sharing::Own && self.routed(routes).chosen <= lanes;
        (self.options.fold && self.kind.rows == 1 && is_whole && has_lanes).then_some(*sum)
    }

    /// One dispatch for the stack, or for each part of it; then workgroups of a row whose expert is in another part end at once.
    pub(super) fn expert_matmul(&mut self, node: &FusedNode) {
        let FusedOp::ExpertMatMul { input, routes, matrix, bias, out, .. } = node.op else {
            unreachable!("called for experts")
        };
        let result = self.summed(node).unwrap_or(out);
        let experts = self.graph.matrices[matrix.0].experts.expect("experts are a stack");
        let encodes = self.experts_encode(node);
        let by_expert = self.by_expert(routes);
        let from = match by_expert {
            Some(by_expert) => self.table(routes, by_expert.tiles),
            None => Operand::Value(routes),
        };
        let input = match self.input_format(node, input) {
            ActivationFormat::F32 => Operand::Value(input),
            _ => Operand::Encoded(input),
        };
        let parts = self.weights.matrix(matrix);
        let bound = if self.binds_whole_stacks(parts, node, by_expert) { parts.len() } else { 1 };
        for (part, ids) in parts.chunks(bound).enumerate() {
            let spec = self.expert_kernel(node, ids, by_expert, encodes);
            // As many experts as the rows choose in total, at most all: each is read about once, if it stays in the cache.
            let read = self.rows_of(out).min(experts);
            let len_bytes: u64 = ids.iter().map(|&id| self.weights.get(id).len_bytes).sum();
            let bytes = len_bytes * read as u64 / experts as u64;
            let choice = self.choice(node);
            let operands = operands(&spec, |role| match role {
                Role::Weights => Operand::Weight(ids[0]),
                Role::WeightsPart(part) => Operand::Weight(ids[usize::from(part)]),
                Role::Bias => Operand::Weight(self.weights.vector(bias.expect("experts with biases"))),
                Role::Routes | Role::ExpertRows => from,
                Role::InputQuads | Role::QuantizedInput => input,
                Role::Encoded => Operand::Encoded(out),
                Role::Output => Operand::Value(result),
                role => self.choice_operand(choice.expect("every other role is a choice's"), role),
            });
            let chooses = choice.is_some();
            self.push(node, spec, self.kind.rows, bytes, |role| operands[&role]);
            if chooses {
                self.dispatches.last_mut().expect("pushed above").label += "+route";
            }
            self.mark_part(part);
        }
        if !encodes {
            self.quantize(node, result);
        }
    }

    /// Whether one dispatch binds every part of a stack: matmuls of integers do.
    fn binds_whole_stacks(&self, parts: &[PackedId], node: &FusedNode, by_expert: Option<ByExpert>) -> bool {
        let FusedOp::ExpertMatMul { input, .. } = node.op else { return false };
        let is_matmul = by_expert.is_none_or(|by_expert| matches!(by_expert.kernel, TileKernel::MatMul));
        let takes_parts = self.input_format(node, input) != ActivationFormat::F32;
        is_matmul && takes_parts && parts.len() <= MAX_PARTS
    }

    /// The kernel that multiplies by the matrices of `ids`, parts of a stack that follow each other.
    fn expert_kernel(
        &self,
        node: &FusedNode,
        ids: &[PackedId],
        by_expert: Option<ByExpert>,
        encodes: bool,
    ) -> KernelSpec {
        let tiles = by_expert.map(|by_expert| by_expert.tiles);
        let spec = self.expert_spec(node, ids, tiles, encodes);
        let product = || Product {
            layout: spec.layout,
            input: Precision::Int8,
            input_stride: spec.input_stride,
            output_stride: spec.output_stride,
            output_first: 0,
            bias: spec.bias,
            act_mul: spec.act_mul,
            rows_per_token: 1,
            experts: spec.experts,
        };
        let subgroup_size = self.target.subgroup_size;
        match (by_expert.map(|by_expert| by_expert.kernel), self.target.matrix.map(|tuning| tuning.gemm)) {
            (Some(TileKernel::Gemm(tile)), _) => KernelSpec::Gemm(GemmSpec { product: product(), tile, subgroup_size }),
            (Some(TileKernel::RegisterGemm(tile)), Some(GemmTuning::Registers(tuning))) => {
                KernelSpec::RegisterGemm(RegisterGemmSpec {
                    product: product(),
                    halves_out: false,
                    tile,
                    rows: self.kind.rows,
                    splits: 1,
                    subgroup_size,
                    lanes_hold_fragments: tuning.lanes_hold_fragments,
                })
            }
            _ => KernelSpec::MatMul(spec),
        }
    }

    fn expert_spec(&self, node: &FusedNode, ids: &[PackedId], tiles: Option<ExpertTiles>, encodes: bool) -> MatMulSpec {
        let FusedOp::ExpertMatMul { input, routes, matrix, bias, act_mul, out } = node.op else {
            unreachable!("called for experts")
        };
        let (stack, first_row) = self.matrix(ids[0]);
        let rows: usize = ids.iter().map(|&id| self.matrix(id).0.rows).sum();
        let matrix = &self.graph.matrices[matrix.0];
        let expert_rows = matrix.expert_rows();
        let (summed, chosen) = (self.summed(node), self.graph.values[out.0].rows_per_token);
        let mut spec = MatMulSpec {
            layout: WeightLayout { rows: matrix.rows(), ..stack },
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(summed.unwrap_or(out)),
            output_first: 0,
            input: self.input_format(node, input),
            output: if encodes { self.stored_format(out) } else { ActivationFormat::F32 },
            prologue: None,
            bias: bias.is_some(),
            act_mul,
            fused_tail: None,
            clears: 0,
            softcap: None,
            choice: self.choice(node).map(|choice| self.route_spec(choice)),
            experts: Some(ExpertsSpec {
                chosen,
                own_input: self.graph.values[input.0].rows_per_token == chosen,
                first: first_row / expert_rows,
                count: rows / expert_rows,
                part: stack.rows / expert_rows,
                routes_stride: self.stride_of(routes),
                tiles,
                summed: summed.is_some(),
            }),
            rows_per_token: 1,
            row_from_step: false,
            tile: MatMulTile::default(),
            subgroup_size: self.target.subgroup_size,
            counter_sync: false,
        };
        debug_assert!(expert_rows.is_multiple_of(TILE_ROWS));
        spec.tile = tile(self.target, &spec, tiles.map_or(1, |tiles| tiles.tile_rows), false);
        spec
    }

    /// The format in which a matmul reads a value: what experts read, where that suits it, even where other readers, such as the router, read
    /// it in f32.
    pub(super) fn input_format(&self, node: &FusedNode, value: ValueId) -> ActivationFormat {
        let beside = || self.encoded_beside(value).filter(|_| self.reads_beside(node, value));
        match self.stored_format(value) {
            ActivationFormat::F32 => beside().unwrap_or(ActivationFormat::F32),
            stored => stored,
        }
    }

    /// The integers that experts read, or the output head, of a value that is stored in f32: a router or what keeps rows reads it, too.
    pub(super) fn encoded_beside(&self, value: ValueId) -> Option<ActivationFormat> {
        if self.stored_format(value) != ActivationFormat::F32 {
            return None;
        }
        let read_by_experts = self.readers(value).find_map(|node| match node.op {
            FusedOp::ExpertMatMul { input, routes, .. } if input == value => Some(routes),
            _ => None,
        });
        let keeps_rows = |node: &FusedNode| matches!(node.op, FusedOp::PreviousRow { .. } | FusedOp::KeepRow { .. });
        let of_kept_rows = || {
            self.readers(value).any(keeps_rows).then(|| self.readers(value).find_map(|node| self.matmul_input(node)))
        };
        read_by_experts
            .map(|routes| self.best_experts_input(value, routes))
            .or_else(|| of_kept_rows().flatten())
            .filter(|format| *format != ActivationFormat::F32)
    }

    /// Whether a node reads the integers beside this value's f32 row: experts, and matmuls for which these are the best.
    pub(super) fn reads_beside(&self, node: &FusedNode, value: ValueId) -> bool {
        self.encoded_beside(value).is_some_and(|format| match node.op {
            FusedOp::ExpertMatMul { input, .. } => input == value,
            _ => self.matmul_input(node) == Some(format),
        })
    }

    /// The best format of `input` for experts of rows with these routes.
    pub(super) fn best_experts_input(&self, input: ValueId, routes: ValueId) -> ActivationFormat {
        // Queries and means of values need more than INT8, and heads' matrices are small.
        if self.is_of_heads(routes) || !self.reads_integers(input) {
            return ActivationFormat::F32;
        }
        match (self.by_expert(routes).map(|by_expert| by_expert.kernel), &self.target.matrix) {
            (Some(TileKernel::Gemm(_) | TileKernel::RegisterGemm(_)), Some(tuning)) => matrix_format(tuning),
            _ => EXPERTS_INPUT,
        }
    }

    /// Whether the matmul also converts its result to the integers that readers need.
    fn experts_encode(&self, node: &FusedNode) -> bool {
        let FusedOp::ExpertMatMul { act_mul, out, .. } = node.op else { return false };
        act_mul.is_some() && self.stored_format(out) == EXPERTS_INPUT
    }
}

const EXPERTS_INPUT: ActivationFormat = ActivationFormat::Quantized(Precision::Int8);

/// The format in which matrix units read the experts' inputs.
fn matrix_format(tuning: &MatrixTuning) -> ActivationFormat {
    match tuning.gemm {
        GemmTuning::Workgroup { .. } => ActivationFormat::RowScaled(Precision::Int8),
        GemmTuning::Registers(_) => ActivationFormat::Halves(Precision::Int8),
    }
}

/// The tile with the shortest time for experts with `rows` rows each on average, of which half a tile is empty.
fn expert_tile(tuning: RegisterTuning, rows: usize) -> RegisterTile {
    let halves = |step_rows: usize| (2 * rows).div_ceil(step_rows) + 1;
    let first = tuning.tiles.iter().min_by_key(|timed| halves(timed.tile.step_rows) * timed.shared_ns);
    first.expect("a target has tiles").tile
}
