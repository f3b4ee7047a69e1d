//! Whether what is resident is what the file holds: weights are hashed on the device, where they lie.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use unicorn_artifact::MappedFile;
use unicorn_artifact::hash::{self, CHUNK_BYTES, HashedRange, SUBTREE_BYTES};
use unicorn_artifact::view::WeightSection;

use crate::error::LoadError;
use crate::memory::residency::Role;
use crate::program::dispatch_range::Band;
use crate::vk::Failure;
use crate::vk::device::Device;
use crate::vk::memory::{Allocation, Buffer, Mapping};
use crate::vk::pipeline::{BoundSet, Pipeline};
use crate::vk::record::{Command, CommandList};
use crate::vk::submit::Lane;
use unicorn_artifact::step::Link;

/// The kernel that hashes, and where it finds its parameters and leaves its results.
pub struct Checksum {
    device: Arc<Device>,
    pipeline: Arc<Pipeline>,
    range: (Arc<Buffer>, Mapping),
    hashes: (Arc<Buffer>, Mapping),
    /// What one dispatch hashes, at most.
    most_bytes: u64,
}

/// One submission hashes no more than this, so that none takes long.
const MOST_BYTES: u64 = 128 << 20;
const HASH_BYTES: u64 = 32;
/// The kernel reads whole blocks; weight buffers end on a multiple of them.
const BLOCK_BYTES: u64 = 64;

impl Checksum {
    /// `pipeline` is the artifact's [`unicorn_artifact::TargetKernels::checksum`].
    pub fn create(device: &Arc<Device>, pipeline: &Arc<Pipeline>) -> Result<Checksum, LoadError> {
        let most_bytes = MOST_BYTES.min(device.facts().storage_range_bytes) / SUBTREE_BYTES * SUBTREE_BYTES;
        let hosted = |len_bytes, role| -> Result<(Arc<Buffer>, Mapping), LoadError> {
            let Allocation { buffer, mapping } = Buffer::create(device, len_bytes, role)?;
            Ok((buffer, mapping.expect("uploads and readbacks are host-visible")))
        };
        Ok(Checksum {
            device: device.clone(),
            pipeline: pipeline.clone(),
            range: hosted(BLOCK_BYTES, Role::Upload)?,
            hashes: hosted(most_bytes / SUBTREE_BYTES * HASH_BYTES, Role::Readback)?,
            most_bytes,
        })
    }

    /// Compares slice number `slice`, resident in `buffer`, with its section of the file.
    ///
    /// # Errors
    /// [`LoadError::WrongBytes`] says where what is resident differs from the file, [`LoadError::Artifact`] that the file is not
    /// what was written.
    pub fn verify(
        &mut self,
        lane: &mut Lane,
        file: &MappedFile,
        slice: usize,
        section: &WeightSection<'_>,
        buffer: &Arc<Buffer>,
    ) -> Result<(), LoadError> {
        let len_bytes = section.len_bytes;
        let resident = self.subtrees(lane, buffer, len_bytes)?;
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

    fn subtrees(&mut self, lane: &mut Lane, buffer: &Arc<Buffer>, len_bytes: u64) -> Result<Vec<[u8; 32]>, Failure> {
        let mut hashes = Vec::new();
        for at in (0..len_bytes).step_by(self.most_bytes as usize) {
            let now = self.most_bytes.min(len_bytes - at);
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
            let band = Band::whole([subtrees as u32, 1, 1]);
            let dispatch = Command::Dispatch { pipeline: self.pipeline.clone(), set, band, link: Link::default() };
            lane.run(&[CommandList::record(&self.device, vec![dispatch])?])?;
            self.hashes.1.invalidate()?;
            let (found, _) = self.hashes.1.bytes().as_chunks::<{ HASH_BYTES as usize }>();
            hashes.extend_from_slice(&found[..subtrees as usize]);
        }
        Ok(hashes)
    }
}
