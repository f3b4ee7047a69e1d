//! The open artifact file.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use unicorn_artifact::fit::Draft;
use unicorn_artifact::hash;
use unicorn_artifact::view::WeightSection;
use unicorn_artifact::{
    ArtifactView, ImageSection, Kernels, Lease, LicenseSection, MappedFile, Meta, NpuSection, NpuSteps, Plan, Program,
    ReadError, SlicePlan, TargetKernels, TokenizerSection,
};

use crate::device::facts::DeviceFeatures;
use crate::error::LoadError;
use crate::load::slices::WeightExtent;
use crate::parallel;
use crate::program::alternatives;

/// An open artifact, or the draft in one. Everything but the weights was copied into memory of this process; weights are only read, so that a file
/// that is cut or changed while it is in use gives an error.
pub struct ArtifactFile {
    file: Arc<MappedFile>,
    view: ArtifactView<'static>,
    /// Its state before its weights were last verified, if steps read them in the file.
    watched: Mutex<Option<FileState>>,
}

/// What becomes of a draft that is packed into an artifact: a smaller model, see [`crate::Model::speculation_for`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftUse {
    /// It is not loaded.
    #[default]
    Unused,
    /// The context is chosen so that memory is left for the draft, with as many sequences of as many tokens; it is loaded next.
    Beside,
    /// The draft is loaded, in the place of the model. The artifact must have one.
    Alone,
}

