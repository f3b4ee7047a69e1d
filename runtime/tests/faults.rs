//! Every Vulkan call of a short run is failed twice, because the device is lost and because there is no memory: loading then
//! ends with a clear error and works the next time; a running generation continues with the same tokens.
//!
//! `cargo test --workspace --features fault-injection --test faults`

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tempfile::TempDir;
use test_support::skip;
use toy_artifact::{
    CONTEXT, FIRST_SLICE_WORDS, LOGITS_ROWS, VOCAB, multistep, options, prompt, repeat_penalty, twin, write_toy,
};
use unicorn_runtime::{
    BatchRow, CancelToken, Fault, FaultKind, LoadError, LoadOptions, Model, RunError, Sampled, Sampling, UploadPath,
};
use unicorn_runtime::{inject, injected, limit_reads};

#[path = "faults/allocations.rs"]
mod allocations;
#[path = "faults/every_call.rs"]
mod every_call;
#[path = "faults/masks_ahead.rs"]
mod masks_ahead;
#[path = "faults/noncoherent.rs"]
mod noncoherent;
#[expect(dead_code, reason = "other tests use the rest")]
mod toy_artifact;

/// Faults are counted for the whole process: one test at a time.
static ONE_TEST: Mutex<()> = Mutex::new(());

fn one_test() -> MutexGuard<'static, ()> {
    ONE_TEST.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The lock of a test, with the toy's artifact at the path, in a folder of its own.
fn toy() -> (MutexGuard<'static, ()>, LoadOptions, TempDir, PathBuf) {
    let lock = one_test();
    let options = options();
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    (lock, options, folder, path)
}

/// Everything that a run returns to its caller.
#[derive(Debug, PartialEq)]
struct Output {
    logits: Vec<f32>,
    samples: Vec<Sampled>,
    /// Samples of two sequences in a batch.
    batch: Vec<Vec<Sampled>>,
    tokens: Vec<u32>,
}

/// Prefill with and without logits, a sequence that is cut back, decoding ahead, and a batch.
fn run(model: &Model) -> Result<Output, RunError> {
    let sampling = repeat_penalty();
    let mut session = model.session()?;
    session.feed(&prompt(90))?;
    let mut logits = Vec::new();
    session.feed_with_logits(&prompt(12), &mut |_, row| logits.extend_from_slice(row))?;
    session.truncate(100)?;
    let first = session.feed_and_sample(&[5, 6, 7], &sampling)?;
    // Device and host work at the same time; tokens of even numbers.
    let allow = |allowed: &mut [u32]| allowed.fill(0x5555_5555);
    let mut samples = vec![first, session.feed_and_sample_masked(&[first.token], &sampling, allow)?];
    // With multi-step submissions, the end is in the middle of four steps, with four more in flight.
    for sampled in session.generate(first.token, &sampling, 14).take(9) {
        samples.push(sampled?);
    }
    // The last step that runs ahead awaits masks that do not come.
    let mut masked = session.generate_masked(samples[samples.len() - 1].token, &sampling, 9);
    for _ in 0..4 {
        samples.push(masked.next_token(Some(Box::new(allow))).expect("steps are left")?);
    }
    drop(masked);
    let mut other = model.session()?;
    other.feed(&prompt(20))?;
    let mut batch = Vec::new();
    for token in 0..3 {
        let rows = [&mut session, &mut other].map(|session| BatchRow { session, token, sampling: &sampling });
        batch.push(model.decode_batch(rows)?);
    }
    Ok(Output { logits, samples, batch, tokens: session.tokens().to_vec() })
}

#[test]
fn every_failed_call_gives_a_clear_error_or_the_same_tokens() {
    let _lock = one_test();
    let options = options();
    // Short submissions are measured at load, on a software device as well. With the shortest, every load makes the same calls,
    // however fast the device is: every dispatch that can be divided is divided.
    fail_every_call(options.with(|options| options.submission = Some(Duration::from_nanos(1))));
}

