//! Same model, same settings, same bytes: whatever the threads, the place and the hour.

use std::path::Path;

use tests::compiled::{Compiled, options};
use tests::programs::program;
use tests::tiny_model::{Family, TinyModel};
use unicorn_spirv::target;

fn model() -> TinyModel {
    TinyModel { family: Family::Gemma3, layers: 2, sliding_window: Some(16), ..Default::default() }
}

#[test]
fn two_compiles_are_the_same_bytes() {
    let compile = || Compiled::of(&model(), &options(target::defaults(), Vec::new())).artifact();
    assert_same(&compile(), &compile());
}

#[test]
fn threads_do_not_show() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    model().write(&source);
    assert_same(&compiled_with(&source, Some("1")), &compiled_with(&source, Some("2")));
    assert_same(&compiled_with(&source, Some("5")), &compiled_with(&source, None));
}

/// The folder's own name is the model's; where it lies is not part of it.
#[test]
fn the_place_does_not_show() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let deep = there.path().join("elsewhere/and/deeper/model");
    let source = here.path().join("model");
    model().write(&source);
    std::fs::create_dir_all(&deep).unwrap();
    for entry in std::fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, deep.join(path.file_name().unwrap())).unwrap();
    }
    assert_same(&compiled_with(&source, None), &compiled_with(&deep, None));
}

#[test]
fn another_weight_shows() {
    let compile = |seed| {
        let model = TinyModel { seed, ..model() };
        Compiled::of(&model, &options(vec![target::by_name("generic").unwrap()], Vec::new())).artifact()
    };
    assert_ne!(compile(1), compile(2));
}

/// The artifact that `unicorn-compile` makes with this many threads.
fn compiled_with(source: &Path, threads: Option<&str>) -> Vec<u8> {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("model.unicorn");
    let mut command = program("unicorn-compile");
    command.arg(source).arg("-o").arg(&path).arg("--quiet").env_remove("RAYON_NUM_THREADS");
    if let Some(threads) = threads {
        command.env("RAYON_NUM_THREADS", threads);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(path).unwrap()
}

/// Names the first difference of two artifacts instead of printing both.
#[track_caller]
fn assert_same(left: &[u8], right: &[u8]) {
    let first = left.iter().zip(right).position(|(left, right)| left != right);
    assert_eq!(first, None, "first byte that differs, of {} and {}", left.len(), right.len());
    assert_eq!(left.len(), right.len(), "lengths");
}
