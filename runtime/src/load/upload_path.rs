//! The four ways of weight bytes to the device: which exist here is tried, which is fastest is measured.
//!
//! ```text
//! import   file pages ═══ device memory             nothing is copied; the file must stay as it is while the model lives
//! map      file ──pread──► device memory            memory of the tier that the host sees
//! host     file ──pread──► pages ═══ device         host memory that the driver takes; for tiers that lie in the host's
//! staging  file ──pread──► buffer ──copy──► device  a buffer a core
//! ```

use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unicorn_artifact::{MappedFile, Tier};

use crate::error::LoadError;
use crate::load::order::Route;
use crate::load::weights::{self, Slice};
use crate::memory::residency::{Role, TierBytes, resident_role};
use crate::vk::Failure;
use crate::vk::device::Device;
use crate::vk::import::HostMemory;
use crate::vk::memory::{Allocation, Buffer};

/// How weight bytes become resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Import,
    Map,
    Host,
    Staging,
}

/// The way of each tier that holds weights.
pub struct Ways(Vec<TierWay>);

struct TierWay {
    tier: Tier,
    way: Way,
    /// Bytes per second of every way that was measured.
    measured: Vec<(Way, f64)>,
}

/// Where a slice comes from and how long it is, in the file.
#[derive(Clone, Copy)]
pub struct Extent {
    pub file_offset_bytes: u64,
    pub len_bytes: u64,
    pub tier: Tier,
}

/// What all ways start from.
pub struct Source<'a> {
    pub device: &'a Arc<Device>,
    pub file: &'a Arc<MappedFile>,
    pub timeout: Duration,
}

/// A slice's buffer could not be made.
pub enum NoBuffer {
    Failed(Failure),
    /// Why this way does not exist here, in words that follow a colon.
    Refused(String),
}

/// What each way moves to be measured: another part of the file each, so that no way finds what the one before has read.
const SAMPLE_BYTES: u64 = 32 << 20;
/// Below this, measuring costs more than a better way brings.
const MEASURED_FROM_BYTES: u64 = 1 << 30;
/// What is tried to see whether a way exists.
const PROBE_BYTES: u64 = 64 << 10;
/// Kernels read whole quads of words, and the one that hashes whole blocks of 64 bytes.
const ALIGN_BYTES: u64 = 256;
/// In the order of preference where nothing is measured. Import must be asked for: the system may take the pages of a file
/// back at any time, and a file that somebody cuts ends the process.
const AUTOMATIC: [Way; 3] = [Way::Map, Way::Host, Way::Staging];

impl Ways {
    /// Chooses for every tier of `slices`, whose model needs `planned`.
    ///
    /// # Errors
    /// [`LoadError::Residency`] if the way that was asked for does not exist for one of the tiers, or none does.
    pub fn choose(
        source: &Source<'_>,
        slices: &[Extent],
        planned: &[TierBytes],
        asked: Option<Way>,
    ) -> Result<Ways, LoadError> {
        let mut ways = Ways(Vec::new());
        for first in slices {
            if ways.0.iter().any(|known| known.tier == first.tier) {
                continue;
            }
            let of_tier: Vec<Extent> = slices.iter().copied().filter(|slice| slice.tier == first.tier).collect();
            ways.0.push(source.choose_for(&of_tier, resident_role(planned, first.tier), asked)?);
        }
        Ok(ways)
    }

    pub fn of(&self, tier: Tier) -> Way {
        self.0.iter().find(|known| known.tier == tier).expect("a way was chosen for every tier with weights").way
    }

    /// `pread into device-local memory, page cache released`, and what was measured.
    pub fn describe(&self, device_local: impl Fn(Tier) -> bool) -> String {
        if self.0.is_empty() {
            return "nothing to load".into();
        }
        let describe = |known: &TierWay| {
            let mut text = known.way.describe(device_local(known.tier)).to_owned();
            if self.0.len() > 1 {
                text = format!("{}: {text}", known.tier.name());
            }
            if !known.measured.is_empty() {
                let rates = known.measured.iter().map(|(way, rate)| format!("{way} {:.2}", rate / 1e9));
                text += &format!(" (measured: {} GB/s)", rates.collect::<Vec<_>>().join(", "));
            }
            text
        };
        self.0.iter().map(describe).collect::<Vec<_>>().join("; ")
    }
}

