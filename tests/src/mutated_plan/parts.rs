//! The parts of a plan that a mutation changes: a little, which the reader often accepts, or to anything.

use unicorn_artifact::plan::{BUFFER_ALIGN, STATE_PAGE_TOKENS};
use unicorn_artifact::{
    Binding, BufferRef, Dispatch, Kernels, KvGroupPlan, LogitsRows, Meta, Order, Plan, Program, TargetKernels, Tier,
};

/// Bytes of a mutation: a family of parts, which of them (two bytes), how it changes.
pub const MUTATION_BYTES: usize = 4;

/// Changes one part.
pub fn mutate(meta: &mut Meta, plan: &mut Plan, kernels: &mut Kernels, mutation: [u8; MUTATION_BYTES]) {
    let [family, low, high, how] = mutation;
    let mut parts = parts(family, meta, plan, kernels);
    let n_parts = parts.len().max(1);
    if let Some(part) = parts.get_mut(usize::from(u16::from_le_bytes([low, high])) % n_parts) {
        part.change(How(how));
    }
}

enum Part<'p> {
    /// A number, and the unit of its small changes.
    U32(&'p mut u32, u32),
    U64(&'p mut u64, u64),
    /// An index into so many.
    Index(&'p mut u32, usize),
    OptionalIndex(&'p mut Option<u32>, usize),
    Window(&'p mut Option<u32>),
    PageTokens(&'p mut u32),
    Flag(&'p mut bool),
    Tier(&'p mut Tier),
    Logits(&'p mut LogitsRows),
    Order(&'p mut Order),
    /// Of a dispatch, and the other pipelines that take what it binds.
    Pipeline(&'p mut u32, Vec<u32>),
    Bindings(&'p mut [Binding]),
    Dispatches(&'p mut Vec<Dispatch>),
    Programs(&'p mut Vec<Program>),
    Groups(&'p mut Vec<KvGroupPlan>),
}

/// How a part changes.
#[derive(Clone, Copy)]
struct How(u8);

impl How {
    /// Three of four changes are small.
    fn is_small(self) -> bool {
        !self.0.is_multiple_of(4)
    }

    /// Another number, which decides the rest.
    fn choice(self) -> u8 {
        self.0 / 4
    }

    /// One of them.
    fn of<T: Copy>(self, all: &[T]) -> T {
        all[usize::from(self.choice()) % all.len()]
    }

    fn number(self, old: u64, unit: u64) -> u64 {
        let amount = unit * u64::from(1 + self.choice() / 2 % 4);
        match (self.is_small(), self.choice() % 2) {
            // No small number becomes 0.
            (true, 0) if old > amount => old - amount,
            (true, _) => old.wrapping_add(amount),
            (false, _) => self.of(&[
                old.wrapping_add(1),
                old.wrapping_sub(1),
                old.wrapping_mul(2),
                old / 2,
                0,
                old.wrapping_add(256),
                old.wrapping_sub(256),
                u64::MAX,
                65_535,
                old.wrapping_add(4),
                old.wrapping_mul(1000),
                1,
            ]),
        }
    }

    fn index(self, old: u32, count: usize) -> u32 {
        match (self.is_small(), u32::try_from(count)) {
            (true, Ok(count @ 1..)) => (old + 1 + u32::from(self.choice())) % count,
            _ => self.number(old.into(), 1) as u32,
        }
    }

    /// Two neighbours change places, one is left out, or one comes twice.
    fn rearrange<T: Clone>(self, list: &mut Vec<T>) {
        let at = usize::from(self.choice() / 4) % list.len().max(1);
        match self.choice() % 4 {
            0 if at < list.len() => drop(list.remove(at)),
            1 if at < list.len() => list.insert(at, list[at].clone()),
            _ if at + 1 < list.len() => list.swap(at, at + 1),
            _ => list.reverse(),
        }
    }
}

impl Part<'_> {
    fn change(&mut self, how: How) {
        match self {
            Part::U32(value, unit) => **value = how.number((**value).into(), (*unit).into()) as u32,
            Part::U64(value, unit) => **value = how.number(**value, *unit),
            Part::Index(value, count) => **value = how.index(**value, *count),
            Part::OptionalIndex(value, count) => {
                **value = value.filter(|_| how.is_small()).map(|old| how.index(old, *count)).or(Some(0));
            }
            Part::Window(value) => **value = value.map_or(Some(1), |old| Some(how.number(old.into(), 1) as u32)),
            Part::PageTokens(value) if how.is_small() && how.choice() == 0 => **value = STATE_PAGE_TOKENS,
            Part::PageTokens(value) => **value = how.number((**value).into(), 1) as u32,
            Part::Flag(value) => **value = !**value,
            Part::Tier(value) => **value = how.of(&[Tier::Vram, Tier::Gtt, Tier::Host, Tier::Npu]),
            Part::Logits(value) => {
                **value = how.of(&[LogitsRows::None, LogitsRows::One, LogitsRows::All, LogitsRows::Hidden]);
            }
            Part::Order(value) => **value = how.of(&[Order::Free, Order::Barrier, Order::CounterSync]),
            Part::Pipeline(value, alike) if how.is_small() && !alike.is_empty() => **value = how.of(alike),
            Part::Pipeline(value, _) => **value = how.number((**value).into(), 1) as u32,
            Part::Bindings(bindings) => change_bindings(bindings, how),
            Part::Dispatches(list) => how.rearrange(list),
            Part::Programs(list) => how.rearrange(list),
            Part::Groups(list) => how.rearrange(list),
        }
    }
}

/// One binding takes the place of its neighbour, they change places, or one is of another buffer.
fn change_bindings(bindings: &mut [Binding], how: How) {
    let at = usize::from(how.choice() / 8) % bindings.len().max(1);
    let whole = |buffer| Binding { buffer, offset_bytes: 0, len_bytes: 0, writes: false };
    match how.choice() % 8 {
        _ if bindings.len() < 2 => bindings.reverse(),
        0 | 1 if at + 1 < bindings.len() => bindings.swap(at, at + 1),
        2 if at + 1 < bindings.len() => bindings[at] = bindings[at + 1],
        3 => bindings[at] = Binding { writes: bindings[at].writes, ..whole(BufferRef::Logits) },
        4 => bindings[at] = Binding { writes: bindings[at].writes, ..whole(BufferRef::Output) },
        5 => bindings[at] = Binding { writes: bindings[at].writes, ..whole(BufferRef::Step) },
        6 => bindings[at].writes = !bindings[at].writes,
        _ => bindings.reverse(),
    }
}

/// The parts of one family, counted round.
fn parts<'p>(family: u8, meta: &'p mut Meta, plan: &'p mut Plan, kernels: &'p mut Kernels) -> Vec<Part<'p>> {
    let Plan { kv_groups, slices, .. } = &*plan;
    let (n_groups, n_slices) = (kv_groups.len(), slices.len());
    let n_layers = kv_groups.first().map_or(0, |group| group.n_layers as usize);
    let targets = &mut kernels.targets;
    match family % 7 {
        0 => whole(meta, plan),
        1 => {
            let mut parts = Vec::new();
            // A list borrows what is in it.
            if family.is_multiple_of(2) {
                return vec![Part::Groups(&mut plan.kv_groups)];
            }
            for group in &mut plan.kv_groups {
                let KvGroupPlan { window_tokens, n_layers, page_tokens, page_bytes, tier, .. } = group;
                parts.extend([Part::Window(window_tokens), Part::PageTokens(page_tokens), Part::Tier(tier)]);
                parts.extend([Part::U32(n_layers, 1), Part::U64(page_bytes, 4)]);
            }
            parts
        }
        2 => targets.iter_mut().flat_map(of_target).collect(),
        3 => targets.iter_mut().flat_map(|target| &mut target.programs).flat_map(of_program).collect(),
        4 => targets.iter_mut().flat_map(of_dispatches).collect(),
        5 => {
            let dispatches = targets.iter_mut().flat_map(|target| &mut target.programs);
            let bindings = dispatches.flat_map(|program| &mut program.dispatches).flat_map(|one| &mut one.bindings);
            bindings.flat_map(|binding| of_binding(binding, n_groups, n_layers, n_slices)).collect()
        }
        _ => targets.iter_mut().flat_map(|target| of_order(target, family)).collect(),
    }
}

fn whole<'p>(meta: &'p mut Meta, plan: &'p mut Plan) -> Vec<Part<'p>> {
    let mut parts = vec![
        Part::U32(&mut meta.model.vocab_size, 1),
        Part::U32(&mut meta.model.hidden_size, 1),
        Part::U32(&mut meta.model.n_layers, 1),
        Part::U32(&mut meta.model.max_positions, 1),
        Part::Window(&mut meta.model.long_rope_above_tokens),
        Part::U64(&mut plan.arena_bytes, 4),
        Part::Tier(&mut plan.arena_tier),
        Part::U32(&mut plan.logits_rows, 1),
        Part::U32(&mut plan.logits_stride, 1),
        Part::U32(&mut plan.planned_context_tokens, 1),
        Part::U32(&mut plan.planned_chunk_tokens, 1),
    ];
    for slice in &mut plan.slices {
        parts.extend([Part::U64(&mut slice.bytes, 4), Part::Tier(&mut slice.tier)]);
    }
    for weight in &mut plan.weights {
        parts.extend([Part::U64(&mut weight.offset_bytes, BUFFER_ALIGN), Part::U64(&mut weight.len_bytes, 4)]);
        parts.push(Part::U64(&mut weight.bytes_read_per_token, 1));
    }
    for activation in &mut plan.activations {
        parts.push(Part::U64(&mut activation.offset_bytes, BUFFER_ALIGN));
        parts.push(Part::U64(&mut activation.len_bytes, 4));
        parts.extend([&mut activation.first_use, &mut activation.last_use].map(|value| Part::U32(value, 1)));
    }
    parts.extend(plan.buffers.iter_mut().map(|buffer| Part::U64(&mut buffer.bytes, 4)));
    parts
}

fn of_target(target: &mut TargetKernels) -> Vec<Part<'_>> {
    let (n_pipelines, n_modules) = (target.pipelines.len(), target.modules.records.len());
    let TargetKernels { matches, checksum, bandwidth_probe, fragments, .. } = target;
    let mut parts = vec![
        Part::U32(&mut matches.subgroup_size, 8),
        Part::U32(&mut matches.shared_memory_bytes, 4),
        Part::U32(&mut matches.workgroup_invocations, 1),
        Part::U32(&mut matches.matrix_sides.0, 16),
        Part::OptionalIndex(checksum, n_pipelines),
        Part::OptionalIndex(bandwidth_probe, n_pipelines),
        Part::OptionalIndex(fragments, n_pipelines),
    ];
    for pipeline in &mut target.pipelines {
        parts.extend([Part::Index(&mut pipeline.module, n_modules), Part::U32(&mut pipeline.bindings, 1)]);
        parts.extend(pipeline.alternatives.iter_mut().map(|other| Part::Index(&mut other.module, n_modules)));
    }
    for record in &mut target.modules.records {
        let needs = &mut record.needs;
        parts.extend([&mut needs.subgroup_size, &mut needs.workgroup_invocations].map(|value| Part::U32(value, 1)));
        parts.extend([&mut needs.int64, &mut needs.memory_model].map(Part::Flag));
        parts.push(Part::U32(&mut record.words, 1));
    }
    parts
}

fn of_program(program: &mut Program) -> Vec<Part<'_>> {
    vec![
        Part::U32(&mut program.rows, 1),
        Part::U32(&mut program.from_tokens, 1),
        Part::Flag(&mut program.samples),
        Part::Flag(&mut program.batch),
        Part::Logits(&mut program.logits),
    ]
}

fn of_dispatches(target: &mut TargetKernels) -> Vec<Part<'_>> {
    let pipelines: Vec<(u32, usize)> =
        target.pipelines.iter().map(|one| (one.bindings, one.alternatives.len())).collect();
    let mut parts = Vec::new();
    for dispatch in target.programs.iter_mut().flat_map(|program| &mut program.dispatches) {
        let of = pipelines.get(dispatch.pipeline as usize);
        let alike = (0u32..).zip(&pipelines).filter(|(_, other)| Some(*other) == of).map(|(index, _)| index).collect();
        parts.extend([Part::Pipeline(&mut dispatch.pipeline, alike), Part::Order(&mut dispatch.order)]);
        parts.extend(dispatch.workgroups.iter_mut().map(|count| Part::U32(count, 1)));
        parts.push(Part::U64(&mut dispatch.weight_bytes, 4));
        parts.extend(dispatch.alternatives.iter_mut().flatten().map(|count| Part::U32(count, 1)));
    }
    parts
}

fn of_binding(binding: &mut Binding, n_groups: usize, n_layers: usize, n_slices: usize) -> Vec<Part<'_>> {
    let Binding { buffer, offset_bytes, len_bytes, writes } = binding;
    let mut parts = vec![Part::U64(offset_bytes, BUFFER_ALIGN), Part::U64(len_bytes, 4), Part::Flag(writes)];
    match buffer {
        BufferRef::Weights { slice } => parts.push(Part::Index(slice, n_slices)),
        BufferRef::Keys { group, layer } | BufferRef::Values { group, layer } => {
            parts.extend([Part::Index(group, n_groups), Part::Index(layer, n_layers)]);
        }
        BufferRef::Arena | BufferRef::Step | BufferRef::Logits | BufferRef::Output | BufferRef::Input => {}
    }
    parts
}

/// Lists whose order matters: programs, dispatches of each, or bindings of each.
fn of_order(target: &mut TargetKernels, family: u8) -> Vec<Part<'_>> {
    let programs = &mut target.programs;
    match family / 7 % 6 {
        0 => vec![Part::Programs(programs)],
        1..=3 => programs.iter_mut().map(|program| Part::Dispatches(&mut program.dispatches)).collect(),
        _ => {
            let dispatches = programs.iter_mut().flat_map(|program| &mut program.dispatches);
            dispatches.map(|dispatch| Part::Bindings(&mut dispatch.bindings)).collect()
        }
    }
}
