//! Artifacts of every format version (`artifacts/golden`): they keep loading, or are refused by name.

use std::path::{Path, PathBuf};

use tests::compiled::{Compiled, options, with};
use tests::models::models;
use tests::mutated_plan::with_programs;
use tests::programs::program;
use tests::tiny_model::TinyModel;
use unicorn_artifact::header::{VERSION_MAJOR, VERSION_MINOR};
use unicorn_artifact::{
    ArtifactView, ArtifactWriter, Kernels, LicenseSection, LogitsRows, NpuSection, ParseError, Program,
};
use unicorn_compiler::{NpuCheck, NpuOptions, NpuWork};
use unicorn_spirv::target;

/// Its INT4 words held their codes in another order, and it had no batch programs.
#[test]
fn version_1_is_refused_by_name() {
    let bytes = std::fs::read(golden("v1-tiny.unicorn")).unwrap();
    let error = ArtifactView::parse(&bytes).err().expect("another major version");
    assert!(matches!(error, ParseError::Version { found_major: 1, supported_major: VERSION_MAJOR, .. }), "{error}");
}

/// Its targets did not name the kernel of the bandwidth probe.
#[test]
fn version_2_is_refused_by_name() {
    let bytes = std::fs::read(golden("v2-tiny.unicorn")).unwrap();
    let error = ArtifactView::parse(&bytes).err().expect("another major version");
    assert!(matches!(error, ParseError::Version { found_major: 2, supported_major: VERSION_MAJOR, .. }), "{error}");
}

/// Its targets did not name the kernel that checks the device's layout of matrices.
#[test]
fn version_3_is_refused_by_name() {
    let bytes = std::fs::read(golden("v3-tiny.unicorn")).unwrap();
    let error = ArtifactView::parse(&bytes).err().expect("another major version");
    assert!(matches!(error, ParseError::Version { found_major: 3, supported_major: VERSION_MAJOR, .. }), "{error}");
}

/// Its programs did not state the sequence lengths that they are for.
#[test]
fn version_4_is_refused_by_name() {
    let bytes = std::fs::read(golden("v4-tiny.unicorn")).unwrap();
    let error = ArtifactView::parse(&bytes).err().expect("another major version");
    assert!(matches!(error, ParseError::Version { found_major: 4, supported_major: VERSION_MAJOR, .. }), "{error}");
}

/// Its samplers kept two samples.
#[test]
fn version_5_is_refused_by_name() {
    let bytes = std::fs::read(golden("v5-tiny.unicorn")).unwrap();
    let error = ArtifactView::parse(&bytes).err().expect("another major version");
    assert!(matches!(error, ParseError::Version { found_major: 5, supported_major: VERSION_MAJOR, .. }), "{error}");
}

/// Its modules were stored for all targets together, uncompressed, and did not state their requirements.
#[test]
fn version_6_is_refused_by_name() {
    let bytes = std::fs::read(golden("v6-tiny.unicorn")).unwrap();
    let error = ArtifactView::parse(&bytes).err().expect("another major version");
    assert!(matches!(error, ParseError::Version { found_major: 6, supported_major: VERSION_MAJOR, .. }), "{error}");
}

#[test]
fn version_7_is_refused_by_name() {
    let bytes = std::fs::read(golden("v7-tiny.unicorn")).unwrap();
    let error = ArtifactView::parse(&bytes).err().expect("another major version");
    assert!(matches!(error, ParseError::Version { found_major: 7, supported_major: VERSION_MAJOR, .. }), "{error}");
}

/// The first version whose artifacts hold what a later compiler needs: the model's config, from which it makes plan and kernels again.
const FIRST_KEPT: u16 = 8;
/// Versions before today's that are still read.
const KEPT: u16 = 2;

