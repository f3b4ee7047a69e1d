//! Every buffer of a loaded model but the weights' contents, and which range of which buffer a dispatch's binding is.

use std::sync::Arc;

use unicorn_artifact::step::{MAX_OUTPUTS, MAX_SAMPLERS, Output, TABLES_AT};
use unicorn_artifact::{Binding, BufferRef, Plan, Tier};

use crate::device::memory_types::BufferUse;
use crate::error::LoadError;
use crate::memory::kv_pools::KvPools;
use crate::memory::npu_memory::{self, NpuBuffers, NpuBytes, NpuMemory, NpuViews};
use crate::memory::requirements::{
    ContextRequest, group_pages, logits_bytes, planned_bytes, resident_use, table_stride,
};
use crate::memory::tier_bytes::TierBytes;
use crate::memory::usage::HeapAllocation;
use crate::npu::NpuDevice;
use crate::vk::Failure;
use crate::vk::buffer::{Allocation, Buffer, BufferRange, Mapping};
use crate::vk::command_list::{Command, CommandList};
use crate::vk::device::Device;
use crate::vk::submission::SubmissionQueue;

/// Buffers of a loaded model. The host maps `step`, `output` and `readback`.
pub struct Buffers {
    /// One a weight slice.
    pub weights: Vec<Arc<Buffer>>,
    /// f32, `logits_rows` rows of `logits_stride` elements.
    pub logits: Arc<Buffer>,
    /// Copy of `logits` for the host.
    pub readback: Arc<Buffer>,
    arena: Arc<Buffer>,
    /// One a KV group.
    kv: Vec<KvBuffers>,
    step: Arc<Buffer>,
    output: Arc<Buffer>,
    /// Present for models that take images.
    input: Option<Arc<Buffer>>,
    /// Activations and outputs of each run of a step in which an NPU takes part.
    npu: Vec<[Arc<Buffer>; 2]>,
    npu_memory: Option<NpuMemory>,
}

/// Sizes of what not every model has.
pub struct ByModel<'a> {
    /// Words of a sampler's mask; 0: samplers take none.
    pub mask_words: usize,
    /// Bytes that the host writes of images.
    pub input_bytes: Option<u64>,
    /// The NPU, and the bytes that pass between the device and it in each run of a step.
    pub npu: Option<(&'a mut NpuDevice, NpuBytes)>,
}

/// Mappings of the buffers that the host writes or reads at each step.
pub struct HostViews {
    /// `step::StepHeader`, rows, samplers, histories, block tables and masks.
    pub step: Mapping,
    /// `step::Output`s of the last steps.
    pub output: Mapping,
    /// f32 logits, `logits_rows * logits_stride` elements.
    pub readback: Mapping,
    /// Patches of an image, or rows of images: f32.
    pub input: Option<Mapping>,
    /// Activations for an NPU, and its outputs, of each run.
    pub npu: Vec<NpuViews>,
}

/// Buffers of one KV group.
#[derive(Clone)]
pub struct KvBuffers {
    pools: KvPools,
    n_layers: u32,
    page_bytes: u64,
    /// Bytes of one layer's K, and of its V, without padding.
    region_bytes: u64,
    buffers: Vec<Arc<Buffer>>,
}

/// Vulkan has no empty buffers; a kernel may be bound to an empty arena.
const MIN_BUFFER_BYTES: u64 = 256;

