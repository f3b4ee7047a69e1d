//! The device's memory bandwidth, measured: what a decode step, which reads every weight once, is held against.

use std::sync::Arc;
use std::time::Instant;

use artifacts::Tier;

use crate::residency::Role;
use crate::vk::Failure;
use crate::vk::device::Device;
use crate::vk::memory::Buffer;
use crate::vk::record::{Command, CommandList};
use crate::vk::stamps::Stamps;
use crate::vk::submit::Lane;

/// Bytes of each of two scratch buffers: far beyond any device's caches, small beside a model.
const SCRATCH_BYTES: u64 = 256 << 20;
/// Copies in one submission.
const COPIES: usize = 8;
/// Submissions; the fastest counts.
const ROUNDS: usize = 3;

/// Bytes read and written per second while one device-local buffer is copied to another, best of a few rounds; by the
/// device's own clock where it keeps one, so that the submission does not count.
pub fn measure(device: &Arc<Device>, lane: &mut Lane) -> Result<f64, Failure> {
    let role = Role::Resident { tier: Tier::Vram, total_bytes: SCRATCH_BYTES };
    let from = Buffer::create(device, SCRATCH_BYTES, role)?.buffer;
    let to = Buffer::create(device, SCRATCH_BYTES, role)?.buffer;
    lane.run(&[CommandList::record(device, vec![Command::Fill(from.whole())])?])?;
    let copy = Command::Copy { from: from.whole(), to: to.whole() };
    let mut commands: Vec<Command> = std::iter::repeat_n([copy, Command::Barrier], COPIES).flatten().collect();
    let timer = Stamps::create(device, 2)?;
    if let Some(timer) = &timer {
        commands.splice(0..0, [Command::ResetStamps(timer.clone()), Command::Stamp(timer.clone(), 0)]);
        commands.push(Command::Stamp(timer.clone(), 1));
    }
    let list = [CommandList::record(device, commands)?];
    let mut best_seconds = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        lane.run(&list)?;
        let by_host = begin.elapsed().as_secs_f64();
        let by_device = timer.as_ref().and_then(|timer| timer.seconds_between(0, 1)).filter(|&seconds| seconds > 0.0);
        best_seconds = best_seconds.min(by_device.unwrap_or(by_host));
    }
    Ok(2.0 * COPIES as f64 * SCRATCH_BYTES as f64 / best_seconds)
}
