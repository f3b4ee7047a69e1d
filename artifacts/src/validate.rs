//! Checks the plan against the sections: every range is inside, aligned, and overlaps no other that is alive at the same time.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::ParseError;
use crate::hazards::Hazards;
use crate::header::MAX_SLICE_BYTES;
use crate::image::ImageSection;
use crate::kernels::{Binding, BufferRef, Dispatch, Kernels, LogitsRows, Order, Program, TargetKernels};
use crate::meta::Meta;
use crate::npu::NpuSection;
use crate::plan::{ActivationPlan, BUFFER_ALIGN, MAX_BINDING_BYTES, MAX_LAYERS, Plan};
use crate::spirv;
use crate::step::{MAX_IMAGE_ROWS, MAX_OUTPUTS, MAX_ROWS, Output};

/// Most pages of context that a KV group's numbers may describe without overflow.
const MAX_PAGE_BYTES: u64 = 64 << 20;
/// Bounds on a plan's numbers, so that readers may add them without a check: K and V of one page over the layers of a group,
/// groups, and bytes of a buffer or of the weights that a dispatch reads.
const MAX_GROUP_PAGE_BYTES: u64 = 512 << 20;
const MAX_KV_GROUPS: u64 = 16;
const MAX_BUFFERS: u64 = 64;
const MAX_READ_BYTES: u64 = 1 << 40;
/// More workgroups than any dispatch has; a device starts them in a fraction of a second.
const MAX_WORKGROUPS: u64 = 1 << 24;
/// Kernels read and write whole words.
const WORD_BYTES: u64 = 4;
/// Bounds the work of tuning.
const MAX_ALTERNATIVES: u64 = 16;

/// Checks the structured sections against each other and against the lengths of the weight sections, `slice_lens`.
pub(crate) fn validate(
    meta: &Meta,
    plan: &Plan,
    kernels: &Kernels,
    npu: Option<&NpuSection>,
    image: Option<&ImageSection>,
    slice_lens: &[u64],
) -> Result<(), ParseError> {
    equal("number of planned slices", slice_lens.len(), plan.slices.len())?;
    for (slice, len) in plan.slices.iter().zip(slice_lens) {
        equal("bytes of a planned slice", *len, slice.bytes)?;
    }
    validate_machine(plan)?;
    validate_weights(plan)?;
    validate_activations(plan)?;
    in_range("number of KV groups", plan.kv_groups.len() as u64, 0, MAX_KV_GROUPS)?;
    for group in &plan.kv_groups {
        if !group.is_state() {
            in_range("page_tokens of a KV group", u64::from(group.page_tokens), 1, 4096)?;
        }
        in_range("page_bytes of a KV group", group.page_bytes, 1, MAX_PAGE_BYTES)?;
        whole_words("page_bytes of a KV group", group.page_bytes)?;
        in_range("window of a KV group", u64::from(group.window_tokens.unwrap_or(1)), 1, 1 << 30)?;
        in_range("layers of a KV group", u64::from(group.n_layers), 1, MAX_LAYERS)?;
        let of_layers = 2 * group.page_bytes * u64::from(group.n_layers);
        in_range("bytes of a page in all layers of a KV group", of_layers, 1, MAX_GROUP_PAGE_BYTES)?;
    }
    in_range("number of buffers", plan.buffers.len() as u64, 0, MAX_BUFFERS)?;
    for buffer in &plan.buffers {
        in_range(&format!("bytes of buffer {}", buffer.name), buffer.bytes, 0, MAX_READ_BYTES)?;
    }
    in_range("planned context", u64::from(plan.planned_context_tokens), 1, 1 << 30)?;
    in_range("planned tokens of a step", u64::from(plan.planned_chunk_tokens), 1, MAX_ROWS as u64)?;
    in_range("logits stride", u64::from(plan.logits_stride), u64::from(meta.model.vocab_size), 1 << 24)?;
    in_range("vocab size", u64::from(meta.model.vocab_size), 1, 1 << 24)?;
    in_range("context", u64::from(meta.model.max_positions), 1, 1 << 30)?;
    if let Some(image) = image {
        image.check(meta.model.hidden_size, meta.model.vocab_size)?;
    }
    let of_image = image.map_or(0, |image| image.logits_rows(plan.logits_stride));
    in_range("logits rows", u64::from(plan.logits_rows), 1, of_image.max(MAX_ROWS as u64))?;
    let input_bytes = image.map_or(0, ImageSection::input_bytes);
    kernels.targets.iter().try_for_each(|target| validate_target(plan, target, input_bytes))?;
    let programs = kernels.targets.iter().flat_map(|target| &target.programs);
    let hidden_size = u64::from(meta.model.hidden_size);
    programs
        .filter(|program| program.gives_hidden_rows())
        .try_for_each(|program| validate_hidden(hidden_size, program))?;
    let programs = kernels.targets.iter().flat_map(|target| &target.programs);
    programs.filter(|program| program.is_of_images()).try_for_each(|program| validate_of_images(image, program))?;
    let mut programs = kernels.targets.iter().flat_map(|target| &target.programs);
    programs.try_for_each(validate_mixed)?;
    let mut programs = kernels.targets.iter().flat_map(|target| &target.programs);
    programs.try_for_each(validate_predicted)?;
    let steps = npu.iter().flat_map(|section| &section.steps);
    steps.map(|steps| &steps.kernels).try_for_each(|target| validate_target(plan, target, 0))
}