/// The same where every submission of decode has several steps.
#[test]
fn every_failed_call_with_multistep_submissions_gives_the_same_tokens() {
    let (_lock, options, _folder, path) = toy();
    let calls_of_run = |limit: Duration| {
        let options = multistep(options.clone()).with(|options| {
            options.slots = 2;
            options.multistep = limit;
        });
        let model = Model::load(&path, &options).unwrap();
        inject(None);
        run(&model).unwrap();
        injected().0
    };
    // Five submissions or ten, each with a fence to be waited for and reset.
    let [calls_multistep, calls_single] = [Duration::MAX, Duration::ZERO].map(calls_of_run);
    assert!(
        calls_multistep + 5 * 3 <= calls_single,
        "{calls_multistep} calls, {calls_single} with a submission a step"
    );
    fail_every_call(multistep(options));
}

/// If a device is lost again before there is a token, the cause may be dispatches that wait for each other.
#[test]
fn a_device_that_is_lost_twice_continues_with_barriers() {
    let (_lock, options, _folder, path) = toy();
    let options = options.with(|options| {
        options.slots = 2;
        options.submission = Some(Duration::from_secs(3600));
    });
    let load = || Model::load(&path, &options).unwrap();
    inject(None);
    let model = load();
    let (calls_of_load, _) = injected();
    let expected = run(&model).unwrap();
    drop(model);
    let mut twice_in_a_row = 0;
    for call in calls_of_load..calls_of_load + 40 {
        for (kind, losses) in [(FaultKind::DeviceLost, 1), (FaultKind::DeviceLostTwice, 2)] {
            inject(Some(Fault { call, kind }));
            let model = load();
            assert_eq!(run(&model).unwrap(), expected, "call {call}, {kind:?}");
            let barriers: Vec<bool> = model.take_recoveries().iter().map(|one| one.barriers).collect();
            assert!(
                barriers.len() <= losses && !barriers.first().is_some_and(|&first| first),
                "call {call}: {barriers:?}"
            );
            twice_in_a_row += usize::from(barriers == [false, true]);
        }
    }
    assert!(twice_in_a_row > 0);
}

/// Loads the toy and runs it, once for each Vulkan call of that, which fails.
fn fail_every_call(options: LoadOptions) {
    let options = options.with(|options| options.slots = 2);
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    let options = options.with(|options| options.cache_folder = Some(folder.path().join("caches")));
    let load = || Model::load(&path, &options);

    inject(None);
    let model = load().unwrap();
    let (calls_of_load, _) = injected();
    let expected = run(&model).unwrap();
    let (calls, _) = injected();
    drop(model);
    let fed = [prompt(90), prompt(12)].concat();
    assert_eq!(expected.logits, twin(&fed)[90..].concat(), "{VOCAB} logits a row");
    assert!(calls_of_load > 100 && calls > calls_of_load + 50, "{calls_of_load} calls, then {calls}");

    let memories = [FaultKind::OutOfDeviceMemory, FaultKind::OutOfHostMemory];
    let mut refused = 0;
    let mut recovered = 0;
    for call in 0..calls {
        // Both kinds are handled alike (`Failure::is_out_of_memory`), so that calls have them alternately.
        for kind in [FaultKind::DeviceLost, memories[call as usize % 2]] {
            inject(Some(Fault { call, kind }));
            match fail(kind, &load, &expected) {
                None => {
                    assert!(call < calls_of_load + 10, "{kind:?} of call {call}");
                    refused += 1;
                }
                Some(recoveries) => recovered += recoveries,
            }
        }
    }
    // Loads that were refused succeed now.
    inject(None);
    assert_eq!(run(&load().unwrap()).unwrap(), expected);
    assert!(refused > 100 && recovered > 100, "{refused} loads refused, {recovered} devices recovered");
    assert_eq!(unicorn_runtime::validation_messages(), 0, "the validation layer reported messages");
}

