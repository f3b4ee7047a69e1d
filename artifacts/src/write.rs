//! The writer, the inverse of `view`. Weights are streamed, one packed tensor at a time; the artifact gets its name
//! when its last byte is on disk.

use std::fs::Permissions;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::codec;
use crate::hash::{self, Update};
use crate::header::{SECTION_ALIGN, Section, SectionKind, encode_header, head_bytes};
use crate::image::ImageSection;
use crate::kernels::Kernels;
use crate::license::LicenseSection;
use crate::meta::Meta;
use crate::npu::{NpuSchedule, NpuSection};
use crate::partial;
use crate::plan::Plan;
use crate::tokenizer::TokenizerSection;
use crate::view::ArtifactView;

/// Writes one artifact beside its final name and renames it into place. Dropped unfinished, it leaves no file; where the file
/// system supports it, a killed process leaves none either.
///
/// Weight sections are first in the file and are written first: their lengths are known from the plan, while the content of the
/// small sections (quantisation errors) is known only afterwards. Header and table have a reserved place before all sections. A draft
/// is the last section, so that the others are found again where they were when it changes.
pub struct ArtifactWriter {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
    /// Where in the file the next byte goes.
    position_bytes: u64,
    /// Where the artifact begins in the file: a draft does in the middle.
    begin_bytes: u64,
    /// Sections of the artifact that this one, a draft, is for.
    outer: Option<Vec<Section>>,
    weights: Vec<Section>,
    open_slice: Option<(SectionKind, u64, blake3::Hasher)>,
    npu: Vec<(SectionKind, Vec<u8>)>,
    image: Vec<(SectionKind, Vec<u8>)>,
    license: Option<Vec<u8>>,
    update: Update,
}

impl ArtifactWriter {
    /// Checks that [`ArtifactWriter::create`] can succeed, before the work begins: makes the file of an artifact that will be named
    /// `path` and removes it again.
    ///
    /// # Errors
    /// Errors of [`ArtifactWriter::create`].
    pub fn check(path: &Path) -> io::Result<()> {
        replacement_of(path).map(drop)
    }

