//! Memory that is not coherent, as mobile GPUs and some others have it, and what else a real driver does that a software device
//! does not: calls that fail after their work, waits that time out, memory that runs out while a lost device is recovered.

use std::collections::BTreeSet;

use unicorn_runtime::{failed_calls, inject_into, layered_calls, made_calls, simulate_noncoherent_memory};

use super::*;

/// Devices that are opened before this is dropped have memory that is not coherent.
struct Noncoherent;

impl Noncoherent {
    fn new() -> Noncoherent {
        simulate_noncoherent_memory(true);
        Noncoherent
    }
}

impl Drop for Noncoherent {
    fn drop(&mut self) {
        simulate_noncoherent_memory(false);
    }
}

const FLUSH: &str = "vkFlushMappedMemoryRanges";
const INVALIDATE: &str = "vkInvalidateMappedMemoryRanges";

/// The only call of the layer that nothing makes but what handles a failure; its result makes no difference.
const AFTER_FAILURES: &str = "vkDeviceWaitIdle";

fn count(calls: &[&str], name: &str) -> usize {
    calls.iter().filter(|&&call| call == name).count()
}

#[test]
fn memory_that_is_not_coherent_is_flushed_and_invalidated_on_every_upload_path() {
    let (_lock, options, _folder, path) = toy();
    let options = options.with(|options| options.slots = 2);
    inject(None);
    let expected = run(&Model::load(&path, &options).unwrap()).unwrap();
    assert_eq!((count(&made_calls(), FLUSH), count(&made_calls(), INVALIDATE)), (0, 0), "llvmpipe is coherent");
    let _noncoherent = Noncoherent::new();
    let mut loaded = 0;
    for upload in UploadPath::ALL {
        inject(None);
        let model = match Model::load(&path, &options.clone().with(|options| options.residency = Some(upload))) {
            // The pages that llvmpipe imports are coherent: without such memory it has no type for them.
            Err(LoadError::Residency { .. }) if [UploadPath::Import, UploadPath::Host].contains(&upload) => continue,
            other => other.unwrap_or_else(|error| panic!("{upload}: {error}")),
        };
        let of_load = made_calls();
        assert_eq!(run(&model).unwrap(), expected, "{upload}");
        assert!(count(&made_calls(), INVALIDATE) > count(&of_load, INVALIDATE), "{upload}: no step invalidated");
        // Stages and imported pages are coherent where the device has such memory.
        assert_eq!(
            count(&of_load, FLUSH) > 0,
            upload == UploadPath::Map,
            "{upload}: {} flushes",
            count(&of_load, FLUSH)
        );
        loaded += 1;
    }
    assert!(loaded >= 2, "{loaded} upload paths");
    assert_eq!(unicorn_runtime::validation_messages(), 0, "the validation layer complained");
}

/// Without coherent memory left, a stage is allocated from memory that is not.
#[test]
fn a_stage_that_is_not_coherent_is_flushed() {
    let (_lock, options, _folder, path) = toy();
    let options = options.with(|options| {
        options.slots = 2;
        options.residency = Some(UploadPath::Staging);
    });
    let _noncoherent = Noncoherent::new();
    let load = || Model::load(&path, &options);
    inject(None);
    let model = load().unwrap();
    let calls = made_calls();
    let expected = run(&model).unwrap();
    drop(model);
    assert_eq!(count(&calls, FLUSH), 0);
    let mut flushed = 0;
    for call in 0..count(&calls, "vkAllocateMemory") as u64 {
        inject_into("vkAllocateMemory", Fault { call, kind: FaultKind::OutOfDeviceMemory });
        match load() {
            Ok(model) => {
                flushed += count(&made_calls(), FLUSH);
                assert_eq!(run(&model).unwrap(), expected, "call {call}");
            }
            // A buffer that has only one memory type, or is not a stage.
            Err(error) => assert!(error.to_string().contains("memory"), "call {call}: {error}"),
        }
    }
    assert!(flushed > 0);
}

