//! Plans with changed numbers and right hashes: what the checks of an artifact refuse, and that the rest runs.

use tests::mutated_plan::{Reached, Refused, changed, load_and_run, load_and_run_artifact, mutation};
use unicorn_artifact::{ArtifactView, Binding, BufferRef, Dispatch, Kernels, Meta, Order, Plan};
use unicorn_runtime::validation_messages;

/// Mutations that [`a_mutated_plan_is_refused_or_runs`] tries; `abuse` and the fuzz target `plan` try more.
const MUTATIONS: u64 = 90;

#[test]
fn a_mutated_plan_is_refused_or_runs() {
    for model in 0..3 {
        load_and_run(&[model]).unwrap_or_else(|error| panic!("sound artifact {model}: {error:?}"));
    }
    let mut reached = Reached::default();
    for number in 0..MUTATIONS {
        let before = validation_messages();
        let result = load_and_run(&mutation(number));
        assert_eq!(validation_messages(), before, "mutation {number} ({result:?}): messages of the validation layer");
        reached.add(&result);
    }
    println!("{reached}");
    assert!(reached.ran > MUTATIONS / 4 && reached.refused_by_reader > MUTATIONS / 4, "{reached}");
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
    refused(|_, plan, _| plan.kv_groups[0].page_bytes += 1, "page_bytes of a KV group");
    let is_arena = |buffer: &BufferRef| matches!(buffer, BufferRef::Arena);
    refused(first_binding(is_arena, |binding| binding.len_bytes -= 1), "a multiple of 4 bytes");
    let is_weight = |buffer: &BufferRef| matches!(buffer, BufferRef::Weights { .. });
    refused(first_binding(is_weight, |binding| binding.len_bytes -= 2), "a multiple of 4 bytes");
}

#[test]
fn a_name_in_an_error_begins_no_line() {
    let renamed = changed(|_, plan, _| {
        let weight = &mut plan.weights[0];
        (weight.name, weight.offset_bytes) = ("x\nerror: none".into(), weight.offset_bytes + 1);
    });
    let error = ArtifactView::parse(&renamed).err().expect("the offset is refused").to_string();
    assert!(error.contains("x\\nerror: none") && !error.contains('\n'), "{error}");
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

#[test]
fn a_missing_barrier_is_refused() {
    let free = |_: &mut Meta, _: &mut Plan, kernels: &mut Kernels| {
        for dispatch in kernels.targets.iter_mut().flat_map(|one| &mut one.programs).flat_map(|one| &mut one.dispatches)
        {
            dispatch.order = Order::Free;
        }
    };
    refused(free, "a barrier: since the last one, a dispatch wrote what this one uses");
}

#[test]
fn a_kernel_that_writes_what_its_dispatches_only_read_is_refused() {
    let artifact = changed(|_, _, kernels| {
        let programs = kernels.targets.iter_mut().flat_map(|target| &mut target.programs);
        let written = |dispatch: &Dispatch| dispatch.bindings.iter().filter(|binding| binding.writes).count();
        let mut of_two = programs.flat_map(|program| &mut program.dispatches).filter(|dispatch| written(dispatch) > 1);
        let dispatch = of_two.next().expect("a dispatch that writes two buffers");
        dispatch.bindings.iter_mut().find(|binding| binding.writes).expect("two").writes = false;
    });
    match load_and_run_artifact(&artifact) {
        Err(Refused::Load(error)) if error.to_string().contains("no write to a binding") => {}
        other => panic!("{other:?}"),
    }
}
