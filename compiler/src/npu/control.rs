//! Control images of an artifact's NPU programs, which a user's tools make of their MLIR.
//!
//! ```text
//! --emit mlir ─► NAME.mlir ─ aiecc with Peano ─► NAME.pdi, NAME.insts.bin ─ with_control ─► NPU section
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use unicorn_artifact::npu::control::{MAX_CONTROL_BYTES, check_control};
use unicorn_artifact::npu::{NpuProgram, NpuSection};

use crate::error::{CompileError, Result};

/// `section` with the control image of each program from `folder`: NAME.pdi, and beside it NAME.insts.bin if the tools' instructions are to
/// be compared with the artifact's.
///
/// # Errors
/// Where a program has no image, the image is none for its columns, or the instructions differ. Nothing is taken then.
pub fn with_control(section: &NpuSection, folder: &Path) -> Result<NpuSection> {
    let mut section = section.clone();
    for program in &mut section.programs {
        let path = beside(folder, program, "pdi")?;
        let image = read(&path).map_err(CompileError::io(&path))?;
        if let Err(what) = check_control(&image, program.shape.columns) {
            return Err(CompileError::malformed(
                &path,
                format!("control image of NPU program {}: {what}", program.name),
            ));
        }
        let path = beside(folder, program, "insts.bin")?;
        match read(&path) {
            Ok(instructions) if instructions == program.instructions => {}
            Ok(_) => {
                let what = format!(
                    "instructions differ from those of the artifact's NPU program {}: the image is of another program",
                    program.name
                );
                return Err(CompileError::malformed(&path, what));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(CompileError::io(&path)(error)),
        }
        program.control = image;
    }
    Ok(section)
}

/// The control images of `found` for those programs of `made` that have the same instructions.
pub fn keep_control(made: &mut NpuSection, found: &NpuSection) {
    for program in &mut made.programs {
        let same = |one: &&NpuProgram| one.name == program.name && one.instructions == program.instructions;
        if let Some(found) = found.programs.iter().find(same) {
            program.control.clone_from(&found.control);
        }
    }
}

/// A file of a program in `folder`, and not elsewhere: names of an artifact are of any origin.
fn beside(folder: &Path, program: &NpuProgram, extension: &str) -> Result<PathBuf> {
    let name = &program.name;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if name.is_empty() || !name.chars().all(is_plain) {
        let what = format!("name of NPU program {name:?}, expected letters, digits and hyphens");
        return Err(CompileError::Option { option: "npu_control", what });
    }
    Ok(folder.join(format!("{name}.{extension}")))
}

/// A file, of which no more than an image's longest is read.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_CONTROL_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
