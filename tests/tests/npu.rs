//! `unicorn-compile --npu` in a build without MLIR, which is what the other tests build.

use std::path::Path;

use tests::programs::program;

#[test]
fn a_build_without_mlir_names_the_feature_to_build() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny/gemma3-defaults");
    let output = program("unicorn-compile").arg(model).args(["--npu", "phoenix", "--emit", "mlir"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for part in
        ["built without NPU programs", "docs/npu.md", "cargo build --release -p unicorn-compiler --features npu"]
    {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn the_form_of_npu_programs_needs_the_option() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny/gemma3-defaults");
    let output = program("unicorn-compile").arg(model).args(["--plan-only", "--emit", "mlir"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("form mlir is of NPU programs, expected --npu phoenix with it"), "{error}");
}