fn validate_target(plan: &Plan, target: &TargetKernels, input_bytes: u64) -> Result<(), ParseError> {
    target.modules.validate()?;
    let of_runtime = [
        ("checksum", target.checksum, 3),
        ("bandwidth probe", target.bandwidth_probe, 2),
        ("fragments", target.fragments, 1),
    ];
    for (what, pipeline, bindings) in of_runtime {
        let Some(pipeline) = pipeline else { continue };
        below(&format!("pipeline of the {what}"), pipeline, target.pipelines.len())?;
        equal(&format!("bindings of the {what}"), target.pipelines[pipeline as usize].bindings, bindings)?;
    }
    for pipeline in &target.pipelines {
        in_range("bindings of a pipeline", u64::from(pipeline.bindings), 1, 16)?;
        for module in [pipeline.module].into_iter().chain(pipeline.alternatives.iter().map(|other| other.module)) {
            below("module of a pipeline", module, target.modules.records.len())?;
        }
        // Alternatives may need more: where a device lacks it, they are left out.
        spirv::check_needs(&target.modules.records[pipeline.module as usize].needs, &target.matches)?;
        in_range("alternatives of a pipeline", pipeline.alternatives.len() as u64, 0, MAX_ALTERNATIVES)?;
    }
    for program in &target.programs {
        validate_program(plan, target, program, input_bytes)?;
    }
    validate_depths(&target.programs)
}

fn validate_machine(plan: &Plan) -> Result<(), ParseError> {
    for (index, tier) in plan.machine.tiers.iter().enumerate() {
        if plan.machine.tiers[..index].iter().any(|other| other.tier >= tier.tier) {
            let expected = "each tier once and in order";
            return Err(ParseError::invalid("tiers of the machine", expected, tier.tier.name()));
        }
        in_range("bandwidth of a tier", tier.bytes_per_s.unwrap_or(1), 1, u64::MAX)?;
    }
    Ok(())
}

fn validate_weights(plan: &Plan) -> Result<(), ParseError> {
    let mut ends = vec![0u64; plan.slices.len()];
    for weight in &plan.weights {
        below("slice of a weight", weight.slice, plan.slices.len())?;
        let slice = weight.slice as usize;
        let end = range_end(&weight.name, weight.offset_bytes, weight.len_bytes, plan.slices[slice].bytes)?;
        in_range(&format!("bytes read of {}", weight.name), weight.bytes_read_per_token, 0, weight.len_bytes)?;
        if weight.offset_bytes < ends[slice] {
            return Err(ParseError::invalid(
                format!("offset of weight {}", weight.name),
                format!("at least {}, where the one before ends", ends[slice]),
                weight.offset_bytes,
            ));
        }
        ends[slice] = end;
    }
    Ok(())
}

fn validate_activations(plan: &Plan) -> Result<(), ParseError> {
    in_range("arena bytes", plan.arena_bytes, 0, MAX_SLICE_BYTES)?;
    whole_words("arena bytes", plan.arena_bytes)?;
    validate_lives(&plan.activations, plan.arena_bytes)
}

