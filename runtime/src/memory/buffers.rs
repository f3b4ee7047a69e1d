//! Every buffer of a loaded model, and how a dispatch's bindings find them.

use std::sync::Arc;

use unicorn_artifact::step::{MAX_OUTPUTS, Output, TABLES_AT};
use unicorn_artifact::{Binding, BufferRef, Plan, Tier};

use crate::error::LoadError;
use crate::load::upload_path::{Extent, NoBuffer, Source, Way, Ways};
use crate::load::weights::Slice;
use crate::memory::residency::{
    ContextRequest, KvPools, Role, TierBytes, logits_bytes, planned_bytes, pool_pages, resident_role, table_stride,
};
use crate::memory::usage::HeapBytes;
use crate::vk::Failure;
use crate::vk::device::Device;
use crate::vk::memory::{Allocation, Buffer, BufferRange, Mapping};
use crate::vk::record::{Command, CommandList};
use crate::vk::submit::Lane;

/// Device buffers. `step` and `output` are seen by the host, too, and so is `readback`, where logits are copied.
pub struct Buffers {
    /// One a weight slice.
    pub weights: Vec<Arc<Buffer>>,
    pub logits: Arc<Buffer>,
    pub readback: Arc<Buffer>,
    arena: Arc<Buffer>,
    kv: Vec<KvBuffers>,
    step: Arc<Buffer>,
    output: Arc<Buffer>,
}

/// The host's side of the buffers that it writes or reads at each step.
pub struct HostViews {
    /// `step::StepHeader`, rows, samplers, histories and block tables.
    pub step: Mapping,
    /// `step::Output`s of the last steps.
    pub output: Mapping,
    /// f32 logits, `logits_rows * logits_stride` elements.
    pub readback: Mapping,
}

/// Fresh buffers, and the slices that are to be filled.
pub struct Allocated {
    pub buffers: Buffers,
    pub views: HostViews,
    pub slices: Vec<Slice>,
}

struct KvBuffers {
    pools: KvPools,
    /// Of K, and again of V, of one layer.
    bytes: u64,
    buffers: Vec<Arc<Buffer>>,
}

/// Kernels may be bound to an empty arena; Vulkan has no empty buffers.
const LEAST_BUFFER_BYTES: u64 = 256;

impl Buffers {
    /// Allocates everything that the model needs for sequences of `context_tokens`: its weights, `extents`, for the way of
    /// their tier.
    ///
    /// # Errors
    /// [`LoadError::OutOfMemory`] with the sums of the whole model.
    pub fn allocate(
        source: &Source<'_>,
        extents: &[Extent],
        ways: &Ways,
        plan: &Plan,
        context_tokens: u32,
        request: &ContextRequest,
    ) -> Result<Allocated, LoadError> {
        let device = source.device;
        let allocator = Allocator { device, planned: planned_bytes(plan, context_tokens, request) };
        let mut weights = Vec::new();
        let mut slices = Vec::new();
        for (index, extent) in extents.iter().enumerate() {
            let slice = allocator.slice(&format!("weight slice {index}"), source, *extent, ways.of(extent.tier))?;
            weights.push(slice.buffer().clone());
            slices.push(slice);
        }
        let mut kv = Vec::new();
        for (index, group) in plan.kv_groups.iter().enumerate() {
            let pages = u32::try_from(pool_pages(group, context_tokens, request)).expect("checked with the context");
            let pools = KvPools::new(group, pages, LEAST_BUFFER_BYTES, device.facts().max_allocation_bytes);
            let what = format!("KV group {index} of {context_tokens} tokens");
            let allocate = |&bytes: &u64| allocator.resident(&what, bytes, group.tier).map(|fresh| fresh.buffer);
            let buffers = pools.buffers.iter().map(allocate).collect::<Result<_, _>>()?;
            kv.push(KvBuffers { bytes: group.page_bytes * u64::from(pages), pools, buffers });
        }
        let tables =
            plan.kv_groups.len() as u64 * u64::from(request.slots) * u64::from(table_stride(plan, context_tokens));
        let (step, step_view) = allocator.hosted("step buffer", 4 * (TABLES_AT as u64 + tables), Role::Upload)?;
        let (output, output_view) =
            allocator.hosted("output buffer", 4 * (MAX_OUTPUTS * Output::WORDS) as u64, Role::Readback)?;
        let (readback, readback_view) = allocator.hosted("logits readback", logits_bytes(plan), Role::Readback)?;
        Ok(Allocated {
            buffers: Buffers {
                weights,
                logits: allocator.resident("logits", logits_bytes(plan), plan.arena_tier)?.buffer,
                readback,
                arena: allocator.resident("activations", plan.arena_bytes, plan.arena_tier)?.buffer,
                kv,
                step,
                output,
            },
            views: HostViews { step: step_view, output: output_view, readback: readback_view },
            slices,
        })
    }

    /// Zeros everything but weights: kernels may read what no step has written yet.
    pub fn clear(&self, device: &Arc<Device>, lane: &mut Lane) -> Result<(), LoadError> {
        let kv = self.kv.iter().flat_map(|group| &group.buffers);
        for buffer in kv.chain([&self.arena, &self.logits, &self.step, &self.output]) {
            // A list each keeps submissions short.
            lane.run(&[CommandList::record(device, vec![Command::Fill(buffer.whole())])?])?;
        }
        Ok(())
    }

