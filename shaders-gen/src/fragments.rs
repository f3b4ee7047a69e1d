//! Fragments of cooperative matrices straight from the registers of the lanes that have their elements.
//!
//! WGSL has no word for an element of a matrix. Kernels store a fragment's elements to `lane_words`, the one array of u32 in
//! workgroup memory from which they load matrices, each lane its own in their order, and load the matrix from there
//! (`unicorn_kernels::register_gemm`). Where the device's lanes hold fragments just so, the stores become the elements and the load goes.
//!
//! ```text
//! lane l of 32    matrix rows l / 4 and l / 4 + 8 of a fragment of 16 x 16 (columns of the right operand)
//! its elements    0 1 | 2 3 of the first row, columns 2 t, 2 t + 1 | 8 + 2 t, 9 + 2 t, t = l % 4; 4 … 7 of the second
//! ```
//!
//! This is how NVIDIA's mma.m16n8k16 has its right operand (PTX ISA, "Matrix Fragments for mma.m16n8k16"), twice for 16 columns of
//! it; that a driver keeps cooperative matrices so is nowhere promised, so the runtime looks before it takes such kernels.

use std::collections::BTreeSet;

use rspirv::dr::{Block, Instruction, Module, ModuleHeader, Operand};
use rspirv::spirv::{Op, StorageClass, Word};

use crate::matrices::new_id;
use crate::mend::{constant, points_to, unsigned, workgroup_pointers};

/// The same module without `lane_words`.
///
/// # Panics
/// If it has none, or a fragment's elements are not all stored in the block that loads it: kernels are ours.
pub fn from_registers(module: &mut Module) {
    let array = lane_words(module).expect("such a kernel has words of lanes");
    let is_chain =
        |one: &Instruction| one.class.opcode == Op::AccessChain && one.operands[0].id_ref_any() == Some(array);
    let chains: BTreeSet<Word> =
        module.all_inst_iter().filter(|one| is_chain(one)).filter_map(|one| one.result_id).collect();
    let loads_fragment =
        |one: &Instruction| one.class.opcode == Op::CooperativeMatrixLoadKHR && points_to(one, &chains);
    let matrix = module.all_inst_iter().find(|one| loads_fragment(one)).and_then(|one| one.result_type);
    let types = Types::declare(module, matrix.expect("fragments are loaded"));
    let mut header = module.header.take();
    for function in &mut module.functions {
        let mut fragments =
            Fragments { types: &types, chains: &chains, header: &mut header, variable: None, stored: vec![] };
        for block in &mut function.blocks {
            fragments.mend(block);
        }
        if let (Some(variable), Some(first)) = (fragments.variable, function.blocks.first_mut()) {
            let operands = vec![Operand::StorageClass(StorageClass::Function)];
            first
                .instructions
                .insert(0, Instruction::new(Op::Variable, Some(types.matrix_pointer), Some(variable), operands));
        }
    }
    module.header = header;
    module.types_global_values.retain(|one| one.result_id != Some(array));
    module.debug_names.retain(|one| one.operands[0].id_ref_any() != Some(array));
    module.annotations.retain(|one| one.operands[0].id_ref_any() != Some(array));
}

/// The variable in workgroup memory that is an array of u32 from which matrices are loaded.
fn lane_words(module: &Module) -> Option<Word> {
    let word = unsigned(module);
    let defined = |id: &Operand| {
        let id = id.id_ref_any()?;
        module.types_global_values.iter().find(|one| one.result_id == Some(id))
    };
    let is_words = |pointer: &&Instruction| {
        let array = defined(&pointer.operands[1]).filter(|one| one.class.opcode == Op::TypeArray);
        array.is_some_and(|array| array.operands[0].id_ref_any() == Some(word))
    };
    let pointers: Vec<Word> = workgroup_pointers(module).filter(is_words).filter_map(|one| one.result_id).collect();
    let variables = module.types_global_values.iter().filter(|one| one.class.opcode == Op::Variable);
    variables.filter(|one| one.result_type.is_some_and(|kind| pointers.contains(&kind))).find_map(|one| one.result_id)
}

