//! Functions: blocks that end with branches, and uses of values only after their definitions.

use std::collections::{BTreeMap, BTreeSet};

use super::control_flow::{self, Construct, DominatorTree};
use super::grammar::{Kind, Rule, op};
use super::types::{Constant, Id, Type, Types, class};
use super::{Checked, Instruction, ensure, mismatch, values};

/// All functions of a module. A function calls only those before it, so that there is no recursion.
#[derive(Default)]
pub struct Functions {
    open: Option<Function>,
}

/// The function that is being read.
struct Function {
    id: u32,
    returns: u32,
    parameters: Vec<u32>,
    parameters_read: usize,
    blocks: Vec<Block>,
    /// Number of the block that each label begins.
    labels: BTreeMap<u32, usize>,
    /// Blocks in which values of this function are defined. Parameters are not among them.
    defined: BTreeMap<u32, usize>,
    /// Pairs of blocks: the block of a use, and that of the definition.
    uses: BTreeSet<(usize, usize)>,
}

#[derive(Default)]
struct Block {
    merge: Option<Merge>,
    /// Labels of the blocks after it; `None`: not ended.
    successors: Option<Vec<u32>>,
    /// Whether all instructions so far were variables.
    begins: bool,
}

/// Where the branches of a block meet again.
#[derive(Clone, Copy)]
struct Merge {
    label: u32,
    /// Label of a loop's continue target; `None`: a selection.
    continues: Option<u32>,
}

/// More blocks than any kernel has; a bound, because blocks are compared with each other.
const MAX_BLOCKS: usize = 1 << 14;

impl Functions {
    pub fn read(&mut self, types: &mut Types, instruction: &Instruction) -> Checked {
        let Instruction { shape, words } = *instruction;
        instruction.check_length()?;
        match (shape.opcode, words, &mut self.open) {
            (op::FUNCTION, &[returns, id, control, of], None) => {
                // None, Inline or DontInline.
                ensure(control <= 2, "a function control that kernels use", control)?;
                let Type::Function { returns: expected, parameters } = types.type_of_id(of)?.clone() else {
                    return mismatch("a function's type", format_args!("type {of}"));
                };
                ensure(returns == expected, "the result of its type", format_args!("type {returns}"))?;
                types.enter_function();
                self.open = Some(Function::new(id, returns, parameters));
                Ok(())
            }
            (op::FUNCTION_PARAMETER, &[of, id], Some(function)) if function.blocks.is_empty() => {
                let expected = function.parameters.get(function.parameters_read);
                ensure(expected == Some(&of), "the parameters of its type", format_args!("type {of}"))?;
                function.parameters_read += 1;
                types.define(id, Id::Value { of, constant: Constant::No })
            }
            (op::FUNCTION_END, [], Some(_)) => {
                let function = self.open.take().expect("it is open");
                function.end()?;
                types.leave_function();
                types.define(function.id, Id::Function { returns: function.returns, parameters: function.parameters })
            }
            (op::LABEL, &[id], Some(function)) => {
                let is_between = function.blocks.last().is_none_or(|block| block.successors.is_some());
                let has_parameters = function.parameters_read == function.parameters.len();
                ensure(is_between && has_parameters, "a label behind the end of a block", format_args!("id {id}"))?;
                ensure(function.blocks.len() < MAX_BLOCKS, "at most 16384 blocks", "more")?;
                function.labels.insert(id, function.blocks.len());
                function.blocks.push(Block { begins: true, ..Block::default() });
                types.define(id, Id::Label)
            }
            (_, _, Some(function)) => function.instruction(types, instruction),
            (_, _, None) => mismatch("an instruction of a function", shape.name),
        }
    }

    /// Checks the end of the module, after the last instruction.
    pub fn end(&self, types: &Types, entry: u32) -> Checked {
        ensure(self.open.is_none(), "the end of the last function", "none")?;
        let is_kernel = match types.get(entry)? {
            Id::Function { returns, parameters } => *types.type_of_id(*returns)? == Type::Void && parameters.is_empty(),
            _ => false,
        };
        ensure(is_kernel, "a function without parameters or result at the entry point", format_args!("id {entry}"))
    }
}

impl Function {
    fn new(id: u32, returns: u32, parameters: Vec<u32>) -> Function {
        Function {
            id,
            returns,
            parameters,
            parameters_read: 0,
            blocks: Vec::new(),
            labels: BTreeMap::new(),
            defined: BTreeMap::new(),
            uses: BTreeSet::new(),
        }
    }

