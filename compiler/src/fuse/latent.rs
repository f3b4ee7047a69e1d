//! The heads of latent attention.

use unicorn_kernels::heads::Destination;

use super::{FusedOp, Fuser, HeadsStep};
use crate::graph::{Node, Op, ValueId};

impl<'a> Fuser<'a> {
    /// The queries and the latent vector of a layer, and all work on them: one rearrangement and one heads step.
    pub(super) fn latent_heads(&mut self, index: usize) -> bool {
        let blocks_of = |node: Option<&'a Node>| match node.map(|node| &node.op) {
            Some(Op::HeadColumns { blocks, out }) => Some((blocks, *out)),
            _ => None,
        };
        let nodes = &self.graph.nodes;
        let Some(((query_blocks, query), (key_blocks, key))) =
            blocks_of(nodes.get(index)).zip(blocks_of(nodes.get(index + 1)))
        else {
            return false;
        };
        let chain_of = |value: ValueId| self.head_chain(value, self.sole_consumer(value)?.0);
        let Some((of_query, of_key)) = chain_of(query).zip(chain_of(key)) else { return false };
        if of_query.part.to != Destination::Output || of_key.part.to != Destination::Latent {
            return false;
        }
        let layer = nodes[index].layer;
        let width = self.graph.values[query.0].width + self.graph.values[key.0].width;
        let joined = self.value(format!("qk.{}", layer.unwrap_or_default()), width);
        let blocks = [&query_blocks[..], key_blocks].concat();
        self.emit(layer, FusedOp::HeadColumns { blocks, out: joined });
        self.emit(
            layer,
            FusedOp::Heads(HeadsStep {
                input: joined,
                parts: vec![of_query.part, of_key.part],
                values_are_keys: false,
                query_norm: None,
                key_norm: None,
                rope: of_query.rope,
                out: of_query.out,
            }),
        );
        self.scaled.extend(of_query.out);
        self.mark(&[&[index, index + 1], &of_query.nodes[..], &of_key.nodes].concat());
        true
    }
}
