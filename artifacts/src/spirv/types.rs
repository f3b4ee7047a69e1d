//! The definition of every id of a module: types, constants, variables, functions, results. Types are checked when declared.

use std::collections::{BTreeMap, BTreeSet};

use super::grammar::scope::SUBGROUP;
use super::grammar::{Kind, op};
use super::{Checked, Instruction, Limits, ensure, mismatch};
use crate::step::CounterWait;

#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    Void,
    Scalar { kind: Kind, bits: u32, signed: bool },
    Vector { of: u32, lanes: u32 },
    Array { of: u32, len: u32 },
    RuntimeArray { of: u32 },
    Struct { members: Vec<u32> },
    Pointer { class: u32, to: u32 },
    Function { returns: u32, parameters: Vec<u32> },
    Matrix { of: u32, rows: u32, columns: u32, usage: u32 },
}

/// The definition of an id.
#[derive(Clone, Debug)]
pub enum Id {
    Import,
    Type(Type),
    Value {
        of: u32,
        constant: Constant,
    },
    Function {
        returns: u32,
        parameters: Vec<u32>,
    },
    /// The label of a block.
    Label,
    /// An id of a function that has ended.
    Gone,
}

/// What is known of a value before the kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// Nothing.
    No,
    /// The value is a constant.
    Yes,
    /// The value is this constant of 32 bits.
    Word(u32),
}

/// Storage classes.
pub mod class {
    pub const INPUT: u32 = 1;
    pub const WORKGROUP: u32 = 4;
    pub const PRIVATE: u32 = 6;
    pub const FUNCTION: u32 = 7;
    pub const PUSH_CONSTANT: u32 = 9;
    pub const STORAGE_BUFFER: u32 = 12;
}

/// Numbers of decorations.
mod decoration {
    pub const BLOCK: u32 = 2;
    pub const ARRAY_STRIDE: u32 = 6;
    pub const BUILT_IN: u32 = 11;
    pub const COHERENT: u32 = 23;
    pub const NON_WRITABLE: u32 = 24;
    pub const BINDING: u32 = 33;
    pub const DESCRIPTOR_SET: u32 = 34;
    pub const OFFSET: u32 = 35;
}

/// More bytes than any kernel has in private variables.
const MAX_PRIVATE_BYTES: u64 = 1 << 20;
const MAX_ARRAY_LEN: u32 = 1 << 20;
const MAX_MEMBERS: usize = 64;
const MAX_PARAMETERS: usize = 64;
/// Uses of cooperative matrices.
const MATRIX_USES: u32 = 3;

#[derive(Default)]
struct Decorations {
    is_block: bool,
    stride: Option<u32>,
    built_in: Option<u32>,
    binding: Option<u32>,
    set: Option<u32>,
    offsets: BTreeMap<u32, u32>,
}

pub struct Types<'l> {
    limits: &'l Limits<'l>,
    ids: Vec<Option<Id>>,
    decorations: BTreeMap<u32, Decorations>,
    interface: Vec<u32>,
    /// Ids of the function that is being read.
    local: Option<Vec<u32>>,
    /// Scalars, vectors and pointers are declared once, so that equal types have equal ids.
    unique: Vec<Type>,
    private_bytes: u64,
    workgroup_bytes: u64,
    /// Buffers that the pipeline's dispatches only read, and pointers into them.
    read_only: BTreeSet<u32>,
}