impl Buffers {
    /// Allocates everything but the weights for sequences of `context_tokens`.
    ///
    /// # Errors
    /// [`LoadError::OutOfMemory`] with the sums of the whole model.
    pub fn allocate(
        allocator: &Allocator<'_>,
        weights: Vec<Arc<Buffer>>,
        plan: &Plan,
        context_tokens: u32,
        request: &ContextRequest,
        ByModel { mask_words, input_bytes, npu }: ByModel<'_>,
    ) -> Result<(Buffers, HostViews), LoadError> {
        let max_allocation_bytes = allocator.device.facts().max_allocation_bytes;
        let mut kv = Vec::new();
        for (index, group) in plan.kv_groups.iter().enumerate() {
            let pages = u32::try_from(group_pages(group, context_tokens, request)).expect("checked with the context");
            let pools = KvPools::new(group, pages, MIN_BUFFER_BYTES, max_allocation_bytes);
            let what = format!("KV group {index} of {context_tokens} tokens");
            let allocate = |&bytes: &u64| allocator.resident(&what, bytes, group.tier).map(|fresh| fresh.buffer);
            let buffers = pools.buffers.iter().map(allocate).collect::<Result<_, _>>()?;
            let (n_layers, page_bytes) = (group.n_layers, group.page_bytes);
            kv.push(KvBuffers { region_bytes: page_bytes * u64::from(pages), n_layers, page_bytes, pools, buffers });
        }
        let tables =
            plan.kv_groups.len() as u64 * u64::from(request.slots) * u64::from(table_stride(plan, context_tokens));
        // A step has one sampler a sequence at most.
        let masks = mask_words as u64 * u64::from(request.slots).min(MAX_SAMPLERS as u64);
        let (step, step_view) =
            allocator.mapped("step buffer", 4 * (TABLES_AT as u64 + tables + masks), BufferUse::Upload)?;
        let (output, output_view) =
            allocator.mapped("output buffer", 4 * (MAX_OUTPUTS * Output::WORDS) as u64, BufferUse::Readback)?;
        let (readback, readback_view) = allocator.mapped("logits readback", logits_bytes(plan), BufferUse::Readback)?;
        let input = input_bytes.map(|bytes| allocator.mapped("image buffer", bytes, BufferUse::Upload));
        let (input, input_view) = input.transpose()?.unzip();
        let of_npu = npu.map(|(npu, bytes)| {
            let copied = |what: &str, bytes: u64, usage| allocator.mapped(what, bytes, usage);
            npu_memory::allocate(allocator.device, npu, bytes, copied)
        });
        let NpuBuffers { buffers: of_npu, views: npu_views, memory: npu_memory } =
            of_npu.transpose()?.unwrap_or_default();
        let buffers = Buffers {
            weights,
            logits: allocator.resident("logits", logits_bytes(plan), plan.arena_tier)?.buffer,
            readback,
            arena: allocator.resident("activations", plan.arena_bytes, plan.arena_tier)?.buffer,
            kv,
            step,
            output,
            input,
            npu: of_npu,
            npu_memory,
        };
        let (step, output, readback) = (step_view, output_view, readback_view);
        let views = HostViews { step, output, readback, input: input_view, npu: npu_views };
        Ok((buffers, views))
    }

    /// Fills all buffers but the weights with zeros, because kernels may read what no step has written yet. Waits for the device.
    pub fn clear(&self, device: &Arc<Device>, queue: &mut SubmissionQueue) -> Result<(), LoadError> {
        let kv = self.kv.iter().flat_map(|group| &group.buffers);
        for buffer in kv.chain([&self.arena, &self.logits, &self.step, &self.output]) {
            // One list a buffer keeps submissions short.
            queue.run(&[CommandList::record(device, vec![Command::Fill(buffer.whole())])?])?;
        }
        Ok(())
    }

    /// Zeros the activations, and the counters of counter synchronisation that lie before them.
    pub fn record_clear_arena(&self, device: &Arc<Device>) -> Result<CommandList, Failure> {
        CommandList::record(device, vec![Command::Fill(self.arena.whole())])
    }

    /// Buffers of each KV group.
    pub fn kv(&self) -> &[KvBuffers] {
        &self.kv
    }