/// What elements of a matrix are made by.
struct Types {
    matrix: Word,
    matrix_pointer: Word,
    half: Word,
    half_pointer: Word,
    pair: Word,
    /// Constants 0, 1, 2 …: numbers of elements.
    numbers: Vec<Word>,
}

/// More elements than a lane has of any fragment.
const MOST_ELEMENTS: u32 = 64;

impl Types {
    fn declare(module: &mut Module, matrix: Word) -> Types {
        let defined = module.types_global_values.iter().find(|one| one.result_id == Some(matrix));
        let half = defined.and_then(|one| one.operands[0].id_ref_any()).expect("a matrix has elements");
        let word = unsigned(module);
        let function = Operand::StorageClass(StorageClass::Function);
        let pointer = |to| vec![function.clone(), Operand::IdRef(to)];
        Types {
            matrix,
            matrix_pointer: kind(module, Op::TypePointer, pointer(matrix)),
            half,
            half_pointer: kind(module, Op::TypePointer, pointer(half)),
            pair: kind(module, Op::TypeVector, vec![Operand::IdRef(half), Operand::LiteralBit32(2)]),
            numbers: (0..MOST_ELEMENTS).map(|number| constant(module, word, number)).collect(),
        }
    }
}

/// The type of this description, declared if it is not there yet: a type is there but once.
fn kind(module: &mut Module, opcode: Op, operands: Vec<Operand>) -> Word {
    let found = module.types_global_values.iter().find(|one| one.class.opcode == opcode && one.operands == operands);
    if let Some(id) = found.and_then(|one| one.result_id) {
        return id;
    }
    let id = new_id(&mut module.header);
    module.types_global_values.push(Instruction::new(opcode, None, Some(id), operands));
    id
}

/// Fragments of one function.
struct Fragments<'a> {
    types: &'a Types,
    /// Pointers into `lane_words`.
    chains: &'a BTreeSet<Word>,
    header: &'a mut Option<ModuleHeader>,
    /// The matrix that is filled, once there is one.
    variable: Option<Word>,
    /// Words of the fragment that is under way.
    stored: Vec<Operand>,
}

impl Fragments<'_> {
    fn mend(&mut self, block: &mut Block) {
        let before = std::mem::take(&mut block.instructions);
        let mended = before.into_iter().flat_map(|one| {
            if one.result_id.is_some_and(|id| self.chains.contains(&id)) {
                return Vec::new();
            }
            match one.class.opcode {
                Op::Store if points_to(&one, self.chains) => {
                    self.stored.push(one.operands[1].clone());
                    Vec::new()
                }
                Op::CooperativeMatrixLoadKHR if points_to(&one, self.chains) => self.fill(&one),
                _ => vec![one],
            }
        });
        block.instructions = mended.collect();
        assert!(self.stored.is_empty(), "a fragment is loaded where its words are stored");
    }

    /// The matrix of the words that were stored, in place of its load.
    fn fill(&mut self, load: &Instruction) -> Vec<Instruction> {
        let variable = *self.variable.get_or_insert_with(|| new_id(self.header));
        let id = |id| Operand::IdRef(id);
        let mut code = Vec::new();
        for (index, word) in std::mem::take(&mut self.stored).into_iter().enumerate() {
            let pair = new_id(self.header);
            code.push(Instruction::new(Op::Bitcast, Some(self.types.pair), Some(pair), vec![word]));
            for half in 0..2 {
                let [value, element] = [(); 2].map(|()| new_id(self.header));
                let part = vec![id(pair), Operand::LiteralBit32(half)];
                code.push(Instruction::new(Op::CompositeExtract, Some(self.types.half), Some(value), part));
                let place = vec![id(variable), id(self.types.numbers[2 * index + half as usize])];
                code.push(Instruction::new(Op::AccessChain, Some(self.types.half_pointer), Some(element), place));
                code.push(Instruction::new(Op::Store, None, None, vec![id(element), id(value)]));
            }
        }
        code.push(Instruction::new(Op::Load, Some(self.types.matrix), load.result_id, vec![id(variable)]));
        code
    }
}