impl<'l> Types<'l> {
    pub fn new(bound: u32, limits: &'l Limits<'l>) -> Types<'l> {
        Types {
            limits,
            ids: vec![None; bound as usize],
            decorations: BTreeMap::new(),
            interface: Vec::new(),
            local: None,
            unique: Vec::new(),
            private_bytes: 0,
            workgroup_bytes: 0,
            read_only: BTreeSet::new(),
        }
    }

    pub fn limits(&self) -> &Limits<'l> {
        self.limits
    }

    pub fn define(&mut self, id: u32, definition: Id) -> Checked {
        match self.ids.get_mut(id as usize) {
            Some(free @ None) => {
                *free = Some(definition);
                self.local.iter_mut().for_each(|local| local.push(id));
            }
            Some(Some(_)) => return mismatch("a new id", format_args!("id {id} once more")),
            None => return mismatch(format_args!("an id below {}", self.ids.len()), id),
        }
        Ok(())
    }

    pub fn enter_function(&mut self) {
        self.local = Some(Vec::new());
    }

    /// From here on, ids of the function cannot be used.
    pub fn leave_function(&mut self) {
        for id in self.local.take().into_iter().flatten() {
            self.ids[id as usize] = Some(Id::Gone);
        }
    }

    pub fn get(&self, id: u32) -> Checked<&Id> {
        match self.ids.get(id as usize) {
            Some(Some(definition)) if !matches!(definition, Id::Gone) => Ok(definition),
            _ => mismatch("an id that is defined before", format_args!("id {id}")),
        }
    }

    pub fn type_of_id(&self, id: u32) -> Checked<&Type> {
        match self.get(id)? {
            Id::Type(found) => Ok(found),
            _ => mismatch("a type", format_args!("id {id}")),
        }
    }

    /// The id of a value's type.
    pub fn value(&self, id: u32) -> Checked<u32> {
        match self.get(id)? {
            Id::Value { of, .. } => Ok(*of),
            _ => mismatch("a value", format_args!("id {id}")),
        }
    }

    pub fn constant(&self, id: u32) -> Checked<Constant> {
        match self.get(id)? {
            Id::Value { constant, .. } => Ok(*constant),
            _ => mismatch("a constant", format_args!("id {id}")),
        }
    }

    /// A constant of 32 bits.
    pub fn word(&self, id: u32) -> Checked<u32> {
        match self.constant(id)? {
            Constant::Word(word) => Ok(word),
            _ => mismatch("a constant of 32 bits", format_args!("id {id}")),
        }
    }

    /// Kind, bits and lanes of a scalar, vector or matrix, whose lanes count as 0.
    pub fn lanes(&self, of: u32) -> Checked<(Kind, u32, u32)> {
        let scalar = |of: u32, lanes: u32| match self.type_of_id(of)? {
            Type::Scalar { kind, bits, .. } => Ok((*kind, *bits, lanes)),
            _ => mismatch("a scalar", format_args!("type {of}")),
        };
        match self.type_of_id(of)? {
            Type::Scalar { .. } => scalar(of, 1),
            Type::Vector { of, lanes } => scalar(*of, *lanes),
            Type::Matrix { of, .. } => scalar(*of, 0),
            _ => mismatch("a scalar, a vector or a matrix", format_args!("type {of}")),
        }
    }

    pub fn is_scalar(&self, of: u32, expected: Kind, bits: u32) -> bool {
        matches!(self.type_of_id(of), Ok(Type::Scalar { kind, bits: found, .. }) if *kind == expected && *found == bits)
    }

    pub fn pointer(&self, value: u32) -> Checked<(u32, u32)> {
        match self.type_of_id(self.value(value)?)? {
            Type::Pointer { class, to } => Ok((*class, *to)),
            _ => mismatch("a pointer", format_args!("id {value}")),
        }
    }

    /// Checks that the kernel may write through this pointer, or hand it on.
    pub fn writable(&self, pointer: u32) -> Checked {
        let is_writable = !self.read_only.contains(&pointer);
        ensure(is_writable, "no write to a binding that its dispatches only read", format_args!("id {pointer}"))
    }

    /// `pointer` points into what `base` points to.
    pub fn derive(&mut self, pointer: u32, base: u32) {
        if self.read_only.contains(&base) {
            self.read_only.insert(pointer);
        }
    }

    /// Whether values of the type can be loaded and stored.
    pub fn is_data(&self, of: u32) -> bool {
        let is_known = |found: &Type| {
            matches!(
                found,
                Type::Scalar { .. }
                    | Type::Vector { .. }
                    | Type::Array { .. }
                    | Type::Matrix { .. }
                    | Type::Struct { .. }
            )
        };
        self.type_of_id(of).is_ok_and(is_known) && !self.ends_openly(of)
    }

    /// Whether it is, or ends with, an array whose length depends on the buffer.
    fn ends_openly(&self, of: u32) -> bool {
        match self.type_of_id(of) {
            Ok(Type::RuntimeArray { .. }) => true,
            // Only the last member may be one.
            Ok(Type::Struct { members }) => members.last().is_some_and(|&last| self.ends_openly(last)),
            _ => false,
        }
    }

    /// Size in bytes. Strides and offsets may be larger than members and elements.
    fn bytes(&self, of: u32) -> u64 {
        match self.type_of_id(of) {
            Ok(Type::Scalar { bits, .. }) => u64::from(*bits) / 8,
            Ok(Type::Vector { of, lanes }) => self.bytes(*of) * u64::from(*lanes),
            Ok(Type::Array { of: element, len }) => {
                let stride = self.decorations.get(&of).and_then(|one| one.stride).unwrap_or(0);
                self.bytes(*element).max(stride.into()).saturating_mul((*len).into())
            }
            Ok(Type::Struct { members }) => {
                let offsets = self.decorations.get(&of).map(|one| &one.offsets);
                let end = |index: usize| {
                    let offset = offsets.and_then(|offsets| offsets.get(&(index as u32))).copied().unwrap_or(0);
                    self.bytes(members[index]).saturating_add(offset.into())
                };
                let natural = members.iter().fold(0u64, |sum, &member| sum.saturating_add(self.bytes(member)));
                (0..members.len()).map(end).max().unwrap_or(0).max(natural)
            }
            // A matrix is distributed over a subgroup; it counts as if each invocation held all of it.
            Ok(Type::Matrix { of, rows, columns, .. }) => self.bytes(*of) * u64::from(*rows) * u64::from(*columns),
            _ => 0,
        }
    }

    pub fn import(&mut self, id: u32) -> Checked {
        self.define(id, Id::Import)
    }

    /// The variables that the entry point names.
    pub fn interface(&mut self, ids: &[u32]) -> Checked {
        self.interface = ids.to_vec();
        ensure(ids.len() <= MAX_MEMBERS, "at most 64 variables of the entry point", ids.len())
    }

    pub fn declaration(&mut self, instruction: &Instruction) -> Checked {
        match (instruction.shape.opcode, instruction.words) {
            (op::DECORATE, &[target, decoration, ref number @ ..]) => self.decorate(target, decoration, number),
            (op::MEMBER_DECORATE, &[target, member, decoration, ref number @ ..]) => {
                self.decorate_member(target, member, decoration, number)
            }
            (op::CONSTANT..=op::CONSTANT_NULL | op::CONSTANT_TRUE | op::CONSTANT_FALSE, &[of, id, ref words @ ..]) => {
                let constant = self.constant_of(instruction.shape.opcode, of, words)?;
                self.define(id, Id::Value { of, constant })
            }
            (op::VARIABLE, &[of, id, class, ref start @ ..]) => {
                ensure(class != class::FUNCTION, "a variable of the module", "one of a function")?;
                self.variable(of, id, class, start.first().copied())
            }
            (_, &[id, ref operands @ ..]) => {
                let declared = self.declared(instruction.shape.opcode, id, operands)?;
                if !matches!(declared, Type::Array { .. } | Type::RuntimeArray { .. } | Type::Struct { .. }) {
                    ensure(
                        !self.unique.contains(&declared),
                        "a type that was not declared before",
                        format_args!("{declared:?}"),
                    )?;
                    self.unique.push(declared.clone());
                }
                self.define(id, Id::Type(declared))
            }
            _ => mismatch("operands", "none"),
        }
    }

    fn decorate(&mut self, target: u32, decoration: u32, number: &[u32]) -> Checked {
        ensure((target as usize) < self.ids.len(), "an id below the bound", target)?;
        let of_target = self.decorations.entry(target).or_default();
        let slot = match (decoration, number) {
            (decoration::BLOCK, []) => {
                of_target.is_block = true;
                return Ok(());
            }
            (decoration::NON_WRITABLE | decoration::COHERENT, []) => return Ok(()),
            (decoration::ARRAY_STRIDE, [_]) => &mut of_target.stride,
            (decoration::BUILT_IN, [_]) => &mut of_target.built_in,
            (decoration::BINDING, [_]) => &mut of_target.binding,
            (decoration::DESCRIPTOR_SET, [_]) => &mut of_target.set,
            _ => return mismatch("a decoration that kernels use", format_args!("number {decoration}")),
        };
        ensure(slot.replace(number[0]).is_none(), "each decoration once", decoration)
    }

    fn decorate_member(&mut self, target: u32, member: u32, decoration: u32, number: &[u32]) -> Checked {
        ensure((target as usize) < self.ids.len(), "an id below the bound", target)?;
        match (decoration, number) {
            (decoration::NON_WRITABLE | decoration::COHERENT, []) => Ok(()),
            (decoration::OFFSET, &[offset]) => {
                let before = self.decorations.entry(target).or_default().offsets.insert(member, offset);
                ensure(before.is_none(), "each offset once", member)
            }
            _ => mismatch("the offset of a member", format_args!("decoration {decoration}")),
        }
    }

    fn declared(&self, opcode: u16, id: u32, operands: &[u32]) -> Checked<Type> {
        let scalar = |kind, bits, signed| Type::Scalar { kind, bits, signed };
        let needs = self.limits.needs;
        Ok(match (opcode, operands) {
            (op::TYPE_VOID, []) => Type::Void,
            (op::TYPE_BOOL, []) => scalar(Kind::Bool, 32, false),
            (op::TYPE_INT, &[bits, sign @ (0 | 1)]) => {
                let is_recorded = match bits {
                    8 => needs.int8,
                    16 => needs.int16,
                    32 => true,
                    64 => needs.int64,
                    _ => false,
                };
                ensure(is_recorded, "integers of a width of the module's record", bits)?;
                scalar(Kind::Int, bits, sign == 1)
            }
            (op::TYPE_FLOAT, &[bits]) => {
                ensure(bits == 32 || bits == 16 && needs.float16, "floats of a width of the module's record", bits)?;
                scalar(Kind::Float, bits, true)
            }
            (op::TYPE_VECTOR, &[of, lanes @ 2..=4]) => {
                ensure(matches!(self.type_of_id(of)?, Type::Scalar { .. }), "a scalar", format_args!("type {of}"))?;
                Type::Vector { of, lanes }
            }
            (op::TYPE_ARRAY, &[of, len]) => {
                let len = self.word(len)?;
                ensure(self.is_data(of) && (1..=MAX_ARRAY_LEN).contains(&len), "an array of 1 to 2^20 elements", len)?;
                self.check_stride(id, of)?;
                Type::Array { of, len }
            }
            (op::TYPE_RUNTIME_ARRAY, &[of]) => {
                ensure(self.is_data(of), "elements with a size", format_args!("type {of}"))?;
                self.check_stride(id, of)?;
                Type::RuntimeArray { of }
            }
            (op::TYPE_STRUCT, members) => {
                self.check_members(id, members)?;
                Type::Struct { members: members.to_vec() }
            }
            (op::TYPE_POINTER, &[class, to]) => {
                use class::{FUNCTION, INPUT, PRIVATE, PUSH_CONSTANT, STORAGE_BUFFER, WORKGROUP};
                let is_open = self.ends_openly(to) && class == STORAGE_BUFFER;
                ensure(self.is_data(to) || is_open, "a pointer to data", format_args!("type {to}"))?;
                let known = [FUNCTION, INPUT, PRIVATE, PUSH_CONSTANT, STORAGE_BUFFER, WORKGROUP];
                ensure(known.contains(&class), "a storage class that kernels use", class)?;
                Type::Pointer { class, to }
            }
            (op::TYPE_FUNCTION, &[returns, ref parameters @ ..]) => {
                let is_void = *self.type_of_id(returns)? == Type::Void;
                ensure(is_void || self.is_data(returns), "a result that is data", format_args!("type {returns}"))?;
                ensure(parameters.len() <= MAX_PARAMETERS, "at most 64 parameters", parameters.len())?;
                for &parameter in parameters {
                    let is_pointer = matches!(self.type_of_id(parameter)?, Type::Pointer { .. });
                    ensure(
                        is_pointer || self.is_data(parameter),
                        "a parameter that is data",
                        format_args!("type {parameter}"),
                    )?;
                }
                Type::Function { returns, parameters: parameters.to_vec() }
            }
            (op::TYPE_MATRIX, &[of, scope, rows, columns, usage]) => {
                let [scope, rows, columns, usage] =
                    [self.word(scope)?, self.word(rows)?, self.word(columns)?, self.word(usage)?];
                ensure(!needs.matrices.is_empty() || needs.subgroup_size != 0, "no cooperative matrices", "one")?;
                let is_number = matches!(self.type_of_id(of)?, Type::Scalar { kind: Kind::Int | Kind::Float, .. });
                let is_sized = [rows, columns].iter().all(|side| (1..=256).contains(side));
                let is_known = is_number && scope == SUBGROUP && is_sized && usage < MATRIX_USES;
                ensure(
                    is_known,
                    "a matrix of a subgroup",
                    format_args!("{rows} x {columns}, scope {scope}, use {usage}"),
                )?;
                Type::Matrix { of, rows, columns, usage }
            }
            _ => return mismatch("operands of a type", format_args!("{operands:?}")),
        })
    }

    /// Checks that a stride, if there is one, is not smaller than the elements.
    fn check_stride(&self, array: u32, element: u32) -> Checked {
        let Some(stride) = self.decorations.get(&array).and_then(|one| one.stride) else { return Ok(()) };
        ensure(u64::from(stride) >= self.bytes(element) && stride % 4 == 0, "a stride of whole elements", stride)
    }

    /// Checks that offsets, if there are any, are in order and that members do not overlap.
    fn check_members(&self, id: u32, members: &[u32]) -> Checked {
        ensure((1..=MAX_MEMBERS).contains(&members.len()), "1 to 64 members", members.len())?;
        let decorations = self.decorations.get(&id);
        let mut end = 0;
        for (index, &member) in members.iter().enumerate() {
            let is_last = index + 1 == members.len();
            let may_be =
                self.is_data(member) || is_last && matches!(self.type_of_id(member), Ok(Type::RuntimeArray { .. }));
            ensure(may_be, "a member with a size, or an array at the end", format_args!("type {member}"))?;
            if let Some(&offset) = decorations.and_then(|one| one.offsets.get(&(index as u32))) {
                ensure(u64::from(offset) >= end && offset % 4 == 0, "offsets of members in order", offset)?;
                end = u64::from(offset) + self.bytes(member);
            }
        }
        let beyond =
            decorations.and_then(|one| one.offsets.keys().next_back()).filter(|&&last| last as usize >= members.len());
        ensure(beyond.is_none(), "offsets of its members", format_args!("{beyond:?}"))
    }

    /// Whether all of its parts have offsets and strides, as types in buffers must.
    fn has_layout(&self, of: u32) -> bool {
        let decorations = self.decorations.get(&of);
        match self.type_of_id(of) {
            Ok(Type::Scalar { kind, .. }) => *kind != Kind::Bool,
            Ok(Type::Vector { of, .. }) => self.has_layout(*of),
            Ok(Type::Array { of, .. } | Type::RuntimeArray { of }) => {
                decorations.is_some_and(|one| one.stride.is_some()) && self.has_layout(*of)
            }
            Ok(Type::Struct { members }) => {
                decorations.is_some_and(|one| one.offsets.len() == members.len())
                    && members.iter().all(|&member| self.has_layout(member))
            }
            _ => false,
        }
    }

    fn constant_of(&self, opcode: u16, of: u32, words: &[u32]) -> Checked<Constant> {
        let found = self.type_of_id(of)?;
        match (opcode, found, words) {
            (op::CONSTANT_TRUE | op::CONSTANT_FALSE, Type::Scalar { kind: Kind::Bool, .. }, []) => Ok(Constant::Yes),
            (op::CONSTANT, Type::Scalar { kind: Kind::Int, bits: 32, .. }, &[word]) => Ok(Constant::Word(word)),
            (
                op::CONSTANT,
                Type::Scalar { kind: Kind::Float, .. } | Type::Scalar { kind: Kind::Int, bits: 8 | 16, .. },
                [_],
            ) => Ok(Constant::Yes),
            (op::CONSTANT, Type::Scalar { kind: Kind::Int, bits: 64, .. }, [_, _]) => Ok(Constant::Yes),
            (op::CONSTANT_NULL, _, []) if self.is_data(of) => Ok(match found {
                Type::Scalar { kind: Kind::Int, bits: 32, .. } => Constant::Word(0),
                _ => Constant::Yes,
            }),
            (op::CONSTANT_COMPOSITE, _, parts) => {
                self.check_parts(of, parts)?;
                for &part in parts {
                    ensure(
                        self.constant(part)? != Constant::No,
                        "parts that are constants",
                        format_args!("id {part}"),
                    )?;
                }
                Ok(Constant::Yes)
            }
            _ => mismatch("a constant of its type", format_args!("{found:?}")),
        }
    }

    /// Checks that these values together form a value of the type.
    pub fn check_parts(&self, of: u32, parts: &[u32]) -> Checked {
        let expected: Vec<u32> = match self.type_of_id(of)? {
            Type::Vector { of: component, lanes } => {
                let (kind, bits, _) = self.lanes(*component)?;
                let mut filled = 0;
                for &part in parts {
                    let (of_kind, of_bits, of_lanes) = self.lanes(self.value(part)?)?;
                    ensure(
                        (of_kind, of_bits) == (kind, bits) && of_lanes > 0,
                        "parts of the vector's type",
                        format_args!("id {part}"),
                    )?;
                    filled += of_lanes;
                }
                return ensure(filled == *lanes, "as many parts as lanes", filled);
            }
            Type::Array { of, len } => {
                ensure(parts.len() == *len as usize, "as many parts as elements", parts.len())?;
                vec![*of; parts.len()]
            }
            Type::Struct { members } => members.clone(),
            Type::Matrix { of, .. } => vec![*of],
            other => return mismatch("a type with parts", format_args!("{other:?}")),
        };
        ensure(parts.len() == expected.len(), "as many parts as its type has", parts.len())?;
        for (&part, of) in parts.iter().zip(expected) {
            ensure(self.value(part)? == of, "a part of its type", format_args!("id {part}"))?;
        }
        Ok(())
    }

    pub fn variable(&mut self, of: u32, id: u32, class: u32, start: Option<u32>) -> Checked {
        let to = match *self.type_of_id(of)? {
            Type::Pointer { class: of_pointer, to } if of_pointer == class => to,
            _ => return mismatch("a pointer to the variable's storage class", format_args!("type {of}")),
        };
        if let Some(start) = start {
            ensure(matches!(class, class::FUNCTION | class::PRIVATE), "no initial value", "one")?;
            let is_right = self.value(start)? == to && self.constant(start)? != Constant::No;
            ensure(is_right, "a constant of the variable's type", format_args!("id {start}"))?;
        }
        let decorations = self.decorations.get(&id);
        let number = |of: fn(&Decorations) -> Option<u32>| decorations.and_then(of);
        match class {
            class::STORAGE_BUFFER => {
                let (set, binding) = (number(|one| one.set), number(|one| one.binding));
                let is_bound = set == Some(0) && binding.is_some_and(|binding| binding < self.limits.bindings);
                ensure(is_bound, "a binding of its pipeline", format_args!("set {set:?}, binding {binding:?}"))?;
                if binding.is_some_and(|binding| self.limits.writable & (1 << binding) == 0) {
                    self.read_only.insert(id);
                }
                self.check_block(to)?;
            }
            class::PUSH_CONSTANT => {
                self.check_block(to)?;
                ensure(
                    self.bytes(to) <= 4 * CounterWait::WORDS as u64,
                    "the push constants of a dispatch",
                    self.bytes(to),
                )?;
            }
            class::INPUT => self.check_input(to, number(|one| one.built_in))?,
            class::WORKGROUP => {
                self.workgroup_bytes = self.workgroup_bytes.saturating_add(self.bytes(to));
                let limit = u64::from(self.limits.shared_memory_bytes);
                ensure(
                    self.workgroup_bytes <= limit,
                    "no more workgroup memory than its target has",
                    self.workgroup_bytes,
                )?;
            }
            _ => {
                self.private_bytes = self.private_bytes.saturating_add(self.bytes(to));
                ensure(self.private_bytes <= MAX_PRIVATE_BYTES, "at most 1 MiB of variables", self.private_bytes)?;
            }
        }
        self.define(id, Id::Value { of, constant: Constant::No })
    }

    fn check_block(&self, of: u32) -> Checked {
        let is_block = matches!(self.type_of_id(of), Ok(Type::Struct { .. }))
            && self.decorations.get(&of).is_some_and(|one| one.is_block);
        ensure(is_block && self.has_layout(of), "a block with offsets and strides", format_args!("type {of}"))
    }

    fn check_input(&self, of: u32, built_in: Option<u32>) -> Checked {
        let is_known = match built_in {
            // WorkgroupId, LocalInvocationId, GlobalInvocationId.
            Some(26..=28) => self.lanes(of).ok() == Some((Kind::Int, 32, 3)),
            // LocalInvocationIndex, SubgroupSize, NumSubgroups, SubgroupId, SubgroupLocalInvocationId.
            Some(29) => self.is_scalar(of, Kind::Int, 32),
            Some(36 | 38 | 40 | 41) => self.limits.needs.subgroup_size != 0 && self.is_scalar(of, Kind::Int, 32),
            _ => false,
        };
        ensure(is_known, "an input that kernels use", format_args!("built-in {built_in:?}"))
    }

    /// Checks, at the begin of the first function, that every id that was named has been declared.
    pub fn end(&self) -> Checked {
        let is_declared = |id: &u32| matches!(self.ids.get(*id as usize), Some(Some(Id::Type(_) | Id::Value { .. })));
        let missing = self.decorations.keys().chain(&self.interface).find(|id| !is_declared(id));
        ensure(missing.is_none(), "decorations and variables of what is declared", format_args!("id {missing:?}"))
    }
}
