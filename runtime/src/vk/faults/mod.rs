//! Fault injection (feature `fault-injection`, for tests): layers between the runtime and the driver. One fails a Vulkan call, the
//! other makes a coherent device's memory incoherent, as that of many real devices is.
//!
//! ```text
//! runtime ──► ash's tables ──► layer: counts, fails ──► noncoherent: copies on flush and invalidate ──► driver
//! ```
//!
//! ash calls through tables of function pointers. Each function that can fail is replaced in its table by one of the same type,
//! which counts calls and then either fails or calls the original. One state is shared by the whole process, so that tests that use
//! it run one at a time.

mod layer;
mod noncoherent;
mod outcome;

use std::sync::{Condvar, Mutex, MutexGuard};

pub use self::layer::{layered_calls, layered_fields};
pub use self::noncoherent::simulate_noncoherent_memory;
pub use self::outcome::{Fault, FaultKind, failed_calls, inject, inject_into, injected, made_calls};
use self::outcome::{Outcome, device_is_new, outcome};
use crate::vk::{Failure, Named};

struct Reads {
    limit: Option<u64>,
    begun: u64,
}

static READS: Mutex<Reads> = Mutex::new(Reads { limit: None, begun: 0 });
static READ: Condvar = Condvar::new();

/// The instance with its functions replaced.
pub fn of_instance(raw: ash::Instance) -> ash::Instance {
    let mut table = raw.fp_v1_0().clone();
    noncoherent::replace_in_instance(&mut table);
    layer::replace_in_instance(&mut table);
    ash::Instance::from_parts_1_3(raw.handle(), table, raw.fp_v1_1().clone(), raw.fp_v1_3().clone())
}

/// The device with its functions replaced.
pub fn of_device(raw: ash::Device) -> ash::Device {
    device_is_new();
    let mut table = raw.fp_v1_0().clone();
    noncoherent::replace_in_device(&mut table);
    layer::replace_in_device(&mut table);
    let (vulkan11, vulkan12, vulkan13) = (raw.fp_v1_1().clone(), raw.fp_v1_2().clone(), raw.fp_v1_3().clone());
    ash::Device::from_parts_1_3(raw.handle(), table, vulkan11, vulkan12, vulkan13)
}

/// Counts a call of a function that is not replaced.
pub fn before(call: &'static str) -> Result<(), Failure> {
    match outcome(call, false) {
        Outcome::Works => Ok(()),
        Outcome::Fails(code) | Outcome::WorksAndFails(code) => Err(code).named(call),
    }
}

/// Allows this many reads of weights, in the order in which they begin; later ones block until the limit changes. `None`: no
/// limit.
pub fn limit_reads(limit: Option<u64>) {
    *reads() = Reads { limit, begun: 0 };
    READ.notify_all();
}

/// Called before a part of the weights is read; blocks at the limit.
pub fn before_reading() {
    let mut reads = reads();
    while reads.limit.is_some_and(|limit| reads.begun >= limit) {
        reads = READ.wait(reads).unwrap_or_else(|poisoned| poisoned.into_inner());
    }
    reads.begun += 1;
}

fn reads() -> MutexGuard<'static, Reads> {
    READS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