/// Fails when a version gets a new number and the reader of an earlier one is not kept.
#[test]
fn the_last_two_versions_load_and_are_upgraded() {
    for version in FIRST_KEPT.max(VERSION_MAJOR - KEPT)..=VERSION_MAJOR {
        let bytes = std::fs::read(golden(&format!("v{version}-tiny.unicorn"))).unwrap();
        // Five sections on multiples of 64 KiB: most of it is zeros.
        assert!(bytes.len() < 400_000, "a golden artifact is small, found {} bytes", bytes.len());
        let old = ArtifactView::parse(&bytes).unwrap_or_else(|error| {
            panic!("version {version} must stay readable while {VERSION_MAJOR} is today's ({error}): keep its reader, see FORMAT.md")
        });
        assert_eq!(old.meta.model.architecture, "LlamaForCausalLM");
        assert_eq!((old.meta.model.vocab_size, old.meta.model.hidden_size, old.meta.model.n_layers), (259, 32, 1));
        let [generic] = &old.kernels.targets[..] else { panic!("one target") };
        assert_eq!(generic.name, "generic");
        let modules = generic.modules.unpack_all().unwrap();
        assert!(generic.pipelines.iter().all(|pipeline| modules[pipeline.module as usize].len() > 5));
        assert!(generic.programs.iter().any(|program| program.rows == 1 && program.logits == LogitsRows::One));
        old.weights().iter().for_each(|section| section.verify().unwrap());

        let folder = tempfile::tempdir().unwrap();
        let (path, output) = (folder.path().join("old.unicorn"), folder.path().join("new.unicorn"));
        std::fs::write(&path, &bytes).unwrap();
        let upgraded = program("unicorn-compile").arg("upgrade").arg(&path).arg("-o").arg(&output).output().unwrap();
        assert!(upgraded.status.success(), "{}", String::from_utf8_lossy(&upgraded.stderr));
        let new = std::fs::read(&output).unwrap();
        assert_eq!(new[8..10], VERSION_MAJOR.to_le_bytes(), "it has today's version");
        let new = ArtifactView::parse(&new).unwrap();
        assert!(new.weights()[0].bytes == old.weights()[0].bytes, "its weights stay as they are");
        let rows = |kernels: &Kernels| kernels.targets[0].programs.iter().map(|program| program.rows).max();
        assert!(rows(&new.kernels) > rows(&old.kernels), "all programs are made again, not only decode's");
        // Made again from what the new artifact records of its model, kernels and plan are the same.
        let verified = program("unicorn-compile").arg("verify").arg(&output).output().unwrap();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    }
}

/// Version 8.1 added sections; the artifact above has the minor version 0 and none of them.
#[test]
fn version_8_1_keeps_loading_with_its_npu_section() {
    let bytes = std::fs::read(golden("v8.1-npu.unicorn")).unwrap();
    assert!(bytes.len() < 700_000, "a golden artifact is small, found {} bytes", bytes.len());
    let view = match ArtifactView::parse(&bytes) {
        Ok(view) => view,
        Err(ParseError::Version { found_major: 8, .. }) if VERSION_MAJOR != 8 => return,
        Err(error) => panic!("version 8.1 is neither read nor refused by name: {error}"),
    };
    let npu = view.npu.as_ref().expect("an NPU section");
    let products: Vec<&str> = npu.products.iter().map(|product| product.name.as_str()).collect();
    assert_eq!((npu.device.as_str(), products.len(), npu.programs.len()), ("npu1", 2, 2), "{products:?}");
    view.npu_weights().iter().for_each(|section| section.verify().unwrap());
    let before = std::fs::read(golden("v8-tiny.unicorn")).unwrap();
    assert!(ArtifactView::parse(&before).unwrap().npu.is_none() && npu.steps.is_empty());
}

/// Version 8.2 added the steps in which an NPU takes part.
#[test]
fn version_8_2_keeps_loading_with_the_steps_of_its_npu() {
    let bytes = std::fs::read(golden("v8.2-npu.unicorn")).unwrap();
    assert!(bytes.len() < 900_000, "a golden artifact is small, found {} bytes", bytes.len());
    let view = match ArtifactView::parse(&bytes) {
        Ok(view) => view,
        Err(ParseError::Version { found_major: 8, .. }) if VERSION_MAJOR != 8 => return,
        Err(error) => panic!("version 8.2 is neither read nor refused by name: {error}"),
    };
    let [steps] = &view.npu.as_ref().expect("an NPU section").steps[..] else { panic!("steps of one target") };
    assert_eq!((steps.kernels.name.as_str(), steps.commands.iter().map(Vec::len).max()), ("generic", Some(2)));
    steps.kernels.modules.unpack_all().unwrap();
}

