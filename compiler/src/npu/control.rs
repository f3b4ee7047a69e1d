//! Control images of an artifact's NPU programs: made here without programs for the cores, unless a user has Peano to compile them; and taken
//! from a user's tools.
//!
//! ```text
//! Design, Lowered ─ control_part ─► NPU section, files of --emit
//!                └ peano (C++, machine code) ─► the same with programs for the cores
//! --emit mlir ─► NAME.mlir ─ aiecc with Peano ─► NAME.pdi, NAME.insts.bin ─ with_control ─► NPU section
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use unicorn_artifact::npu::control::{Control as Checked, MAX_CONTROL_BYTES, check_control};
use unicorn_artifact::npu::{NpuProgram, NpuSection};
use unicorn_kernels::npu::tile::GemmShape;
use unicorn_npu::control::{Control, control};
use unicorn_npu::lower::{Lowered, lower};
use unicorn_npu::peano::Peano;
use unicorn_npu::stream::{as_of_2026, encode};
use unicorn_npu::{Design, gemm};

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
            Ok(instructions) if is_of(program, &instructions) => {}
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

/// Whether a stream is a program's, as mlir-aie of 2024 writes it, or as that of 2026 does.
fn is_of(program: &NpuProgram, stream: &[u8]) -> bool {
    let of_2026 = as_of_2026(&program.instructions, program.shape.columns);
    stream == program.instructions || of_2026.is_ok_and(|of_2026| stream == of_2026)
}

/// `section` with a control image for each program that has machine code of its cores, made by the Peano in `folder`.
///
/// # Errors
/// Where there is no Peano, it refuses a program, or a program's instructions are not those that this version makes. Nothing is taken then.
pub fn with_cores(section: &NpuSection, folder: &Path) -> Result<NpuSection> {
    let refused = |what: String| CompileError::Option { option: "npu_peano", what };
    let peano = Peano::at(folder).map_err(|error| refused(error.to_string()))?;
    let work = work_folder();
    fs::create_dir_all(&work).map_err(CompileError::io(&work))?;
    let mut section = section.clone();
    for program in &mut section.programs {
        let of_other_version = || {
            let what = format!(
                "NPU program {} is not as this version makes it: compile the model again with this one",
                program.name
            );
            refused(what)
        };
        let shape = GemmShape::of_program(program).ok_or_else(of_other_version)?;
        let design = gemm::design(&shape);
        let lowered = lower(&design);
        if encode(&design, &lowered) != program.instructions {
            return Err(of_other_version());
        }
        let cores = peano.compile(&program.name, &design, &lowered, &work);
        let cores = cores.map_err(|error| refused(error.to_string()))?;
        program.control = control(&design, &lowered, &cores).expect("a legal design has routes and addresses").image();
        check_control(&program.control, program.shape.columns)
            .map_err(|what| refused(format!("machine code of NPU program {}: {what}", program.name)))?;
    }
    // Where it failed, the errors name files in it.
    fs::remove_dir_all(&work).map_err(CompileError::io(&work))?;
    Ok(section)
}

/// A folder for the cores' files that no one else has.
fn work_folder() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("unicorn-cores-{}-{number}", std::process::id()))
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
