//! Layers with recurrent state: the convolution, delta rule and gated norm of a delta net between its matmuls, or a convolution alone.

use unicorn_kernels::delta_chunks::DeltaChunksSpec;
use unicorn_kernels::delta_rule::DeltaRuleSpec;
use unicorn_kernels::gated_norm::{GatedForm, GatedNormSpec};
use unicorn_kernels::previous_row::{PreviousRowSpec, RowUse};
use unicorn_kernels::short_conv::{ConvForm, ShortConvSpec};
use unicorn_kernels::{ActivationFormat, KernelSpec, Number, Role};

use super::attention::SPLIT_ROWS;
use super::{Operand, Selector, kept_rows_of};
use crate::fuse::{Columns, DeltaStep, FusedNode, VectorId};
use crate::graph::ValueId;

impl Selector<'_> {
    pub(super) fn short_conv(
        &mut self,
        node: &FusedNode,
        input: ValueId,
        taps: VectorId,
        form: ConvForm,
        out: ValueId,
    ) {
        let spec = ShortConvSpec {
            state: self.config.state_layout(),
            kv_group: self.cache_of(node).0,
            form,
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(out),
            rows_are_alone: self.rows_are_alone(),
            counter_sync: false,
        };
        let taps = self.weights.vector(taps);
        let (low, high) = self.state_of(node);
        self.push(node, KernelSpec::ShortConv(spec), self.kind.rows, 0, |role| match role {
            Role::Input => Operand::Value(input),
            Role::Taps => Operand::Weight(taps),
            Role::StateLow => low,
            Role::StateHigh => high,
            _ => Operand::Value(out),
        });
        self.quantize(node, out);
    }

    pub(super) fn delta_rule(&mut self, node: &FusedNode, step: &DeltaStep) {
        let spec = DeltaRuleSpec {
            state: self.config.state_layout(),
            key_heads: self.config.delta.expect("recurrent layers have their sizes").key_heads,
            kv_group: self.cache_of(node).0,
            input_stride: self.stride_of(step.input),
            gate_stride: self.stride_of(step.decay.of),
            decay_first: step.decay.first,
            strength_first: step.strength.first,
            output_stride: self.stride_of(step.out),
            rows_are_alone: self.rows_are_alone(),
            counter_sync: false,
        };
        let spec = match self.delta_chunks(&spec) {
            Some(chunks) => KernelSpec::DeltaChunks(chunks),
            None => KernelSpec::DeltaRule(spec),
        };
        let (rate, bias) = (self.weights.vector(step.decay_rate), self.weights.vector(step.decay_bias));
        let (low, high) = self.state_of(node);
        self.push(node, spec, self.kind.rows, 0, |role| match role {
            Role::InputQuads => Operand::Value(step.input),
            Role::Decay => Operand::Value(step.decay.of),
            Role::Strength => Operand::Value(step.strength.of),
            Role::DecayRate => Operand::Weight(rate),
            Role::Bias => Operand::Weight(bias),
            Role::StateLow => low,
            Role::StateHigh => high,
            _ => Operand::Value(step.out),
        });
    }

    /// The rule on matrix units, where the target has them, in programs of many rows of one sequence.
    fn delta_chunks(&self, rule: &DeltaRuleSpec) -> Option<DeltaChunksSpec> {
        let fragment = self.target.matrix?.fragment;
        let chunks = DeltaChunksSpec { rule: rule.clone(), fragment, subgroup_size: self.target.subgroup_size };
        let fits = chunks.shared_bytes() <= self.target.shared_memory_bytes;
        (self.kind.rows > SPLIT_ROWS && chunks.is_possible() && fits).then_some(chunks)
    }

    pub(super) fn gated_norm(
        &mut self,
        node: &FusedNode,
        input: ValueId,
        gate: Columns,
        weight: VectorId,
        form: GatedForm,
        out: ValueId,
    ) {
        let (config, eps) = (self.config, self.config.rms_norm_eps);
        let (heads, head_dim, eps) = match (form, config.per_layer_inputs) {
            // The config's epsilon is added to the mean square of a row that is divided by the square root of its inputs' number.
            (GatedForm::Sum, Some(inputs)) => (config.layers.len(), inputs.width, eps * config.hidden_size as f32),
            (GatedForm::Sum, None) => unreachable!("the graph was checked"),
            (GatedForm::Silu, _) => (config.state_layout().heads, config.state_layout().value_dim, eps),
        };
        let spec = GatedNormSpec {
            heads,
            head_dim,
            stride: self.stride_of(out),
            gate_stride: self.stride_of(gate.of),
            gate_first: gate.first,
            eps: Number::new(eps),
            subgroup_size: self.target.subgroup_size,
            form,
            output: Some(self.stored_format(out))
                .filter(|format| GatedNormSpec::stores(head_dim, *format))
                .unwrap_or(ActivationFormat::F32),
            counter_sync: false,
        };
        let encodes = spec.output != ActivationFormat::F32;
        let weight = self.weights.vector(weight);
        self.push(node, KernelSpec::GatedNorm(spec), self.kind.rows, 0, |role| match role {
            Role::Input => Operand::Value(input),
            Role::Second => Operand::Value(gate.of),
            Role::HeadNorm => Operand::Weight(weight),
            Role::Encoded => Operand::Encoded(out),
            _ => Operand::Value(out),
        });
        if !encodes {
            self.quantize(node, out);
        }
    }

    /// The row before each row. Steps that draft read what those before them have kept.
    pub(super) fn previous_row(&mut self, node: &FusedNode, input: ValueId, out: ValueId) {
        let row_use = if self.kind.predicts() { RowUse::Recall } else { RowUse::Follow };
        let spec = self.previous_row_spec(node, row_use, input);
        let ((low, high), input) = (self.kept_rows(node), self.value(input));
        self.push(node, KernelSpec::PreviousRow(spec), self.kind.rows, 0, |role| match role {
            Role::Input => input,
            Role::StateLow => low,
            Role::StateHigh => high,
            _ => Operand::Value(out),
        });
    }

    /// Keeps the row of a draft.
    pub(super) fn keep_row(&mut self, node: &FusedNode, input: ValueId) {
        let spec = self.previous_row_spec(node, RowUse::KeepDraft, input);
        let (_, high) = self.kept_rows(node);
        self.push(node, KernelSpec::PreviousRow(spec), self.kind.rows, 0, |role| match role {
            Role::StateHigh => high,
            _ => Operand::Value(input),
        });
    }

    fn previous_row_spec(&self, node: &FusedNode, row_use: RowUse, input: ValueId) -> PreviousRowSpec {
        PreviousRowSpec {
            state: self.config.state_layout(),
            kv_group: kept_rows_of(self.groups, node.layer.expect("a head for drafts is a layer")).0,
            row_use,
            width: self.config.hidden_size,
            input_stride: self.stride_of(input),
            output_stride: self.stride_of(input),
            rows_are_alone: self.rows_are_alone(),
        }
    }

    /// The halves of the pages in which the head for drafts keeps rows.
    fn kept_rows(&self, node: &FusedNode) -> (Operand, Operand) {
        let (group, layer) = kept_rows_of(self.groups, node.layer.expect("a head for drafts is a layer"));
        (Operand::Keys { group, layer }, Operand::Values { group, layer })
    }

    /// The halves of the layer's pages of state.
    fn state_of(&self, node: &FusedNode) -> (Operand, Operand) {
        let (group, layer) = self.cache_of(node);
        (Operand::Keys { group, layer }, Operand::Values { group, layer })
    }
}