    /// Copies a run's activations, at an offset of the arena and of a length, to the buffer from which they pass to an NPU.
    ///
    /// # Panics
    /// If the buffers were allocated for fewer runs.
    pub fn copy_to_npu(&self, run: usize, (arena_offset_bytes, bytes): (u64, u64)) -> Command {
        let [activations, _] = &self.npu[run];
        let to = activations.range(0, bytes);
        Command::Copy { from: self.arena.range(arena_offset_bytes, bytes), to }
    }

    /// Copies a run's outputs to an offset of the arena.
    ///
    /// # Panics
    /// As [`Buffers::copy_to_npu`].
    pub fn copy_from_npu(&self, run: usize, (arena_offset_bytes, bytes): (u64, u64)) -> Command {
        let [_, outputs] = &self.npu[run];
        let from = outputs.range(0, bytes);
        Command::Copy { from, to: self.arena.range(arena_offset_bytes, bytes) }
    }

    /// How activations and outputs pass between the device and an NPU; `None`: there is none.
    pub fn npu_memory(&self) -> Option<NpuMemory> {
        self.npu_memory
    }

    /// The buffer range of a binding.
    ///
    /// # Errors
    /// [`LoadError::BindingTooLarge`] when the range exceeds `limit_bytes`, the device's limit.
    pub fn range(&self, binding: &Binding, limit_bytes: u64) -> Result<BufferRange, LoadError> {
        let whole = match binding.buffer {
            BufferRef::Weights { slice } => self.weights[slice as usize].whole(),
            BufferRef::Arena => self.arena.whole(),
            BufferRef::Keys { group, layer } => self.kv[group as usize].range(|pools| pools.keys(layer)),
            BufferRef::Values { group, layer } => self.kv[group as usize].range(|pools| pools.values(layer)),
            BufferRef::Step => self.step.whole(),
            BufferRef::Logits => self.logits.whole(),
            BufferRef::Output => self.output.whole(),
            BufferRef::Input => self.input.as_ref().expect("an artifact with such programs has images").whole(),
        };
        let all = binding.offset_bytes == 0 && binding.len_bytes == 0;
        let range = if all { whole } else { whole.buffer.range(binding.offset_bytes, binding.len_bytes) };
        if range.len_bytes > limit_bytes {
            let what = format!("{:?}", binding.buffer).to_lowercase();
            return Err(LoadError::BindingTooLarge { what, bytes: range.len_bytes, limit_bytes });
        }
        Ok(range)
    }

    /// Whether any slice of `tier` lies in the device's own memory.
    pub fn is_device_local(&self, plan: &Plan, tier: Tier) -> bool {
        let mut both = plan.slices.iter().zip(&self.weights);
        both.any(|(slice, buffer)| slice.tier == tier && buffer.is_device_local())
    }

    /// Allocated bytes, one entry a heap of the device.
    pub fn bytes_by_heap(&self, n_heaps: usize) -> Vec<HeapAllocation> {
        let mut heaps = vec![HeapAllocation::default(); n_heaps];
        for buffer in self.all() {
            let heap = &mut heaps[buffer.heap()];
            *if buffer.is_imported() { &mut heap.imported } else { &mut heap.own } += buffer.len_bytes();
        }
        heaps
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Buffer>> {
        let kv = self.kv.iter().flat_map(|group| &group.buffers);
        let rest = [&self.arena, &self.logits, &self.readback, &self.step, &self.output];
        let npu = self.npu.iter().flatten();
        self.weights.iter().chain(kv).chain(rest).chain(&self.input).chain(npu)
    }

    /// Allocated bytes by the tier that the driver gave: device-local is VRAM, the rest GTT.
    pub fn resident_bytes(&self) -> Vec<TierBytes> {
        let mut sums = [TierBytes::none(Tier::Vram), TierBytes::none(Tier::Gtt)];
        let mut add = |buffer: &Buffer, part: fn(&mut TierBytes) -> &mut u64| {
            *part(&mut sums[usize::from(!buffer.is_device_local())]) += buffer.len_bytes();
        };
        self.weights.iter().for_each(|buffer| add(buffer, |sum| &mut sum.weights));
        self.kv.iter().flat_map(|group| &group.buffers).for_each(|buffer| add(buffer, |sum| &mut sum.kv));
        add(&self.arena, |sum| &mut sum.activations);
        let npu = self.npu.iter().flatten();
        let rest = [&self.logits, &self.readback, &self.step, &self.output].into_iter();
        for buffer in rest.chain(&self.input).chain(npu) {
            add(buffer, |sum| &mut sum.other);
        }
        sums.into_iter().filter(|sum| sum.total() > 0).collect()
    }
}

impl KvBuffers {
    /// Bytes of K and V of this number of pages in all layers.
    pub fn bytes_of(&self, pages: &[u32]) -> u64 {
        2 * u64::from(self.n_layers) * self.part_bytes(pages.len() as u64)
    }

