//! Control images of an artifact's NPU programs: made here without programs for the cores, which have no compiler here, and by a user's tools
//! with them.
//!
//! ```text
//! Design, Lowered ─ control_part ─► NPU section, files of --emit
//! --emit mlir ─► NAME.mlir ─ aiecc with Peano ─► NAME.pdi, NAME.insts.bin ─ with_control ─► NPU section
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use unicorn_artifact::npu::control::{Control as Checked, MAX_CONTROL_BYTES, check_control};
use unicorn_artifact::npu::{NpuProgram, NpuSection};
use unicorn_npu::Design;
use unicorn_npu::control::{Control, control};
use unicorn_npu::lower::Lowered;

use crate::error::{CompileError, Result};

/// The control part of a program that fits the device, without programs for its cores.
pub(super) fn control_part(design: &Design, lowered: &Lowered) -> Control {
    control(design, lowered, &BTreeMap::new()).expect("a legal design has routes and addresses")
}

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
        let refused = |what: &str| {
            let what = format!("control image of NPU program {}: {what}", program.name);
            Err(CompileError::malformed(&path, what))
        };
        match check_control(&image, program.shape.columns) {
            // Such as those of --emit.
            Ok(Checked { cores: 0, .. }) => return refused("it starts no core, expected one with the cores' programs"),
            Ok(_) => {}
            Err(what) => return refused(&what),
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

/// The control images with programs for the cores, which a user's tools have made, of `found` for those programs of `made` that have the same
/// instructions.
pub fn keep_control(made: &mut NpuSection, found: &NpuSection) {
    for program in &mut made.programs {
        let same = |one: &&NpuProgram| {
            one.name == program.name && one.instructions == program.instructions && one.runs_cores()
        };
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
