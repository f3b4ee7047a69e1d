//! The upload of a model's weights as a whole: filled, verified and audited, before the model runs or while it does
//! (`streaming`).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::facts::DeviceKind;
use crate::error::LoadError;
use crate::load::artifact::ArtifactFile;
use crate::load::fill::{self, OnChunk};
use crate::load::order::LoadOrder;
use crate::load::slices::{Slice, UploadSource};
use crate::load::verify::{self, Verifier};
use crate::memory::usage::{HeapAllocation, MemoryAudit, MemoryUsage};
use crate::vk::device::Device;
use crate::vk::pipeline::Pipeline;
use crate::vk::submission::SubmissionQueue;

/// Everything that is needed to fill allocated weight buffers.
pub struct WeightUpload {
    pub artifact: Arc<ArtifactFile>,
    pub device: Arc<Device>,
    /// Timeout of one submission.
    pub timeout: Duration,
    /// See [`UploadSource::keeps_page_cache`].
    pub keeps_page_cache: bool,
    /// One a weight section.
    pub slices: Vec<Slice>,
    pub order: LoadOrder,
    /// Memory in use before anything was allocated.
    pub usage_before: MemoryUsage,
    /// One entry a heap of the device.
    pub allocated: Vec<HeapAllocation>,
    /// When loading began.
    pub begun: Instant,
}

/// The result of a complete upload.
#[derive(Clone, Debug, PartialEq)]
pub struct UploadReport {
    /// Seconds that copying the weights took.
    pub seconds_weights: f64,
    /// Seconds from the beginning of the load until all weights were on the device.
    pub seconds_resident: f64,
    /// How the weights were verified.
    pub verification: Verification,
    /// Memory that driver and kernel report, compared with what was allocated.
    pub audit: MemoryAudit,
}

/// How weights were compared with the artifact's hashes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verification {
    /// Not at all: [`crate::LoadOptions::verify_weights`] is off.
    No,
    /// In the file: the artifact has no hashing kernel.
    InFile,
    /// Where they are resident: by the device, or by the host in the memory of a software device.
    OnDevice {
        /// Seconds that it took.
        seconds: f64,
    },
}

/// How to verify weights.
pub enum VerifyMethod {
    No,
    InFile,
    /// With the artifact's hashing kernel.
    OnDevice(Arc<Pipeline>),
}

/// When weights were copied.
pub struct FillTimes {
    begun: Instant,
    ended: Instant,
}

impl WeightUpload {
    /// Copies the weights; waits for the device. `None`: `on_chunk` returned `Break`.
    ///
    /// # Errors
    /// When the file cannot be read, or a copy fails.
    pub fn fill(&mut self, on_chunk: &mut OnChunk<'_>) -> Result<Option<FillTimes>, LoadError> {
        let begun = Instant::now();
        let source = UploadSource {
            device: &self.device,
            file: self.artifact.file(),
            timeout: self.timeout,
            keeps_page_cache: self.keeps_page_cache,
        };
        let flow = fill::fill(&source, &mut self.slices, &self.order, on_chunk)?;
        Ok((flow == ControlFlow::Continue(())).then(|| FillTimes { begun, ended: Instant::now() }))
    }

    /// Verifies and audits weights that were copied.
    ///
    /// # Errors
    /// [`LoadError::WrongBytes`], [`LoadError::Artifact`] or [`LoadError::NotResident`].
    pub fn check(self, times: FillTimes, method: VerifyMethod) -> Result<UploadReport, LoadError> {
        let verification = match method {
            VerifyMethod::No => Verification::No,
            VerifyMethod::InFile => {
                self.artifact.verify()?;
                Verification::InFile
            }
            VerifyMethod::OnDevice(kernel) => {
                let begin = Instant::now();
                self.verify_on_device(&kernel)?;
                Verification::OnDevice { seconds: begin.elapsed().as_secs_f64() }
            }
        };
        let facts = self.device.facts();
        let usage = MemoryUsage::read(facts, &self.device.heaps()?);
        Ok(UploadReport {
            seconds_weights: (times.ended - times.begun).as_secs_f64(),
            seconds_resident: (times.ended - self.begun).as_secs_f64(),
            verification,
            audit: self.usage_before.audit(&usage, &self.allocated, facts, self.artifact.plan())?,
        })
    }

    fn verify_on_device(&self, kernel: &Arc<Pipeline>) -> Result<(), LoadError> {
        let mut queue = SubmissionQueue::create(&self.device, self.timeout)?;
        let mut verifier = Verifier::create(&self.device, kernel)?;
        let is_software = self.device.facts().kind == DeviceKind::Cpu;
        for (index, (section, slice)) in self.artifact.weights().iter().zip(&self.slices).enumerate() {
            let resident = match slice.mapped_bytes().filter(|_| is_software) {
                Some(bytes) => verify::host_subtrees(section, bytes),
                None => verifier.subtrees(&mut queue, slice.buffer(), section.len_bytes)?,
            };
            verify::compare(self.artifact.file(), index, section, resident)?;
        }
        Ok(())
    }
}
