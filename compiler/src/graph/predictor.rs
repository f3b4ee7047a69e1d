//! The head that predicts the token behind the next one; `import::predictor` has its formula.

use super::{Builder, ColumnsBlock, ColumnsPart, MatrixRef, Op, ValueId};

impl Builder<'_> {
    /// Its logits, of `embedding`, the rows of the step's tokens, and `normed`, the stream that the model's own `head` reads.
    pub(super) fn predicted(&mut self, embedding: ValueId, normed: ValueId, layer: usize, head: &MatrixRef) -> ValueId {
        let hidden = self.config.hidden_size;
        self.layer = Some(layer);
        let before = self.push("before", hidden, |out| Op::PreviousRow { input: normed, out });
        let token = self.norm(embedding, "pre_fc_norm_embedding.weight");
        let before = self.norm(before, "pre_fc_norm_hidden.weight");
        let parts = [token, before].map(|value| ColumnsPart { value, first: 0, width: hidden }).into();
        let blocks = vec![ColumnsBlock { n_heads: 1, parts }];
        let both = self.push("both", 2 * hidden, |out| Op::HeadColumns { blocks, out });
        let stream = self.linear(both, "fc", 2 * hidden, hidden, false);
        let stream = self.attention_block(stream);
        let stream = self.mlp_block(stream);
        let normed = self.norm(stream, "norm.weight");
        self.node(Op::KeepRow { input: normed });
        self.layer = None;
        let matrix = head.clone();
        self.push("predicted", self.config.vocab_size, |out| Op::MatMul { input: normed, matrix, out })
    }
}
