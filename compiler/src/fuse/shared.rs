//! A shared expert as the last of the experts that rows are given to: its matrices follow theirs in the stacks, cut into as many as are
//! their size, and its gate is one more row of the router's matrix. A step then has no dispatch for it alone.

use unicorn_kernels::Activation;
use unicorn_kernels::layout::TILE_ROWS;
use unicorn_kernels::route::{SharedExperts, routes_width};

use super::{Fuser, Matrix, MatrixRef, ValueId};
use crate::graph::Op;

/// What the shared expert of a mixture adds to the operations of the others.
pub(super) struct Joined {
    experts: SharedExperts,
    /// Its gate, up and down.
    matrices: [MatrixRef; 3],
    /// Its sum with the others.
    pub(super) sum: ValueId,
}

/// A shared expert that can be joined.
struct Found<'a> {
    routes: ValueId,
    logits: ValueId,
    own: Mlp<'a>,
    joined: Joined,
    /// Its gate, a matrix of one row.
    gate: Option<MatrixRef>,
    /// Its plain operations.
    nodes: Vec<usize>,
}

/// An MLP, or those of experts.
struct Mlp<'a> {
    input: ValueId,
    activation: Activation,
    /// Gate, up and down.
    matrices: [&'a MatrixRef; 3],
    /// What gate, up, activation and down make.
    values: [ValueId; 4],
    nodes: [usize; 4],
}

impl<'a> Fuser<'a> {
    /// Finds the shared experts, before anything else is merged.
    pub(super) fn join_shared_experts(&mut self) {
        for index in 0..self.graph.nodes.len() {
            let Some(Found { routes, logits, own, joined, gate, nodes }) = self.shared_expert(index) else { continue };
            self.mark(&nodes);
            self.out.values[logits.0].width += joined.experts.logits();
            self.out.values[routes.0].width += routes_width(joined.experts.count);
            for value in own.values {
                self.out.values[value.0].rows_per_token += joined.experts.count;
            }
            self.router_rows.extend(gate.map(|gate| (logits, gate)));
            self.shared.insert(routes, joined);
        }
    }

    /// Gates of the shared experts that [`join_shared_experts`](Self::join_shared_experts) finds.
    pub(super) fn gates_that_join(&self) -> Vec<MatrixRef> {
        (0..self.graph.nodes.len()).filter_map(|index| self.shared_expert(index)?.gate).collect()
    }

    /// The experts that follow those that are chosen from.
    pub(super) fn shared_experts(&self, routes: ValueId) -> SharedExperts {
        self.shared.get(&routes).map(|joined| joined.experts).unwrap_or_default()
    }

    /// The shared expert's matrices that follow these in a stack: gate and up, or down.
    pub(super) fn shared_parts(&self, routes: ValueId, parts: &[MatrixRef]) -> Vec<MatrixRef> {
        match (self.shared.get(&routes), parts) {
            (None, _) => Vec::new(),
            (Some(joined), [_gate, _up]) => joined.matrices[..2].to_vec(),
            (Some(joined), _) => joined.matrices[2..].to_vec(),
        }
    }

    /// The shared expert beside the experts of the router at `index`, if its weights can follow theirs.
    fn shared_expert(&self, index: usize) -> Option<Found<'a>> {
        let &Op::Route { input: logits, out: routes, .. } = &self.graph.nodes[index].op else { return None };
        let (_, router_input, _) = self.matrix_behind(logits)?;
        let weighted = |&node: &usize| match self.graph.nodes[node].op {
            Op::ExpertSum { input, out, .. } => Some((input, out)),
            _ => None,
        };
        let (down, mixed) = self.consumers[routes.0].iter().find_map(weighted)?;
        let own = self.mlp(down)?;
        let (add, &Op::Add { left, right, out: sum }) = self.sole_consumer(mixed)? else { return None };
        let (shared, gate, gate_nodes) = match self.made(right)? {
            (gated, &Op::Gate { input, gate, .. }) => {
                let (node, gate_input, matrix) = self.matrix_behind(gate)?;
                // The router's matmul has one input.
                let fits = matrix.rows == 1 && gate_input == router_input;
                (input, fits.then(|| Some(matrix.clone()))?, vec![gated, node])
            }
            _ => (right, None, Vec::new()),
        };
        let shared = self.mlp(shared)?;
        let [gate_proj, ..] = own.matrices;
        let count = shared.matrices[0].rows / gate_proj.rows;
        let is_alike = (own.input, own.activation) == (shared.input, shared.activation) && left == mixed;
        let fits = own.matrices.iter().zip(shared.matrices).all(|(own, shared)| is_cut_by(own, shared, count));
        // Gate and up alternate in whole tiles.
        if !is_alike || !fits || gate_proj.rows % TILE_ROWS != 0 || !self.have_one_format(&own, &shared) {
            return None;
        }
        let experts = SharedExperts { count, gated: gate.is_some() };
        let joined = Joined { experts, matrices: shared.matrices.map(MatrixRef::clone), sum };
        let nodes = [&shared.nodes[..], &gate_nodes, &[add]].concat();
        Some(Found { routes, logits, own, joined, gate, nodes })
    }

    /// The MLP whose result is `down`, if nothing else reads what is in it.
    fn mlp(&self, down: ValueId) -> Option<Mlp<'a>> {
        let (down_node, product, down_proj) = self.matrix_behind(down)?;
        let (act_mul, &Op::ActMul { gate, up, up_column: 0, activation, .. }) = self.made(product)? else {
            return None;
        };
        let (gate_node, input, gate_proj) = self.matrix_behind(gate)?;
        let (up_node, up_input, up_proj) = self.matrix_behind(up)?;
        let is_alone = [gate, up, product].iter().all(|value| self.sole_consumer(*value).is_some());
        (input == up_input && is_alone).then_some(Mlp {
            input,
            activation,
            matrices: [gate_proj, up_proj, down_proj],
            values: [gate, up, product, down],
            nodes: [gate_node, up_node, act_mul, down_node],
        })
    }

    /// The matmul without a bias that makes a value: its node, input and matrix.
    fn matrix_behind(&self, value: ValueId) -> Option<(usize, ValueId, &'a MatrixRef)> {
        match self.made(value)? {
            (node, Op::MatMul { input, matrix, .. } | Op::ExpertMatMul { input, matrix, bias: None, .. }) => {
                Some((node, *input, matrix))
            }
            _ => None,
        }
    }

    fn made(&self, value: ValueId) -> Option<(usize, &'a Op)> {
        self.producer[value.0].map(|node| (node, &self.graph.nodes[node].op))
    }

    /// Whether stacks have the same formats with the shared expert as without, and it is cut between groups of codes that are kept.
    fn have_one_format(&self, own: &Mlp, shared: &Mlp) -> bool {
        let format = |matrix: &Matrix| self.policy.format(matrix, self.config);
        let all_alike = |parts: std::ops::Range<usize>| {
            let [own, shared] = [own, shared].map(|mlp| {
                let parts = mlp.matrices[parts.clone()].iter().copied().cloned().collect();
                Matrix::of(parts, false, None)
            });
            let both = Matrix { shared: shared.parts.clone(), ..own.clone() };
            format(&own) == format(&shared) && format(&own) == format(&both)
        };
        let whole_groups = own.matrices.iter().zip(shared.matrices).all(|(own, shared)| {
            let kept = self.config.kept_codes.get(&shared.tensor);
            own.cols == shared.cols || kept.is_none_or(|kept| own.cols.is_multiple_of(kept.group as usize))
        });
        whole_groups && all_alike(0..2) && all_alike(2..3)
    }
}

