//! Pipelines that an earlier start has left behind, so that this one need not compile them again.

use std::path::Path;
use std::sync::Arc;

use unicorn_artifact::hash::hash_parts;
use unicorn_artifact::{Kernels, TargetKernels};

use crate::device::plan::DeviceFacts;
use crate::error::LoadError;
use crate::program::cache_file::CacheFile;
use crate::program::pipelines::compile_each;
use crate::vk::Failure;
use crate::vk::cache::{Identity, PipelineCache};
use crate::vk::device::Device;
use crate::vk::instance::Instance;
use crate::vk::pipeline::{Capture, Pipeline};

/// A target's pipelines, and how they came about.
pub struct Compiled {
    pub pipelines: Vec<Arc<Pipeline>>,
    pub report: PipelineReport,
}

/// How a target's pipelines came about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipelineReport {
    pub pipelines: u32,
    /// Those that were not compiled but found in the cache on disk; `None`: the driver keeps no pipelines in caches (it
    /// may have its own), or does not say.
    pub from_cache: Option<u32>,
    /// Why the cache was not used or not kept. Everything else goes on as if it had never been.
    pub note: Option<String>,
}

/// Compiles the pipelines of `target`, with the cache that earlier starts left below `folder`, and leaves one there.
///
/// # Errors
/// When the driver refuses a kernel. Nothing about the cache is an error.
pub fn compile(
    device: &Arc<Device>,
    kernels: &Kernels,
    target: &TargetKernels,
    folder: Option<&Path>,
) -> Result<Compiled, LoadError> {
    let opened = folder.map(|folder| OpenCache::below(folder, device, kernels, target));
    let (cache, unopened) = match opened {
        None => (None, None),
        Some(Ok(cache)) => (Some(cache), None),
        Some(Err(problem)) => (None, Some(problem)),
    };
    let in_driver = cache.as_ref().map(|cache| &cache.in_driver);
    let pipelines = compile_each(device, kernels, target, in_driver, Capture::Nothing, Ok)?;
    let mut report = PipelineReport { pipelines: pipelines.len() as u32, from_cache: None, note: unopened };
    if let Some(cache) = cache {
        let cached = count_cached(&pipelines);
        let kept = cache.keep(cached == Some(report.pipelines));
        report.from_cache = cached.filter(|_| kept != Ok(Kept::Nothing));
        report.note = cache.unread.or(kept.err());
    }
    Ok(Compiled { pipelines, report })
}

/// Compiles every pipeline of `target` (one of `kernels`) as loading a model does, and leaves them in the cache below
/// `folder`, so that the first start finds what a second one would.
///
/// # Errors
/// When the device does not open or the driver refuses a kernel.
pub fn warm_pipeline_cache(
    facts: &DeviceFacts,
    kernels: &Kernels,
    target: &TargetKernels,
    folder: &Path,
) -> Result<PipelineReport, LoadError> {
    let device = Device::open(Instance::create()?, facts, true)?;
    Ok(compile(&device, kernels, target, Some(folder))?.report)
}

/// A driver that keeps nothing writes only Vulkan's own header.
const HEADER_BYTES: usize = 32;

/// The file of one device and set of kernels, and the driver's cache that began with it.
struct OpenCache {
    file: CacheFile,
    found: Vec<u8>,
    /// Why what was found was of no use.
    unread: Option<String>,
    in_driver: PipelineCache,
}

#[derive(Debug, PartialEq, Eq)]
enum Kept {
    /// On disk, now or before.
    All,
    /// The driver keeps nothing in such caches.
    Nothing,
}

impl OpenCache {
    fn below(
        folder: &Path,
        device: &Arc<Device>,
        kernels: &Kernels,
        target: &TargetKernels,
    ) -> Result<OpenCache, String> {
        let identity = device.identity().map_err(in_words)?;
        let file = file_for(&identity, kernels, target, folder);
        let (found, unread) = match file.read() {
            Ok(found) => (found.unwrap_or_default(), None),
            Err(problem) => (Vec::new(), Some(problem)),
        };
        // The driver may refuse what it wrote itself; then it begins anew.
        let in_driver = PipelineCache::create(device, &found).or_else(|_| PipelineCache::create(device, &[]));
        Ok(OpenCache { file, found, unread, in_driver: in_driver.map_err(in_words)? })
    }

    /// What was found need not be written again where it held everything: drivers may give it in another order.
    fn keep(&self, held_all: bool) -> Result<Kept, String> {
        let data = self.in_driver.data().map_err(in_words)?;
        if data.len() <= HEADER_BYTES {
            return Ok(Kept::Nothing);
        }
        if !held_all && data != self.found {
            self.file.write(&data)?;
        }
        Ok(Kept::All)
    }
}

fn in_words(failure: Failure) -> String {
    LoadError::from(failure).to_string()
}

/// `None` if the driver is silent about any.
fn count_cached(pipelines: &[Arc<Pipeline>]) -> Option<u32> {
    pipelines.iter().map(|pipeline| pipeline.was_cached().map(u32::from)).sum()
}

/// One file a device and set of kernels; a new version of the driver takes over the file of the old one.
fn file_for(identity: &Identity, kernels: &Kernels, target: &TargetKernels, folder: &Path) -> CacheFile {
    let modules = target.pipelines.iter().map(|pipeline| {
        let words = kernels.modules[pipeline.module as usize].iter().flat_map(|word| word.to_le_bytes());
        words.collect::<Vec<u8>>()
    });
    let modules: Vec<Vec<u8>> = modules.collect();
    let kernels = hash_parts(modules.iter().map(Vec::as_slice));
    let owner = hash_parts([identity.device.as_slice(), &kernels]);
    let name: String = owner[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let key = hash_parts([owner.as_slice(), &identity.driver]);
    CacheFile { path: folder.join("pipelines").join(name + ".cache"), key }
}
