//! Which calls fail: one state for the whole process.

use std::sync::{Mutex, MutexGuard};

use ash::vk;

/// Which call fails, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Index of the call after [`inject`]; 0 is the first.
    pub call: u64,
    /// How it fails.
    pub kind: FaultKind,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The device is lost: all its calls fail until another is created.
    DeviceLost,
    /// The same, and the next device is lost the same number of calls after its creation.
    DeviceLostTwice,
    /// The device is lost, and no device can be created until [`inject`] is called again.
    DeviceRemoved,
    /// This call fails for lack of device memory; later ones succeed.
    OutOfDeviceMemory,
    /// This call fails for lack of host memory; later ones succeed.
    OutOfHostMemory,
    /// The call does its work, and reports that the device is lost. One that makes an object makes none.
    DeviceLostAfter,
    /// The call does its work, and reports that there is no device memory; later ones succeed. One that makes an object makes none,
    /// and a submission is not begun, as Vulkan has it.
    OutOfDeviceMemoryAfter,
    /// The call returns TIMEOUT at once. For vkWaitForFences, see [`inject_into`]; its submission goes on.
    Timeout,
    /// The device is lost, and while it is created again a call fails for lack of device memory: the call with this number after vkCreateInstance.
    DeviceLostThenOutOfMemory {
        /// Calls between vkCreateInstance and the one that fails; 0 is vkCreateInstance.
        calls_later: u64,
    },
    /// The device is lost, and no device memory can be allocated until [`inject`] is called again.
    DeviceLostThenNoMemory,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// Name of the calls that the fault's index counts; `None`: all.
    of_name: Option<&'static str>,
    /// Names of all calls since [`inject`], in their order.
    calls: Vec<&'static str>,
    /// Names of the calls that were failed.
    failed: Vec<&'static str>,
    lost: bool,
    removed: bool,
    /// No memory is allocated.
    no_memory: bool,
    /// `calls_later` of [`FaultKind::DeviceLostThenOutOfMemory`], until the next instance is created.
    out_of_memory_in: Option<u64>,
    /// Number of calls when the device was created.
    created: u64,
}

static STATE: Mutex<State> = Mutex::new(State {
    fault: None,
    of_name: None,
    calls: Vec::new(),
    failed: Vec::new(),
    lost: false,
    removed: false,
    no_memory: false,
    out_of_memory_in: None,
    created: 0,
});

/// Resets the count and sets the fault; `None`: calls are only counted.
pub fn inject(fault: Option<Fault>) {
    *state() = State { fault, ..State::default() };
}

/// The same for a fault whose index counts only calls of this name.
pub fn inject_into(name: &'static str, fault: Fault) {
    *state() = State { fault: Some(fault), of_name: Some(name), ..State::default() };
}

/// Number of calls since [`inject`], and the name of the first that was failed.
pub fn injected() -> (u64, Option<&'static str>) {
    let state = state();
    (state.calls.len() as u64, state.failed.first().copied())
}

/// Calls since [`inject`] that were failed, in their order, without those of a device that was lost already.
pub fn failed_calls() -> Vec<&'static str> {
    state().failed.clone()
}

/// Names of all calls since [`inject`], in their order: a fault's index is one of this list.
pub fn made_calls() -> Vec<&'static str> {
    state().calls.clone()
}

/// A device was created: it works, whatever became of the one before.
pub fn device_is_new() {
    let mut state = state();
    let was_lost = std::mem::take(&mut state.lost);
    let (before, now) = (state.created, state.calls.len() as u64);
    state.created = now;
    let again = state.fault.filter(|fault| was_lost && fault.kind == FaultKind::DeviceLostTwice);
    if let Some(Fault { call, .. }) = again {
        state.fault = Some(Fault { call: now + call - before, kind: FaultKind::DeviceLost });
    }
}

/// Outcome of a call.
pub enum Outcome {
    Works,
    /// The driver is not called.
    Fails(vk::Result),
    /// The driver is called, and the code returned instead of its success.
    WorksAndFails(vk::Result),
}

/// Counts a call and decides its outcome.
pub fn outcome(call: &'static str, of_device: bool) -> Outcome {
    let mut state = state();
    let now = state.calls.len() as u64;
    state.calls.push(call);
    if call == "vkCreateInstance"
        && let Some(calls_later) = state.out_of_memory_in.take()
    {
        state.fault = Some(Fault { call: now + calls_later, kind: FaultKind::OutOfDeviceMemory });
        state.of_name = None;
    }
    if of_device && state.lost {
        return failing(call, vk::Result::ERROR_DEVICE_LOST);
    }
    if !of_device && state.removed {
        return Outcome::Fails(vk::Result::ERROR_INITIALIZATION_FAILED);
    }
    if state.no_memory && call == "vkAllocateMemory" {
        return Outcome::Fails(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY);
    }
    let Some(Fault { call: index, kind }) = state.fault else { return Outcome::Works };
    let is_it = match state.of_name {
        None => now == index,
        Some(name) => call == name && state.calls.iter().filter(|&&made| made == name).count() as u64 == index + 1,
    };
    if !is_it {
        return Outcome::Works;
    }
    state.failed.push(call);
    let code = match kind {
        FaultKind::Timeout => return Outcome::Fails(vk::Result::TIMEOUT),
        FaultKind::OutOfDeviceMemory | FaultKind::OutOfDeviceMemoryAfter => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
        FaultKind::OutOfHostMemory => vk::Result::ERROR_OUT_OF_HOST_MEMORY,
        FaultKind::DeviceLost
        | FaultKind::DeviceLostTwice
        | FaultKind::DeviceRemoved
        | FaultKind::DeviceLostAfter
        | FaultKind::DeviceLostThenOutOfMemory { .. }
        | FaultKind::DeviceLostThenNoMemory => {
            state.lost = true;
            vk::Result::ERROR_DEVICE_LOST
        }
    };
    match kind {
        FaultKind::DeviceRemoved => state.removed = true,
        FaultKind::DeviceLostThenNoMemory => state.no_memory = true,
        FaultKind::DeviceLostThenOutOfMemory { calls_later } => state.out_of_memory_in = Some(calls_later),
        _ => {}
    }
    let does_its_work = match kind {
        FaultKind::DeviceLostAfter => !makes_an_object(call),
        FaultKind::OutOfDeviceMemoryAfter => !makes_an_object(call) && call != "vkQueueSubmit",
        _ => false,
    };
    if does_its_work { Outcome::WorksAndFails(code) } else { failing(call, code) }
}

/// Waiting for an idle device waits whatever it returns: what the device of the test has in flight ends only by itself.
fn failing(call: &str, code: vk::Result) -> Outcome {
    if call == "vkDeviceWaitIdle" { Outcome::WorksAndFails(code) } else { Outcome::Fails(code) }
}

/// Whether a call creates an object, which would have no owner if the call failed.
fn makes_an_object(call: &str) -> bool {
    call.starts_with("vkCreate") || call.starts_with("vkAllocate")
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