/// Checks activations in the order of their first use, each against its neighbours among those that are alive then.
fn validate_lives(activations: &[ActivationPlan], arena_bytes: u64) -> Result<(), ParseError> {
    let mut in_order: Vec<&ActivationPlan> = activations.iter().collect();
    in_order.sort_by_key(|one| one.first_use);
    // By offset, and by (last use, offset).
    let mut alive: BTreeMap<u64, &ActivationPlan> = BTreeMap::new();
    let mut last_uses: BTreeSet<(u32, u64)> = BTreeSet::new();
    for one in in_order {
        while let Some(&(last_use, offset)) = last_uses.first().filter(|(last_use, _)| *last_use < one.first_use) {
            last_uses.remove(&(last_use, offset));
            alive.remove(&offset);
        }
        in_range(&format!("bytes of activation {}", one.name), one.len_bytes, 1, arena_bytes)?;
        in_range(
            &format!("last use of activation {}", one.name),
            one.last_use.into(),
            one.first_use.into(),
            u32::MAX.into(),
        )?;
        let end = range_end(&one.name, one.offset_bytes, one.len_bytes, arena_bytes)?;
        let before = alive.range(..=one.offset_bytes).next_back().map(|(_, other)| *other);
        // The ranges of live activations were checked before, so this sum does not overflow.
        let reaches_it = |other: &&ActivationPlan| other.offset_bytes + other.len_bytes > one.offset_bytes;
        let behind = || alive.range(one.offset_bytes..end).next().map(|(_, other)| *other);
        if let Some(other) = before.filter(reaches_it).or_else(behind) {
            return Err(ParseError::invalid(
                format!("activation {}", one.name),
                format!("no overlap with {}, which is in use at the same time", other.name),
                format!("offset {}", one.offset_bytes),
            ));
        }
        alive.insert(one.offset_bytes, one);
        last_uses.insert((one.last_use, one.offset_bytes));
    }
    Ok(())
}

/// Checks that each program for long sequences has an equivalent for sequences of any length.
fn validate_depths(programs: &[Program]) -> Result<(), ParseError> {
    let kind = |program: &Program| (program.rows, program.logits as u8, program.samples, program.batch);
    let (of_any, long_context): (Vec<_>, Vec<_>) = programs.iter().partition(|program| program.from_tokens == 0);
    let of_any: BTreeSet<_> = of_any.into_iter().map(kind).collect();
    match long_context.into_iter().find(|program| !of_any.contains(&kind(program))) {
        Some(alone) => Err(ParseError::invalid(
            format!("cached tokens of a program of {} rows", alone.rows),
            "0, or another program with 0",
            alone.from_tokens,
        )),
        None => Ok(()),
    }
}

fn validate_program(
    plan: &Plan,
    target: &TargetKernels,
    program: &Program,
    input_bytes: u64,
) -> Result<(), ParseError> {
    // One that makes rows of an image reads no row of the step.
    let most_rows = if program.logits == LogitsRows::Image { MAX_IMAGE_ROWS } else { MAX_ROWS };
    in_range("rows of a program", u64::from(program.rows), 1, most_rows as u64)?;
    if program.dispatches.first().is_some_and(|first| first.order == Order::CounterSync) {
        return Err(ParseError::invalid("order of a program's first dispatch", "free or barrier", "counted"));
    }
    let mut hazards = Hazards::default();
    for dispatch in &program.dispatches {
        below("pipeline of a dispatch", dispatch.pipeline, target.pipelines.len())?;
        let pipeline = &target.pipelines[dispatch.pipeline as usize];
        equal(&format!("bindings of dispatch {}", dispatch.label), pipeline.bindings, dispatch.bindings.len() as u32)?;
        in_range(&format!("weights of dispatch {}", dispatch.label), dispatch.weight_bytes, 0, MAX_READ_BYTES)?;
        let alternatives = format!("alternatives of dispatch {}", dispatch.label);
        equal(&alternatives, pipeline.alternatives.len(), dispatch.alternatives.len())?;
        for binding in &dispatch.bindings {
            validate_binding(plan, dispatch, binding, input_bytes)?;
        }
        // Which dispatches write parts of one output is not stored: two of them may write the same range.
        if dispatch.order == Order::Free && hazards.must_wait(&dispatch.bindings, true) {
            let what = format!("order of dispatch {}", dispatch.label);
            let expected = "a barrier: since the last one, a dispatch wrote what this one uses, or read what it writes";
            return Err(ParseError::invalid(what, expected, "free"));
        }
        hazards.record(&dispatch.bindings, dispatch.order);
        let written_words = dispatch.bindings.iter().filter(|one| one.writes).map(|one| written_words(plan, one)).sum();
        for workgroups in dispatch.alternatives.iter().chain([&dispatch.workgroups]) {
            let what = format!("workgroups of dispatch {}", dispatch.label);
            workgroups.iter().try_for_each(|&count| in_range(&what, u64::from(count), 1, 65_535))?;
            // Three factors below 2^16. Every workgroup writes at least one word.
            let all = workgroups.iter().map(|&count| u64::from(count)).product();
            in_range(&format!("{what}, all together,"), all, 1, MAX_WORKGROUPS.min(written_words))?;
        }
    }
    Ok(())
}

