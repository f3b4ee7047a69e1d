//! The projections of a gated delta net.

use unicorn_kernels::gated_norm::GatedForm;
use unicorn_kernels::short_conv::ConvForm;

use super::{Columns, FusedOp, Fuser, LinearTail};
use crate::graph::{Op, ValueId};

/// What a projection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Projection {
    /// Queries, keys and values, which a convolution reads.
    Channels,
    /// The gate of the result's norm.
    Gate,
    Strength,
    Decay,
}

impl Fuser<'_> {
    /// Two projections of one input: one matmul. Strength and decay have finer weights than channels and gate, so they are a matrix of their own.
    pub(super) fn delta_projections(&mut self, index: usize, input: ValueId) -> bool {
        let Some(first) = self.delta_projection(index) else { return false };
        let other = match first.0 {
            Projection::Channels => Projection::Gate,
            Projection::Strength => Projection::Decay,
            Projection::Gate | Projection::Decay => return false,
        };
        let found = self.consumers[input.0].iter().filter_map(|&node| self.delta_projection(node));
        let Some(second) = found.into_iter().find(|(projection, _)| *projection == other) else { return false };
        let layer = self.graph.nodes[index].layer;
        let (name, tails) = (if other == Projection::Gate { "channels" } else { "gates" }, [first.1, second.1]);
        let widths = tails.each_ref().map(|tail| tail.matrix.rows);
        let out = self.value(format!("{name}.{}", layer.unwrap_or_default()), widths.iter().sum());
        let [one, two] = tails.each_ref().map(|tail| tail.value);
        self.columns.extend([(one, Columns { of: out, first: 0 }), (two, Columns { of: out, first: widths[0] })]);
        let nodes = tails.each_ref().map(|tail| tail.nodes.clone()).concat();
        let matrix = self.matrix(tails.map(|tail| tail.matrix).into(), false, layer);
        self.emit(layer, FusedOp::MatMul { input, matrix, bias: None, act_mul: None, softcap: None, out });
        self.mark(&nodes);
        true
    }

    fn delta_projection(&self, node: usize) -> Option<(Projection, LinearTail)> {
        let tail = self.linear_tail(node).filter(|tail| tail.bias.is_none())?;
        let projection = match self.sole_consumer(tail.value)?.1 {
            Op::ShortConv { form: ConvForm::Activated, .. } => Projection::Channels,
            Op::GatedNorm { gate, form: GatedForm::Silu, .. } if *gate == tail.value => Projection::Gate,
            Op::DeltaRule { strength, .. } if *strength == tail.value => Projection::Strength,
            Op::DeltaRule { decay, .. } if *decay == tail.value => Projection::Decay,
            _ => return None,
        };
        Some((projection, tail))
    }

    /// Where `value` is, which may have become a part of another.
    pub(super) fn columns_of(&self, value: ValueId) -> Columns {
        self.columns.get(&value).copied().unwrap_or(Columns { of: value, first: 0 })
    }
}
