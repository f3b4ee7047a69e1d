//! The device's memory bandwidth, measured: what a decode step, which reads every weight once, is held against.

use std::sync::Arc;
use std::time::Instant;

use artifacts::Tier;

use crate::residency::Role;
use crate::vk::Failure;
use crate::vk::device::Device;
use crate::vk::memory::Buffer;
use crate::vk::record::{Command, CommandList};
use crate::vk::submit::Lane;

/// Bytes of each of two scratch buffers: beyond the caches of most devices, small beside a model.
const SCRATCH_BYTES: u64 = 64 << 20;
/// Copies in one submission.
const COPIES: usize = 8;
/// Submissions; the fastest counts.
const ROUNDS: usize = 3;

/// Bytes read and written per second while one device-local buffer is copied to another, best of a few rounds.
pub fn measure(device: &Arc<Device>, lane: &mut Lane) -> Result<f64, Failure> {
    let role = Role::Resident { tier: Tier::Vram, total_bytes: SCRATCH_BYTES };
    let from = Buffer::create(device, SCRATCH_BYTES, role)?.buffer;
    let to = Buffer::create(device, SCRATCH_BYTES, role)?.buffer;
    lane.run(&[CommandList::record(device, vec![Command::Fill(from.whole())])?])?;
    let copy = Command::Copy { from: from.whole(), to: to.whole() };
    let copies = std::iter::repeat_n([copy, Command::Barrier], COPIES).flatten().collect();
    let list = [CommandList::record(device, copies)?];
    let mut best_seconds = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        lane.run(&list)?;
        best_seconds = best_seconds.min(begin.elapsed().as_secs_f64());
    }
    Ok(2.0 * COPIES as f64 * SCRATCH_BYTES as f64 / best_seconds)
}
