//! NPU programs of small models, built with MLIR.

#![cfg(all(feature = "npu", feature = "cli"))]

use std::path::Path;
use std::process::Command;

use unicorn_compiler::{CompileOptions, NpuMlir, NpuOptions, Silent, Source, npu_mlir, plan};

fn programs(model: &str, dialect: &str) -> Vec<NpuMlir> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny").join(model);
    let planned = plan(Source::Model(&folder), &CompileOptions::default(), &mut Silent).unwrap();
    npu_mlir(&planned, &NpuOptions::default().with(|npu| npu.rows = 64), dialect).unwrap()
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
        // Readable, generic and instructions, of four products.
        assert_eq!(files.len(), 12, "{:?}", files.iter().map(|(name, _)| name).collect::<Vec<_>>());
        assert!(files == written(dialect), "the second run writes other bytes");
    }
}

#[test]
fn every_product_of_a_model_has_a_program_of_its_own_name() {
    for model in ["llama3-rope", "gemma3-defaults", "qwen3-qknorm"] {
        let programs = programs(model, "2026");
        let mut names: Vec<&str> = programs.iter().map(|program| &program.name[..]).collect();
        // Fused q, k and v; output; gate and up with the activation; down.
        assert_eq!(names.len(), 4, "{model}: {names:?}");
        assert_eq!(names.iter().filter(|name| name.ends_with("-silu") || name.ends_with("-gelutanh")).count(), 1);
        names.dedup();
        assert_eq!(names.len(), 4, "{model}: {names:?}");
        for program in &programs {
            assert!(program.readable.contains("aie.device(npu1) @main"), "{}", program.readable);
            assert!(program.generic.contains("\"aie.device\"()"), "{}", program.generic);
        }
    }
}
