//! NPU programs of small models, built with MLIR.

#![cfg(all(feature = "npu", feature = "cli"))]

use std::path::Path;
use std::process::Command;

use unicorn_artifact::npu::cdo::{CdoCommand, decode_object};
use unicorn_artifact::npu::control::check_control;
use unicorn_artifact::npu::pdi::read_pdi;
use unicorn_compiler::{CompileOptions, NpuOptions, NpuTexts, Silent, Source, npu_mlir, plan};

/// Tokens of a step.
const ROWS: usize = 64;

fn programs(model: &str, dialect: &str) -> NpuTexts {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny").join(model);
    let planned = plan(Source::Model(&folder), &CompileOptions::default(), &mut Silent).unwrap();
    npu_mlir(&planned, &NpuOptions::default().with(|npu| npu.rows = ROWS), dialect).unwrap()
}

#[test]
fn two_runs_write_the_same_files() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny/llama3-rope");
    let written = |dialect: &str| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_unicorn-compile"));
        command.arg(&model).args(["--npu", "phoenix", "--emit", "mlir", "--npu-dialect", dialect, "--npu-rows", "64"]);
        let output = command.arg("-o").arg(folder.path().join("model.unicorn")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap());
        let mut files: Vec<_> =
            entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap())).collect();
        files.sort();
        files
    };
    for dialect in ["2024", "2026"] {
        let files = written(dialect);
        // Readable, generic, instructions, and three of the control part, of four products and of attention.
        assert_eq!(files.len(), 30, "{:?}", files.iter().map(|(name, _)| name).collect::<Vec<_>>());
        assert!(files == written(dialect), "the second run writes other bytes");
    }
}

#[test]
fn every_product_and_attention_of_a_model_has_a_program_of_its_own_name() {
    for (model, attention) in [
        ("llama3-rope", &["attention-2x256x2048x32"][..]),
        // A layer of each of its windows: a step of 64 tokens sees the window of its first token and 63 keys more.
        ("gemma3-text", &["attention-2x128x512x64", "attention-2x128x79x64"]),
        ("qwen3-qknorm", &["attention-1x320x512x64"]),
    ] {
        let NpuTexts { programs, without } = programs(model, "2026");
        assert!(without.is_empty(), "{model}: {without:?}");
        let mut names: Vec<&str> = programs.iter().map(|program| &program.name[..]).collect();
        // Fused q, k and v; output; gate and up with the activation; down.
        let (found, products): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.starts_with("attention"));
        assert_eq!(products.len(), 4, "{model}: {names:?}");
        assert_eq!(found.len(), attention.len(), "{model}: {found:?}");
        assert!(attention.iter().all(|name| found.contains(name)), "{model}: {found:?}");
        assert_eq!(names.iter().filter(|name| name.ends_with("-silu") || name.ends_with("-gelutanh")).count(), 1);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), programs.len(), "{model}: {names:?}");
        for program in &programs {
            assert!(program.readable.contains("aie.device(npu1) @main"), "{}", program.readable);
            assert!(program.generic.contains("\"aie.device\"()"), "{}", program.generic);
            let is_attention = program.name.starts_with("attention");
            assert_eq!(program.readable.contains("@unicorn_online_softmax"), is_attention, "{}", program.readable);
            assert!(!is_attention || program.explanation.contains("computes           attention of layer "));
        }
    }
}

/// The files of a control part have the same commands, none of which starts a core.
#[test]
fn each_program_has_its_control_part_in_three_files() {
    for program in programs("llama3-rope", "2026").programs {
        let [(commands_name, commands), (image_name, image), (container_name, container)] = &program.control[..] else {
            panic!("{}: {:?}", program.name, program.control.iter().map(|(name, _)| name).collect::<Vec<_>>());
        };
        assert_eq!([commands_name, image_name, container_name], ["init.cdo", "pdi", "xclbin"]);
        let words = commands.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap()));
        let is_something = |command: &CdoCommand| !matches!(command, CdoCommand::Nothing { .. });
        let mut in_image = read_pdi(image).unwrap();
        in_image.retain(is_something);
        assert_eq!(decode_object(&words.collect::<Vec<_>>()), Ok(in_image));
        assert_eq!(check_control(image, 4).unwrap().cores, 0, "{}", program.name);
        assert!(container.windows(image.len()).any(|part| part == image), "{}", program.name);
    }
}

/// Heads, groups and widths that divide nothing: each program is written in both dialects, or named with its reason.
#[test]
fn what_has_no_program_is_named_with_the_reason() {
    let capped = "attention: its scores have a soft cap, which NPU programs do not compute";
    let with_sinks = "attention: its heads have sinks, which NPU programs do not compute";
    for (model, refused) in [
        ("gemma2-softcap", Some(capped)),
        ("gpt-oss", Some(with_sinks)),
        ("llama-odd-sizes", None),
        ("qwen2-bias", None),
        ("qwen25-heads-7-to-1", None),
        ("gemma4-dense", None),
        ("qwen35-delta", None),
        ("lfm2", None),
    ] {
        for dialect in ["2024", "2026"] {
            let NpuTexts { programs, without } = programs(model, dialect);
            assert_eq!(without, Vec::from_iter(refused), "{model}");
            assert!(programs.len() >= 2, "{model}: {} programs", programs.len());
            let has_attention = programs.iter().any(|program| program.name.starts_with("attention-"));
            assert_eq!(has_attention, refused.is_none(), "{model}");
        }
    }
}

#[test]
fn the_command_prints_what_has_no_program_beside_the_texts() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny/gemma2-softcap");
    let mut command = Command::new(env!("CARGO_BIN_EXE_unicorn-compile"));
    let output = command.arg(&model).args(["--npu", "phoenix", "--emit", "mlir", "--npu-rows", "8"]).output().unwrap();
    let [text, notes] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success() && text.starts_with("module {"), "{notes}");
    assert!(notes.contains("without an NPU program: attention: its scores have a soft cap"), "{notes}");
}
