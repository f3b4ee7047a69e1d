//! The SPIR-V that an artifact may hold: the subset that the compiler writes, checked before a driver reads it.
//!
//! Drivers trust their input: a module that breaks a rule of SPIR-V can end the process. [`check`] reads a module once, from its
//! first word to its last:
//!
//! ```text
//! mod.rs       header, length and order of instructions, capabilities, entry point
//! grammar.rs   the instructions of the subset and the kinds of their operands
//! types.rs     types, constants, variables, decorations; definitions of ids
//! values.rs    the types of each instruction's operands
//! blocks.rs    functions, blocks, definitions before uses
//! control_flow.rs  branches, selections, loops
//! ```
//!
//! A module that passes is well-formed. It may still come from elsewhere than the compiler: whether a kernel computes what its name
//! suggests depends on its origin.

mod blocks;
mod control_flow;
mod grammar;
mod types;
mod values;

use crate::error::ParseError;
use crate::kernels::{MatrixSides, TargetMatch};
use crate::modules::ModuleNeeds;
use grammar::{Section, Shape, op};
use types::Types;

/// What a module may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// The needs in its record.
    pub needs: &'a ModuleNeeds,
    /// Storage buffers of descriptor set 0 that its pipeline binds.
    pub bindings: u32,
    /// Those that it may write, a bit each.
    pub writable: u32,
    /// Workgroup memory that its target has.
    pub shared_memory_bytes: u32,
}

/// Checks one module.
///
/// # Errors
/// [`ParseError::Invalid`] names the word and the instruction that break a rule.
pub fn check(words: &[u32], limits: &Limits) -> Result<(), ParseError> {
    let mut at = 0;
    read(words, limits, &mut at).map_err(|Mismatch { expected, found }| {
        let name =
            words.get(at).and_then(|&word| grammar::shape(word as u16)).map_or("header or end", |shape| shape.name);
        ParseError::invalid(format!("SPIR-V module, word {at} ({name})"), expected, found)
    })
}

/// Checks that a target's own module needs no more than the target declares for its devices.
///
/// # Errors
/// [`ParseError::Invalid`] names the first need that the target does not declare.
pub fn check_needs(needs: &ModuleNeeds, target: &TargetMatch) -> Result<(), ParseError> {
    let ModuleNeeds { subgroup_size, workgroup_invocations, .. } = *needs;
    if subgroup_size != 0 && subgroup_size != target.subgroup_size {
        return Err(ParseError::invalid("subgroup size of a module", target.subgroup_size, subgroup_size));
    }
    if workgroup_invocations > target.workgroup_invocations {
        let most = format!("at most {}", target.workgroup_invocations);
        return Err(ParseError::invalid("invocations of a module's workgroups", most, workgroup_invocations));
    }
    let has_matrices = target.matrix_sides != MatrixSides::NONE;
    let extras = [
        ("64-bit atomics", needs.int64_atomics && !target.int64_atomics),
        ("packed dot products", needs.integer_dot_product && !target.integer_dot_product),
        ("cooperative matrices", !needs.matrices.is_empty() && !has_matrices),
        ("arithmetic in f16", needs.float16 && !has_matrices),
        ("the Vulkan memory model", needs.memory_model && !has_matrices && !target.memory_model_chains),
    ];
    match extras.iter().find(|(_, is_extra)| *is_extra) {
        Some((what, _)) => Err(ParseError::invalid("needs of a module", "those of its target", what)),
        None => Ok(()),
    }
}

/// The rule and what was found; the caller adds the place.
#[derive(Debug)]
struct Mismatch {
    expected: String,
    found: String,
}

type Checked<T = ()> = Result<T, Mismatch>;

fn mismatch<T>(expected: impl ToString, found: impl ToString) -> Checked<T> {
    Err(Mismatch { expected: expected.to_string(), found: found.to_string() })
}

fn ensure(holds: bool, expected: &str, found: impl ToString) -> Checked {
    if holds { Ok(()) } else { mismatch(expected, found) }
}

/// One instruction.
#[derive(Clone, Copy)]
struct Instruction<'w> {
    shape: &'static Shape,
    /// The instruction's words without the first.
    words: &'w [u32],
}

const MAGIC: u32 = 0x0723_0203;
const VERSION: u32 = 0x0001_0300;
const HEADER_WORDS: usize = 5;
/// Addressing model, then memory models.
const LOGICAL: u32 = 0;
const GLSL_450: u32 = 1;
const VULKAN: u32 = 3;
const GL_COMPUTE: u32 = 5;
const LOCAL_SIZE: u32 = 17;
const EXTENSIONS: [&str; 3] =
    ["SPV_KHR_integer_dot_product", "SPV_KHR_cooperative_matrix", "SPV_KHR_vulkan_memory_model"];

