//! Structured control flow: every branch of a function is part of a selection or loop, which declares its end at its begin.

use std::collections::{BTreeMap, BTreeSet};

use super::{Checked, ensure};

/// A selection or loop, by numbers of blocks.
pub struct Construct {
    /// The block that ends with its branch.
    pub header: usize,
    /// Where its branches meet again.
    pub merge: usize,
    /// The loop's continue target, where each pass but the last ends; `None`: a selection.
    pub continues: Option<usize>,
}

/// Checks the branches of a function. `edges` are the successors of each block.
pub fn check(edges: &[Vec<usize>], constructs: &[Construct]) -> Checked {
    // Also from each header to its ends, whether or not a branch leads there: SPIR-V's structural control flow.
    let mut structural = edges.to_vec();
    for one in constructs {
        structural[one.header].extend([one.merge].into_iter().chain(one.continues));
    }
    let tree = DominatorTree::of(&structural);
    check_ends(constructs, &tree)?;
    check_loops(edges, constructs, &tree)?;
    constructs.iter().try_for_each(|inner| check_exits(inner, constructs, edges, &tree))
}

fn check_ends(constructs: &[Construct], tree: &DominatorTree) -> Checked {
    let mut merges = BTreeSet::new();
    for &Construct { header, merge, continues } in constructs {
        let is_apart = merge != header && continues != Some(merge) && merges.insert(merge);
        ensure(is_apart, "a merge of its own for every header", format_args!("block {merge} for block {header}"))?;
        for end in [Some(merge), continues].into_iter().flatten().filter(|_| tree.is_reachable(header)) {
            ensure(
                tree.dominates(header, end),
                "a header before its end",
                format_args!("block {header} for block {end}"),
            )?;
        }
    }
    Ok(())
}

/// Checks that each loop has exactly one branch back and there are no others, and that a block which is not a construct's header
/// has one successor or leaves a loop.
fn check_loops(edges: &[Vec<usize>], constructs: &[Construct], tree: &DominatorTree) -> Checked {
    let loops: BTreeMap<usize, &Construct> =
        constructs.iter().filter(|one| one.continues.is_some()).map(|one| (one.header, one)).collect();
    let ends: BTreeSet<usize> =
        loops.values().flat_map(|one| [Some(one.merge), one.continues, Some(one.header)]).flatten().collect();
    let headers: BTreeSet<usize> = constructs.iter().map(|one| one.header).collect();
    let mut repeated = BTreeSet::new();
    for (from, targets) in edges.iter().enumerate().filter(|(from, _)| tree.is_reachable(*from)) {
        for &to in targets.iter().filter(|&&to| tree.dominates(to, from)) {
            let continues = loops.get(&to).and_then(|one| one.continues);
            let is_repeat = continues.is_some_and(|continues| tree.dominates(continues, from)) && repeated.insert(to);
            let expected = "one branch back to a loop, from where it continues";
            ensure(is_repeat, expected, format_args!("block {from} to block {to}"))?;
        }
        let may_end = targets.len() < 2 || headers.contains(&from) || targets.iter().any(|to| ends.contains(to));
        ensure(may_end, "a merge, or a branch out of a loop", format_args!("block {from}"))?;
    }
    let endless = loops.keys().find(|header| tree.is_reachable(**header) && !repeated.contains(header));
    ensure(endless.is_none(), "a branch back to every loop", format_args!("{endless:?}"))
}

/// A construct is the blocks that its header dominates, without those that its merge dominates. Branches out of it lead to its
/// merge, to an end of a loop around it, or to the merge of a switch around it.
fn check_exits(inner: &Construct, all: &[Construct], edges: &[Vec<usize>], tree: &DominatorTree) -> Checked {
    let contains = |block: usize| tree.dominates(inner.header, block) && !tree.dominates(inner.merge, block);
    for (from, targets) in edges.iter().enumerate().filter(|(from, _)| contains(*from)) {
        for &to in targets.iter().filter(|&&to| to != inner.merge && !contains(to)) {
            let may_leave_to = |one: &&Construct| match one.continues {
                Some(continues) => [one.merge, continues, one.header].contains(&to),
                None => edges[one.header].len() > 2 && to == one.merge,
            };
            let around = all.iter().filter(|one| tree.dominates(one.header, inner.header));
            let is_exit = around.filter(may_leave_to).count() > 0;
            ensure(is_exit, "an exit from a construct to a merge block", format_args!("block {from} to block {to}"))?;
        }
    }
    Ok(())
}

/// The blocks that every path from the first block to another block contains.
pub struct DominatorTree {
    /// First and last number of a walk below each block; `None`: no path leads there.
    spans: Vec<Option<(usize, usize)>>,
}

impl DominatorTree {
    /// By the algorithm of Cooper, Harvey and Kennedy.
    pub fn of(edges: &[Vec<usize>]) -> DominatorTree {
        let order = reverse_postorder(edges);
        let mut place = vec![usize::MAX; edges.len()];
        order.iter().enumerate().for_each(|(index, &block)| place[block] = index);
        let mut predecessors = vec![Vec::new(); edges.len()];
        for &from in &order {
            edges[from].iter().for_each(|&to| predecessors[to].push(from));
        }
        let mut parent = vec![usize::MAX; edges.len()];
        parent[0] = 0;
        let mut changed = true;
        while changed {
            changed = false;
            for &block in &order[1..] {
                let known = predecessors[block].iter().copied().filter(|&from| parent[from] != usize::MAX);
                let meet = |mut one: usize, mut other: usize| {
                    while one != other {
                        if place[one] > place[other] { one = parent[one] } else { other = parent[other] }
                    }
                    one
                };
                let nearest = known.reduce(meet).expect("a block is reached from one before it");
                changed |= std::mem::replace(&mut parent[block], nearest) != nearest;
            }
        }
        let mut children = vec![Vec::new(); edges.len()];
        order[1..].iter().for_each(|&block| children[parent[block]].push(block));
        let mut spans = vec![None; edges.len()];
        let mut clock = 0;
        let mut stack = vec![(0, false)];
        while let Some((block, is_left)) = stack.pop() {
            if is_left {
                spans[block] = spans[block].map(|(first, _)| (first, clock));
                continue;
            }
            clock += 1;
            spans[block] = Some((clock, clock));
            stack.push((block, true));
            stack.extend(children[block].iter().map(|&child| (child, false)));
        }
        DominatorTree { spans }
    }

    pub fn is_reachable(&self, block: usize) -> bool {
        self.spans[block].is_some()
    }

    pub fn dominates(&self, one: usize, other: usize) -> bool {
        match (self.spans[one], self.spans[other]) {
            (Some((first, last)), Some((at, _))) => (first..=last).contains(&at),
            _ => false,
        }
    }
}

fn reverse_postorder(edges: &[Vec<usize>]) -> Vec<usize> {
    let mut order = Vec::new();
    let mut is_seen = vec![false; edges.len()];
    let mut stack = vec![(0, 0)];
    is_seen[0] = true;
    while let Some((block, next)) = stack.pop() {
        match edges[block].get(next) {
            Some(&to) => {
                stack.push((block, next + 1));
                if !std::mem::replace(&mut is_seen[to], true) {
                    stack.push((to, 0));
                }
            }
            None => order.push(block),
        }
    }
    order.reverse();
    order
}
