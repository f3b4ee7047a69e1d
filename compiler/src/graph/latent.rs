//! Latent attention, absorbed: a query is carried into the space of the latent vectors by its head's matrix, so that attention reads one
//! vector a token, of which it takes the mean; a second matrix of the head makes the head's result of that.
//!
//! ```text
//! query    [ k_b · q_nope | rope(q_rope) ]      for each head
//! cached   [ norm(latent) | rope(k_rope) ]      one for all heads
//! result   v_b · (mean of the latent vectors)   for each head
//! ```

use unicorn_kernels::route::routes_width;

use super::{Builder, CachePart, ColumnsBlock, ColumnsPart, MatrixRef, Op, ValueId};
use crate::import::LatentConfig;

impl Builder<'_> {
    /// Routes that give each row to the matrices of all heads.
    pub(super) fn every_head(&mut self) -> ValueId {
        let matrices = self.config.n_heads;
        self.push("heads", routes_width(matrices), |out| Op::EveryMatrix { matrices, out })
    }

    pub(super) fn latent_block(&mut self, stream: ValueId, latent: LatentConfig, every_head: ValueId) -> ValueId {
        let (config, hidden, n_heads) = (self.config, self.config.hidden_size, self.config.n_heads);
        let LatentConfig { rank, nope_dim, rope_dim, value_dim, .. } = latent;
        let queries = n_heads * latent.query_dim();
        let rope = config.layers[self.layer.expect("inside a layer")].rope;
        let normed = if config.pre_norms { self.norm(stream, "input_layernorm.weight") } else { stream };
        let query = match latent.query_rank {
            None => self.linear(normed, "self_attn.q_proj", hidden, queries, false),
            Some(rank) => {
                let low = self.linear(normed, "self_attn.q_a_proj", hidden, rank, false);
                let low = self.width_norm(low, "self_attn.q_a_layernorm.weight");
                self.linear(low, "self_attn.q_b_proj", rank, queries, false)
            }
        };
        let nope = self.head_rows("q_nope", query, nope_dim);
        let absorbed = self.of_heads(nope, every_head, "k_b_proj", rank, nope_dim);
        let vector = self.linear(normed, "self_attn.kv_a_proj", hidden, rank, false);
        let vector = self.width_norm(vector, "self_attn.kv_a_layernorm.weight");
        let shared = self.linear(normed, "self_attn.k_rope_proj", hidden, rope_dim, false);
        let part = |value, first, width| ColumnsPart { value, first, width };
        let of_query = vec![part(absorbed, 0, rank), part(query, nope_dim, rope_dim)];
        let query = self.one_row("q", vec![ColumnsBlock { n_heads, parts: of_query }]);
        let of_key = vec![part(vector, 0, rank), part(shared, 0, rope_dim)];
        let key = self.one_row("k", vec![ColumnsBlock { n_heads: 1, parts: of_key }]);
        let (query, key) = (self.rope(query, rope), self.rope(key, rope));
        self.node(Op::CacheWrite { input: key, part: CachePart::Latent });
        let scale = config.query_scale;
        let attention = |out| Op::Attention { query, scale, growth: None, sinks: None, out };
        let mean = self.push_rows("attention", rank, n_heads, attention);
        let values = self.of_heads(mean, every_head, "v_b_proj", value_dim, rank);
        let of_values = vec![part(values, 0, value_dim)];
        let values = self.one_row("values", vec![ColumnsBlock { n_heads, parts: of_values }]);
        let out = self.linear(values, "self_attn.o_proj", n_heads * value_dim, hidden, false);
        self.add_to_stream(stream, out, "post_attention_layernorm.weight")
    }

    /// RMS norm of a value that is not the stream.
    fn width_norm(&mut self, input: ValueId, tensor: &str) -> ValueId {
        let weight = self.norm_weight(tensor);
        self.push("normed", self.width(input), |out| Op::Norm { input, weight, out })
    }

    /// The first `width` columns of each head of a row, as a row of their own.
    fn head_rows(&mut self, name: &str, input: ValueId, width: usize) -> ValueId {
        let n_heads = self.config.n_heads;
        let blocks = vec![ColumnsBlock { n_heads, parts: vec![ColumnsPart { value: input, first: 0, width }] }];
        self.push_rows(name, width, n_heads, |out| Op::HeadColumns { blocks, out })
    }

    /// Heads one after the other in a row.
    fn one_row(&mut self, name: &str, blocks: Vec<ColumnsBlock>) -> ValueId {
        let heads = blocks.iter().map(|block| block.n_heads * block.parts.iter().map(|part| part.width).sum::<usize>());
        let width = heads.sum();
        self.push(name, width, |out| Op::HeadColumns { blocks, out })
    }

    /// The row of each head times the head's matrix.
    fn of_heads(&mut self, input: ValueId, routes: ValueId, name: &str, rows: usize, cols: usize) -> ValueId {
        let n_heads = self.config.n_heads;
        let tensor = self.tensor(&format!("self_attn.{name}.*.weight"));
        let matrix = MatrixRef { tensor, rows, cols, experts: Some(n_heads) };
        self.push_rows(name, rows, n_heads, |out| Op::ExpertMatMul { input, routes, matrix, bias: None, out })
    }
}
