//! Norms and matmuls: which norm becomes a matmul's prologue, and in which format one kernel writes activations for the next.
//! How a matmul is cut: `tile`.

use unicorn_artifact::LogitsRows;
use unicorn_kernels::Number;
use unicorn_kernels::elementwise::ElementwiseOp;
use unicorn_kernels::gated_norm::GatedForm;
use unicorn_kernels::matmul::{MatMulSpec, MatMulTile};
use unicorn_kernels::norm::NormSpec;
use unicorn_kernels::quantize::QuantizeSpec;
use unicorn_kernels::{ActivationFormat, KernelSpec, Precision, Role};
use unicorn_spirv::target::{GemmTuning, MatrixTuning};

use super::tile::tile;
use super::{Operand, Selector, operands, stride};
use crate::fuse::{FusedNode, FusedOp, MatrixId, NormStep};
use crate::graph::ValueId;
use crate::weights::PackedId;

/// Most weights of a matrix by which a row of f32 is multiplied sooner than it is converted to integers.
const MAX_SMALL_WEIGHTS: usize = 1 << 20;

impl Selector<'_> {
    fn norm_spec(&self, step: &NormStep) -> NormSpec {
        let width = self.graph.values[step.out.0].width;
        let beside = self.encoded_beside(step.out);
        NormSpec {
            width,
            stride: stride(width),
            eps: Number::new(self.norm_eps(step)),
            add: step.residual.is_some(),
            stores_sum: step.sum.is_some(),
            post_norm: step.post_weight.is_some(),
            scale_sum: step.scale_sum,
            norm_sum: step.weight.is_some(),
            fixed_sums: false,
            format: beside.unwrap_or(self.stored_format(step.out)),
            also_f32: beside.is_some(),
            lanes: self.target.norm.lanes,
            subgroup_size: self.target.subgroup_size,
            counter_sync: false,
        }
    }

    /// Epsilon of a norm: of what makes rows of images, the vision tower's.
    pub(super) fn norm_eps(&self, step: &NormStep) -> f32 {
        let of_images = step.weight.is_some_and(|weight| self.graph.vectors[weight.0].is_of_images());
        match self.config.vision.as_ref().filter(|_| of_images) {
            Some(vision) => vision.eps,
            None => self.config.rms_norm_eps,
        }
    }

    pub(super) fn norm_operand(&self, step: &NormStep, role: Role) -> Option<Operand> {
        let vector = |id| Operand::Weight(self.weights.vector(id));
        match role {
            Role::InputQuads => Some(Operand::Value(step.input)),
            Role::Residual => step.residual.map(Operand::Value),
            Role::Sum => step.sum.map(Operand::Value),
            Role::NormWeight => step.weight.map(vector),
            Role::PostNormWeight => step.post_weight.map(vector),
            _ => None,
        }
    }

    pub(super) fn norm(&mut self, node: &FusedNode, step: &NormStep) {
        if self.ends_on_npu(step) {
            return self.sum_before_norm(node, step);
        }
        let spec = KernelSpec::Norm(self.norm_spec(step));
        let operands = operands(&spec, |role| match role {
            Role::OutputQuads => self.value(step.out),
            Role::Encoded => Operand::Encoded(step.out),
            role => self.norm_operand(step, role).expect("every other role is an operand of the norm"),
        });
        self.push(node, spec, self.kind.rows, 0, |role| operands[&role]);
    }

    /// The residual sum alone, if there is one.
    fn sum_before_norm(&mut self, node: &FusedNode, step: &NormStep) {
        let Some(sum) = step.sum else { return };
        let spec = NormSpec { stores_sum: false, norm_sum: false, ..self.norm_spec(step) };
        let spec = KernelSpec::Norm(spec);
        let operands = operands(&spec, |role| match role {
            Role::OutputQuads => self.value(sum),
            role => self.norm_operand(step, role).expect("every other role is an operand of the sum"),
        });
        self.push(node, spec, self.kind.rows, 0, |role| operands[&role]);
        self.dispatches.last_mut().expect("pushed above").label += " sum";
    }

    /// The matmuls that compute this norm as their prologue, of which the first stores the sum: all readers of its output, or the only one
    /// besides those that read the integers which it stores. Empty: it has a dispatch of its own.
    pub(super) fn folds_into(&self, step: &NormStep) -> Vec<&FusedNode> {
        let readers = self.readers(step.out).filter(|reader| !self.reads_beside(reader, step.out));
        let readers: Vec<&FusedNode> = readers.collect();
        let stores_once = self.encoded_beside(step.out).is_none() || readers.len() == 1;
        let folds = self.options.fold && self.target.norm.fold && stores_once && !self.is_result(step.out);
        if folds && readers.iter().all(|reader| self.can_norm(reader, step)) { readers } else { Vec::new() }
    }

    /// Whether a matmul can compute this norm as its prologue: in programs where it has one row, if a workgroup's memory holds the row.
    fn can_norm(&self, reader: &FusedNode, step: &NormStep) -> bool {
        let FusedOp::MatMul { matrix, .. } = &reader.op else { return false };
        // A cut matrix would compute the norm again with each part, and write its sum more than once.
        let [only] = self.weights.matrix(*matrix) else { return false };
        let one_row = self.kind.rows == 1 || self.row_from_step(reader);
        let fits = || {
            let spec = self.matmul_spec(reader, *only, Some(step));
            spec.shared_bytes() <= self.target.shared_memory_bytes
        };
        one_row && self.on_npu(reader).is_none() && fits()
    }

    /// The norm that a matmul computes as its prologue; without the sum where another matmul stores that.
    fn norm_before(&self, node: &FusedNode, input: ValueId) -> Option<NormStep> {
        let FusedOp::Norm(step) = &self.verified.producer(input)?.op else { return None };
        let readers = if step.out == input { self.folds_into(step) } else { Vec::new() };
        let place = readers.iter().position(|reader| std::ptr::eq(*reader, node))?;
        Some(NormStep { sum: step.sum.filter(|_| place == 0), ..step.clone() })
    }

    /// Whether a matmul makes logits for one row of several.
    fn row_from_step(&self, node: &FusedNode) -> bool {
        let FusedOp::MatMul { matrix, .. } = node.op else { return false };
        self.kind.logits == LogitsRows::One && self.graph.matrices[matrix.0].is_head
    }

    pub(super) fn matmul(&mut self, node: &FusedNode) {
        let FusedOp::MatMul { input, matrix, bias, out, .. } = node.op else { unreachable!("called for matmuls") };
        if let Some((product, shape)) = self.on_npu(node) {
            self.npu_product(node, product, &shape);
            return self.quantize(node, out);
        }
        let norm = self.norm_before(node, input);
        let result = self.value(out);
        let rows = self.product_rows(matrix, out);
        for (part, &id) in self.weights.matrix(matrix).iter().enumerate() {
            let bytes = self.weights.get(id).len_bytes;
            if let Some(precision) = self.on_matrices(node, input) {
                self.gemm(node, id, precision, rows, bytes);
                self.mark_part(part);
                continue;
            }
            if let Some(tile) = self.lane_tile(node) {
                self.lane_gemm(node, id, tile, bytes);
                self.mark_part(part);
                continue;
            }
            let choice = self.choice(node);
            let spec = KernelSpec::MatMul(self.matmul_spec(node, id, norm.as_ref()));
            let bias = bias.map(|bias| Operand::Weight(self.weights.vector(bias)));
            let of_norm = |role| norm.as_ref().and_then(|step| self.norm_operand(step, role));
            let operands = operands(&spec, |role| match role {
                Role::Weights => Operand::Weight(id),
                Role::QuantizedInput => Operand::Encoded(input),
                Role::Bias => bias.expect("biased"),
                Role::Output | Role::ExchangedOutput => result,
                // Of a norm's row that is read in f32, too.
                Role::Encoded if norm.is_some() && self.encoded_beside(input).is_some() => Operand::Encoded(input),
                Role::Encoded => Operand::Encoded(out),
                Role::InputQuads if norm.is_none() => Operand::Value(input),
                Role::CompletionCounters => Operand::CompletionCounters,
                role => of_norm(role)
                    .or_else(|| choice.map(|choice| self.choice_operand(choice, role)))
                    .expect("every other role is the prologue's or the choice's"),
            });
            let chooses = choice.is_some();
            self.push(node, spec, rows, bytes, |role| operands[&role]);
            if chooses {
                self.dispatches.last_mut().expect("pushed above").label += "+route";
            }
            self.mark_part(part);
        }
        if !self.encodes_output(node) && self.product_factor(node).is_none() {
            self.quantize(node, out);
        }
    }

    /// The format in which a value's readers read it: integers if all are matmuls that read the same integers.
    pub(super) fn stored_format(&self, value: ValueId) -> ActivationFormat {
        if self.is_result(value) {
            return ActivationFormat::F32;
        }
        let mut formats = self.readers(value).map(|node| match node.op {
            FusedOp::ExpertMatMul { input, routes, .. } => {
                (input == value).then(|| self.best_experts_input(input, routes))
            }
            _ => self.matmul_input(node),
        });
        let first = formats.next().flatten();
        first.filter(|first| formats.all(|format| format == Some(*first))).unwrap_or(ActivationFormat::F32)
    }

    /// Whether small matrices alone read a row for whose integers its kernel would need a dispatch behind it, which takes longer than they do.
    fn is_short_of_a_conversion(&self, input: ValueId) -> bool {
        let stores_f32 = |node: &FusedNode| match node.op {
            FusedOp::MatMul { act_mul, .. } => act_mul.is_none(),
            FusedOp::Elementwise { .. } | FusedOp::Streams(_) => true,
            _ => false,
        };
        let is_small = |node: &FusedNode| match node.op {
            FusedOp::MatMul { matrix, .. } => self.n_weights(matrix) <= MAX_SMALL_WEIGHTS,
            _ => false,
        };
        self.kind.rows == 1
            && self.verified.producer(input).is_some_and(stores_f32)
            && self.readers(input).all(is_small)
    }

    /// Elements of a packed matrix.
    fn n_weights(&self, matrix: MatrixId) -> usize {
        self.weights.matrix(matrix).iter().map(|&id| self.matrix(id).0).map(|layout| layout.rows * layout.cols).sum()
    }

    /// The best input format of a matmul; `None`: not a matmul.
    pub(super) fn matmul_input(&self, node: &FusedNode) -> Option<ActivationFormat> {
        let FusedOp::MatMul { input, matrix, softcap, out, .. } = node.op else { return None };
        let is_f32 = self.graph.matrices[matrix.0].is_router || self.on_npu(node).is_some();
        if is_f32 || !self.reads_integers(input) || self.is_short_of_a_conversion(input) {
            return Some(ActivationFormat::F32);
        }
        // Attention's gate reads what q, k and v read.
        let needs_int11 = |node: &FusedNode| matches!(node.op, FusedOp::MatMul { out, .. } if self.needs_int11(out));
        // A product with a gate that is computed from the stream without a norm between has the stream's outliers.
        let is_gated_input = self
            .verified
            .producer(input)
            .is_some_and(|node| matches!(node.op, FusedOp::Elementwise { op: ElementwiseOp::ActMulPart { .. }, .. }));
        // A vision tower's stream has outliers, too, and its norms keep them.
        let is_of_images = self.graph.matrices[matrix.0].is_of_images();
        let needs_int11 = is_of_images || is_gated_input || self.readers(input).any(needs_int11);
        let precision = if needs_int11 { Precision::Int11 } else { Precision::Int8 };
        let rows = self.product_rows(matrix, out);
        // Products that a GEMM does not support, and those whose tiles would be mostly empty.
        let min_rows = |tuning: &MatrixTuning| tuning.min_rows.of(self.n_weights(matrix));
        let tuning = self.target.matrix.filter(|tuning| softcap.is_none() && rows >= min_rows(tuning));
        let format = tuning.map(|tuning| match tuning.gemm {
            GemmTuning::Workgroup { .. } => ActivationFormat::RowScaled(precision),
            GemmTuning::Registers(_) => ActivationFormat::Halves(precision),
        });
        // A short row of f16, in whole blocks, may be longer than the f32 row that it replaces.
        let width = self.graph.values[input.0].width;
        let fits = |format: &ActivationFormat| format.factor_at(width) < stride(width);
        Some(format.filter(fits).unwrap_or(ActivationFormat::Quantized(precision)))
    }

    /// Whether matmuls read a value as integers.
    pub(super) fn reads_integers(&self, value: ValueId) -> bool {
        // Quads of the norms before.
        let whole_quads = self.graph.values[value.0].width.is_multiple_of(4);
        self.weights.integer_activations && self.target.integer_dot && whole_quads
    }

    /// Whether a value is q, k or v of attention or of a delta net, controls the change of a delta net's state, or is computed from the
    /// stream without a norm between, which has outliers.
    fn needs_int11(&self, value: ValueId) -> bool {
        self.readers(value).any(|node| match &node.op {
            FusedOp::Heads(_) | FusedOp::HeadColumns { .. } | FusedOp::ShortConv { .. } | FusedOp::DeltaRule(_) => true,
            FusedOp::GatedNorm { form: GatedForm::Sum, .. }
            | FusedOp::Elementwise { op: ElementwiseOp::ActMulPart { .. }, .. } => true,
            FusedOp::Elementwise { out, .. } => self.needs_int11(*out),
            // A norm of a whole query or key; the stream's norms read sums.
            FusedOp::Norm(step) => step.residual.is_none() && self.needs_int11(step.out),
            _ => false,
        })
    }

    /// Whether a matmul also converts its result to the integers that readers need: whole groups of them in each workgroup.
    fn encodes_output(&self, node: &FusedNode) -> bool {
        let FusedOp::MatMul { input, matrix, act_mul, out, .. } = node.op else { return false };
        let on_gemm = self.on_matrices(node, input).is_some() || self.lane_tile(node).is_some();
        let whole = self.weights.matrix(matrix).len() == 1 && !on_gemm;
        let codes = matches!(self.stored_format(out), ActivationFormat::Quantized(Precision::Int8));
        act_mul.is_some() && whole && codes
    }

    /// Converts a value from f32 to the integers or f16 that its readers need.
    pub(super) fn quantize(&mut self, node: &FusedNode, value: ValueId) {
        let format = self.stored_format(value);
        if format != ActivationFormat::F32 {
            self.quantize_to(node, value, format);
        }
    }

    fn quantize_to(&mut self, node: &FusedNode, value: ValueId, format: ActivationFormat) {
        let width = self.graph.values[value.0].width;
        let spec = QuantizeSpec {
            width,
            stride: stride(width),
            format,
            lanes: quantize_lanes(width, self.target.workgroup_invocations),
            subgroup_size: self.target.subgroup_size,
            rows_per_token: self.graph.values[value.0].rows_per_token,
        };
        self.push(node, KernelSpec::Quantize(spec), self.rows_of(value), 0, |role| match role {
            Role::InputQuads => Operand::Value(value),
            _ => Operand::Encoded(value),
        });
        let kind = if matches!(format, ActivationFormat::Halves(_)) { " to f16" } else { " to integers" };
        self.dispatches.last_mut().expect("pushed above").label += kind;
    }

    fn matmul_spec(&self, node: &FusedNode, id: PackedId, norm: Option<&NormStep>) -> MatMulSpec {
        let FusedOp::MatMul { input, matrix, bias, act_mul, softcap, out } = node.op else {
            unreachable!("called for matmuls")
        };
        let (layout, first_row) = self.matrix(id);
        let row_from_step = self.row_from_step(node);
        let head_rows = self.product_rows(matrix, out);
        let mut spec = MatMulSpec {
            layout,
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(out),
            output_first: if act_mul.is_some() { first_row / 2 } else { first_row },
            input: self.input_format(node, input),
            output: if self.encodes_output(node) { self.stored_format(out) } else { ActivationFormat::F32 },
            prologue: norm.map(|step| self.norm_spec(step)),
            bias: bias.is_some(),
            act_mul,
            fused_tail: None,
            clears: 0,
            softcap: softcap.map(Number::new),
            choice: self.choice(node).map(|choice| self.route_spec(choice)),
            experts: None,
            rows_per_token: self.graph.values[out.0].rows_per_token,
            row_from_step,
            tile: MatMulTile::default(),
            subgroup_size: self.target.subgroup_size,
            counter_sync: false,
        };
        let is_router = self.readers(out).next().is_some_and(|reader| self.chooser(reader).is_some());
        spec.tile = tile(self.target, &spec, head_rows, is_router);
        spec
    }
}

/// Lanes that convert a row to integers: one for every four elements, at most a workgroup; every device has 128.
pub(super) fn quantize_lanes(width: usize, max: usize) -> usize {
    (width / 4).next_multiple_of(128).min(max)
}
