//! Control images that an artifact's NPU programs get: what is taken, kept and refused.

#![cfg(feature = "cli")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;
use unicorn_artifact::npu::NpuProgram;
use unicorn_artifact::npu::cdo::CdoCommand;
use unicorn_artifact::npu::control::check_control;
use unicorn_artifact::npu::pdi::{read_pdi, write_pdi};
use unicorn_artifact::rewrite::{Change, NewPlan, rewrite};
use unicorn_artifact::{ArtifactView, NpuSection};
use unicorn_compiler::{
    Additions, CompileOptions, NpuOptions, NpuWork, ReplanOptions, Silent, Source, compile, replan, reproduce, retarget,
};
use unicorn_npu::emit::Dialect;
use unicorn_npu::stream::as_of_2026;
use unicorn_spirv::target;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny/llama3-rope")
}

/// Written by Debian's bootgen; it writes tiles of column 0.
fn control_image() -> Vec<u8> {
    let words = include_str!("../../artifacts/src/npu/control_image.hex").split_whitespace();
    words.flat_map(|word| u32::from_str_radix(word, 16).unwrap().to_le_bytes()).collect()
}

fn compiled(npu: Option<NpuOptions>) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.unicorn");
    let mut options = CompileOptions::default();
    (options.targets, options.npu) = (vec![target::by_name("generic").unwrap()], npu);
    compile(Source::Model(&model()), &path, &options, &mut Silent).unwrap();
    std::fs::read(&path).unwrap()
}

fn npu_options() -> NpuOptions {
    NpuOptions::default().with(|npu| (npu.rows, npu.work) = (64, Some(vec![NpuWork::Ffn])))
}

/// FFN of two layers on the NPU: two programs.
fn artifact() -> &'static [u8] {
    static ARTIFACT: OnceLock<Vec<u8>> = OnceLock::new();
    ARTIFACT.get_or_init(|| compiled(Some(npu_options())))
}

fn section_of(bytes: &[u8]) -> NpuSection {
    ArtifactView::parse(bytes).unwrap().npu.expect("an NPU section")
}

/// A folder with the artifact, and one with the images of its programs.
fn folders() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (path, images) = (folder.path().join("model.unicorn"), folder.path().join("images"));
    std::fs::write(&path, artifact()).unwrap();
    std::fs::create_dir(&images).unwrap();
    for program in &section_of(artifact()).programs {
        std::fs::write(images.join(format!("{}.pdi", program.name)), control_image()).unwrap();
    }
    (folder, path, images)
}

fn with_images(images: &Path) -> ReplanOptions {
    let mut options = ReplanOptions::default();
    options.npu_control = Some(images.to_owned());
    options
}

/// The control part of each program, of which the artifact says that it is not complete.
#[test]
fn programs_have_images_without_programs_for_the_cores() {
    let section = section_of(artifact());
    for program in &section.programs {
        let control = check_control(&program.control, program.shape.columns).unwrap();
        assert!(control.cores == 0 && control.writes > 500 && !program.runs_cores(), "{}: {control:?}", program.name);
    }
    assert!(artifact() == compiled(Some(npu_options())));
    // It is made again and compared; only an image with programs for the cores is a user's own.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.unicorn");
    std::fs::write(&path, artifact()).unwrap();
    reproduce(&path, Some(&model()), &mut Silent).unwrap();
    // A lock that starts at another value, with right checksums.
    let view = ArtifactView::parse(artifact()).unwrap();
    let mut changed = section.clone();
    let mut commands = read_pdi(&section.programs[0].control).unwrap();
    let lock = commands.iter_mut().find_map(|command| match command {
        CdoCommand::Write { value, .. } => Some(value),
        _ => None,
    });
    *lock.unwrap() += 1;
    changed.programs[0].control = write_pdi(&[commands]);
    let change = Change::from(NewPlan { plan: &view.plan, npu: Some(&changed) });
    rewrite(&path, &path, &change, |_| {}).unwrap();
    let error = reproduce(&path, Some(&model()), &mut Silent).unwrap_err().to_string();
    assert!(error.contains("npu"), "{error}");
}

#[test]
fn programs_get_their_images_and_nothing_else_changes() {
    let (_folder, path, images) = folders();
    replan(&path, &with_images(&images), &mut Silent).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let mut section = section_of(&bytes);
    assert!(section.programs.len() == 2 && section.programs.iter().all(|program| program.control == control_image()));
    let made = section_of(artifact());
    for (program, made) in section.programs.iter_mut().zip(&made.programs) {
        program.control.clone_from(&made.control);
    }
    assert!(section == made);
    let [found, before] = [&bytes, artifact()].map(|bytes| ArtifactView::parse(bytes).unwrap());
    assert!(found.plan == before.plan && found.kernels == before.kernels && found.meta == before.meta);
    reproduce(&path, Some(&model()), &mut Silent).unwrap();

    // What is planned again, or gets a target, keeps them.
    replan(&path, &ReplanOptions::default(), &mut Silent).unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
    let additions = Additions { targets: vec![target::by_name("rdna3").unwrap()], alternatives: false };
    retarget(&path, &path, &additions, &mut Silent).unwrap();
    let section = section_of(&std::fs::read(&path).unwrap());
    assert!(section.programs.iter().all(|program| program.control == control_image()));
    reproduce(&path, Some(&model()), &mut Silent).unwrap();
}