    fn instruction(&mut self, types: &mut Types, instruction: &Instruction) -> Checked {
        let Instruction { shape, words } = *instruction;
        let number = self.blocks.len().wrapping_sub(1);
        let Some(block) = self.blocks.last_mut().filter(|block| block.successors.is_none()) else {
            return mismatch("a label", shape.name);
        };
        let operands = shape.operands.as_bytes();
        for (&word, letter) in words.iter().zip(Letters(operands, 0)) {
            if letter == b'v' {
                types.value(word)?;
                if let Some(&definition) = self.defined.get(&word).filter(|&&definition| definition != number) {
                    self.uses.insert((number, definition));
                }
            }
        }
        if block.merge.is_some() {
            let is_branch = matches!(shape.opcode, op::BRANCH | op::BRANCH_CONDITIONAL | op::SWITCH);
            ensure(is_branch, "a branch behind a merge", shape.name)?;
        }
        let begins = block.begins;
        block.begins &= shape.opcode == op::VARIABLE;
        match (shape.opcode, words) {
            (op::VARIABLE, &[of, id, storage, ref start @ ..]) => {
                let is_first = begins && number == 0 && storage == class::FUNCTION;
                ensure(is_first, "variables at the start of a function", format_args!("id {id}"))?;
                types.variable(of, id, storage, start.first().copied())
            }
            // No control, Unroll, DontUnroll.
            (op::LOOP_MERGE, &[label, continues, 0..=2]) => {
                block.merge = Some(Merge { label, continues: Some(continues) });
                Ok(())
            }
            (op::SELECTION_MERGE, &[label, 0..=2]) => {
                block.merge = Some(Merge { label, continues: None });
                Ok(())
            }
            (op::BRANCH, &[label]) => {
                ensure(
                    block.merge.is_none_or(|merge| merge.continues.is_some()),
                    "a condition behind a merge",
                    "none",
                )?;
                block.end(vec![label])
            }
            (op::BRANCH_CONDITIONAL, &[condition, one, other]) => {
                let (kind, _, lanes) = types.lanes(types.value(condition)?)?;
                ensure(kind == Kind::Bool && lanes == 1, "a condition", format_args!("id {condition}"))?;
                block.end(vec![one, other])
            }
            (op::SWITCH, &[selector, default, ref cases @ ..]) => {
                let is_int = types.is_scalar(types.value(selector)?, Kind::Int, 32);
                let is_merged = block.merge.is_some_and(|merge| merge.continues.is_none());
                ensure(is_int && is_merged && cases.len() % 2 == 0, "a switch over a word, with a merge", "another")?;
                let distinct: BTreeSet<u32> = cases.chunks(2).map(|case| case[0]).collect();
                ensure(distinct.len() == cases.len() / 2, "each case once", cases.len() / 2)?;
                block.end(std::iter::once(default).chain(cases.chunks(2).map(|case| case[1])).collect())
            }
            (op::RETURN, []) => {
                ensure(*types.type_of_id(self.returns)? == Type::Void, "a value to return", "none")?;
                block.end(Vec::new())
            }
            (op::RETURN_VALUE, &[value]) => {
                ensure(
                    types.value(value)? == self.returns,
                    "a value of the function's type",
                    format_args!("id {value}"),
                )?;
                block.end(Vec::new())
            }
            (op::UNREACHABLE, []) => block.end(Vec::new()),
            _ if shape.rule == Rule::Flow || shape.rule == Rule::Declaration => {
                mismatch("an instruction of a block", shape.name)
            }
            _ => {
                values::check(types, instruction)?;
                if let (op::ACCESS_CHAIN, &[_, id, base, ..]) = (shape.opcode, words) {
                    types.derive(id, base);
                }
                if let (Some(b't'), &[of, id, ..]) = (operands.first(), words) {
                    types.define(id, Id::Value { of, constant: Constant::No })?;
                    self.defined.insert(id, number);
                }
                Ok(())
            }
        }
    }

    /// Checks branches, the order of definitions and uses, and constructs.
    fn end(&self) -> Checked {
        ensure(
            self.blocks.last().is_some_and(|block| block.successors.is_some()),
            "the end of a block",
            "of the function",
        )?;
        let mut edges = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            let labels = block.successors.iter().flatten();
            edges.push(labels.map(|&label| self.block(label)).collect::<Checked<Vec<usize>>>()?);
        }
        ensure(edges.iter().flatten().all(|&to| to != 0), "no branch to a function's first block", "one")?;
        let tree = DominatorTree::of(&edges);
        for &(user, definition) in &self.uses {
            let is_defined = !tree.is_reachable(user) || tree.dominates(definition, user);
            ensure(
                is_defined,
                "a definition on every path to its use",
                format_args!("block {definition} for block {user}"),
            )?;
        }
        let mut constructs = Vec::new();
        for (header, block) in self.blocks.iter().enumerate() {
            let Some(Merge { label, continues }) = block.merge else { continue };
            let continues = continues.map(|label| self.block(label)).transpose()?;
            constructs.push(Construct { header, merge: self.block(label)?, continues });
        }
        control_flow::check(&edges, &constructs)
    }

    fn block(&self, label: u32) -> Checked<usize> {
        match self.labels.get(&label) {
            Some(&block) => Ok(block),
            None => mismatch("a label of the same function", format_args!("id {label}")),
        }
    }
}

impl Block {
    fn end(&mut self, successors: Vec<u32>) -> Checked {
        self.successors = Some(successors);
        Ok(())
    }
}

/// Letters of an instruction's operands, the last one repeated.
struct Letters<'s>(&'s [u8], usize);

impl Iterator for Letters<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let Letters(letters, at) = self;
        let letter = *letters.get(*at)?;
        match letters.get(*at + 1) {
            Some(b'*') => {}
            Some(b'?') => *at += 2,
            _ => *at += 1,
        }
        Some(letter)
    }
}
