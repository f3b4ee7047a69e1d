//! Commands as plain data, recorded once into a command buffer that can be submitted many times.

use std::sync::Arc;

use ash::vk;

use crate::vk::buffer::BufferRange;
use crate::vk::device::{Device, QueueKind};
use crate::vk::pipeline::{BoundSet, Pipeline};
use crate::vk::timestamps::Timestamps;
use crate::vk::workgroup_range::WorkgroupRange;
use crate::vk::{Failure, Named};
use unicorn_artifact::step::CounterWait;

/// One command.
#[derive(Clone)]
pub enum Command {
    /// All workgroups of a dispatch, or a range of them.
    Dispatch { pipeline: Arc<Pipeline>, set: BoundSet, workgroups: WorkgroupRange, counter: CounterWait },
    /// An execution and memory barrier between everything before and everything after.
    Barrier,
    /// Fills with zeros; offset and length are multiples of 4.
    Fill(BufferRange),
    /// Copies between ranges of the same length in different buffers.
    Copy { from: BufferRange, to: BufferRange },
    /// Resets all timestamps, as each must be before it is written again.
    ResetTimestamps(Arc<Timestamps>),
    /// Writes the timestamp of this index when everything before is complete.
    WriteTimestamp(Arc<Timestamps>, u32),
}

/// A recorded command buffer.
pub struct CommandList {
    device: Arc<Device>,
    pool: vk::CommandPool,
    pub(super) raw: vk::CommandBuffer,
    pub(super) kind: QueueKind,
    /// Owns everything that the command buffer refers to.
    commands: Vec<Command>,
}

impl CommandList {
    /// Records `commands` between two barriers: writes of earlier submissions and of the host are visible to the list, and its
    /// writes to the host. A list that begins inside a dispatch follows the list with the dispatch's first range and has no
    /// barrier at its begin.
    pub fn record(device: &Arc<Device>, commands: Vec<Command>) -> Result<CommandList, Failure> {
        CommandList::record_for(device, QueueKind::Compute, commands)
    }

    /// The same for copies, for the transfer queue.
    pub fn record_copies(device: &Arc<Device>, commands: Vec<Command>) -> Result<CommandList, Failure> {
        assert!(commands.iter().all(|command| matches!(command, Command::Copy { .. })), "copies and nothing else");
        CommandList::record_for(device, QueueKind::Transfer, commands)
    }

    fn record_for(device: &Arc<Device>, kind: QueueKind, commands: Vec<Command>) -> Result<CommandList, Failure> {
        let family = device.queue(kind).family;
        let request = vk::CommandPoolCreateInfo::default().queue_family_index(family);
        // SAFETY: a plain request; destroyed by Drop.
        let pool = unsafe { device.raw.create_command_pool(&request, None) }.named("vkCreateCommandPool")?;
        // From here on Drop cleans up.
        let mut list = CommandList { device: device.clone(), pool, raw: vk::CommandBuffer::null(), kind, commands };
        let request = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool is fresh and used by this thread alone.
        list.raw = unsafe { device.raw.allocate_command_buffers(&request) }.named("vkAllocateCommandBuffers")?[0];
        // SAFETY: fresh and not pending.
        unsafe { device.raw.begin_command_buffer(list.raw, &vk::CommandBufferBeginInfo::default()) }
            .named("vkBeginCommandBuffer")?;
        if !matches!(list.commands.first(), Some(Command::Dispatch { workgroups, .. }) if workgroups.continues) {
            list.barrier();
        }
        for command in &list.commands {
            list.put(command);
        }
        list.host_barrier();
        // SAFETY: begun above.
        unsafe { device.raw.end_command_buffer(list.raw) }.named("vkEndCommandBuffer")?;
        Ok(list)
    }

