//! What attention does with its projections: one matmul, and one step on their heads.

use unicorn_kernels::Number;
use unicorn_kernels::heads::{Destination, HeadsPart};

use super::{FusedOp, Fuser, HeadsStep, LinearTail};
use crate::graph::{CachePart, MatrixRef, Op, ValueId, VectorRef};

/// What is done to the heads of one projection.
pub(super) struct HeadChain {
    pub(super) part: HeadsPart,
    norm: Option<VectorRef>,
    pub(super) rope: Option<usize>,
    pub(super) out: Option<ValueId>,
    pub(super) nodes: Vec<usize>,
}

impl Fuser<'_> {
    /// q, k and v of one input and all work on their heads: one matmul and one heads step.
    pub(super) fn qkv(&mut self, index: usize, input: ValueId) -> bool {
        // Attention's gate may also read the input.
        let with_chains = |&node: &usize| {
            let tail = self.linear_tail(node)?;
            let chains = self.head_chains(&tail)?;
            Some((tail, chains))
        };
        let found = self.consumers[input.0].iter().filter_map(with_chains);
        let (tails, chains): (Vec<LinearTail>, Vec<Vec<HeadChain>>) = found.unzip();
        if tails.first().is_none_or(|query| query.nodes[0] != index) {
            return false;
        }
        // Values that are keys have no projection of their own.
        let values_are_keys = tails.len() == 2;
        let chains: Vec<HeadChain> = chains.into_iter().flatten().collect();
        // A layer that reads the keys and values of another has queries only.
        let ([query, _, _] | [query]) = &chains[..] else { return false };
        let layer = self.graph.nodes[index].layer;
        let matrices: Vec<MatrixRef> = tails.iter().map(|tail| tail.matrix.clone()).collect();
        let width = matrices.iter().map(|matrix| matrix.rows).sum();
        let matrix = self.matrix(matrices, false, layer);
        let biases: Option<Vec<VectorRef>> = tails.iter().map(|tail| tail.bias.clone()).collect();
        let bias = biases.map(|parts| self.vector(parts, layer));
        let qkv = self.value(format!("qkv.{}", layer.unwrap_or_default()), width);
        self.emit(layer, FusedOp::MatMul { input, matrix, bias, act_mul: None, softcap: None, out: qkv });
        let query_norm = query.norm.clone().map(|weight| self.vector(vec![weight], layer));
        let key_norm = chains.get(1).and_then(|key| key.norm.clone());
        let key_norm = key_norm.map(|weight| self.vector(vec![weight], layer));
        self.emit(
            layer,
            FusedOp::Heads(HeadsStep {
                input: qkv,
                parts: chains.iter().map(|chain| chain.part).collect(),
                values_are_keys,
                query_norm,
                key_norm,
                rope: query.rope,
                out: query.out,
            }),
        );
        self.scaled.extend(query.out);
        for nodes in tails.iter().map(|tail| &tail.nodes).chain(chains.iter().map(|chain| &chain.nodes)) {
            self.mark(nodes);
        }
        true
    }

    /// The results of one projection; where keys are also the values, keys and then values.
    fn head_chains(&self, tail: &LinearTail) -> Option<Vec<HeadChain>> {
        self.consumers[tail.value.0].iter().map(|&first| self.head_chain(tail.value, first)).collect()
    }

    /// Norm, RoPE and the destination (cache or attention) of the heads of `value`, beginning at its consumer `first`.
    pub(super) fn head_chain(&self, value: ValueId, first: usize) -> Option<HeadChain> {
        let layer = self.graph.nodes[first].layer?;
        let mut chain = HeadChain {
            part: HeadsPart {
                n_heads: self.graph.values[value.0].width / self.graph.head_dims[layer],
                norm: None,
                rope: false,
                scale: Number::new(1.0),
                growth: None,
                to: Destination::Values,
            },
            norm: None,
            rope: None,
            out: None,
            nodes: Vec::new(),
        };
        let (mut value, mut next) = (value, Some((first, &self.graph.nodes[first].op)));
        loop {
            let (node, op) = next?;
            match op {
                Op::HeadNorm { of, weight, out, .. } => {
                    chain.part.norm = Some(*of);
                    chain.norm = weight.clone();
                    value = *out;
                }
                Op::Rope { rope, out, .. } => {
                    chain.part.rope = true;
                    chain.rope = Some(*rope);
                    value = *out;
                }
                Op::CacheWrite { part, .. } => {
                    chain.part.to = destination(*part);
                    chain.nodes.push(node);
                    return Some(chain);
                }
                Op::Attention { scale, growth, .. } => {
                    chain.part.scale = Number::new(*scale);
                    chain.part.growth = *growth;
                    chain.part.to = Destination::Output;
                    chain.out = Some(value);
                    return Some(chain);
                }
                _ => return None,
            }
            chain.nodes.push(node);
            next = self.sole_consumer(value);
        }
    }
}

pub(super) fn destination(part: CachePart) -> Destination {
    match part {
        CachePart::Keys => Destination::Keys,
        CachePart::Values => Destination::Values,
        CachePart::Latent => Destination::Latent,
    }
}