/// Loads and runs with the fault that was injected. Number of recoveries in a stream that is as expected, once more without the fault; `None`: the load
/// was refused, with a clear error.
fn fail(kind: FaultKind, load: &dyn Fn() -> Result<Model, LoadError>, expected: &Output) -> Option<usize> {
    match load() {
        Err(error) => {
            let (_, struck) = injected();
            let struck = struck.unwrap_or_else(|| panic!("{kind:?}: {error} without a fault"));
            let text = error.to_string();
            let is_of_memory = text.contains(struck) || matches!(error, LoadError::OutOfMemory { .. });
            let clear = match kind {
                FaultKind::OutOfDeviceMemory | FaultKind::OutOfHostMemory | FaultKind::OutOfDeviceMemoryAfter => {
                    is_of_memory
                }
                // Some calls may fail without harm; then the next one reports the loss.
                _ => text.contains("device was lost") || text.contains(struck),
            };
            assert!(clear, "{kind:?}: {struck}: {text}");
            None
        }
        Ok(model) => {
            let found = run(&model).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            assert_eq!(found, *expected, "{kind:?}");
            let recovered = model.take_recoveries().len();
            // Nothing of the fault is left behind.
            assert_eq!(run(&model).unwrap(), *expected, "{kind:?}, once more");
            Some(recovered)
        }
    }
}