/// Whether `shared` is `count` matrices of `own`'s size, below one another or side by side.
fn is_cut_by(own: &MatrixRef, shared: &MatrixRef, count: usize) -> bool {
    let (below, beside) = ((count * own.rows, own.cols), (own.rows, count * own.cols));
    count > 0 && [below, beside].contains(&(shared.rows, shared.cols))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::format_policy::{FormatPolicy, WeightsOption};
    use crate::fuse::{FusedOp, fuse};
    use crate::graph;
    use crate::import::{KeptCodes, ModelConfig};
    use crate::weights::PackedWeights;

    const POLICY: FormatPolicy = FormatPolicy { weights: WeightsOption::Int4, group: 32 };

    fn config(name: &str) -> ModelConfig {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny").join(name);
        crate::import::open_model(&folder).expect("a model of the tests").config
    }

    /// The shared experts of each mixture's routes.
    fn joined(config: &ModelConfig) -> Vec<SharedExperts> {
        let graph = fuse(&graph::build(config), config, POLICY);
        let of_routes = |node: &crate::fuse::FusedNode| match node.op {
            FusedOp::Route { shared, .. } => Some(shared),
            _ => None,
        };
        let all = graph.nodes.iter().filter_map(of_routes).collect();
        graph.verify(config);
        all
    }

    #[test]
    fn one_that_fits_the_others_is_joined() {
        for (name, layers, expected) in [
            ("qwen2-moe-shared-twice", 2, SharedExperts { count: 2, gated: true }),
            ("qwen35-moe-shared", 2, SharedExperts { count: 1, gated: true }),
            ("deepseek-v3", 2, SharedExperts { count: 1, gated: false }),
            // Its size is no multiple of theirs.
            ("qwen2-moe-shared", 2, SharedExperts::default()),
            // Their gate and up do not alternate in whole tiles.
            ("deepseek-v2", 2, SharedExperts::default()),
            ("qwen3-moe", 2, SharedExperts::default()),
        ] {
            assert_eq!(joined(&config(name)), vec![expected; layers], "{name}");
        }
    }

    /// Codes of the source that are packed as they are need a format that holds them.
    #[test]
    fn one_of_another_format_is_not_joined() {
        let mut config = config("qwen2-moe-shared-twice");
        config.kept_codes.insert("layers.1.mlp.shared_expert.down_proj.weight".into(), KeptCodes::IQ4);
        let shared = SharedExperts { count: 2, gated: true };
        assert_eq!(joined(&config), [shared, SharedExperts::default()]);
    }

    /// A token reads a shared expert whole, and of the others those that it is given to.
    #[test]
    fn traffic_counts_it_whole() {
        let config = config("qwen2-moe-shared-twice");
        let graph = fuse(&graph::build(&config), &config, POLICY);
        let weights = PackedWeights::of(&graph, &config, POLICY);
        let stacks: Vec<_> = weights.list.iter().filter(|weight| weight.name.contains(".experts.")).collect();
        assert_eq!(stacks.len(), 4, "gate and up, and down, of two layers");
        for stack in stacks {
            // Three of seven, and two that are shared.
            assert_eq!(stack.bytes_read_per_token, stack.len_bytes / 9 * 5, "{}", stack.name);
        }
    }
}