    /// What was recorded.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    fn put(&self, command: &Command) {
        let device = &self.device.raw;
        match command {
            Command::Dispatch { pipeline, set, workgroups, counter } => {
                let [x, y, z] = workgroups.workgroups;
                assert!(pipeline.accepts(set), "descriptor set was made for another layout");
                // SAFETY: recording; pipeline and set are alive through `commands`, the set has the pipeline's layout, and every
                // pipeline is created with DISPATCH_BASE.
                unsafe {
                    device.cmd_bind_pipeline(self.raw, vk::PipelineBindPoint::COMPUTE, pipeline.raw);
                    device.cmd_bind_descriptor_sets(
                        self.raw,
                        vk::PipelineBindPoint::COMPUTE,
                        pipeline.layout().pipeline,
                        0,
                        &[set.raw],
                        &[],
                    );
                    device.cmd_push_constants(
                        self.raw,
                        pipeline.layout().pipeline,
                        vk::ShaderStageFlags::COMPUTE,
                        0,
                        &counter.to_words().map(u32::to_le_bytes).concat(),
                    );
                    // Synchronisation checks of older validation layers skip vkCmdDispatchBase.
                    match workgroups.first {
                        [0, 0, 0] => device.cmd_dispatch(self.raw, x, y, z),
                        [from_x, from_y, from_z] => {
                            device.cmd_dispatch_base(self.raw, from_x, from_y, from_z, x, y, z);
                        }
                    }
                }
            }
            Command::Barrier => self.barrier(),
            Command::Fill(range) => {
                assert!(range.offset_bytes.is_multiple_of(4) && range.len_bytes.is_multiple_of(4));
                // SAFETY: recording; the range lies in its buffer and is aligned.
                unsafe {
                    device.cmd_fill_buffer(self.raw, range.buffer.raw, range.offset_bytes, range.len_bytes, 0);
                }
            }
            Command::Copy { from, to } => {
                assert_eq!(from.len_bytes, to.len_bytes, "lengths of a copy");
                let region = vk::BufferCopy::default()
                    .src_offset(from.offset_bytes)
                    .dst_offset(to.offset_bytes)
                    .size(from.len_bytes);
                // SAFETY: recording; both ranges lie in their buffers, which differ.
                unsafe { device.cmd_copy_buffer(self.raw, from.buffer.raw, to.buffer.raw, &[region]) };
            }
            Command::ResetTimestamps(timestamps) => timestamps.record_reset(self.raw),
            Command::WriteTimestamp(timestamps, index) => timestamps.record(self.raw, *index),
        }
    }

    fn barrier(&self) {
        let (stages, reads, writes) = self.accesses();
        self.memory_barrier((stages, writes), (stages, writes | reads));
    }

    fn host_barrier(&self) {
        let (stages, _, writes) = self.accesses();
        self.memory_barrier((stages, writes), (vk::PipelineStageFlags::HOST, vk::AccessFlags::HOST_READ));
    }

    /// Pipeline stages of the list's queue, and their read and write accesses.
    fn accesses(&self) -> (vk::PipelineStageFlags, vk::AccessFlags, vk::AccessFlags) {
        let copies =
            (vk::PipelineStageFlags::TRANSFER, vk::AccessFlags::TRANSFER_READ, vk::AccessFlags::TRANSFER_WRITE);
        match self.kind {
            QueueKind::Transfer => copies,
            QueueKind::Compute => (
                copies.0 | vk::PipelineStageFlags::COMPUTE_SHADER,
                copies.1 | vk::AccessFlags::SHADER_READ,
                copies.2 | vk::AccessFlags::SHADER_WRITE,
            ),
        }
    }

    fn memory_barrier(
        &self,
        before: (vk::PipelineStageFlags, vk::AccessFlags),
        after: (vk::PipelineStageFlags, vk::AccessFlags),
    ) {
        let barrier = vk::MemoryBarrier::default().src_access_mask(before.1).dst_access_mask(after.1);
        // SAFETY: recording; a global barrier refers to no object.
        unsafe {
            self.device.raw.cmd_pipeline_barrier(
                self.raw,
                before.0,
                after.0,
                vk::DependencyFlags::empty(),
                &[barrier],
                &[],
                &[],
            );
        }
    }
}

impl Drop for CommandList {
    fn drop(&mut self) {
        if !self.device.is_stuck() {
            // SAFETY: the list outlives its submissions: its owner waits for them before dropping it.
            unsafe { self.device.raw.destroy_command_pool(self.pool, None) };
        }
    }
}