#[test]
fn a_file_that_is_cut_or_changed_while_in_use_is_named_and_the_session_stays() {
    let (_lock, options, _folder, path) = toy();
    let sound = std::fs::read(&path).unwrap();
    inject(None);
    let model = Model::load(&path, &options).unwrap();
    let mut session = model.session().unwrap();
    let mut rows = Vec::new();
    session.feed(&prompt(50)).unwrap();

    let lose_device = || inject(Some(Fault { call: 0, kind: FaultKind::DeviceLost }));
    let changed = {
        let mut bytes = sound.clone();
        bytes[4 * FIRST_SLICE_WORDS / 2] ^= 1;
        bytes
    };
    for (bytes, expected) in [(&sound[..sound.len() / 4], "was cut while it was in use"), (&changed[..], "hash")] {
        // In place, as a careless copy does it.
        std::fs::write(&path, bytes).unwrap();
        lose_device();
        let error = session.feed(&[1]).unwrap_err();
        assert!(matches!(error, RunError::NotRecovered { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains("toy.unicorn"), "{text}");
        assert_eq!(session.len_tokens(), 50);
    }
    std::fs::write(&path, &sound).unwrap();
    session.feed_with_logits(&[1], &mut |_, row| rows.extend_from_slice(row)).unwrap();
    assert_eq!(rows, twin(&[prompt(50), vec![1]].concat())[50]);
    assert_eq!(model.take_recoveries().len(), 1);
}

#[test]
fn a_removed_device_is_an_error_until_it_returns() {
    let (_lock, options, _folder, path) = toy();
    inject(None);
    let model = Model::load(&path, &options).unwrap();
    let mut session = model.session().unwrap();
    session.feed(&prompt(CONTEXT - 1)).unwrap();
    inject(Some(Fault { call: 0, kind: FaultKind::DeviceRemoved }));
    for _ in 0..2 {
        let error = session.feed_and_sample(&[3], &Sampling::default()).unwrap_err();
        assert!(error.to_string().starts_with("device was lost (vkQueueSubmit failed with "), "{error}");
        assert_eq!(session.len_tokens(), CONTEXT - 1);
    }
    inject(None);
    let mut rows = Vec::new();
    session.feed_with_logits(&[3], &mut |_, row| rows.extend_from_slice(row)).unwrap();
    assert_eq!(rows, twin(&[prompt(CONTEXT - 1), vec![3]].concat())[CONTEXT as usize - 1]);
    assert_eq!(model.batch_rows(), LOGITS_ROWS);
}

/// No step of the toy reads its first slice, so that a lazy load uploads it last, after whole generations.
#[test]
fn a_lazy_load_runs_steps_before_the_last_weights_are_there() {
    let _lock = one_test();
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    let tokens = prompt(20);
    let expected = twin(&tokens);
    for upload_path in UploadPath::ALL {
        let options = options();
        inject(None);
        limit_reads(Some(1));
        let loaded = Model::load(
            &path,
            &options.with(|options| {
                options.residency = Some(upload_path);
                options.lazy = true;
            }),
        );
        let model = match loaded {
            Err(LoadError::Residency { refusals, .. }) => {
                skip("upload path", refusals.join("; "));
                continue;
            }
            other => other.unwrap_or_else(|error| panic!("{upload_path}: {error}")),
        };
        let mut session = model.session().unwrap();
        let mut check =
            |position: u32, logits: &[f32]| assert_eq!(logits, expected[position as usize], "{upload_path}");
        session.feed_with_logits(&tokens, &mut check).unwrap();
        assert_eq!(model.report().upload, None, "{upload_path}: reads of two chunks are still suspended");
        limit_reads(None);
        model.wait_for_weights().unwrap();
        let upload = model.report().upload.expect("it has ended");
        assert!(upload.seconds_resident >= model.report().seconds_total, "{upload_path}: {upload:?}");
        // From now on the ordinary programs run, on the same cache.
        session.truncate(18).unwrap();
        session.feed_with_logits(&tokens[18..], &mut check).unwrap();
    }
    assert_eq!(unicorn_runtime::validation_messages(), 0, "the validation layer reported messages");
}

/// Without weights, a step runs up to its first dispatch that reads some.
#[test]
fn a_lazy_steps_first_submission_waits_only_for_the_weights_that_it_reads() {
    let (_lock, options, _folder, path) = toy();
    inject(None);
    limit_reads(Some(0));
    let model = Model::load(&path, &options.with(|options| options.lazy = true)).unwrap();
    let (before, _) = injected();
    std::thread::scope(|scope| {
        let step = scope.spawn(|| model.session().unwrap().feed_and_sample(&prompt(5), &Sampling::default()).unwrap());
        // The loader is suspended before it calls Vulkan, so this is the step's submission.
        while injected().0 == before {
            std::thread::yield_now();
        }
        assert!(!step.is_finished() && model.report().upload.is_none());
        limit_reads(None);
        let last = twin(&prompt(5)).remove(4);
        let samples = step.join().unwrap();
        assert_eq!(samples.logit, last[samples.token as usize]);
    });
}

/// A step keeps the device until its weights are resident. Only other steps wait for it.
#[test]
fn only_steps_wait_for_a_running_step() {
    let (_lock, options, _folder, path) = toy();
    inject(None);
    limit_reads(Some(0));
    let model = Model::load(
        &path,
        &options.with(|options| {
            options.lazy = true;
            options.slots = 3;
        }),
    )
    .unwrap();
    let mut idle = model.session().unwrap();
    let (before, _) = injected();
    std::thread::scope(|scope| {
        let step = scope.spawn(|| model.session().unwrap().feed_and_sample(&prompt(5), &Sampling::default()).unwrap());
        while injected().0 == before {
            std::thread::yield_now();
        }
        for _ in 0..3 {
            drop(model.session().unwrap());
            idle.clear();
            idle.truncate(0).unwrap();
            assert_eq!(idle.keep_common_start(&[1, 2, 3]), 0);
            assert!(model.take_recoveries().is_empty() && model.report().upload.is_none());
            assert!(model.kv_pages().0 > 0);
        }
        assert!(!step.is_finished());
        limit_reads(None);
        step.join().unwrap();
    });
    assert_eq!(model.kv_pages().0, 0);
}

/// Cancelled while its first submission waits for weights, a step submits no more, although it could have continued.
#[test]
fn a_step_is_cancelled_between_its_submissions() {
    let (_lock, options, _folder, path) = toy();
    inject(None);
    limit_reads(Some(0));
    let model = Model::load(&path, &options.with(|options| options.lazy = true)).unwrap();
    let mut session = model.session().unwrap();
    let cancel = CancelToken::new();
    session.set_cancel(cancel.clone());
    let (before, _) = injected();
    std::thread::scope(|scope| {
        let step = scope.spawn(|| session.feed_with_logits(&prompt(60), &mut |_, _| panic!("no step ends")));
        while injected().0 == before {
            std::thread::yield_now();
        }
        cancel.cancel();
        assert!(!step.is_finished());
        limit_reads(None);
        assert!(matches!(step.join().unwrap(), Err(RunError::Cancelled)));
    });
    assert_eq!(session.len_tokens(), 0);
    cancel.reset();
    let expected = twin(&prompt(60));
    let mut check = |position: u32, logits: &[f32]| assert_eq!(logits, expected[position as usize]);
    session.feed_with_logits(&prompt(60), &mut check).unwrap();
}

#[test]
fn dropping_the_model_ends_a_lazy_load() {
    let (_lock, options, _folder, path) = toy();
    inject(None);
    limit_reads(Some(1));
    let model = Model::load(&path, &options.with(|options| options.lazy = true)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            limit_reads(None);
        });
        drop(model);
    });
}