    /// Bytes of K, or of V, of so many pages in one layer.
    pub fn part_bytes(&self, n_pages: u64) -> u64 {
        self.page_bytes * n_pages
    }

    /// Ranges of these physical pages in the order of `kv_segment`'s payload: of each layer, K of all pages, then V. Neighbours are one
    /// range.
    pub fn ranges(&self, pages: &[u32]) -> impl Iterator<Item = BufferRange> {
        let runs: Vec<&[u32]> = pages.chunk_by(|one, next| one + 1 == *next).collect();
        let parts = (0..self.n_layers).flat_map(|layer| [self.pools.keys(layer), self.pools.values(layer)]);
        parts.flat_map(move |(buffer, begin)| {
            let run = |run: &&[u32]| {
                let at = begin + u64::from(run[0]) * self.page_bytes;
                self.buffers[buffer].range(at, run.len() as u64 * self.page_bytes)
            };
            runs.iter().map(run).collect::<Vec<_>>()
        })
    }

    fn range(&self, place: impl Fn(&KvPools) -> (usize, u64)) -> BufferRange {
        let (buffer, offset_bytes) = place(&self.pools);
        self.buffers[buffer].range(offset_bytes, self.region_bytes)
    }
}

/// Allocates a model's buffers and, when memory runs out, reports what the whole model needs.
pub struct Allocator<'a> {
    device: &'a Arc<Device>,
    planned: Vec<TierBytes>,
}

impl<'a> Allocator<'a> {
    /// An allocator for a model that is loaded for sequences of `context_tokens`.
    pub fn new(device: &'a Arc<Device>, plan: &Plan, context_tokens: u32, request: &ContextRequest) -> Allocator<'a> {
        Allocator { device, planned: planned_bytes(plan, context_tokens, request) }
    }

    /// Use of a buffer that stays in `tier`.
    pub fn resident_use(&self, tier: Tier) -> BufferUse {
        resident_use(&self.planned, tier)
    }

    /// The error for an allocation of `what` that failed.
    pub fn error(&self, what: &str, failure: Failure) -> LoadError {
        if failure.is_out_of_memory() {
            return LoadError::OutOfMemory {
                what: what.into(),
                wanted: self.planned.clone(),
                heaps: self.device.facts().heaps.clone(),
            };
        }
        failure.into()
    }

    fn resident(&self, what: &str, len_bytes: u64, tier: Tier) -> Result<Allocation, LoadError> {
        self.create(what, len_bytes, self.resident_use(tier))
    }

    fn mapped(&self, what: &str, len_bytes: u64, usage: BufferUse) -> Result<(Arc<Buffer>, Mapping), LoadError> {
        let fresh = self.create(what, len_bytes, usage)?;
        Ok((fresh.buffer, fresh.mapping.expect("uploads and readbacks are host-visible")))
    }

    fn create(&self, what: &str, len_bytes: u64, usage: BufferUse) -> Result<Allocation, LoadError> {
        Buffer::create(self.device, len_bytes.max(MIN_BUFFER_BYTES), usage).map_err(|failure| self.error(what, failure))
    }
}
