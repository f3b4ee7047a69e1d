//! Machine code of the cores by Peano (llvm-aie), AMD's compiler for AIE2, where a user has it.
//!
//! ```text
//! Design, Lowered, Addresses ─ source ─► C++ of each core, linker script ─ Peano's clang++ ─► ELF ─ elf ─► CoreProgram ─► control
//! ```
//!
//! The C++ is whole: locks, order of objects, bodies and epilogues. A test compiles the same text for the host, runs a core's program on objects and
//! compares its outputs with the twin; Peano itself is not available here, so that its machine code was never made and never run here.
//!
//! Sources: mlir-aie's `aiecc` (arguments of the link), its `AIETargetLdScript.cpp` (sections, start at 0, addresses of a core's memories),
//! llvm-aie's `crt0.S` (the symbol of the stack) and `aiev2_locks.h` (an acquire of at least a count).

mod elf;
mod source;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::addresses::{MemoryFull, addresses};
use crate::control::CoreProgram;
use crate::design::{Core, Design};
use crate::device::Tile;
use crate::lower::Lowered;

/// Arguments of Peano's clang++ for a core, in front of the files.
const ARGUMENTS: [&str; 10] = [
    "-target",
    "aie2-none-unknown-elf",
    "-std=c++20",
    "-O2",
    // Objects hold bytes, numbers and scales.
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-ffunction-sections",
    "-Wl,--gc-sections",
];

/// An installation of Peano.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peano {
    compiler: PathBuf,
}

/// Why cores have no machine code.
#[derive(Debug, thiserror::Error)]
pub enum PeanoError {
    /// A file cannot be written or read, or the compiler does not start.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// The compiler refuses a program.
    #[error("Peano does not compile {file}:\n{report}")]
    Refused {
        /// File of the program.
        file: String,
        /// What the compiler prints.
        report: String,
    },
    /// What the compiler made is none of a core's programs.
    #[error("Peano's {file} is no program of a core: {what}")]
    NoProgram {
        /// File of the machine code.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// The design has no C++.
    #[error("{0}")]
    NoSource(String),
    /// Buffers without addresses.
    #[error(transparent)]
    Memory(#[from] MemoryFull),
}

/// C++ and linker script of a core.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoreText {
    /// The program.
    pub source: String,
    /// Places of its code, constants and stack.
    pub linker_script: String,
}

/// The texts of a design's cores.
///
/// # Errors
/// [`PeanoError::NoSource`] for attention, and [`PeanoError::Memory`].
pub fn core_texts(design: &Design, lowered: &Lowered) -> Result<BTreeMap<Tile, CoreText>, PeanoError> {
    let addresses = addresses(design, lowered)?;
    let of_core = |core: &Core| {
        let source = source::source(design, lowered, &addresses, core).map_err(PeanoError::NoSource)?;
        Ok((core.tile, CoreText { source, linker_script: source::linker_script(design, lowered, &addresses, core) }))
    };
    design.cores.iter().map(of_core).collect()
}

impl Peano {
    /// The installation in `folder`, which has `bin/clang++`.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn at(folder: &Path) -> Result<Peano, PeanoError> {
        let compiler = folder.join("bin/clang++");
        match compiler.metadata() {
            Ok(_) => Ok(Peano { compiler }),
            Err(source) => Err(PeanoError::Io { what: format!("Peano's compiler {}", compiler.display()), source }),
        }
    }

    /// Machine code of a design's cores. Files are written to `folder`, a name for each different program: `NAME-0.cc`, `NAME-0.ld`, `NAME-0.elf`.
    ///
    /// # Errors
    /// When the compiler does not start, refuses a program, or makes something else.
    pub fn compile(
        &self,
        name: &str,
        design: &Design,
        lowered: &Lowered,
        folder: &Path,
    ) -> Result<BTreeMap<Tile, CoreProgram>, PeanoError> {
        let texts = core_texts(design, lowered)?;
        let mut compiled: BTreeMap<&CoreText, CoreProgram> = BTreeMap::new();
        for text in texts.values() {
            if !compiled.contains_key(text) {
                let program = self.compile_one(&folder.join(format!("{name}-{}", compiled.len())), text)?;
                compiled.insert(text, program);
            }
        }
        Ok(texts.iter().map(|(tile, text)| (*tile, compiled[text].clone())).collect())
    }

    fn compile_one(&self, path: &Path, text: &CoreText) -> Result<CoreProgram, PeanoError> {
        let file = |extension: &str| path.with_extension(extension);
        let [source, script, output] = ["cc", "ld", "elf"].map(file);
        let tried = |what: &str, path: &Path| {
            let what = format!("{what} {}", path.display());
            move |source| PeanoError::Io { what, source }
        };
        std::fs::write(&source, &text.source).map_err(tried("cannot write", &source))?;
        std::fs::write(&script, &text.linker_script).map_err(tried("cannot write", &script))?;
        let mut command = Command::new(&self.compiler);
        command.args(ARGUMENTS).arg(&source).arg(format!("-Wl,-T,{}", script.display())).arg("-o").arg(&output);
        let ran = command.output().map_err(tried("cannot start", &self.compiler))?;
        if !ran.status.success() {
            let report = String::from_utf8_lossy(&ran.stderr).trim_end().to_owned();
            return Err(PeanoError::Refused { file: source.display().to_string(), report });
        }
        let made = std::fs::read(&output).map_err(tried("cannot read", &output))?;
        let no_program = |what| PeanoError::NoProgram { file: output.display().to_string(), what };
        elf::core_program(&made).map_err(no_program)
    }
}