/// The file is cut after the first chunk was read.
#[test]
fn a_failed_lazy_load_gives_the_message_of_an_eager_one() {
    let _lock = one_test();
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    let sound = std::fs::read(&path).unwrap();
    let expected = format!("cannot read {}: the file ends too early, it was cut while it was in use", path.display());
    for upload_path in UploadPath::ALL {
        let options = options();
        let options = options.with(|options| options.residency = Some(upload_path));
        let cut = || std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        inject(None);
        let mut cut_at_once = |done, _| {
            if done == 0 {
                cut()
            }
            ControlFlow::Continue(())
        };
        let eager = Model::load_with_progress(&path, &options, &mut cut_at_once);
        std::fs::write(&path, &sound).unwrap();
        match eager {
            Err(LoadError::Residency { .. }) => continue,
            loaded => assert_eq!(loaded.err().unwrap().to_string(), expected, "{upload_path}"),
        }
        limit_reads(Some(1));
        let model = Model::load(&path, &options.with(|options| options.lazy = true)).unwrap();
        let mut session = model.session().unwrap();
        session.feed(&prompt(20)).unwrap();
        cut();
        limit_reads(None);
        let error = model.wait_for_weights().unwrap_err();
        assert!(matches!(error, RunError::Loading { .. }) && error.to_string() == expected, "{upload_path}: {error}");
        for _ in 0..2 {
            assert_eq!(session.feed_and_sample(&[1], &Sampling::default()).unwrap_err().to_string(), expected);
        }
        assert!(model.is_broken() && session.len_tokens() == 20);
        std::fs::write(&path, &sound).unwrap();
    }
}

/// Loader and steps call Vulkan side by side, so that which call is the n-th differs from run to run; the expected result does not.
/// Every third, because each loads the model again and more.
#[test]
fn every_failed_call_of_a_lazy_load_gives_a_clear_error_or_the_same_tokens() {
    let _lock = one_test();
    let options = options();
    let lazy = options.with(|options| {
        options.slots = 2;
        options.residency = Some(UploadPath::Staging);
        options.lazy = true;
    });
    let folder = tempfile::tempdir().unwrap();
    let path = write_toy(folder.path());
    let load = || Model::load(&path, &lazy);
    inject(None);
    let model = load().unwrap();
    let expected = run(&model).unwrap();
    model.wait_for_weights().unwrap();
    let (calls, _) = injected();
    drop(model);
    let mut recovered = 0;
    for call in (0..calls).step_by(3) {
        for kind in [FaultKind::DeviceLost, FaultKind::OutOfDeviceMemory] {
            let fault = Fault { call, kind };
            inject(Some(fault));
            match load() {
                Err(error) => assert!(injected().1.is_some(), "{fault:?}: {error} without a fault"),
                Ok(model) => {
                    for _ in 0..2 {
                        let found = run(&model).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
                        assert_eq!(found, expected, "{fault:?}");
                    }
                    recovered += model.take_recoveries().len();
                }
            }
        }
    }
    inject(None);
    assert!(recovered > 10, "{recovered} devices recovered");
    assert_eq!(unicorn_runtime::validation_messages(), 0, "the validation layer reported messages");
}
