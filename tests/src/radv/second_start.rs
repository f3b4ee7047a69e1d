//! The pipeline cache on a driver that keeps one: a second start compiles nothing, and a damaged file does no harm.

use std::path::Path;

use unicorn_runtime::{DeviceFacts, PipelineReport, warm_pipeline_cache};

use super::CompiledModel;

/// What is wrong with the starts of `model` after its first.
///
/// # Panics
/// If the driver refuses a kernel that it took before.
pub fn broken(model: &CompiledModel, facts: &DeviceFacts) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let target = &model.set.targets[0];
    let start = || warm_pipeline_cache(facts, target, folder.path()).expect("the kernels compiled before");
    let finds_all = |report: &PipelineReport| report.from_cache == Some(report.pipelines) && report.note.is_none();
    let begins_anew = |report: &PipelineReport| report.from_cache == Some(0) && report.note.is_some();

    start();
    let second = start();
    damage(folder.path());
    let third = start();
    let fourth = start();
    let starts = [
        ("second start compiles nothing", finds_all(&second), second),
        ("start with a damaged cache compiles all and says so", begins_anew(&third), third),
        ("start after that compiles nothing", finds_all(&fourth), fourth),
    ];
    let wrong = starts.into_iter().filter(|(_, as_it_should, _)| !as_it_should);
    wrong.map(|(what, _, found)| format!("{}: expected that a {what}, found {found:?}", model.name)).collect()
}

/// Flips a bit in the middle of every cache file.
fn damage(folder: &Path) {
    for entry in std::fs::read_dir(folder.join("pipelines")).expect("a cache was written") {
        let path = entry.expect("an entry of the folder").path();
        let mut bytes = std::fs::read(&path).expect("a cache file");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).expect("a cache file can be written");
    }
}