fn read(words: &[u32], limits: &Limits, at: &mut usize) -> Checked {
    let &[magic, version, _generator, bound, schema, ..] = words else {
        return mismatch(format!("a header of {HEADER_WORDS} words"), words.len());
    };
    ensure(magic == MAGIC, "SPIR-V's first word", format_args!("{magic:#x}"))?;
    ensure(version == VERSION, "SPIR-V 1.3", format_args!("{version:#x}"))?;
    ensure(schema == 0, "schema 0", schema)?;
    // Every id is the result of an instruction, which has at least two words.
    ensure((bound as usize) <= words.len(), "a bound of ids no larger than the module", bound)?;

    *at = HEADER_WORDS;
    let mut reader = Reader {
        limits,
        types: Types::new(bound, limits),
        section: Section::Capabilities,
        memory_model: None,
        entry: None,
    };
    let mut functions = None;
    while *at < words.len() {
        let rest = &words[*at..];
        let (opcode, len) = (rest[0] as u16, (rest[0] >> 16) as usize);
        let Some(shape) = grammar::shape(opcode) else {
            return mismatch("an instruction that kernels use", format_args!("number {opcode}"));
        };
        ensure((1..=rest.len()).contains(&len), "an instruction that ends in the module", format_args!("{len} words"))?;
        let instruction = Instruction { shape, words: &rest[1..len] };
        ensure(shape.section >= reader.section, "instructions in the order of their sections", shape.name)?;
        if functions.is_none() && shape.section == Section::Functions {
            reader.types.end()?;
            functions = Some(blocks::Functions::default());
        }
        match &mut functions {
            Some(functions) => functions.read(&mut reader.types, &instruction)?,
            None => reader.declaration(&instruction)?,
        }
        *at += len;
    }
    ensure(reader.memory_model.is_some(), "a memory model", "none")?;
    let Some(entry) = &reader.entry else { return mismatch("an entry point", "none") };
    functions.unwrap_or_default().end(&reader.types, entry.function)?;
    ensure(
        entry.invocations == Some(limits.needs.workgroup_invocations.into()),
        "as many invocations as in its record",
        format_args!("{:?}", entry.invocations),
    )
}

/// State of the part before the functions.
struct Reader<'l> {
    limits: &'l Limits<'l>,
    types: Types<'l>,
    section: Section,
    memory_model: Option<u32>,
    entry: Option<Entry>,
}

struct Entry {
    function: u32,
    /// Invocations of a workgroup; `None`: not declared yet.
    invocations: Option<u64>,
}

impl Reader<'_> {
    fn declaration(&mut self, instruction: &Instruction) -> Checked {
        let Instruction { shape, words } = *instruction;
        self.section = shape.section;
        instruction.check_length()?;
        match (shape.opcode, words) {
            (op::CAPABILITY, &[capability]) => self.capability(capability),
            (op::EXTENSION, name) => {
                ensure(EXTENSIONS.iter().any(|one| is_string(name, one)), "an extension that kernels use", "another")
            }
            (op::EXT_INST_IMPORT, [id, name @ ..]) => {
                ensure(is_string(name, "GLSL.std.450"), "GLSL.std.450", "another set of instructions")?;
                self.types.import(*id)
            }
            (op::MEMORY_MODEL, &[addressing, model]) => {
                let expected = if self.limits.needs.memory_model { VULKAN } else { GLSL_450 };
                ensure((addressing, model) == (LOGICAL, expected), "the memory model of its record", model)?;
                ensure(self.memory_model.replace(model).is_none(), "one memory model", 2)
            }
            (op::ENTRY_POINT, [model, function, name_and_interface @ ..]) => {
                let has_name = name_and_interface.get(..2).is_some_and(|name| is_string(name, "main"));
                ensure(
                    *model == GL_COMPUTE && has_name && self.entry.is_none(),
                    "one compute kernel named main",
                    "another",
                )?;
                self.entry = Some(Entry { function: *function, invocations: None });
                self.types.interface(&name_and_interface[2..])
            }
            (op::EXECUTION_MODE, &[function, mode, x, y, z]) => {
                let Some(entry) = self.entry.as_mut().filter(|entry| entry.function == function) else {
                    return mismatch("the entry point", format_args!("id {function}"));
                };
                ensure(mode == LOCAL_SIZE && entry.invocations.is_none(), "the size of workgroups, once", mode)?;
                ensure(
                    [x, y, z].iter().all(|size| (1..=1 << 16).contains(size)),
                    "a size of workgroups",
                    "0 or too much",
                )?;
                entry.invocations = Some([x, y, z].into_iter().map(u64::from).product());
                Ok(())
            }
            _ => self.types.declaration(instruction),
        }
    }

    /// Checks a capability, which must follow from the module's record.
    fn capability(&self, capability: u32) -> Checked {
        let needs = self.limits.needs;
        let is_recorded = match capability {
            // Shader.
            1 => true,
            // GroupNonUniform, and its Vote, Arithmetic, Ballot and Shuffle.
            61..=65 => needs.subgroup_size != 0,
            9 => needs.float16,
            11 => needs.int64,
            12 => needs.int64_atomics,
            22 => needs.int16,
            39 => needs.int8,
            5345 => needs.memory_model,
            // DotProduct and DotProductInput4x8BitPacked.
            6018 | 6019 => needs.integer_dot_product,
            6022 => !needs.matrices.is_empty() || needs.subgroup_size != 0,
            _ => false,
        };
        ensure(is_recorded, "a capability of the module's record", format_args!("number {capability}"))
    }
}

impl Instruction<'_> {
    /// Checks that there are as many operands as the grammar requires.
    fn check_length(&self) -> Checked {
        let letters = self.shape.operands.as_bytes();
        let repeats = matches!(letters.last(), Some(b'*' | b's'));
        let is_optional = letters.last() == Some(&b'?');
        let named = letters.iter().filter(|letter| letter.is_ascii_alphabetic()).count();
        // A letter before `*` or `?` may be missing; a string has at least one word.
        let least = named - usize::from(letters.last() == Some(&b'*') || is_optional);
        let is_right = self.words.len() >= least && (repeats || self.words.len() <= named);
        ensure(is_right, self.shape.operands, format_args!("{} operands", self.words.len()))
    }
}

/// Whether words hold exactly this string, followed by zeros.
fn is_string(words: &[u32], text: &str) -> bool {
    let mut expected = text.as_bytes().to_vec();
    expected.resize((text.len() / 4 + 1) * 4, 0);
    words.iter().flat_map(|word| word.to_le_bytes()).eq(expected)
}
