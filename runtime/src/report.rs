//! What loading a model took, and where its memory is.

use crate::load::upload::UploadReport;
use crate::load::upload_path::TierUpload;
use crate::memory::npu_memory::NpuMemory;
use crate::memory::tier_bytes::TierBytes;
use crate::program::pipeline_cache::PipelineReport;
use crate::tune::choices::TuningReport;
use crate::tune::corrections::CorrectionsReport;

/// An NPU's part in a model's steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NpuReport {
    /// Driver of the NPU that computes products of prefill; `None`: the GPU does everything.
    pub driver: Option<String>,
    /// Products that it computes.
    pub products: u32,
    /// How activations and outputs pass between GPU and NPU.
    pub memory: Option<NpuMemory>,
    /// Why it does not take part, where the plan uses one.
    pub note: Option<String>,
}

/// Times and results of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadReport {
    /// Seconds until the first step could begin.
    pub seconds_total: f64,
    /// Seconds that compiling pipelines took; at the same time as loading weights, unless [`crate::LoadOptions::load_alone`] is set.
    pub seconds_pipelines: f64,
    /// Compiled and cached pipelines.
    pub pipelines: PipelineReport,
    /// Whether a tuning was applied.
    pub tuning: TuningReport,
    /// Whether an NPU takes part.
    pub npu: NpuReport,
    /// Whether corrections were applied.
    pub corrections: CorrectionsReport,
    /// Bytes of all weight slices.
    pub weight_bytes: u64,
    /// Upload path of each tier that holds weights.
    pub upload_paths: Vec<TierUpload>,
    /// The completed upload; `None`: weights are still being loaded ([`crate::LoadOptions::lazy`]).
    pub upload: Option<UploadReport>,
    /// Name of the target whose kernels run.
    pub target: String,
    /// Why targets before it in the artifact do not run, though the device has all that they require.
    pub left_out: Vec<String>,
    /// Allocated bytes, by the tier that the driver gave.
    pub memory: Vec<TierBytes>,
    /// Submissions of one step of each of the target's programs.
    pub submissions: Vec<u32>,
}
