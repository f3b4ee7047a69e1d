//! Verification of resident weights: they are hashed in place and compared with the artifact's hashes. The device hashes them by
//! a kernel; a software device's memory is the host's, which hashes it faster.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use unicorn_artifact::MappedFile;
use unicorn_artifact::hash::{self, CHUNK_BYTES, HashedRange, SUBTREE_BYTES};
use unicorn_artifact::step::CounterWait;
use unicorn_artifact::view::WeightSection;

use crate::device::memory_types::BufferUse;
use crate::error::LoadError;
use crate::parallel;
use crate::vk::Failure;
use crate::vk::buffer::{Allocation, Buffer, Mapping};
use crate::vk::command_list::{Command, CommandList};
use crate::vk::device::Device;
use crate::vk::pipeline::{BoundSet, Pipeline};
use crate::vk::submission::SubmissionQueue;
use crate::vk::workgroup_range::WorkgroupRange;

/// The hashing kernel with its parameters and results.
pub struct Verifier {
    device: Arc<Device>,
    pipeline: Arc<Pipeline>,
    range: (Arc<Buffer>, Mapping),
    hashes: (Arc<Buffer>, Mapping),
    /// Most bytes that one dispatch hashes.
    max_bytes: u64,
}

/// Most bytes that one submission hashes, which keeps it short.
const MAX_BYTES: u64 = 128 << 20;
const HASH_BYTES: u64 = 32;
/// The kernel reads whole blocks of this size; weight buffers are a multiple of it.
const BLOCK_BYTES: u64 = 64;

impl Verifier {
    /// `pipeline` is the artifact's [`unicorn_artifact::TargetKernels::checksum`].
    pub fn create(device: &Arc<Device>, pipeline: &Arc<Pipeline>) -> Result<Verifier, LoadError> {
        let max_bytes = MAX_BYTES.min(device.facts().storage_range_bytes) / SUBTREE_BYTES * SUBTREE_BYTES;
        let mapped = |len_bytes, usage| -> Result<(Arc<Buffer>, Mapping), LoadError> {
            let Allocation { buffer, mapping } = Buffer::create(device, len_bytes, usage)?;
            Ok((buffer, mapping.expect("uploads and readbacks are host-visible")))
        };
        Ok(Verifier {
            device: device.clone(),
            pipeline: pipeline.clone(),
            range: mapped(BLOCK_BYTES, BufferUse::Upload)?,
            hashes: mapped(max_bytes / SUBTREE_BYTES * HASH_BYTES, BufferUse::Readback)?,
            max_bytes,
        })
    }

    /// The hash of each subtree of a buffer's first `len_bytes`. Waits for the device.
    pub fn subtrees(
        &mut self,
        queue: &mut SubmissionQueue,
        buffer: &Arc<Buffer>,
        len_bytes: u64,
    ) -> Result<Vec<[u8; 32]>, Failure> {
        let mut hashes = Vec::new();
        for at in (0..len_bytes).step_by(self.max_bytes as usize) {
            let now = self.max_bytes.min(len_bytes - at);
            let range = HashedRange {
                first_chunk: (at / CHUNK_BYTES) as u32,
                len_bytes: now as u32,
                is_root: len_bytes <= SUBTREE_BYTES,
            };
            self.range.1.write_words(0, &range.to_words());
            self.range.1.flush()?;
            let weights = buffer.range(at, now.next_multiple_of(BLOCK_BYTES));
            let bindings = vec![weights, self.range.0.whole(), self.hashes.0.whole()];
            let set = BoundSet::create_all(&self.device, &[(self.pipeline.layout().clone(), bindings)])?.remove(0);
            let subtrees = now.div_ceil(SUBTREE_BYTES);
            let workgroups = WorkgroupRange::whole([subtrees as u32, 1, 1]);
            let dispatch =
                Command::Dispatch { pipeline: self.pipeline.clone(), set, workgroups, counter: CounterWait::default() };
            queue.run(&[CommandList::record(&self.device, vec![dispatch])?])?;
            self.hashes.1.invalidate()?;
            let (found, _) = self.hashes.1.bytes().as_chunks::<{ HASH_BYTES as usize }>();
            hashes.extend_from_slice(&found[..subtrees as usize]);
        }
        Ok(hashes)
    }
}

/// The same for a section in memory of this process.
pub fn host_subtrees(section: &WeightSection<'_>, resident: &[u8]) -> Vec<[u8; 32]> {
    parallel::map(section.chunks(), |chunk| section.hash_chunk_of(resident, chunk)).concat()
}

/// Compares weight slice `slice`, whose resident bytes have these hashes, with its section of the file.
///
/// # Errors
/// [`LoadError::WrongBytes`] where resident bytes differ from the file's, [`LoadError::Artifact`] where the file's differ
/// from its hashes.
pub fn compare(
    file: &MappedFile,
    slice: usize,
    section: &WeightSection<'_>,
    resident: Vec<[u8; 32]>,
) -> Result<(), LoadError> {
    let len_bytes = section.len_bytes;
    let Err(damage) = section.compare(hash::join(resident.clone())) else { return Ok(()) };
    let mut bytes = vec![0; len_bytes as usize];
    file.file()
        .read_exact_at(&mut bytes, section.offset_bytes)
        .map_err(|source| LoadError::File { path: file.path().to_owned(), source })?;
    let in_file = hash::subtrees(&bytes);
    let wrong: Vec<usize> = (0..resident.len()).filter(|&index| resident[index] != in_file[index]).collect();
    let Some(&first) = wrong.first() else {
        return Err(LoadError::Artifact { path: file.path().to_owned(), source: damage });
    };
    let start = first as u64 * SUBTREE_BYTES;
    Err(LoadError::WrongBytes {
        slice,
        range: start..len_bytes.min(start + SUBTREE_BYTES),
        wrong: wrong.len(),
        of: resident.len(),
    })
}
