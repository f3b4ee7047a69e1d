//! Plans with changed numbers and right hashes: what the checks of an artifact refuse, and that the rest runs.

use tests::mutated_plan::{Refused, changed, examples, load_and_run};
use unicorn_artifact::{ArtifactView, Binding, BufferRef, Dispatch, Kernels, Meta, Plan};
use unicorn_runtime::{LoadError, validation_messages};

/// Every one of these numbers decides what a device does. The fuzz target `plan` tries more.
#[test]
fn a_mutated_plan_is_refused_or_runs() {
    load_and_run(&[]).unwrap_or_else(|error| panic!("the sound artifact: {error:?}"));
    let (mut refused, mut ran) = (0, 0);
    for mutation in examples(5) {
        match load_and_run(&mutation) {
            Ok(()) => ran += 1,
            Err(Refused::Load(LoadError::Artifact { .. })) => refused += 1,
            Err(error) => println!("{mutation:?}: {error:?}"),
        }
    }
    assert!(refused > 10 && ran > 2, "{refused} refused, {ran} ran");
    assert_eq!(validation_messages(), 0, "the validation layer reported messages");
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Meta, &mut Plan, &mut Kernels), expected: &str) {
    let artifact = changed(change);
    let error = ArtifactView::parse(&artifact).err().expect("refused").to_string();
    assert!(error.contains(expected), "{error}");
}

/// Changes the first dispatch of the artifact.
fn first_dispatch(change: impl FnOnce(&mut Dispatch)) -> impl FnOnce(&mut Meta, &mut Plan, &mut Kernels) {
    |_, _, kernels| change(&mut kernels.targets[0].programs[0].dispatches[0])
}

/// Changes the first binding to this kind of buffer.
fn first_binding(
    is_it: fn(&BufferRef) -> bool,
    change: impl FnOnce(&mut Binding),
) -> impl FnOnce(&mut Meta, &mut Plan, &mut Kernels) {
    move |_, _, kernels| {
        let programs = kernels.targets[0].programs.iter_mut();
        let mut bindings = programs.flat_map(|program| &mut program.dispatches).flat_map(|one| &mut one.bindings);
        change(bindings.find(|binding| is_it(&binding.buffer)).expect("a binding of this kind"));
    }
}

#[test]
fn lengths_that_are_no_whole_words_are_refused() {
    assert!(ArtifactView::parse(&changed(|_, _, _| ())).is_ok());
    refused(|_, plan, _| plan.arena_bytes += 1, "arena bytes");
    let is_arena = |buffer: &BufferRef| matches!(buffer, BufferRef::Arena);
    refused(first_binding(is_arena, |binding| binding.len_bytes -= 1), "a multiple of 4 bytes");
    let is_weight = |buffer: &BufferRef| matches!(buffer, BufferRef::Weights { .. });
    refused(first_binding(is_weight, |binding| binding.len_bytes -= 2), "a multiple of 4 bytes");
}

#[test]
fn a_context_that_no_memory_holds_is_refused() {
    refused(|meta, _, _| meta.model.max_positions = u32::MAX, "context: expected 1 to 1073741824");
    refused(|meta, _, _| meta.model.max_positions = 0, "context: expected 1 to");
}

#[test]
fn a_binding_of_no_logits_is_refused() {
    let is_logits = |buffer: &BufferRef| matches!(buffer, BufferRef::Logits);
    refused(first_binding(is_logits, |one| (one.offset_bytes, one.len_bytes) = (256, 0)), "1 to 134217728");
}

#[test]
fn nothing_writes_weights() {
    let is_weight = |buffer: &BufferRef| matches!(buffer, BufferRef::Weights { .. });
    refused(first_binding(is_weight, |binding| binding.writes = true), "writes weights");
}

#[test]
fn more_workgroups_than_a_dispatch_writes_words_are_refused() {
    refused(first_dispatch(|dispatch| dispatch.workgroups = [65_535; 3]), "all together");
    refused(first_dispatch(|dispatch| dispatch.workgroups = [65_535, 255, 1]), "all together");
    refused(first_dispatch(|dispatch| dispatch.workgroups[2] = 0), "1 to 65535");
}