/// Version 8.3 added programs that write hidden rows.
#[test]
fn version_8_3_keeps_loading_with_its_hidden_programs() {
    let bytes = std::fs::read(golden("v8.3-full.unicorn")).unwrap();
    assert!(bytes.len() < 900_000, "a golden artifact is small, found {} bytes", bytes.len());
    let view = match ArtifactView::parse(&bytes) {
        Ok(view) => view,
        Err(ParseError::Version { found_major: 8, .. }) if VERSION_MAJOR != 8 => return,
        Err(error) => panic!("version 8.3 is neither read nor refused by name: {error}"),
    };
    let programs = &view.kernels.targets[0].programs;
    let strides: Vec<Option<u32>> = programs.iter().map(|program| program.hidden_stride()).collect();
    assert_eq!(strides, [None, Some(32)], "the program that decodes, and one of 8 hidden rows of 32 numbers");
    assert!(view.npu.is_some_and(|npu| !npu.steps.is_empty()));
}

/// Version 8.4 added the license.
#[test]
fn version_8_4_keeps_its_license() {
    let bytes = std::fs::read(golden("v8.4-license.unicorn")).unwrap();
    assert!(bytes.len() < 700_000, "a golden artifact is small, found {} bytes", bytes.len());
    let view = match ArtifactView::parse(&bytes) {
        Ok(view) => view,
        Err(ParseError::Version { found_major: 8, .. }) if VERSION_MAJOR != 8 => return,
        Err(error) => panic!("version 8.4 is neither read nor refused by name: {error}"),
    };
    assert_eq!(view.license, Some(golden_license()));
    for_each_rewritten(&bytes, &REWRITES, |command, new| {
        assert_eq!(new.license, Some(golden_license()), "{command}");
    });
}

/// Version 8.5 added the draft: here the artifact of 8.4, as its own.
#[test]
fn version_8_5_keeps_its_draft() {
    let bytes = std::fs::read(golden("v8.5-draft.unicorn")).unwrap();
    let view = match ArtifactView::parse(&bytes) {
        Ok(view) => view,
        Err(ParseError::Version { found_major: 8, .. }) if VERSION_MAJOR != 8 => return,
        Err(error) => panic!("version 8.5 is neither read nor refused by name: {error}"),
    };
    assert_eq!(view.draft.expect("there is one").license, Some(golden_license()));
    for_each_rewritten(&bytes, &REWRITES, |command, new| {
        assert_eq!(new.draft.as_ref().expect("there is one").license, Some(golden_license()), "{command}");
    });
}

/// Version 8.6 added what makes rows of images, and 8.7 images of any size.
#[test]
fn versions_8_6_and_8_7_keep_their_images() {
    for (name, has_grid) in [("v8.6-image.unicorn", false), ("v8.7-grid.unicorn", true)] {
        check_images(name, has_grid);
    }
}

fn check_images(name: &str, has_grid: bool) {
    let bytes = std::fs::read(golden(name)).unwrap();
    let view = match ArtifactView::parse(&bytes) {
        Ok(view) => view,
        Err(ParseError::Version { found_major: 8, .. }) if VERSION_MAJOR != 8 => return,
        Err(error) => panic!("{name} is neither read nor refused by name: {error}"),
    };
    let image = view.image.expect("there is one");
    assert_eq!(image.grid.is_some(), has_grid, "{name}");
    assert!(view.kernels.targets[0].programs.iter().any(|program| program.logits == LogitsRows::Image));
    for_each_rewritten(&bytes, &REWRITES, |command, new| {
        assert_eq!(new.image.as_ref(), Some(&image), "{command}");
    });
}

