//! [`Prediction`]: what is known of an artifact before any weight is read, and whether the disk has room for it.

use std::path::Path;

use unicorn_artifact::account::size;
use unicorn_artifact::codec::MAX_SECTION_BYTES;
use unicorn_artifact::header::SECTION_ALIGN;
use unicorn_artifact::{ArtifactWriter, codec};

use crate::Planned;
use crate::error::{CompileError, Result};

/// What is known of an artifact before any weight is read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prediction {
    /// Length of the artifact: within 1 % or 1 MiB, whichever is more. The weights' part is exact.
    pub artifact_bytes: u64,
    /// The part of `artifact_bytes` that kernels and dispatches take.
    pub kernels_bytes: u64,
    /// Free space in bytes where it will be stored; `None`: the file system does not report it.
    pub free_bytes: Option<u64>,
    /// Whether the model came with a tokenizer; without one, it runs on token ids alone.
    pub has_tokenizer: bool,
    /// Whether it came with a chat template; without one, it continues texts and cannot chat.
    pub has_chat_template: bool,
}

impl Prediction {
    /// The artifact of `planned` at `output`.
    pub fn of(planned: &Planned, output: &Path) -> Prediction {
        let tokenizer = &planned.checkpoint.tokenizer;
        let kernels_bytes = kernels_bytes(planned);
        let draft = planned.draft.as_ref().map(|draft| &draft.planned);
        let draft_bytes = draft.map_or(0, |draft| artifact_bytes(draft, self::kernels_bytes(draft)));
        Prediction {
            artifact_bytes: artifact_bytes(planned, kernels_bytes) + draft_bytes,
            kernels_bytes,
            free_bytes: ArtifactWriter::free_bytes(output).ok().flatten(),
            has_tokenizer: !tokenizer.tokenizer_json.is_empty(),
            has_chat_template: tokenizer.chat_template.is_some(),
        }
    }

    /// Refuses an artifact that could not be read again, or that does not fit the disk of `output`.
    pub(crate) fn check(&self, output: &Path) -> Result<()> {
        if self.kernels_bytes > MAX_SECTION_BYTES as u64 {
            let (found, most) = (size(self.kernels_bytes), size(MAX_SECTION_BYTES as u64));
            let what =
                format!("kernels and dispatches of all targets have {found}, expected at most {most}: fewer targets");
            return Err(CompileError::Option { option: "targets", what });
        }
        match self.free_bytes {
            Some(free_bytes) if free_bytes < self.artifact_bytes => {
                Err(CompileError::DiskFull { path: output.into(), needed_bytes: self.artifact_bytes, free_bytes })
            }
            _ => Ok(()),
        }
    }
}

/// Compressed SPIR-V of one kernel, on average over models of all sizes.
const KERNEL_BYTES: u64 = 3300;

fn kernels_bytes(planned: &Planned) -> u64 {
    let kernels = planned.selection.targets.iter().flat_map(|target| &target.kernels);
    let kernels: usize = kernels.map(|kernel| 1 + kernel.alternatives.len()).sum();
    codec::encode(&planned.placement.programs).len() as u64 + KERNEL_BYTES * kernels as u64
}

fn artifact_bytes(planned: &Planned, kernels_bytes: u64) -> u64 {
    let Planned { placement, checkpoint, npu, .. } = planned;
    let [plan, tokenizer] = [codec::encode(&placement.plan), codec::encode(&checkpoint.tokenizer)];
    let small = [plan.len() as u64, tokenizer.len() as u64, kernels_bytes];
    let slices = placement.plan.slices.iter().map(|slice| slice.bytes);
    let section = npu.as_ref().map(|npu| &npu.section);
    let record = section.map(|section| codec::encode(section).len() as u64);
    let of_npu = section.into_iter().flat_map(|section| section.slices.iter().copied()).chain(record);
    // Header and metadata take a place each.
    2 * SECTION_ALIGN
        + slices.chain(small).chain(of_npu).map(|bytes| bytes.next_multiple_of(SECTION_ALIGN)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_with_less_than_the_artifact_is_refused() {
        let with = |free_bytes, kernels_bytes| Prediction {
            artifact_bytes: 5 << 30,
            kernels_bytes,
            free_bytes,
            has_tokenizer: true,
            has_chat_template: true,
        };
        let refusal = |free_bytes| with(free_bytes, 1 << 20).check(Path::new("disk/model.unicorn"));
        assert!(refusal(None).is_ok() && refusal(Some(5 << 30)).is_ok());
        let message = refusal(Some(3 << 30)).unwrap_err().to_string();
        assert_eq!(
            message,
            "disk/model.unicorn: disk is too full, artifact needs about 5.00 GiB, found 3.00 GiB free; 2.00 GiB are missing"
        );
        let message = with(None, 300 << 20).check(Path::new("model.unicorn")).unwrap_err().to_string();
        assert!(message.contains("have 300.00 MiB, expected at most 256.00 MiB: fewer targets"), "{message}");
    }
}
