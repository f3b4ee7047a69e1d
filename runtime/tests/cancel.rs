//! A cancelled load leaves nothing in the process. A file of its own, because it counts the process's threads and memory.

use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use toy_artifact::{FIRST_SLICE_WORDS, options, prompt, twin, write_toy};
use unicorn_runtime::{LoadError, LoadOptions, Model, UploadPath};

#[expect(dead_code, reason = "other tests use the rest")]
mod toy_artifact;

/// Longer than any machine takes to end a thread.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the process holds.
#[derive(Debug, PartialEq)]
struct Held {
    threads: u64,
    memory_bytes: u64,
    descriptors: usize,
}

#[test]
fn a_cancelled_load_leaves_nothing_and_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    for upload_path in [UploadPath::Map, UploadPath::Staging] {
        let options = options().with(|options| options.residency = Some(upload_path));
        // The driver keeps threads and memory of its own from the first load on.
        match Model::load(&path, &options) {
            Err(LoadError::Residency { refusals, .. }) => {
                test_support::skip("upload path", refusals.join("; "));
                continue;
            }
            loaded => drop(loaded.unwrap_or_else(|error| panic!("{upload_path}: {error}"))),
        }
        let n_calls = cancel_at(&path, &options, u64::MAX);
        assert!(n_calls >= 3, "{upload_path}: {n_calls} calls of the callback");
        // The driver's allocator may grow in one batch of loads; a leak would grow in each.
        let grows_in_each = (0..3).all(|batch| {
            let before = threads_and_memory();
            for round in 0..4 {
                for call in 0..n_calls {
                    assert_eq!(cancel_at(&path, &options, call), call + 1, "{upload_path}, {batch}, round {round}");
                }
            }
            let (mut after, ended) = (threads_and_memory(), Instant::now());
            // The kernel counts a thread a moment longer than a join waits.
            while after.threads > before.threads && ended.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(1));
                after = threads_and_memory();
            }
            // The threads of this file's other tests may have ended.
            assert!(after.threads <= before.threads, "{upload_path}: {before:?}, then {after:?}");
            assert_eq!(after.descriptors, before.descriptors, "{upload_path}");
            // Were one model in four left behind, this much would be.
            after.memory_bytes >= before.memory_bytes + n_calls * 4 * FIRST_SLICE_WORDS as u64
        });
        assert!(!grows_in_each, "{upload_path}: {:?}", threads_and_memory());

        let model = Model::load(&path, &options).unwrap();
        let expected = twin(&prompt(20));
        let mut check = |position: u32, logits: &[f32]| assert_eq!(logits, expected[position as usize]);
        model.session().unwrap().feed_with_logits(&prompt(20), &mut check).unwrap();
    }
}

/// Cancels a load when the callback is called for the `call`th time, from 0; the number of its calls.
fn cancel_at(path: &Path, options: &LoadOptions, call: u64) -> u64 {
    let mut calls = 0;
    let loaded = Model::load_with_progress(path, options, &mut |_, _| {
        calls += 1;
        if calls > call { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match loaded {
        Err(LoadError::Cancelled) => assert!(calls > call),
        loaded => drop(loaded.unwrap_or_else(|error| panic!("cancelled at call {call}: {error}"))),
    }
    calls
}

fn threads_and_memory() -> Held {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let number = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
    };
    Held {
        threads: number("Threads"),
        memory_bytes: number("VmRSS") * 1024,
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
    }
}