    /// Bytes that this user can still write to the file system of the folder of `path`; `None`: it does not report them.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn free_bytes(path: &Path) -> io::Result<Option<u64>> {
        let found = rustix::fs::statvfs(partial::folder_of(path))?;
        // File systems without a size of their own, such as some in user space, report zeros.
        Ok((found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize)))
    }

    /// Begins an artifact of `n_slices` weight sections, those of NPU weights included, that will be named `path`.
    ///
    /// # Errors
    /// When no file can be made, or when `path` is not a regular file: a rename would replace a device or a pipe.
    pub fn create(path: &Path, n_slices: usize) -> io::Result<ArtifactWriter> {
        let file = replacement_of(path)?;
        let mut writer = ArtifactWriter {
            path: path.to_owned(),
            file: BufWriter::with_capacity(1 << 20, file),
            position_bytes: 0,
            begin_bytes: 0,
            outer: None,
            weights: Vec::with_capacity(n_slices),
            open_slice: None,
            npu: Vec::new(),
            image: Vec::new(),
            license: None,
            update: hash::on_this_thread,
        };
        writer.leave_room_for_head(n_slices)?;
        Ok(writer)
    }

    /// Hashes weights by `update`, for example on the caller's thread pool, instead of on this thread.
    #[must_use]
    pub fn hash_by(self, update: Update) -> ArtifactWriter {
        ArtifactWriter { update, ..self }
    }

    /// The name that the artifact will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path that the half-written file has, or will have for a moment; to be removed when a signal ends the process.
    pub fn partial_path(&self) -> &Path {
        self.file.get_ref().path()
    }

    /// Begins the next weight section.
    pub fn begin_slice(&mut self) -> io::Result<()> {
        self.begin(SectionKind::Weights)
    }

    /// Begins the next section of NPU weights.
    pub fn begin_npu_slice(&mut self) -> io::Result<()> {
        self.begin(SectionKind::NpuWeights)
    }

    fn begin(&mut self, kind: SectionKind) -> io::Result<()> {
        self.end_slice();
        self.align(SECTION_ALIGN)?;
        self.open_slice = Some((kind, self.position_bytes, blake3::Hasher::new()));
        Ok(())
    }

    /// The NPU section with its steps and their schedules, which [`ArtifactWriter::finish`] writes.
    pub fn npu(&mut self, section: &NpuSection) {
        self.npu = npu_sections(section);
    }

    /// The image section, which [`ArtifactWriter::finish`] writes.
    pub fn image(&mut self, section: &ImageSection) {
        self.image = vec![(SectionKind::Image, codec::encode(section))];
        self.image.extend(section.grid.as_ref().map(|grid| (SectionKind::ImageGrid, codec::encode(grid))));
    }

    /// The license section, which [`ArtifactWriter::finish`] writes.
    pub fn license(&mut self, section: &LicenseSection) {
        self.license = Some(codec::encode(section));
    }

    /// Appends to the open weight section.
    pub fn weight_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (_, _, hasher) = self.open_slice.as_mut().expect("begin_slice comes first");
        (self.update)(hasher, bytes);
        self.put(bytes)
    }

    /// Bytes in the open weight section so far.
    pub fn slice_len_bytes(&self) -> u64 {
        self.open_slice.as_ref().map_or(0, |(_, start, _)| self.position_bytes - start)
    }

    /// Zeros up to `offset_bytes` of the open weight section.
    pub fn pad_slice_to(&mut self, offset_bytes: u64) -> io::Result<()> {
        let missing = offset_bytes.checked_sub(self.slice_len_bytes()).expect("weights come in order");
        let zeros = [0u8; 4096];
        let mut left = missing as usize;
        while left > 0 {
            let now = left.min(zeros.len());
            self.weight_bytes(&zeros[..now])?;
            left -= now;
        }
        Ok(())
    }

    /// Writes the structured sections, the header and the table, flushes to disk, and renames into place. Before the rename,
    /// the file is parsed as a reader parses it. Returns the length of the file.
    pub fn finish(
        mut self,
        meta: &Meta,
        plan: &Plan,
        kernels: &Kernels,
        tokenizer: &TokenizerSection,
    ) -> io::Result<u64> {
        let mut sections = self.structured_sections(meta, plan, kernels, tokenizer)?;
        if let Some(outer) = self.outer.take() {
            let (offset_bytes, len_bytes) = (self.begin_bytes, self.position_bytes - self.begin_bytes);
            let head = encode_header(&sections, len_bytes);
            self.file.seek(SeekFrom::Start(offset_bytes))?;
            self.file.write_all(&head)?;
            let (kind, hash) = (SectionKind::Draft as u32, hash::hash(&head));
            sections = outer;
            sections.push(Section { kind, index: 0, offset_bytes, len_bytes, hash });
        }
        let len_bytes = self.position_bytes;
        let file = self.file.into_inner().map_err(|error| error.into_error())?;
        // Temporary files are private; an artifact has the permissions of any file that this user makes.
        into_place(file, &sections, len_bytes, &self.path, new_file_permissions())?;
        Ok(len_bytes)
    }

    /// Writes the structured sections, and begins the draft of this artifact, of `n_slices` weight sections, those of NPU weights
    /// included. Finishing the draft finishes both.
    ///
    /// # Errors
    /// Errors of the file system.
    ///
    /// # Panics
    /// For a draft of a draft.
    pub fn begin_draft(
        mut self,
        meta: &Meta,
        plan: &Plan,
        kernels: &Kernels,
        tokenizer: &TokenizerSection,
        n_slices: usize,
    ) -> io::Result<ArtifactWriter> {
        assert!(self.outer.is_none(), "a draft has no draft");
        self.outer = Some(self.structured_sections(meta, plan, kernels, tokenizer)?);
        self.align(SECTION_ALIGN)?;
        self.begin_bytes = self.position_bytes;
        self.leave_room_for_head(n_slices)?;
        Ok(self)
    }

    /// Writes what is not weights, and returns the section table.
    fn structured_sections(
        &mut self,
        meta: &Meta,
        plan: &Plan,
        kernels: &Kernels,
        tokenizer: &TokenizerSection,
    ) -> io::Result<Vec<Section>> {
        self.end_slice();
        let mut sections = Vec::new();
        let (kernels, apart) = kernels.split();
        let records = [
            (SectionKind::Metadata, codec::encode(meta)),
            (SectionKind::Plan, codec::encode(plan)),
            (SectionKind::Kernels, codec::encode(&kernels)),
            (SectionKind::Tokenizer, codec::encode(tokenizer)),
        ];
        let image = std::mem::take(&mut self.image);
        let license = self.license.take().map(|bytes| (SectionKind::License, bytes));
        let optional = apart.sections().chain(image).chain(std::mem::take(&mut self.npu)).chain(license);
        for (kind, bytes) in records.into_iter().chain(optional) {
            self.align(SECTION_ALIGN)?;
            sections.push(Section {
                kind: kind as u32,
                index: 0,
                offset_bytes: self.position_bytes - self.begin_bytes,
                len_bytes: bytes.len() as u64,
                hash: *blake3::hash(&bytes).as_bytes(),
            });
            self.put(&bytes)?;
        }
        sections.splice(0..0, std::mem::take(&mut self.weights));
        Ok(sections)
    }

    fn leave_room_for_head(&mut self, n_slices: usize) -> io::Result<()> {
        self.zeros(head_bytes(STRUCTURED_SECTIONS + n_slices) as u64)
    }

    fn end_slice(&mut self) {
        if let Some((kind, start, hasher)) = self.open_slice.take() {
            let before = self.weights.iter().filter(|section| section.kind == kind as u32).count();
            self.weights.push(Section {
                kind: kind as u32,
                index: before as u32,
                offset_bytes: start - self.begin_bytes,
                len_bytes: self.position_bytes - start,
                hash: *hasher.finalize().as_bytes(),
            });
        }
    }

    fn align(&mut self, align: u64) -> io::Result<()> {
        self.zeros(self.position_bytes.next_multiple_of(align) - self.position_bytes)
    }

    fn zeros(&mut self, mut count: u64) -> io::Result<()> {
        let zeros = [0u8; 4096];
        while count > 0 {
            let now = count.min(zeros.len() as u64);
            self.put(&zeros[..now as usize])?;
            count -= now;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.position_bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Metadata, plan, kernels, tokenizer, hidden programs, images, their grid and their programs, mixed programs beside one prompt and two, predicted
/// programs, NPU programs, their steps and schedules, the license, and a draft, for which the table has room.
const STRUCTURED_SECTIONS: usize = 16;

/// Records of an NPU section, each with its kind of section: the section itself, and its steps and their schedules if there are any.
pub(crate) fn npu_sections(section: &NpuSection) -> Vec<(SectionKind, Vec<u8>)> {
    let mut sections = vec![(SectionKind::Npu, codec::encode(section))];
    if !section.steps.is_empty() {
        let schedules: Vec<&[NpuSchedule]> = section.steps.iter().map(|steps| &steps.schedules[..]).collect();
        sections.push((SectionKind::NpuSteps, codec::encode(&section.steps)));
        sections.push((SectionKind::NpuSchedules, codec::encode(&schedules)));
    }
    sections
}

/// Permissions of a new file of this user: those that the umask leaves.
pub fn new_file_permissions() -> Permissions {
    Permissions::from_mode(0o666 & !partial::umask())
}

/// Writes a small file beside an artifact, such as its plan as text; it gets its name when it is whole. A link is kept:
/// the file that it points to is replaced.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = path.canonicalize().unwrap_or(path.to_owned());
    let mut file = partial::beside(&path)?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(new_file_permissions())?;
    partial::into_place(file, &path)
}

/// A temporary file that may be renamed to `path`.
fn replacement_of(path: &Path) -> io::Result<NamedTempFile> {
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    partial::beside(path)
}

/// Gives a file of `len_bytes` its header, flushes it to disk, reads it back as a reader would, and renames it to `path` with
/// these permissions.
pub(crate) fn into_place(
    mut file: NamedTempFile,
    sections: &[Section],
    len_bytes: u64,
    path: &Path,
    permissions: Permissions,
) -> io::Result<()> {
    file.as_file_mut().seek(SeekFrom::Start(0))?;
    file.as_file_mut().write_all(&encode_header(sections, len_bytes))?;
    file.as_file().sync_all()?;
    let written = crate::map::MappedFile::open(&partial::readable_at(&file)?)?;
    ArtifactView::parse(written.bytes()).map_err(io::Error::other)?;
    drop(written);
    file.as_file().set_permissions(permissions)?;
    partial::into_place(file, path)
}