#[test]
fn images_that_do_not_fit_are_refused_and_the_artifact_stays() {
    let name = section_of(artifact()).programs[1].name.clone();
    let refused = |change: &dyn Fn(&Path), part: &str| {
        let (_folder, path, images) = folders();
        change(&images);
        let error = replan(&path, &with_images(&images), &mut Silent).expect_err(part).to_string();
        assert!(error.contains(part) && error.contains(&name), "{part} is not in: {error}");
        assert!(std::fs::read(&path).unwrap() == artifact());
    };
    let pdi = format!("{name}.pdi");
    let write = |images: &Path, bytes: &[u8]| std::fs::write(images.join(&pdi), bytes).unwrap();
    refused(&|images| std::fs::remove_file(images.join(&pdi)).unwrap(), "No such file");
    refused(&|images| write(images, b""), "header table is words 4 to 36");
    refused(&|images| write(images, &control_image()[..396]), "data is words");
    refused(&|images| write(images, &vec![0; 5 << 20]), "at most 4194304 bytes");
    // An image that the compiler has made itself.
    refused(&|images| write(images, &section_of(artifact()).programs[1].control), "it starts no core");
    // A command that writes another column than the program's four: the block's address.
    let mut outside = control_image();
    outside[4 * 0x5b..][..4].copy_from_slice(&(4u32 << 25 | 2 << 20 | 0x1d000).to_le_bytes());
    refused(&|images| write(images, &outside), "expected a tile of 4 columns");
    refused(
        &|images| std::fs::write(images.join(format!("{name}.insts.bin")), [0; 16]).unwrap(),
        "instructions differ from those of the artifact's NPU program",
    );
}

#[test]
fn instructions_of_the_same_program_are_taken() {
    for dialect in Dialect::ALL {
        let (_folder, path, images) = folders();
        for program in section_of(artifact()).programs {
            let instructions = match dialect {
                Dialect::Y2024 => program.instructions,
                Dialect::Y2026 => as_of_2026(&program.instructions, program.shape.columns).unwrap(),
            };
            std::fs::write(images.join(format!("{}.insts.bin", program.name)), &instructions).unwrap();
        }
        replan(&path, &with_images(&images), &mut Silent).unwrap();
        assert!(section_of(&std::fs::read(&path).unwrap()).programs.iter().all(NpuProgram::runs_cores));
    }
}

#[test]
fn the_command_names_what_has_no_npu_program() {
    let (folder, path, images) = folders();
    let plain = folder.path().join("plain.unicorn");
    std::fs::write(&plain, compiled(None)).unwrap();
    let run = |path: &Path, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unicorn-compile"));
        let output = command.arg("replan").arg(path).arg("--npu-control").arg(&images).args(more).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (done, error) = run(&plain, &[]);
    assert!(!done && error.contains("of which the artifact has none (--npu-control)"), "{error}");
    let (done, error) = run(&path, &["--no-npu"]);
    assert!(!done && error.contains("cannot be used with"), "{error}");
    let (done, error) = run(&path, &[]);
    assert!(done, "{error}");
}

/// A stand-in for Peano, which is not available here: it takes the arguments and gives one word of code.
fn stand_in(folder: &Path) -> PathBuf {
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    let words = [
        0x464c_457fu32,
        0x0001_0101,
        0,
        0,
        0x0108_0002,
        1,
        0,
        52,
        0,
        0,
        0x0020_0034,
        1,
        0,
        1,
        84,
        0,
        0,
        4,
        4,
        5,
        4,
        0x1234_5678,
    ];
    let elf: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    std::fs::write(folder.join("core"), elf).unwrap();
    let program = folder.join("bin/clang++");
    let script = "#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done\ncp \"$(dirname \"$0\")/../core\" \"$2\"\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder.to_owned()
}

#[test]
fn cores_are_compiled_into_the_images() {
    let (folder, path, _) = folders();
    let peano = stand_in(folder.path());
    let mut options = ReplanOptions::default();
    options.npu_peano = Some(peano.clone());
    replan(&path, &options, &mut Silent).unwrap();
    let replanned = std::fs::read(&path).unwrap();
    for (program, before) in section_of(&replanned).programs.iter().zip(&section_of(artifact()).programs) {
        let control = check_control(&program.control, program.shape.columns).unwrap();
        assert!(control.cores == 16 && program.runs_cores(), "{}: {control:?}", program.name);
        // The commands of the image without cores are in it.
        let [with, without] = [program, before].map(|one| read_pdi(&one.control).unwrap());
        let is_kept = |command: &&CdoCommand| !matches!(command, CdoCommand::Nothing { .. });
        assert!(without.iter().filter(is_kept).all(|command| with.contains(command)));
    }
    // The same as when the model is compiled with it, and what is made again keeps it.
    assert!(replanned == compiled(Some(npu_options().with(|npu| npu.peano = Some(peano)))));
    reproduce(&path, Some(&model()), &mut Silent).unwrap();
}

#[test]
fn without_a_compiler_the_artifact_stays() {
    let (folder, path, _) = folders();
    let refused = |peano: &Path, part: &str| {
        let mut options = ReplanOptions::default();
        options.npu_peano = Some(peano.to_owned());
        let error = replan(&path, &options, &mut Silent).expect_err(part).to_string();
        assert!(error.contains(part), "{part} is not in: {error}");
        assert!(std::fs::read(&path).unwrap() == artifact());
    };
    refused(&folder.path().join("nowhere"), "bin/clang++");
    let peano = stand_in(folder.path());
    std::fs::write(peano.join("core"), "").unwrap();
    refused(&peano, "is no program of a core");
    let program = peano.join("bin/clang++");
    std::fs::write(&program, "#!/bin/sh\necho 'error: unknown target' >&2\nexit 1\n").unwrap();
    refused(&peano, "unknown target");
}