/// Checks that a program of hidden rows samples nothing and writes whole rows.
fn validate_hidden(hidden_size: u64, program: &Program) -> Result<(), ParseError> {
    equal("sampling of a program of hidden rows", false, program.samples)?;
    in_range("hidden size", hidden_size, 1, 1 << 24)?;
    let what = format!("elements of each hidden row of a program of {} rows", program.rows);
    in_range(&what, u64::from(program.hidden_stride().unwrap_or(0)), hidden_size, 1 << 24)
}

/// Checks that a program of several sequences and a prompt samples, and that it is no batch, whose rows are all alone.
fn validate_mixed(program: &Program) -> Result<(), ParseError> {
    if program.logits.prompts_beside() == 0 {
        return Ok(());
    }
    equal("sampling of a program with logits for its samplers", true, program.samples)?;
    equal("batch of a program with logits for its samplers", false, program.batch)
}

/// Checks that a program that predicts has one row, which is no batch, and samples.
fn validate_predicted(program: &Program) -> Result<(), ParseError> {
    if program.logits != LogitsRows::Predicted {
        return Ok(());
    }
    equal("rows of a program that predicts", 1, program.rows)?;
    equal("sampling of a program that predicts", true, program.samples)?;
    equal("batch of a program that predicts", false, program.batch)
}

/// Checks that an artifact with programs of images says what images are, and that one that makes rows makes those of one image.
fn validate_of_images(image: Option<&ImageSection>, program: &Program) -> Result<(), ParseError> {
    let image = image.ok_or_else(|| ParseError::invalid("number of image sections beside image programs", 1, 0))?;
    if program.logits == LogitsRows::Image {
        equal("rows of a program that makes rows of images", image.rows, program.rows)?;
        let stride = program.hidden_stride().unwrap_or(0);
        equal("elements between rows of images", image.row_stride, stride)?;
        let bindings = program.dispatches.iter().flat_map(|dispatch| &dispatch.bindings);
        for read in bindings.filter(|binding| binding.buffer == BufferRef::Input) {
            equal("bytes of an image's patches", image.patches_bytes(), read.len_bytes)?;
        }
    }
    Ok(())
}

fn validate_binding(plan: &Plan, dispatch: &Dispatch, binding: &Binding, input_bytes: u64) -> Result<(), ParseError> {
    let what = format!("binding of dispatch {}", dispatch.label);
    let whole = binding.offset_bytes == 0 && binding.len_bytes == 0;
    match binding.buffer {
        BufferRef::Weights { slice } => {
            below(&what, slice, plan.slices.len())?;
            range_end(&what, binding.offset_bytes, binding.len_bytes, plan.slices[slice as usize].bytes)?;
            in_range(&what, binding.len_bytes, 1, MAX_BINDING_BYTES)?;
            whole_words(&what, binding.len_bytes)?;
            equal(&format!("{what} writes weights"), false, binding.writes)?;
        }
        BufferRef::Arena => {
            range_end(&what, binding.offset_bytes, binding.len_bytes, plan.arena_bytes)?;
            in_range(&what, binding.len_bytes, 1, MAX_BINDING_BYTES)?;
            whole_words(&what, binding.len_bytes)?;
        }
        BufferRef::Keys { group, layer } | BufferRef::Values { group, layer } => {
            below(&what, group, plan.kv_groups.len())?;
            below(&what, layer, plan.kv_groups[group as usize].n_layers as usize)?;
            equal(&what, true, whole)?;
        }
        BufferRef::Logits => {
            range_end(&what, binding.offset_bytes, binding.len_bytes, logits_bytes(plan))?;
            if !whole {
                in_range(&what, binding.len_bytes, 1, MAX_BINDING_BYTES)?;
                whole_words(&what, binding.len_bytes)?;
            }
        }
        BufferRef::Input => {
            range_end(&what, binding.offset_bytes, binding.len_bytes, input_bytes)?;
            in_range(&what, binding.len_bytes, 1, MAX_BINDING_BYTES)?;
            whole_words(&what, binding.len_bytes)?;
            equal(&format!("{what} writes what the host wrote"), false, binding.writes)?;
        }
        BufferRef::Step | BufferRef::Output => equal(&what, true, whole)?,
    }
    Ok(())
}