impl Source<'_> {
    /// A buffer for bytes that lie at `offset_bytes` of the file. There is a mapping if the host is to write them.
    pub fn allocate(&self, way: Way, offset_bytes: u64, len_bytes: u64, role: Role) -> Result<Allocation, NoBuffer> {
        let buffer_bytes = len_bytes.max(1).next_multiple_of(ALIGN_BYTES);
        match way {
            Way::Import => {
                let host = HostMemory::File { file: self.file.clone(), offset_bytes };
                Buffer::import(self.device, buffer_bytes, role, host).map_err(NoBuffer::Refused)
            }
            Way::Host => {
                let host = HostMemory::anonymous(buffer_bytes).map_err(|error| NoBuffer::Refused(error.to_string()))?;
                Buffer::import(self.device, buffer_bytes, role, host).map_err(NoBuffer::Refused)
            }
            Way::Map => {
                let fresh = Buffer::create(self.device, buffer_bytes, role).map_err(NoBuffer::Failed)?;
                if fresh.mapping.is_none() {
                    return Err(NoBuffer::Refused("the host does not see this tier's memory".into()));
                }
                Ok(fresh)
            }
            Way::Staging => {
                let fresh = Buffer::create_for_copies(self.device, buffer_bytes, role);
                Ok(Allocation { mapping: None, ..fresh.map_err(NoBuffer::Failed)? })
            }
        }
    }

    fn choose_for(&self, slices: &[Extent], role: Role, asked: Option<Way>) -> Result<TierWay, LoadError> {
        let tier = slices[0].tier;
        let candidates = asked.as_ref().map_or(AUTOMATIC.as_slice(), std::slice::from_ref);
        let mut refusals = Vec::new();
        let mut possible = Vec::new();
        for &way in candidates {
            match self.allocate(way, slices[0].file_offset_bytes, PROBE_BYTES.min(slices[0].len_bytes), role) {
                Ok(_) => possible.push(way),
                Err(NoBuffer::Refused(reason)) => refusals.push(format!("{way}: {reason}")),
                Err(NoBuffer::Failed(failure)) => return Err(failure.into()),
            }
        }
        let Some(&first) = possible.first() else {
            return Err(LoadError::Residency { tier, device: self.device.facts().name.clone(), refusals });
        };
        let mut chosen = TierWay { tier, way: first, measured: Vec::new() };
        let total_bytes: u64 = slices.iter().map(|slice| slice.len_bytes).sum();
        if possible.len() > 1 && total_bytes >= MEASURED_FROM_BYTES {
            chosen.measured = self.measure(&possible, slices, role)?;
            let fastest = chosen.measured.iter().max_by(|one, other| one.1.total_cmp(&other.1));
            chosen.way = fastest.map_or(first, |fastest| fastest.0);
        }
        Ok(chosen)
    }

    /// Loads a part of the file in each way, and lets go of it.
    fn measure(&self, ways: &[Way], slices: &[Extent], role: Role) -> Result<Vec<(Way, f64)>, LoadError> {
        let longest = slices.iter().max_by_key(|slice| slice.len_bytes).expect("a tier with slices");
        let sample_bytes = SAMPLE_BYTES.min(longest.len_bytes / ways.len() as u64 / PROBE_BYTES * PROBE_BYTES);
        let mut measured = Vec::new();
        for (&way, index) in ways.iter().zip(0..) {
            let file_offset_bytes = longest.file_offset_bytes + index * sample_bytes;
            let begin = Instant::now();
            // What there is no room for now there will be none for later.
            let Ok(fresh) = self.allocate(way, file_offset_bytes, sample_bytes, role) else { continue };
            let mut slice = [Slice::new(way, file_offset_bytes, sample_bytes, fresh)];
            let route = Route::in_file_order(&[sample_bytes]);
            let _ = weights::fill(self, &mut slice, &route, &mut |_| ControlFlow::Continue(()))?;
            measured.push((way, sample_bytes as f64 / begin.elapsed().as_secs_f64()));
        }
        Ok(measured)
    }
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Import, Way::Map, Way::Host, Way::Staging];

    pub fn name(self) -> &'static str {
        match self {
            Way::Import => "import",
            Way::Map => "map",
            Way::Host => "host",
            Way::Staging => "staging",
        }
    }

    fn describe(self, device_local: bool) -> &'static str {
        match (self, device_local) {
            (Way::Import, _) => "import of the mapped file",
            (Way::Map, true) => "pread into device-local memory, page cache released",
            (Way::Map, false) => "pread into memory that the device reads in place, page cache released",
            (Way::Host, _) => "pread into imported memory, page cache released",
            (Way::Staging, true) => "staging copies into device-local memory, page cache released",
            (Way::Staging, false) => "staging copies into memory that the device reads in place, page cache released",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Way, String> {
        Way::ALL
            .into_iter()
            .find(|way| way.name() == text)
            .ok_or_else(|| format!("expected one of {}", Way::ALL.map(Way::name).join(", ")))
    }
}