/// Version 8.8 added programs that predict the token behind the next one.
#[test]
fn version_8_8_keeps_its_predicted_programs() {
    let bytes = std::fs::read(golden("v8.8-mtp.unicorn")).unwrap();
    let view = match ArtifactView::parse(&bytes) {
        Ok(view) => view,
        Err(ParseError::Version { found_major: 8, .. }) if VERSION_MAJOR != 8 => return,
        Err(error) => panic!("version 8.8 is neither read nor refused by name: {error}"),
    };
    let predicts = |program: &&Program| program.logits == LogitsRows::Predicted;
    assert_eq!(view.kernels.targets[0].programs.iter().filter(predicts).count(), 1);
    for_each_rewritten(&bytes, &REWRITES, |command, new| {
        let targets = &new.kernels.targets;
        assert!(targets.iter().all(|target| target.programs.iter().filter(predicts).count() == 1), "{command}");
    });
}

/// Commands that write an artifact anew, and their arguments.
const REWRITES: [(&str, &[&str]); 3] =
    [("upgrade", &[]), ("replan", &["--machine", "phoenix-16gb"]), ("retarget", &["--target", "rdna2"])];

/// The artifact as each of these commands writes it: `check` is called with the command.
fn for_each_rewritten(bytes: &[u8], rewrites: &[(&str, &[&str])], check: impl Fn(&str, &ArtifactView<'_>)) {
    let folder = tempfile::tempdir().unwrap();
    for &(command, more) in rewrites {
        let output = folder.path().join(command);
        std::fs::write(&output, bytes).unwrap();
        let done = program("unicorn-compile").arg(command).arg(&output).args(more).output().unwrap();
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
        let new = std::fs::read(&output).unwrap();
        assert!(new != bytes, "{command} changed something");
        check(command, &ArtifactView::parse(&new).unwrap());
    }
}

/// Version 8.8 added schedules of steps in which an NPU takes part.
#[test]
fn version_8_8_keeps_loading_with_its_npu_schedules() {
    let bytes = std::fs::read(golden("v8.8-npu.unicorn")).unwrap();
    assert!(bytes.len() < 700_000, "a golden artifact is small, found {} bytes", bytes.len());
    let view = match ArtifactView::parse(&bytes) {
        Ok(view) => view,
        Err(ParseError::Version { found_major: 8, .. }) if VERSION_MAJOR != 8 => return,
        Err(error) => panic!("version 8.8 is neither read nor refused by name: {error}"),
    };
    let section = view.npu.as_ref().expect("an NPU section");
    let [steps] = &section.steps[..] else { panic!("steps of one target") };
    let runs = section.runs(64, &steps.commands[0]);
    assert!(runs.iter().all(|runs| *runs == 8), "{runs:?}");
    // Two layers: a command of eight runs each, and between them dispatches of eight parts before and behind products that take more rows at a time.
    let [schedule] = &steps.schedules[..] else { panic!("one program") };
    let of_npu = schedule.entries.iter().filter(|entry| entry.work.is_run()).count();
    assert_eq!((of_npu, schedule.entries.len()), (16, 58));
    assert_eq!(steps.schedule(0, &runs), *schedule);
    // Activations have another layout now: its kernels and programs are used together as they are, and none of them is made for another target or taken for today's.
    let first = &section.programs[0];
    let product = section.products.iter().find(|product| product.program == 0).expect("its weights");
    let weights = &view.npu_weights()[product.slice as usize].bytes[product.offset_bytes as usize..];
    assert!(NpuCheck::of(first, product, &weights[..product.len_bytes as usize]).is_none());
    for_each_rewritten(&bytes, &REWRITES[1..2], |command, new| {
        let kept = new.npu.as_ref().expect("an NPU section");
        assert!(kept.steps.iter().all(|steps| !steps.schedules.is_empty()), "{command}");
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.unicorn");
    std::fs::write(&path, &bytes).unwrap();
    let (command, more) = REWRITES[2];
    let done = program("unicorn-compile").arg(command).arg(&path).args(more).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && text.contains("NPU weights have a layout that this version"), "{text}");
    assert!(std::fs::read(&path).unwrap() == bytes, "it leaves the artifact as it was");
}

/// The golden artifacts are those of the past and of today, no others.
#[test]
fn every_version_has_its_artifact() {
    let mut names: Vec<_> =
        std::fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.ends_with(".unicorn"));
    names.sort();
    let mut expected = [1, 2, 3, 4, 5, 6, 7, 8].map(|version| format!("v{version}-tiny.unicorn")).to_vec();
    expected.extend(["v8.1-npu.unicorn".into(), "v8.2-npu.unicorn".into(), "v8.3-full.unicorn".into()]);
    expected.extend(["v8.4-license.unicorn".into(), "v8.5-draft.unicorn".into(), "v8.6-image.unicorn".into()]);
    expected.extend(["v8.7-grid.unicorn".into(), "v8.8-mtp.unicorn".into(), "v8.8-npu.unicorn".into()]);
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!((VERSION_MAJOR, VERSION_MINOR), (8, 8), "a new version needs an artifact in artifacts/golden");
}

/// `BLESS=1 cargo test -p tests --test old_artifacts -- --ignored`, once a version: committed artifacts are of the past.
#[test]
#[ignore = "writes artifacts/golden"]
fn write_the_artifacts_of_this_version() {
    assert!(std::env::var_os("BLESS").is_some(), "BLESS=1 says that artifacts/golden may be rewritten");
    let generic = || vec![target::by_name("generic").unwrap()];
    let model = models().join("tiny/qwen35-mtp");
    write_golden("mtp", &Compiled::of_folder(&model, &options(generic(), Vec::new())).artifact());
    let options = with(options(generic(), Vec::new()), |options| {
        options.npu = Some(NpuOptions::default().with(|npu| (npu.rows, npu.work) = (8, Some(vec![NpuWork::Qkv]))));
    });
    write_golden("npu", &Compiled::of(&TinyModel::default(), &options).artifact());
}

/// Writes a small artifact of this version, of a few programs of another one.
fn write_golden(name: &str, artifact: &[u8]) {
    let view = ArtifactView::parse(artifact).unwrap();
    let path = golden(&format!("v{VERSION_MAJOR}.{VERSION_MINOR}-{name}.unicorn"));
    let (slices, npu_slices) = (view.weights(), view.npu_weights());
    let mut writer = ArtifactWriter::create(&path, slices.len() + npu_slices.len()).unwrap();
    for slice in slices {
        writer.begin_slice().unwrap();
        writer.weight_bytes(slice.bytes).unwrap();
    }
    for slice in npu_slices {
        writer.begin_npu_slice().unwrap();
        writer.weight_bytes(slice.bytes).unwrap();
    }
    if let Some(section) = &view.npu {
        writer.npu(&one_long_step(section.clone()));
    }
    writer.finish(&view.meta, &view.plan, &few_programs(&view.kernels), &view.tokenizer).unwrap();
}

/// The section with the program of 64 rows without logits alone.
fn one_long_step(mut section: NpuSection) -> NpuSection {
    for steps in &mut section.steps {
        let is_kept = |program: &Program| program.rows == 64 && program.logits == LogitsRows::None;
        let kept = steps.kernels.programs.iter().position(is_kept).expect("parts of 8 rows");
        steps.kernels = with_programs(&steps.kernels, is_kept);
        (steps.commands, steps.schedules) = (vec![steps.commands[kept].clone()], vec![steps.schedules[kept].clone()]);
    }
    section
}

fn golden_license() -> LicenseSection {
    let [name, link, text] = ["other", "https://example.com/terms", "Use it well.\n"].map(|text| Some(text.to_owned()));
    LicenseSection { name, link, text }
}

/// The program that decodes one token and the one that predicts: most of a small artifact is kernels.
fn few_programs(kernels: &Kernels) -> Kernels {
    let is_kept = |program: &Program| {
        let decodes = program.rows == 1 && program.logits == LogitsRows::One;
        decodes || program.logits == LogitsRows::Predicted
    };
    Kernels { targets: kernels.targets.iter().map(|target| with_programs(target, is_kept)).collect() }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../artifacts/golden").join(name)
}