    /// The bytes that a binding means.
    ///
    /// # Errors
    /// [`LoadError::BindingTooLarge`] when the device cannot bind so much at once.
    pub fn range(&self, binding: &Binding, limit_bytes: u64) -> Result<BufferRange, LoadError> {
        let whole = match binding.buffer {
            BufferRef::Weights { slice } => self.weights[slice as usize].whole(),
            BufferRef::Arena => self.arena.whole(),
            BufferRef::Keys { group, layer } => self.kv[group as usize].range(|pools| pools.keys(layer)),
            BufferRef::Values { group, layer } => self.kv[group as usize].range(|pools| pools.values(layer)),
            BufferRef::Step => self.step.whole(),
            BufferRef::Logits => self.logits.whole(),
            BufferRef::Output => self.output.whole(),
        };
        let all = binding.offset_bytes == 0 && binding.len_bytes == 0;
        let range = if all { whole } else { whole.buffer.range(binding.offset_bytes, binding.len_bytes) };
        if range.len_bytes > limit_bytes {
            let what = format!("{:?}", binding.buffer).to_lowercase();
            return Err(LoadError::BindingTooLarge { what, bytes: range.len_bytes, limit_bytes });
        }
        Ok(range)
    }

    /// Whether the slices of `tier` lie in the device's own memory.
    pub fn is_device_local(&self, plan: &Plan, tier: Tier) -> bool {
        let mut both = plan.slices.iter().zip(&self.weights);
        both.any(|(slice, buffer)| slice.tier == tier && buffer.is_device_local())
    }

    /// What was allocated, one a heap of the device.
    pub fn bytes_by_heap(&self, n_heaps: usize) -> Vec<HeapBytes> {
        let mut heaps = vec![HeapBytes::default(); n_heaps];
        for buffer in self.all() {
            let heap = &mut heaps[buffer.heap()];
            *if buffer.is_imported() { &mut heap.imported } else { &mut heap.own } += buffer.len_bytes();
        }
        heaps
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Buffer>> {
        let kv = self.kv.iter().flat_map(|group| &group.buffers);
        let rest = [&self.arena, &self.logits, &self.readback, &self.step, &self.output];
        self.weights.iter().chain(kv).chain(rest)
    }

    /// What is resident, by the tier that the driver really gave.
    pub fn resident_bytes(&self) -> Vec<TierBytes> {
        let mut sums = [TierBytes::none(Tier::Vram), TierBytes::none(Tier::Gtt)];
        let mut add = |buffer: &Buffer, part: fn(&mut TierBytes) -> &mut u64| {
            *part(&mut sums[usize::from(!buffer.is_device_local())]) += buffer.len_bytes();
        };
        self.weights.iter().for_each(|buffer| add(buffer, |sum| &mut sum.weights));
        self.kv.iter().flat_map(|group| &group.buffers).for_each(|buffer| add(buffer, |sum| &mut sum.kv));
        add(&self.arena, |sum| &mut sum.activations);
        for buffer in [&self.logits, &self.readback, &self.step, &self.output] {
            add(buffer, |sum| &mut sum.other);
        }
        sums.into_iter().filter(|sum| sum.total() > 0).collect()
    }
}

impl KvBuffers {
    fn range(&self, place: impl Fn(&KvPools) -> (usize, u64)) -> BufferRange {
        let (buffer, offset_bytes) = place(&self.pools);
        self.buffers[buffer].range(offset_bytes, self.bytes)
    }
}

/// Allocates and, when memory runs out, says what the whole model asked for.
struct Allocator<'a> {
    device: &'a Arc<Device>,
    planned: Vec<TierBytes>,
}

impl Allocator<'_> {
    fn resident(&self, what: &str, len_bytes: u64, tier: Tier) -> Result<Allocation, LoadError> {
        self.create(what, len_bytes, resident_role(&self.planned, tier))
    }

    fn slice(&self, what: &str, source: &Source<'_>, extent: Extent, way: Way) -> Result<Slice, LoadError> {
        let Extent { file_offset_bytes, len_bytes, tier } = extent;
        let fresh = source.allocate(way, file_offset_bytes, len_bytes, resident_role(&self.planned, tier));
        let fresh = fresh.map_err(|missing| match missing {
            NoBuffer::Failed(failure) => self.error(what, failure),
            NoBuffer::Refused(reason) => LoadError::Residency {
                tier,
                device: self.device.facts().name.clone(),
                refusals: vec![format!("{way}, of {what}: {reason}")],
            },
        })?;
        Ok(Slice::new(way, file_offset_bytes, len_bytes, fresh))
    }

    fn hosted(&self, what: &str, len_bytes: u64, role: Role) -> Result<(Arc<Buffer>, Mapping), LoadError> {
        let fresh = self.create(what, len_bytes, role)?;
        Ok((fresh.buffer, fresh.mapping.expect("uploads and readbacks are host-visible")))
    }

    fn create(&self, what: &str, len_bytes: u64, role: Role) -> Result<Allocation, LoadError> {
        Buffer::create(self.device, len_bytes.max(LEAST_BUFFER_BYTES), role)
            .map_err(|failure| self.error(what, failure))
    }

    fn error(&self, what: &str, failure: Failure) -> LoadError {
        if failure.is_out_of_memory() {
            return LoadError::OutOfMemory {
                what: what.into(),
                wanted: self.planned.clone(),
                heaps: self.device.facts().heaps.clone(),
            };
        }
        failure.into()
    }
}
