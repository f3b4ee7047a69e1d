//! Counter synchronisation: dispatches that follow one another without a barrier. Each workgroup increments a counter when it
//! ends, and the workgroups of the next dispatch wait for the count, with the loads of their first weights in flight. On an H200
//! that saves up to a microsecond a dispatch.
//!
//! ```text
//! slots of SLOT_WORDS, one a dispatch of the program: workgroups that have ended, gave up waiting (1), unused
//!
//!   before  ──▶ writes its results ──▶ adds 1 to its slot
//!   this    ──▶ loads weights ──▶ waits until the slot before holds `CounterWait::waits_for` ──▶ reads results …
//!               its last workgroup sets the slot before to 0, and its own, too, where no dispatch waits for it
//! ```
//!
//! Writes of every earlier dispatch are visible to a later one, through the counters between them: these are the availability
//! and visibility chains of the Vulkan memory model, which all of these kernels use (`device_fence` in `wgsl/intrinsics.wgsl`).
//! The buffers of the step that they read and write are `@coherent`.
//!
//! This requires a device that starts the workgroups of dispatches in the order of the dispatches: then the workgroups that are
//! waited for are always resident or done. Vulkan does not guarantee that order, so every wait is bounded: a workgroup that has
//! read the counter [`MAX_POLLS`] times records it in its slot and continues, and the sampler at the program's end reports it to
//! the host (`Output::stalled`).

use unicorn_artifact::step::CounterWait;

use crate::template::Values;

/// 32-bit words from one slot to the next, as far apart as bindings must be.
pub const SLOT_WORDS: usize = 64;
/// Number of slots: the maximum number of dispatches of a program with counter synchronisation.
pub const SLOTS: usize = 1024;
/// Maximum number of times that a workgroup reads a counter before it gives up: some tenths of a second.
pub const MAX_POLLS: usize = 500_000;

/// Values for pieces that include `counter_sync`.
pub(crate) fn values(counter_sync: bool, values: Values) -> Values {
    let values = values.size("SLOT_WORDS", SLOT_WORDS).size("MAX_POLLS", MAX_POLLS);
    values.flag("COUNTER_SYNC", counter_sync).text("COUNTER_WAIT", CounterWait::wgsl())
}