/// Attributes that change when a file is written.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileState {
    len_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<Metadata> for FileState {
    fn from(file: Metadata) -> FileState {
        FileState {
            len_bytes: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

impl ArtifactFile {
    /// Maps the file and checks everything but the weights.
    ///
    /// # Errors
    /// [`LoadError::File`] when it cannot be read, [`LoadError::Artifact`] when it is not an artifact, [`LoadError::Option`] when it has
    /// not the draft that is to be loaded.
    pub fn open(path: &Path, draft: DraftUse) -> Result<ArtifactFile, LoadError> {
        let file = MappedFile::open(path).map_err(|source| LoadError::File { path: path.to_owned(), source })?;
        let mut view = ArtifactView::read(file.file()).map_err(|error| load_error(path, error))?;
        if draft == DraftUse::Alone {
            let (what, expected) = ("draft of the artifact", "one that is packed into it");
            view = *view.draft.ok_or(LoadError::Option { what, expected, found: "none".into() })?;
        }
        Ok(ArtifactFile { file: Arc::new(file), view, watched: Mutex::new(None) })
    }

    pub fn meta(&self) -> &Meta {
        &self.view.meta
    }

    pub fn plan(&self) -> &Plan {
        &self.view.plan
    }

    pub fn tokenizer(&self) -> &TokenizerSection {
        &self.view.tokenizer
    }

    /// The draft that is packed into it, if there is one.
    pub fn draft(&self) -> Option<Draft<'_>> {
        self.view.draft.as_ref().map(|draft| draft.as_draft())
    }

    /// How images are passed to the model; `None`: it takes none.
    pub fn image(&self) -> Option<&ImageSection> {
        self.view.image.as_ref()
    }

    pub fn license(&self) -> Option<&LicenseSection> {
        self.view.license.as_ref()
    }

    pub fn kernels(&self) -> &Kernels {
        &self.view.kernels
    }

    /// Whether the samplers of all targets and of the NPU's steps take masks, see [`Program::takes_masks`].
    pub fn takes_masks(&self) -> bool {
        let npu_steps = self.view.npu.iter().flat_map(|section| &section.steps);
        let mut npu_programs = npu_steps.flat_map(|steps| &steps.kernels.programs).filter(|program| program.samples);
        self.kernels().take_masks() && npu_programs.all(Program::takes_masks)
    }

    pub fn target(&self, index: usize) -> &TargetKernels {
        &self.view.kernels.targets[index]
    }

    /// What an NPU computes in steps of this target; `None`: nothing.
    pub fn npu_steps(&self, target: &str) -> Option<(&NpuSection, &NpuSteps)> {
        let section = self.view.npu.as_ref()?;
        let uses = |steps: &&NpuSteps| steps.kernels.name == target && steps.commands.iter().any(|one| !one.is_empty());
        Some((section, section.steps.iter().find(uses)?))
    }

    /// The sections of NPU weights in the mapped file, compared with their hashes if `verify`.
    ///
    /// # Errors
    /// [`LoadError::Artifact`] for a hash that differs, [`LoadError::File`] when the file cannot be read.
    pub fn npu_weights(&self, verify: bool) -> Result<Vec<&[u8]>, LoadError> {
        if verify {
            let verified = self.view.npu_weights().iter().try_for_each(|section| self.verify_section(section));
            verified.map_err(|error| load_error(self.file.path(), error))?;
        }
        let bytes = |section: &WeightSection<'_>| {
            &self.file.bytes()[section.offset_bytes as usize..][..section.len_bytes as usize]
        };
        Ok(self.view.npu_weights().iter().map(bytes).collect())
    }

    /// Removes the alternatives that a device cannot run.
    pub fn keep_runnable(&mut self, features: &DeviceFeatures) {
        alternatives::keep_runnable(&mut self.view.kernels, features);
    }

    /// Tier of each weight slice, and its position in the file.
    pub fn extents(&self) -> Vec<WeightExtent> {
        let both = self.view.weights().iter().zip(&self.view.plan.slices);
        let extent = |(section, slice): (&WeightSection<'_>, &SlicePlan)| WeightExtent {
            file_offset_bytes: section.offset_bytes,
            len_bytes: section.len_bytes,
            tier: slice.tier,
        };
        both.map(extent).collect()
    }

    pub fn file(&self) -> &Arc<MappedFile> {
        &self.file
    }

    /// One section a weight slice of the plan.
    pub fn weights(&self) -> &[WeightSection<'static>] {
        self.view.weights()
    }

    /// Hash of everything in the file.
    pub fn content_hash(&self) -> &[u8; 32] {
        &self.view.content_hash
    }

    /// From now on steps read the file's pages, and [`ArtifactFile::begin_reading`] checks it. Call it before weights are verified. Other
    /// programs cannot write the file until [`ArtifactFile::end_reading`].
    ///
    /// # Errors
    /// [`LoadError::File`] when the system does not report its state, or another program writes it.
    pub fn watch(&self) -> Result<(), LoadError> {
        self.hold()?;
        let state = self.state()?;
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(state);
        Ok(())
    }

    /// Where steps read the file's pages: verifies the weights again if the file was written since, and lets no other program write it, as
    /// far as the file system can.
    ///
    /// # Errors
    /// [`LoadError::File`] for a file that was cut, or is being written, and those of [`ArtifactFile::verify`].
    pub fn begin_reading(&self) -> Result<(), LoadError> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(before) = &mut *watched else { return Ok(()) };
        self.hold()?;
        let now = self.state()?;
        if now == *before {
            return Ok(());
        }
        if now.len_bytes < self.file.bytes().len() as u64 {
            let source = io::ErrorKind::UnexpectedEof.into();
            return Err(LoadError::File { path: self.file.path().to_owned(), source });
        }
        self.verify()?;
        *before = now;
        Ok(())
    }

    /// Other programs can write the file again: no step reads its pages.
    pub fn end_reading(&self) {
        if self.watched.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            self.file.give_back_lease();
        }
    }

    fn hold(&self) -> Result<(), LoadError> {
        match self.file.take_lease() {
            Lease::Held | Lease::Unavailable => Ok(()),
            Lease::Refused => {
                let source = io::Error::new(io::ErrorKind::ResourceBusy, "another program has it open for writing");
                Err(LoadError::File { path: self.file.path().to_owned(), source })
            }
        }
    }

    fn state(&self) -> Result<FileState, LoadError> {
        let state = self.file.file().metadata().map(FileState::from);
        state.map_err(|source| LoadError::File { path: self.file.path().to_owned(), source })
    }

    /// Compares the weights in the file with their hashes.
    ///
    /// # Errors
    /// [`LoadError::Artifact`] for a hash that differs, [`LoadError::File`] when the file cannot be read.
    pub fn verify(&self) -> Result<(), LoadError> {
        let verified = self.view.weights().iter().try_for_each(|section| self.verify_section(section));
        verified.map_err(|error| load_error(self.file.path(), error))
    }

    fn verify_section(&self, section: &WeightSection<'_>) -> Result<(), ReadError> {
        let values = parallel::map(section.chunks(), |chunk| section.hash_chunk(self.file.file(), chunk));
        let values = values.into_iter().collect::<io::Result<Vec<_>>>()?.concat();
        Ok(section.compare(hash::join(values))?)
    }
}

fn load_error(path: &Path, error: ReadError) -> LoadError {
    match error {
        ReadError::File(source) => LoadError::File { path: path.to_owned(), source },
        ReadError::Artifact(source) => LoadError::Artifact { path: path.to_owned(), source },
    }
}
