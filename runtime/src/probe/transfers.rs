//! How fast bytes reach the memory that a device reads, measured without an artifact: an upper bound for loading weights.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use unicorn_artifact::Tier;

use crate::device::facts::DeviceFacts;
use crate::device::memory_types::BufferUse;
use crate::error::LoadError;
use crate::load::order::WEIGHT_CHUNK_BYTES;
use crate::load::reader::for_each_part;
use crate::probe::bandwidth::scratch_bytes;
use crate::vk::buffer::Buffer;
use crate::vk::command_list::{Command, CommandList};
use crate::vk::device::Device;
use crate::vk::instance::Instance;
use crate::vk::submission::SubmissionQueue;

/// Transfer rates in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfers {
    /// The device copies from host memory to its own, on its transfer queue where it has one.
    pub copied: f64,
    /// The device copies from host memory to host memory that it reads in place; `None`: all its memory is its own.
    pub copied_to_host: Option<f64>,
    /// All cores write the device's own memory; `None`: the host cannot map enough of it.
    pub mapped_device: Option<f64>,
    /// All cores write host memory that the device reads in place; `None`: all its memory is its own.
    pub mapped_host: Option<f64>,
}

/// Size of the buffer that the device copies from, repeatedly.
const STAGING_BYTES: u64 = 64 << 20;
/// Timeout of one copy.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures each rate once, into memory that was not written before, as weights are loaded. Blocks for seconds.
///
/// # Errors
/// When the device cannot be opened, has too little memory, or fails.
pub fn measure_transfers(facts: &DeviceFacts) -> Result<Transfers, LoadError> {
    let device = &Device::open(Instance::create()?, facts, true)?;
    let len_bytes = scratch_bytes(device)?;
    let resident = |tier| BufferUse::Resident { tier, total_bytes: len_bytes };
    let copied = |tier| -> Result<Option<f64>, LoadError> {
        let target = Buffer::create_for_copies(device, len_bytes, resident(tier))?.buffer;
        if tier == Tier::Gtt && target.is_device_local() {
            return Ok(None);
        }
        let staging = Buffer::create(device, STAGING_BYTES, BufferUse::Staging)?;
        staging.mapping.expect("staging buffers are host-visible").bytes_mut().fill(1);
        let list = |at: u64| {
            let now = STAGING_BYTES.min(len_bytes - at);
            let copy = Command::Copy { from: staging.buffer.range(0, now), to: target.range(at, now) };
            CommandList::record_copies(device, vec![copy])
        };
        let lists = (0..len_bytes).step_by(STAGING_BYTES as usize).map(list).collect::<Result<Vec<_>, _>>()?;
        let mut queue = SubmissionQueue::create(device, TIMEOUT)?;
        rate(len_bytes, || Ok(queue.run(&lists)?)).map(Some)
    };
    let source = vec![1; len_bytes as usize];
    let mapped = |tier, own| -> Result<Option<f64>, LoadError> {
        let fresh = Buffer::create(device, len_bytes, resident(tier))?;
        let Some(mut mapping) = fresh.mapping.filter(|_| fresh.buffer.is_device_local() == own) else {
            return Ok(None);
        };
        let (bytes, flush) = mapping.parts_mut();
        let parts = bytes.chunks_mut(WEIGHT_CHUNK_BYTES as usize).zip(source.chunks(WEIGHT_CHUNK_BYTES as usize));
        let parts = parts.zip((0u64..).step_by(WEIGHT_CHUNK_BYTES as usize)).collect();
        let copy = |((target, source), at): ((&mut [u8], &[u8]), u64)| {
            target.copy_from_slice(source);
            Ok(flush.flush(at..at + target.len() as u64)?)
        };
        let write = || for_each_part(parts, copy, &mut |()| ControlFlow::Continue(())).map(|_| ());
        rate(len_bytes, write).map(Some)
    };
    Ok(Transfers {
        copied: copied(Tier::Vram)?.expect("every device has memory of its own"),
        copied_to_host: copied(Tier::Gtt)?,
        mapped_device: mapped(Tier::Vram, true)?,
        mapped_host: mapped(Tier::Gtt, false)?,
    })
}

fn rate(len_bytes: u64, work: impl FnOnce() -> Result<(), LoadError>) -> Result<f64, LoadError> {
    let begin = Instant::now();
    work()?;
    Ok(len_bytes as f64 / begin.elapsed().as_secs_f64())
}
