//! Which upload path each tier takes: paths are tried, and where several are available and there is much to load, measured.

use std::ops::ControlFlow;
use std::time::Instant;

use unicorn_artifact::Tier;

use crate::device::memory_types::BufferUse;
use crate::error::LoadError;
use crate::load::fill;
use crate::load::order::LoadOrder;
use crate::load::slices::{AllocationError, Slice, UploadSource, WeightExtent};
use crate::load::upload_path::{TierUpload, UploadPath};
use crate::memory::buffers::Allocator;

/// The upload path of each tier that holds weights.
pub struct UploadPaths(Vec<TierUpload>);

/// Bytes that each path loads when it is measured. Each loads another part of the file, so that none profits from the page cache.
const SAMPLE_BYTES: u64 = 32 << 20;
/// With less to load, measuring takes longer than a faster path saves.
const MIN_MEASURED_BYTES: u64 = 1 << 30;
/// Size of the buffer that is allocated to see whether a path is available.
const PROBE_BYTES: u64 = 64 << 10;
/// Paths that are chosen automatically, preferred ones first. Import is not among them: the system may drop pages of a file at
/// any time, and a program that writes the file waits for steps.
const AUTOMATIC: [UploadPath; 3] = [UploadPath::Map, UploadPath::Host, UploadPath::Staging];

impl UploadPaths {
    /// Chooses a path for every tier of `slices`; `requested` alone if there is one.
    ///
    /// # Errors
    /// [`LoadError::Residency`] where the requested path, or every path, is unavailable for a tier.
    pub fn choose(
        source: &UploadSource<'_>,
        slices: &[WeightExtent],
        allocator: &Allocator<'_>,
        requested: Option<UploadPath>,
    ) -> Result<UploadPaths, LoadError> {
        let mut paths = UploadPaths(Vec::new());
        for first in slices {
            if paths.0.iter().any(|chosen| chosen.tier == first.tier) {
                continue;
            }
            let of_tier: Vec<WeightExtent> = slices.iter().copied().filter(|slice| slice.tier == first.tier).collect();
            paths.0.push(choose_for_tier(source, &of_tier, allocator.resident_use(first.tier), requested)?);
        }
        Ok(paths)
    }

    /// The path of `tier`, which holds weights.
    pub fn of(&self, tier: Tier) -> UploadPath {
        self.0.iter().find(|chosen| chosen.tier == tier).expect("a path was chosen for every tier with weights").path
    }

    /// The choices, for the load report. `is_device_local`: whether a tier's buffers lie in the device's own memory.
    pub fn report(&self, is_device_local: impl Fn(Tier) -> bool) -> Vec<TierUpload> {
        let one = |chosen: &TierUpload| TierUpload { device_local: is_device_local(chosen.tier), ..chosen.clone() };
        self.0.iter().map(one).collect()
    }
}

fn choose_for_tier(
    source: &UploadSource<'_>,
    slices: &[WeightExtent],
    usage: BufferUse,
    requested: Option<UploadPath>,
) -> Result<TierUpload, LoadError> {
    let tier = slices[0].tier;
    let candidates = requested.as_ref().map_or(AUTOMATIC.as_slice(), std::slice::from_ref);
    let mut refusals = Vec::new();
    let mut available = Vec::new();
    for &path in candidates {
        match source.allocate(path, slices[0].file_offset_bytes, PROBE_BYTES.min(slices[0].len_bytes), usage) {
            Ok(_) => available.push(path),
            Err(AllocationError::Unavailable(reason)) => refusals.push(format!("{path}: {reason}")),
            Err(AllocationError::Failed(failure)) => return Err(failure.into()),
        }
    }
    let Some(&first) = available.first() else {
        return Err(LoadError::Residency { tier, device: source.device.facts().name.clone(), refusals });
    };
    let mut chosen = TierUpload {
        tier,
        path: first,
        device_local: false,
        keeps_page_cache: source.keeps_page_cache,
        measured: Vec::new(),
    };
    let total_bytes: u64 = slices.iter().map(|slice| slice.len_bytes).sum();
    if available.len() > 1 && total_bytes >= MIN_MEASURED_BYTES {
        chosen.measured = measure(source, &available, slices, usage)?;
        let fastest = chosen.measured.iter().max_by(|one, other| one.1.total_cmp(&other.1));
        chosen.path = fastest.map_or(first, |fastest| fastest.0);
    }
    Ok(chosen)
}

/// Loads a part of the file over each path into a temporary buffer; bytes per second of each.
fn measure(
    source: &UploadSource<'_>,
    paths: &[UploadPath],
    slices: &[WeightExtent],
    usage: BufferUse,
) -> Result<Vec<(UploadPath, f64)>, LoadError> {
    let longest = slices.iter().max_by_key(|slice| slice.len_bytes).expect("a tier with slices");
    let sample_bytes = SAMPLE_BYTES.min(longest.len_bytes / paths.len() as u64 / PROBE_BYTES * PROBE_BYTES);
    let mut measured = Vec::new();
    for (&path, index) in paths.iter().zip(0..) {
        let file_offset_bytes = longest.file_offset_bytes + index * sample_bytes;
        let begin = Instant::now();
        // A path without memory for a sample has none for the weights.
        let Ok(fresh) = source.allocate(path, file_offset_bytes, sample_bytes, usage) else { continue };
        let mut slice = [Slice::new(path, file_offset_bytes, sample_bytes, fresh)];
        let order = LoadOrder::in_file_order(&[sample_bytes]);
        let _ = fill::fill(source, &mut slice, &order, &mut |_| ControlFlow::Continue(()))?;
        measured.push((path, sample_bytes as f64 / begin.elapsed().as_secs_f64()));
    }
    Ok(measured)
}
