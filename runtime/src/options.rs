//! Options of loading a model.

use std::path::PathBuf;
use std::time::Duration;

use unicorn_artifact::Budget;

use crate::device::choice::DeviceChoice;
use crate::error::LoadError;
use crate::load::artifact::DraftUse;
use crate::load::upload_path::UploadPath;
use crate::memory::requirements::KvCapacity;
use crate::npu::{NpuOpener, NpuUse};
use crate::tune::choices::Tuning;
use crate::tune::corrections::Corrections;

/// How a model is loaded and run.
///
/// ```
/// # use unicorn_runtime::LoadOptions;
/// let mut options = LoadOptions::default();
/// options.context_tokens = Some(4096);
/// options.slots = 4;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The device to run on.
    pub device: DeviceChoice,
    /// Name of a target in the artifact; `None`: the first that fits the device.
    pub target: Option<String>,
    /// Longest sequence, in tokens, 1 or more; `None`: the model's limit, or as many as memory holds.
    pub context_tokens: Option<u32>,
    /// Where no context is given: the shortest one, up to the model's limit, for which the model is loaded; loading fails where memory holds less.
    pub min_context_tokens: u32,
    /// Sequences that can exist at a time, 1 or more.
    pub slots: u32,
    /// Tokens of all sequences together that the KV cache holds. With fewer than the longest sequence in every slot has, a
    /// [`crate::scheduler::Scheduler`] lets requests wait for pages, and steps of other sessions may fail with
    /// [`crate::RunError::NoPages`].
    pub kv_capacity: KvCapacity,
    /// Copies of recurrent state that the device holds, of a model that has it, each as large as the state of a sequence; at most one a sequence
    /// has a use. A sequence whose draft was rejected continues from one. One, the default, is enough for all sequences of a
    /// [`crate::scheduler::Scheduler`]. Where a copy was replaced by another thread's sequence, or there is none, rejected drafts cost time:
    /// the sequence is computed from its first token.
    pub state_copies: u32,
    /// Most bytes of each tier that the model may take; tiers without an entry are not limited.
    pub budget: Budget,
    /// How weights reach the device; `None`: the fastest path available.
    pub residency: Option<UploadPath>,
    /// Weights are read without leaving them in the page cache. If this is off, that is done only where memory is scarce; elsewhere
    /// they stay in the page cache for the next start.
    pub direct_io: bool,
    /// Steps begin as soon as the first layers are resident, while another thread loads the rest. Ignored with `profile` or
    /// `candidates`, and where the plan uses an NPU.
    pub lazy: bool,
    /// Pipelines are compiled after the weights are loaded, not at the same time. Loading takes longer, and its measured time is
    /// that of the weights alone. Ignored by a lazy load.
    pub load_alone: bool,
    /// Compares every weight section with its hash, on the device where the artifact has a kernel for it.
    pub verify_weights: bool,
    /// Longest estimated time of one submission. `None`: 100 ms, and on a software device, which no driver resets, nothing is
    /// measured for it.
    pub submission: Option<Duration>,
    /// Longest time of several decode steps in one submission, whose tokens arrive together; zero: one step a submission.
    pub multistep: Duration,
    /// Folder of the pipeline cache; `None`: no cache.
    pub cache_folder: Option<PathBuf>,
    /// Barriers between all dependent dispatches, also where the artifact has counter synchronisation.
    pub barriers: bool,
    /// Records programs with a timestamp after every dispatch: see [`crate::Model::take_profiles`].
    pub profile: bool,
    /// Alternatives chosen by an earlier tuning.
    pub tuning: Option<Tuning>,
    /// What runs in place of kernels that a test found wrong on this device; it overrides the tuning.
    pub corrections: Option<Corrections>,
    /// Keeps what is needed to record other programs later: see [`crate::Model::time_kernels`].
    pub candidates: bool,
    /// What becomes of a draft that is packed into the artifact.
    pub draft: DraftUse,
    /// Whether a plan that uses an NPU needs one.
    pub npu: NpuUse,
    /// Opens the NPU's driver.
    pub npu_opener: NpuOpener,
    /// The device checks every buffer access of a kernel against the bound range.
    pub robust_buffer_access: bool,
}

/// Default of [`LoadOptions::min_context_tokens`].
const MIN_CONTEXT_TOKENS: u32 = 512;

/// Default of [`LoadOptions::submission`]: recent kernels reset an amdgpu ring after 2 s, and a desktop on the same GPU should not
/// stutter.
const SUBMISSION: Duration = Duration::from_millis(100);

/// Default of [`LoadOptions::multistep`]: shorter than a frame of any display. Where steps take longer, the microseconds saved are
/// negligible.
const MULTISTEP: Duration = Duration::from_millis(10);

impl LoadOptions {
    /// The options after `change`, so that one expression makes them:
    /// `LoadOptions::default().with(|options| options.slots = 4)`.
    pub fn with(mut self, change: impl FnOnce(&mut LoadOptions)) -> LoadOptions {
        change(&mut self);
        self
    }

    /// Whether every option is in its range. Loading checks it before it opens the artifact.
    ///
    /// # Errors
    /// [`LoadError::Option`] for the first that is not.
    pub fn check(&self) -> Result<(), LoadError> {
        let wrong = |what, expected, found: String| Err(LoadError::Option { what, expected, found });
        if self.slots == 0 {
            return wrong("number of sequences (slots)", "1 or more", "0".into());
        }
        if self.context_tokens == Some(0) {
            return wrong("context", "1 token or more", "0".into());
        }
        if self.submission == Some(Duration::ZERO) {
            return wrong("longest time of a submission", "more than 0", "0".into());
        }
        Ok(())
    }

    /// Longest estimated time of one submission.
    pub(crate) fn submission_seconds(&self) -> f64 {
        self.submission.unwrap_or(SUBMISSION).as_secs_f64()
    }
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            device: DeviceChoice::Auto,
            target: None,
            context_tokens: None,
            min_context_tokens: MIN_CONTEXT_TOKENS,
            slots: 1,
            kv_capacity: KvCapacity::default(),
            state_copies: 1,
            budget: Budget::default(),
            residency: None,
            direct_io: false,
            lazy: false,
            load_alone: false,
            verify_weights: true,
            submission: None,
            multistep: MULTISTEP,
            cache_folder: None,
            barriers: false,
            profile: false,
            tuning: None,
            corrections: None,
            candidates: false,
            draft: DraftUse::default(),
            npu: NpuUse::default(),
            npu_opener: NpuOpener::default(),
            robust_buffer_access: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_named() {
        assert!(LoadOptions::default().check().is_ok());
        let wrong = |change: fn(&mut LoadOptions)| LoadOptions::default().with(change).check().unwrap_err().to_string();
        let slots = wrong(|options| options.slots = 0);
        assert_eq!(slots, "number of sequences (slots) must be 1 or more, found 0");
        let context = wrong(|options| options.context_tokens = Some(0));
        assert_eq!(context, "context must be 1 token or more, found 0");
        let submission = wrong(|options| options.submission = Some(Duration::ZERO));
        assert_eq!(submission, "longest time of a submission must be more than 0, found 0");
    }
}