/// Words that a dispatch can write through a binding in one step. The binding is valid.
fn written_words(plan: &Plan, binding: &Binding) -> u64 {
    let bytes = match binding.buffer {
        BufferRef::Logits if binding.len_bytes == 0 => logits_bytes(plan),
        BufferRef::Weights { .. } | BufferRef::Arena | BufferRef::Logits | BufferRef::Input => binding.len_bytes,
        // K or V of every row of a step, or the state of every row's sequence.
        BufferRef::Keys { group, .. } | BufferRef::Values { group, .. } => {
            let group = &plan.kv_groups[group as usize];
            if group.is_state() {
                return group.page_bytes / WORD_BYTES * MAX_ROWS as u64;
            }
            group.page_bytes.div_ceil(u64::from(group.page_tokens)) * MAX_ROWS as u64
        }
        BufferRef::Output => WORD_BYTES * (MAX_OUTPUTS * Output::WORDS) as u64,
        // Rows of the next step.
        BufferRef::Step => WORD_BYTES * MAX_ROWS as u64,
    };
    bytes / WORD_BYTES
}

fn logits_bytes(plan: &Plan) -> u64 {
    WORD_BYTES * u64::from(plan.logits_rows) * u64::from(plan.logits_stride)
}

fn whole_words(what: &str, bytes: u64) -> Result<(), ParseError> {
    if bytes.is_multiple_of(WORD_BYTES) {
        return Ok(());
    }
    Err(ParseError::invalid(what, format!("a multiple of {WORD_BYTES} bytes"), bytes))
}

/// Checks alignment and that the range ends at most at `limit`; returns its end.
fn range_end(what: &str, offset: u64, len: u64, limit: u64) -> Result<u64, ParseError> {
    if !offset.is_multiple_of(BUFFER_ALIGN) {
        return Err(ParseError::invalid(format!("offset of {what}"), format!("a multiple of {BUFFER_ALIGN}"), offset));
    }
    offset.checked_add(len).filter(|&end| end <= limit).ok_or_else(|| {
        ParseError::invalid(format!("range of {what}"), format!("to end by {limit}"), format!("{offset} + {len}"))
    })
}

fn in_range(what: &str, value: u64, least: u64, most: u64) -> Result<(), ParseError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ParseError::invalid(what, format!("{least} to {most}"), value))
}

fn below(what: &str, index: u32, len: usize) -> Result<(), ParseError> {
    if (index as usize) < len {
        return Ok(());
    }
    Err(ParseError::invalid(what, format!("below {len}"), index))
}

fn equal<T: PartialEq + std::fmt::Display>(what: &str, expected: T, found: T) -> Result<(), ParseError> {
    if expected == found {
        return Ok(());
    }
    Err(ParseError::invalid(what, expected, found))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_program_for_long_sequences_does_not_stand_alone() {
        let program = |rows, from_tokens| Program {
            rows,
            logits: LogitsRows::One,
            samples: true,
            batch: true,
            images: false,
            from_tokens,
            dispatches: vec![],
        };
        let check = |programs: &[(u32, u32)]| {
            let programs: Vec<Program> =
                programs.iter().map(|&(rows, from_tokens)| program(rows, from_tokens)).collect();
            validate_depths(&programs)
        };
        assert!(check(&[(1, 0), (2, 0), (1, 100), (1, 200)]).is_ok());
        let error = check(&[(2, 0), (1, 100)]).expect_err("nothing decodes a short sequence").to_string();
        assert!(error.contains("1 rows") && error.contains("100"), "{error}");
    }

    proptest! {
        #[test]
        fn activations_that_overlap_in_time_and_place_are_refused(lives in prop::collection::vec((0u32..20, 0u32..4, 0u64..40, 1u64..2000), 1..12)) {
            let activation = |(first_use, length, offset, len_bytes)| ActivationPlan {
                name: String::new(),
                offset_bytes: offset * BUFFER_ALIGN,
                len_bytes,
                first_use,
                last_use: first_use + length,
                reason: String::new(),
            };
            let all: Vec<ActivationPlan> = lives.into_iter().map(activation).collect();
            // Each pair.
            let meet = |one: &ActivationPlan, other: &ActivationPlan| {
                let at_a_time = one.first_use <= other.last_use && other.first_use <= one.last_use;
                let end = |one: &ActivationPlan| one.offset_bytes + one.len_bytes;
                at_a_time && one.offset_bytes < end(other) && other.offset_bytes < end(one)
            };
            let expected = (0..all.len()).any(|at| all[..at].iter().any(|other| meet(&all[at], other)));
            prop_assert_eq!(validate_lives(&all, 64 * BUFFER_ALIGN).is_err(), expected);
        }
    }
}