/// The first, a middle and the last call of each name, each failed in every way; every call that a load or a run makes is among them.
#[test]
fn every_kind_of_call_fails_in_every_way_where_memory_is_not_coherent() {
    let (_lock, options, folder, path) = toy();
    let _noncoherent = Noncoherent::new();
    let options = options.with(|options| {
        options.slots = 2;
        options.cache_folder = Some(folder.path().join("caches"));
        options.submission = Some(Duration::from_nanos(1));
    });
    let load = || Model::load(&path, &options);
    inject(None);
    let model = load().unwrap();
    let expected = run(&model).unwrap();
    let calls = made_calls();
    drop(model);

    let (mut refused, mut recovered) = (0, 0);
    let mut failed = BTreeSet::new();
    for name in calls.iter().copied().collect::<BTreeSet<_>>() {
        let n_calls = count(&calls, name) as u64;
        for call in BTreeSet::from([0, n_calls / 2, n_calls - 1]) {
            for kind in [
                FaultKind::DeviceLost,
                FaultKind::DeviceLostAfter,
                FaultKind::OutOfDeviceMemory,
                FaultKind::OutOfDeviceMemoryAfter,
            ] {
                inject_into(name, Fault { call, kind });
                match fail(kind, &load, &expected) {
                    None => refused += 1,
                    Some(recoveries) => recovered += recoveries,
                }
                failed.extend(failed_calls());
            }
        }
    }
    assert!(refused > 50 && recovered > 20, "{refused} loads refused, {recovered} devices recovered");
    let never: Vec<&str> = layered_calls().into_iter().filter(|call| !failed.contains(call)).collect();
    assert_eq!(never, [AFTER_FAILURES]);
    assert_eq!(unicorn_runtime::validation_messages(), 0, "the validation layer complained");
}

/// A submission that neither ends nor fails keeps its device and its memory; the work goes on with another.
#[test]
fn a_wait_that_times_out_is_a_lost_device() {
    let (_lock, options, _folder, path) = toy();
    let options = options.with(|options| options.slots = 2);
    let load = || Model::load(&path, &options);
    inject(None);
    let model = load().unwrap();
    let waits_of_load = count(&made_calls(), "vkWaitForFences") as u64;
    let expected = run(&model).unwrap();
    let waits = count(&made_calls(), "vkWaitForFences") as u64;
    drop(model);
    let mut recovered = 0;
    let of_run = (waits_of_load..waits).step_by(5);
    for call in [0, waits_of_load - 1].into_iter().chain(of_run) {
        inject_into("vkWaitForFences", Fault { call, kind: FaultKind::Timeout });
        let recoveries = fail(FaultKind::Timeout, &load, &expected);
        assert_eq!(failed_calls(), ["vkWaitForFences"]);
        assert_eq!(recoveries.is_none(), call < waits_of_load, "wait {call} of {waits}");
        recovered += recoveries.unwrap_or(0);
    }
    assert!(recovered > 3, "{recovered} devices recovered");
}

/// Where memory is short for a moment, the second try is right.
#[test]
fn memory_that_runs_out_during_recovery_costs_no_token() {
    let (_lock, options, _folder, path) = toy();
    let options = options.with(|options| options.slots = 2);
    inject(None);
    let model = Model::load(&path, &options).unwrap();
    let of_load = made_calls();
    let expected = run(&model).unwrap();
    let first_of_each_name: BTreeSet<u64> =
        of_load.iter().map(|name| of_load.iter().position(|other| other == name).unwrap() as u64).collect();
    let mut twice = 0;
    for calls_later in first_of_each_name {
        inject(Some(Fault { call: 0, kind: FaultKind::DeviceLostThenOutOfMemory { calls_later } }));
        assert_eq!(run(&model).unwrap(), expected, "{calls_later} calls later");
        assert_eq!(model.take_recoveries().len(), 1, "{calls_later} calls later");
        twice += usize::from(failed_calls().len() == 2);
    }
    assert!(twice > 10, "{twice} recoveries without memory");
}

/// Where it stays short, the text ends with an error, and goes on once there is memory.
#[test]
fn a_recovery_without_memory_is_an_error_until_there_is_some() {
    let (_lock, options, _folder, path) = toy();
    inject(None);
    let model = Model::load(&path, &options).unwrap();
    let mut session = model.session().unwrap();
    session.feed(&prompt(50)).unwrap();
    inject(Some(Fault { call: 0, kind: FaultKind::DeviceLostThenNoMemory }));
    for _ in 0..2 {
        let error = session.feed(&[1]).unwrap_err();
        assert!(matches!(error, RunError::NotRecovered { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("cannot be made ready again: vkAllocateMemory failed with A device memory "), "{text}");
        assert_eq!(session.len_tokens(), 50);
    }
    inject(None);
    let mut rows = Vec::new();
    session.feed_with_logits(&[1], &mut |_, row| rows.extend_from_slice(row)).unwrap();
    assert_eq!(rows, twin(&[prompt(50), vec![1]].concat())[50]);
}
