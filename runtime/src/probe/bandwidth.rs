//! The bandwidth at which the device reads its memory, measured: the upper bound of a decode step, which reads every weight once.

use std::sync::Arc;
use std::time::Instant;

use unicorn_artifact::Tier;
use unicorn_artifact::kernels::READ_BLOCK_BYTES;

use crate::device::facts::DeviceKind;
use crate::device::memory_types::BufferUse;
use crate::error::LoadError;
use crate::vk::buffer::Buffer;
use crate::vk::command_list::{Command, CommandList};
use crate::vk::device::Device;
use crate::vk::pipeline::{BoundSet, Pipeline};
use crate::vk::submission::SubmissionQueue;
use crate::vk::timestamps::Timestamps;
use crate::vk::workgroup_range::WorkgroupRange;
use unicorn_artifact::step::CounterWait;

/// Bytes that are read where memory allows it: far more than any cache holds.
const MAX_BYTES: u64 = 1 << 30;
/// The same on software devices, which read slower.
const MAX_SOFTWARE_BYTES: u64 = 128 << 20;
/// Fewest bytes that are read.
const MIN_BYTES: u64 = 1 << 20;
/// More than any device runs at a time, so that the last ones keep it busy.
const MAX_WORKGROUPS: u64 = 8192;
/// Submissions whose median is the result, after one to warm up.
const ROUNDS: usize = 5;

/// Bytes read per second from device-local memory by `kernel`, the artifact's [`unicorn_artifact::TargetKernels::bandwidth_probe`]; by the
/// device's own clock where it keeps one, so that the submission does not count.
///
/// # Errors
/// When there is too little memory, or the device fails.
pub fn measure(device: &Arc<Device>, queue: &mut SubmissionQueue, kernel: &Arc<Pipeline>) -> Result<f64, LoadError> {
    let len_bytes =
        scratch_bytes(device)?.min(device.facts().storage_range_bytes) / READ_BLOCK_BYTES * READ_BLOCK_BYTES;
    let usage = BufferUse::Resident { tier: Tier::Vram, total_bytes: len_bytes };
    let source = Buffer::create(device, len_bytes, usage)?.buffer;
    let count = (len_bytes / READ_BLOCK_BYTES).min(MAX_WORKGROUPS);
    let folded = Buffer::create(device, 4 * count, usage)?.buffer;
    // Memory that was never written may not be allocated, or be one shared page of zeros.
    queue.run(&[CommandList::record(device, vec![Command::Fill(source.whole())])?])?;

    let bindings = vec![source.whole(), folded.whole()];
    let set = BoundSet::create_all(device, &[(kernel.layout().clone(), bindings)])?.remove(0);
    let workgroups = WorkgroupRange::whole([count as u32, 1, 1]);
    let read = Command::Dispatch { pipeline: kernel.clone(), set, workgroups, counter: CounterWait::default() };
    let timer = Timestamps::create(device, 2)?;
    let commands = match &timer {
        Some(timer) => {
            let timestamp = |number| Command::WriteTimestamp(timer.clone(), number);
            vec![Command::ResetTimestamps(timer.clone()), timestamp(0), read, timestamp(1)]
        }
        None => vec![read],
    };
    let list = [CommandList::record(device, commands)?];
    let mut round = || {
        let begin = Instant::now();
        queue.run(&list)?;
        let by_host = begin.elapsed().as_secs_f64();
        let by_device = timer.as_ref().and_then(|timer| timer.seconds_between(0, 1)).filter(|&seconds| seconds > 0.0);
        Ok(by_device.unwrap_or(by_host))
    };
    round()?;
    let mut seconds = (0..ROUNDS).map(|_| round()).collect::<Result<Vec<f64>, LoadError>>()?;
    seconds.sort_by(f64::total_cmp);
    Ok(len_bytes as f64 / seconds[ROUNDS / 2])
}

/// Size of a measurement's buffer: at most half of the free memory, which other processes may need.
pub fn scratch_bytes(device: &Device) -> Result<u64, LoadError> {
    let max_bytes = if device.facts().kind == DeviceKind::Cpu { MAX_SOFTWARE_BYTES } else { MAX_BYTES };
    let heaps = device.heaps()?;
    let free_bytes = heaps.iter().filter(|heap| heap.device_local).map(|heap| heap.available_bytes()).max();
    Ok(max_bytes.min(free_bytes.unwrap_or(0) / 2).max(MIN_BYTES))
}
