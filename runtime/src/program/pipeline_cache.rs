//! The pipeline cache on disk: pipelines that an earlier start compiled are not compiled again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use unicorn_artifact::TargetKernels;
use unicorn_artifact::hash::hash_parts;

use crate::device::facts::DeviceFacts;
use crate::error::LoadError;
use crate::program::cache_file::CacheFile;
use crate::program::pipelines::compile_each;
use crate::vk::Failure;
use crate::vk::device::Device;
use crate::vk::instance::Instance;
use crate::vk::pipeline::{Capture, Pipeline};
use crate::vk::pipeline_cache::{DeviceIdentity, PipelineCache};

/// A target's pipelines.
pub struct Compiled {
    pub pipelines: Vec<Arc<Pipeline>>,
    pub report: PipelineReport,
}

/// How a target's pipelines were compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipelineReport {
    /// Number of pipelines.
    pub pipelines: u32,
    /// Number of those that were found in the cache on disk; `None`: the driver does not support such caches (it may have one of
    /// its own), or does not report hits.
    pub from_cache: Option<u32>,
    /// Why the cache was not read or not written. This is never an error: pipelines are compiled then.
    pub note: Option<String>,
}

/// Compiles the pipelines of `target` with the cache below `folder`, and updates it.
///
/// # Errors
/// When the driver rejects a kernel, or `is_cancelled` becomes true. A cache that cannot be used is not an error.
pub fn compile(
    device: &Arc<Device>,
    target: &TargetKernels,
    folder: Option<&Path>,
    is_cancelled: &AtomicBool,
) -> Result<Compiled, LoadError> {
    let opened = folder.map(|folder| OpenCache::below(folder, device, target));
    let (cache, unopened) = match opened {
        None => (None, None),
        Some(Ok(cache)) => (Some(cache), None),
        Some(Err(problem)) => (None, Some(problem)),
    };
    let in_driver = cache.as_ref().map(|cache| &cache.in_driver);
    let pipelines = compile_each(device, target, in_driver, Capture::Nothing, is_cancelled, Ok)?;
    let mut report = PipelineReport { pipelines: pipelines.len() as u32, from_cache: None, note: unopened };
    if let Some(cache) = cache {
        let cached = count_cached(&pipelines);
        let stored = cache.store(cached == Some(report.pipelines));
        report.from_cache = cached.filter(|_| stored != Ok(Stored::Nothing));
        report.note = cache.unread.or(stored.err());
    }
    Ok(Compiled { pipelines, report })
}

/// Compiles every pipeline of `target` as loading a model does, and stores them in the cache below `folder`, so
/// that the first start finds them. Blocks until all are compiled.
///
/// # Errors
/// When the device cannot be opened or the driver rejects a kernel.
pub fn warm_pipeline_cache(
    facts: &DeviceFacts,
    target: &TargetKernels,
    folder: &Path,
) -> Result<PipelineReport, LoadError> {
    let device = Device::open(Instance::create()?, facts, true)?;
    Ok(compile(&device, target, Some(folder), &AtomicBool::new(false))?.report)
}

/// A driver without support for caches writes only Vulkan's own header.
const HEADER_BYTES: usize = 32;

/// The cache file of one device and set of kernels, loaded into a driver cache.
struct OpenCache {
    file: CacheFile,
    found: Vec<u8>,
    /// Why the file could not be used.
    unread: Option<String>,
    in_driver: PipelineCache,
}

#[derive(Debug, PartialEq, Eq)]
enum Stored {
    /// The file holds all pipelines.
    All,
    /// The driver does not support caches.
    Nothing,
}

impl OpenCache {
    fn below(folder: &Path, device: &Arc<Device>, target: &TargetKernels) -> Result<OpenCache, String> {
        let identity = device.identity().map_err(in_words)?;
        let file = file_for(&identity, target, folder);
        let (found, unread) = match file.read() {
            Ok(found) => (found.unwrap_or_default(), None),
            Err(problem) => (Vec::new(), Some(problem)),
        };
        // A driver may reject data that it wrote itself; then the cache starts empty.
        let in_driver = PipelineCache::create(device, &found).or_else(|_| PipelineCache::create(device, &[]));
        Ok(OpenCache { file, found, unread, in_driver: in_driver.map_err(in_words)? })
    }

    /// Writes the cache unless the file already has every pipeline: drivers may return it in another order.
    fn store(&self, held_all: bool) -> Result<Stored, String> {
        let data = self.in_driver.data().map_err(in_words)?;
        if data.len() <= HEADER_BYTES {
            return Ok(Stored::Nothing);
        }
        if !held_all && data != self.found {
            self.file.write(&data)?;
        }
        Ok(Stored::All)
    }
}

fn in_words(failure: Failure) -> String {
    LoadError::from(failure).to_string()
}

/// `None` if the driver does not report it for every pipeline.
fn count_cached(pipelines: &[Arc<Pipeline>]) -> Option<u32> {
    pipelines.iter().map(|pipeline| pipeline.was_cached().map(u32::from)).sum()
}

/// The file is named by device and kernels; its key also has the driver's version, so that a new driver overwrites the file.
fn file_for(identity: &DeviceIdentity, target: &TargetKernels, folder: &Path) -> CacheFile {
    let numbers: Vec<u8> = target.pipelines.iter().flat_map(|pipeline| pipeline.module.to_le_bytes()).collect();
    let frames = target.modules.frames.iter().map(|frame| &frame.zstd[..]);
    let kernels = hash_parts([&numbers[..]].into_iter().chain(frames));
    let owner = hash_parts([identity.device.as_slice(), &kernels]);
    let name: String = owner[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let key = hash_parts([owner.as_slice(), &identity.driver]);
    CacheFile { path: folder.join("pipelines").join(name + ".cache"), key }
}
