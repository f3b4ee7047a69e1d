//! Attention of an image's patches: queries, keys and values are one matmul.

use super::{FusedGraph, FusedOp, Fuser, LinearTail};
use crate::graph::{Op, ValueId};

impl Fuser<'_> {
    /// q, k and v of one input with their biases, and the attention that reads them.
    pub(super) fn image_attention(&mut self, index: usize) -> bool {
        let Some(first) = self.linear_tail(index) else { return false };
        let Some((node, &Op::ImageAttention { sources, n_heads, scale, out })) = self.sole_consumer(first.value) else {
            return false;
        };
        let [query, key, value] = sources.map(|(source, _)| source);
        let tail_of = |value: ValueId| {
            let bias = self.producer[value.0]?;
            let Op::Bias { input, .. } = self.graph.nodes[bias].op else { return None };
            self.linear_tail(self.producer[input.0]?)
        };
        let tails: Option<Vec<LinearTail>> = [query, key, value].into_iter().map(tail_of).collect();
        let Some(tails) = tails.filter(|tails| tails[0].nodes[0] == index) else { return false };
        let biases: Option<Vec<_>> = tails.iter().map(|tail| tail.bias.clone()).collect();
        let Op::MatMul { input, .. } = self.graph.nodes[index].op else { return false };
        let Some(biases) = biases else { return false };
        let width = tails[0].matrix.rows;
        let rows_per_token = self.graph.values[query.0].rows_per_token;
        let joined = self.value_of_rows("image.qkv".into(), 3 * width, rows_per_token);
        let matrix = self.matrix(tails.iter().map(|tail| tail.matrix.clone()).collect(), false, None);
        let bias = Some(self.vector(biases, None));
        self.emit(None, FusedOp::MatMul { input, matrix, bias, act_mul: None, softcap: None, out: joined });
        let sources = [0, 1, 2].map(|part| (joined, part * width));
        self.emit(None, FusedOp::ImageAttention { sources, n_heads, scale, out });
        for tail in &tails {
            self.mark(&tail.nodes);
        }
        self.mark(&[node]);
        true
    }
}

impl FusedGraph {
    /// The graph of steps without rows of images, which have no features: what made their input makes the sum. `None`: it is the same.
    pub(crate) fn without_image_features(&self) -> Option<FusedGraph> {
        let features: Vec<(ValueId, ValueId)> = self.nodes.iter().filter_map(|node| features_of(&node.op)).collect();
        if features.is_empty() {
            return None;
        }
        let mut graph = self.clone();
        graph.nodes.retain(|node| features_of(&node.op).is_none());
        for node in &mut graph.nodes {
            if let FusedOp::MatMul { out, .. } | FusedOp::ExpertSum { out, .. } | FusedOp::Elementwise { out, .. } =
                &mut node.op
                && let Some((_, sum)) = features.iter().find(|(input, _)| input == out)
            {
                *out = *sum;
            }
        }
        Some(graph)
    }
}

/// Input and sum of an operation that adds features.
fn features_of(op: &FusedOp) -> Option<(ValueId, ValueId)> {
    match *op {
        FusedOp::ImageFeatures { input, out, .. } => Some((input, out)),
        _ => None,
    }
}
