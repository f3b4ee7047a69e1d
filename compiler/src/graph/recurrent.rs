//! Layers with recurrent state in place of attention: gated delta nets and short convolutions.

use unicorn_kernels::gated_norm::GatedForm;
use unicorn_kernels::short_conv::ConvForm;

use super::{Builder, Op, ValueId};

impl Builder<'_> {
    /// A gated delta net in place of attention.
    pub(super) fn delta_block(&mut self, stream: ValueId) -> ValueId {
        let (config, hidden) = (self.config, self.config.hidden_size);
        let delta = config.delta.expect("recurrent layers have their sizes");
        let normed = if config.pre_norms { self.norm(stream, "input_layernorm.weight") } else { stream };
        let qkv = self.linear(normed, "linear_attn.in_proj_qkv", hidden, delta.channels(), false);
        let gate = self.linear(normed, "linear_attn.in_proj_z", hidden, delta.value_width(), false);
        let strength = self.linear(normed, "linear_attn.in_proj_b", hidden, delta.value_heads, false);
        let decay = self.linear(normed, "linear_attn.in_proj_a", hidden, delta.value_heads, false);
        let vector = |builder: &Self, name: &str| builder.plain_vector(&format!("linear_attn.{name}"));
        let taps = vector(self, "conv1d.weight");
        let input = self.push("conv", delta.channels(), |out| Op::ShortConv {
            input: qkv,
            taps,
            form: ConvForm::Activated,
            out,
        });
        let (decay_rate, decay_bias) = (vector(self, "A_log"), vector(self, "dt_bias"));
        let mixed = self.push("delta", delta.value_width(), |out| Op::DeltaRule {
            input,
            decay,
            strength,
            decay_rate,
            decay_bias,
            out,
        });
        let weight = vector(self, "norm.weight");
        let gated = self.push("gated", delta.value_width(), |out| Op::GatedNorm {
            input: mixed,
            gate,
            weight,
            form: GatedForm::Silu,
            out,
        });
        let out = self.linear(gated, "linear_attn.out_proj", delta.value_width(), hidden, false);
        self.add_to_stream(stream, out, "post_attention_layernorm.weight")
    }

    /// A short convolution between two gates in place of attention.
    pub(super) fn conv_block(&mut self, stream: ValueId) -> ValueId {
        let hidden = self.config.hidden_size;
        let (form, taps) = (ConvForm::Gated, self.plain_vector("conv.conv.weight"));
        let normed = if self.config.pre_norms { self.norm(stream, "input_layernorm.weight") } else { stream };
        let input = self.linear(normed, "conv.in_proj", hidden, form.input_width(hidden), false);
        let mixed = self.push("conv", hidden, |out| Op::ShortConv { input, taps, form, out });
        let out = self.linear(mixed, "conv.out_proj", hidden, hidden, false);
        self.add_to_stream(stream, out, "post_attention_layernorm.weight")
    }
}
