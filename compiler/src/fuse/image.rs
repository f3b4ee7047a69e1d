//! Attention of an image's patches: queries, keys and values are one matmul.

use super::{FusedOp, Fuser, LinearTail};
use crate::graph::{Op, ValueId};

impl Fuser<'_> {
    /// q, k and v of one input with their biases, and the attention that reads them.
    pub(super) fn image_attention(&mut self, index: usize) -> bool {
        let Some(first) = self.linear_tail(index) else { return false };
        let Some((node, &Op::ImageAttention { query, key, value, n_heads, scale, out })) =
            self.sole_consumer(first.value)
        else {
            return false;
        };
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
