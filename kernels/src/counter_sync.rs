//! Chains: dispatches that follow one another without a barrier. The workgroups of each count themselves as they end, and those
//! of the next wait for the count by themselves, with their first weights already on the way. On an H200 that saves up to a
//! microsecond a dispatch.
//!
//! ```text
//! slots of SLOT_WORDS, one a dispatch of the program: workgroups that have ended, gave up waiting (1), unused
//!
//!   before  ──▶ writes its results ──▶ adds 1 to its slot
//!   this    ──▶ loads weights ──▶ waits until the slot before says `Link::waits_for` ──▶ reads results …
//!               its last workgroup sets the slot before to 0, and its own, too, where nobody waits for it
//! ```
//!
//! Each sees what any before it wrote, by way of the counts between them: chains of availability and visibility, in the words of the
//! Vulkan memory model, which all of these kernels have (`device_fence` in `wgsl/intrinsics.wgsl`). What they read and write of the step is
//! `@coherent`.
//!
//! It takes a device that starts the workgroups of dispatches in the order of the dispatches: then those that are waited for
//! never wait for room. Vulkan does not promise that, so nobody waits forever: a workgroup that has looked [`MOST_LOOKS`] times
//! says so in its slot and goes on, and the sampler at the program's end says it to the host (`Output::stalled`).

use unicorn_artifact::step::Link;

use crate::template::Values;

/// 32-bit words from one slot to the next, as far apart as bindings must be.
pub const SLOT_WORDS: usize = 64;
/// Slots that there are, and so dispatches of a program with chains.
pub const SLOTS: usize = 1024;
/// How often a workgroup looks at a count before it gives up; meant to be some tenths of a second.
pub const MOST_LOOKS: usize = 500_000;

/// What pieces that include `counter_sync` want to know.
pub(crate) fn values(counter_sync: bool, values: Values) -> Values {
    let values = values.size("SLOT_WORDS", SLOT_WORDS).size("MOST_LOOKS", MOST_LOOKS);
    values.flag("COUNTER_SYNC", counter_sync).text("LINK", Link::wgsl())
}
