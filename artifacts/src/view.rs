//! The reader: from bytes to checked, borrowed parts. Everything read from a file is checked once, here, and then trusted.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::codec::{self, MAX_SECTION_BYTES};
use crate::error::ParseError;
use crate::fit::Draft;
use crate::hash::{hash, hash_parts, join, subtrees_in};
use crate::header::{self, MAGIC, MAX_HEAD_BYTES, MAX_SLICE_BYTES, SECTION_ALIGN, Section, SectionKind};
use crate::image::ImageSection;
use crate::kernels::{ApartPrograms, Kernels, Program};
use crate::license::LicenseSection;
use crate::map::open_regular;
use crate::meta::Meta;
use crate::npu::{self, NpuSchedule, NpuSection, NpuSteps};
use crate::plan::Plan;
use crate::tokenizer::TokenizerSection;
use crate::validate;

/// A checked artifact over borrowed bytes.
pub struct ArtifactView<'a> {
    /// The metadata section.
    pub meta: Meta,
    /// The plan section.
    pub plan: Plan,
    /// The kernels section; modules are still compressed.
    pub kernels: Kernels,
    /// The tokenizer section.
    pub tokenizer: TokenizerSection,
    /// The NPU section, if there is one.
    pub npu: Option<NpuSection>,
    /// The image section, if there is one.
    pub image: Option<ImageSection>,
    /// The license section, if there is one.
    pub license: Option<LicenseSection>,
    /// The smaller model whose continuations this one verifies, if one is packed into the artifact. It has no draft itself.
    pub draft: Option<Box<ArtifactView<'a>>>,
    /// Hash of all sections' hashes: it identifies the artifact.
    pub content_hash: [u8; 32],
    weights: Vec<WeightSection<'a>>,
    npu_weights: Vec<WeightSection<'a>>,
}

/// One weight section, not yet hashed.
#[derive(Clone, Copy)]
pub struct WeightSection<'a> {
    /// Bytes of the section; empty if the view was read, not parsed.
    pub bytes: &'a [u8],
    /// Offset of the section's first byte in the file.
    pub offset_bytes: u64,
    /// Length of the section, without the zeros behind it.
    pub len_bytes: u64,
    hash: [u8; 32],
}

/// Why an artifact could not be read from its file.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] io::Error),
    /// Its bytes are not an artifact of this version.
    #[error(transparent)]
    Artifact(#[from] ParseError),
}

/// Bytes that are read and hashed at a time: whole subtrees.
const CHUNK_BYTES: u64 = 8 << 20;

impl<'a> ArtifactView<'a> {
    /// Checks header, table, the structured sections' hashes and contents, and the plan against the sections; of a draft in it the
    /// same. Weight bytes are not touched: see [`WeightSection::verify`].
    ///
    /// # Errors
    /// For any bytes that are not an artifact of this version, [`ParseError`] names what is wrong and where.
    pub fn parse(bytes: &'a [u8]) -> Result<ArtifactView<'a>, ParseError> {
        ArtifactView::of(&Mapped { bytes, begin_bytes: 0 }, Role::Model)
    }

    /// The same from a file that is not mapped: everything except the weights is read into memory of this process. If the file is
    /// cut meanwhile, this returns an error, where reading a map would end the process.
    ///
    /// # Errors
    /// Errors of [`ArtifactView::parse`], and when the file cannot be read.
    pub fn read(file: &File) -> Result<ArtifactView<'static>, ReadError> {
        ArtifactView::of(&Unmapped { file, begin_bytes: 0, len_bytes: file.metadata()?.len() }, Role::Model)
    }

    fn of<S: Source<'a>>(source: &S, role: Role) -> Result<ArtifactView<'a>, S::Error> {
        let sections = source.sections()?;
        check_gaps(source, &sections)?;
        let view = ArtifactView {
            meta: structured(source, &sections, SectionKind::Metadata)?,
            plan: structured(source, &sections, SectionKind::Plan)?,
            kernels: kernels(source, &sections)?,
            tokenizer: structured(source, &sections, SectionKind::Tokenizer)?,
            content_hash: hash_parts(sections.iter().map(|section| &section.hash[..])),
            npu: npu_section(source, &sections)?,
            image: image(source, &sections)?,
            license: optional(source, &sections, SectionKind::License)?,
            draft: draft(source, &sections, role)?,
            weights: weight_sections(source, &sections, SectionKind::Weights)?,
            npu_weights: weight_sections(source, &sections, SectionKind::NpuWeights)?,
        };
        let slice_lens: Vec<u64> = view.weights.iter().map(|section| section.len_bytes).collect();
        let (npu, image) = (view.npu.as_ref(), view.image.as_ref());
        validate::validate(&view.meta, &view.plan, &view.kernels, npu, image, &slice_lens)?;
        view.check_npu()?;
        view.check_draft()?;
        Ok(view)
    }

    /// What another model's plan has to know of this one, its draft.
    pub fn as_draft(&self) -> Draft<'_> {
        Draft { plan: &self.plan, max_positions: self.meta.model.max_positions }
    }

    /// Whether both have the same tokens, so that one can propose tokens to the other.
    pub fn has_vocabulary_of(&self, other: &ArtifactView<'_>) -> bool {
        self.meta.model.vocab_size == other.meta.model.vocab_size
            && self.tokenizer.tokenizer_json == other.tokenizer.tokenizer_json
    }

    /// Weight sections in the order of their index.
    pub fn weights(&self) -> &[WeightSection<'a>] {
        &self.weights
    }

    /// Sections of NPU weights in the order of their index.
    pub fn npu_weights(&self) -> &[WeightSection<'a>] {
        &self.npu_weights
    }

    fn check_npu(&self) -> Result<(), ParseError> {
        let slices: Vec<u64> = self.npu_weights.iter().map(|section| section.len_bytes).collect();
        match &self.npu {
            Some(section) => {
                npu::check(section, &slices)?;
                npu::check_steps(section, self.plan.arena_bytes)
            }
            None if slices.is_empty() => Ok(()),
            None => Err(ParseError::invalid("number of npu sections beside npu weights", 1, 0)),
        }
    }

    fn check_draft(&self) -> Result<(), ParseError> {
        match &self.draft {
            Some(draft) if !draft.has_vocabulary_of(self) => {
                Err(ParseError::invalid("vocabulary of the draft", "the model's", "another"))
            }
            _ => Ok(()),
        }
    }
}

impl<'a> WeightSection<'a> {
    /// Hashes the bytes on the calling thread and compares the hash.
    ///
    /// # Errors
    /// [`ParseError::Hash`] with both hashes if a bit changed since the file was written.
    pub fn verify(&self) -> Result<(), ParseError> {
        self.compare(hash(self.bytes))
    }

    /// Whether this is the hash of the bytes that were written.
    ///
    /// # Errors
    /// [`ParseError::Hash`] with both hashes if it is not.
    pub fn compare(&self, found: [u8; 32]) -> Result<(), ParseError> {
        compare_hash("weights", self.offset_bytes, &self.hash, &found)
    }

    /// The same for the section's bytes in `file`, which are read.
    ///
    /// # Errors
    /// Errors of [`WeightSection::verify`], and when the file cannot be read.
    pub fn verify_in(&self, file: &File) -> Result<(), ReadError> {
        let chunks = (0..self.chunks()).map(|chunk| self.hash_chunk(file, chunk));
        let values = chunks.collect::<io::Result<Vec<_>>>()?.concat();
        Ok(self.compare(join(values))?)
    }

    /// Number of chunks in which the section is read and hashed, see [`WeightSection::hash_chunk`].
    pub fn chunks(&self) -> usize {
        self.len_bytes.div_ceil(CHUNK_BYTES) as usize
    }

    /// Reads a chunk from `file` and returns the values of its subtrees. Chunks can be hashed on several threads; [`join`] makes the
    /// section's hash of all values in order, for [`WeightSection::compare`].
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn hash_chunk(&self, file: &File, chunk: usize) -> io::Result<Vec<[u8; 32]>> {
        let at = chunk as u64 * CHUNK_BYTES;
        let bytes = read_at(file, self.offset_bytes + at, CHUNK_BYTES.min(self.len_bytes - at))?;
        Ok(self.hash_bytes(at, &bytes))
    }

    /// The same for a chunk of a copy of the section in memory.
    ///
    /// # Panics
    /// If the copy is shorter than the section.
    pub fn hash_chunk_of(&self, copy: &[u8], chunk: usize) -> Vec<[u8; 32]> {
        let at = chunk as u64 * CHUNK_BYTES;
        self.hash_bytes(at, &copy[at as usize..self.len_bytes.min(at + CHUNK_BYTES) as usize])
    }

    fn hash_bytes(&self, at: u64, bytes: &[u8]) -> Vec<[u8; 32]> {
        subtrees_in(self.len_bytes, at, bytes)
    }
}

/// Whether the file at `path` begins as an artifact does; such a file must not be overwritten with something else.
pub fn is_artifact(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut start));
    read.is_ok() && start == MAGIC
}

/// What an artifact is in its file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Model,
    /// A section of another one.
    Draft,
}

/// The bytes of an artifact: a file, or a section of it. Offsets are those in the artifact.
trait Source<'a>: Sized {
    type Error: From<ParseError>;

    /// The section table, checked.
    fn sections(&self) -> Result<Vec<Section>, Self::Error>;

    /// Length of the artifact.
    fn len_bytes(&self) -> u64;

    /// Where the artifact begins in the file.
    fn begin_bytes(&self) -> u64;

    /// Bytes of this range, which is inside.
    fn range(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>, Self::Error>;

    /// Bytes of a structured section.
    fn body(&self, section: &Section) -> Result<Cow<'_, [u8]>, Self::Error>;

    /// Bytes of a weight section; empty if nothing is mapped.
    fn weights(&self, section: &Section) -> &'a [u8];

    /// The artifact that a section is.
    fn inner(&self, section: &Section) -> Self;

    /// An error of that artifact as one of this.
    fn error_of_inner(error: Self::Error) -> Self::Error;
}

struct Mapped<'a> {
    bytes: &'a [u8],
    begin_bytes: u64,
}

impl<'a> Source<'a> for Mapped<'a> {
    type Error = ParseError;

    fn sections(&self) -> Result<Vec<Section>, ParseError> {
        header::decode_header(self.bytes)
    }

    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn begin_bytes(&self) -> u64 {
        self.begin_bytes
    }

    fn range(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>, ParseError> {
        Ok(Cow::Borrowed(&self.bytes[range.start as usize..range.end as usize]))
    }

    fn body(&self, section: &Section) -> Result<Cow<'_, [u8]>, ParseError> {
        Ok(Cow::Borrowed(section_bytes(self.bytes, section)))
    }

    fn weights(&self, section: &Section) -> &'a [u8] {
        section_bytes(self.bytes, section)
    }

    fn inner(&self, section: &Section) -> Mapped<'a> {
        let begin_bytes = self.begin_bytes + section.offset_bytes;
        Mapped { bytes: section_bytes(self.bytes, section), begin_bytes }
    }

    fn error_of_inner(error: ParseError) -> ParseError {
        ParseError::Draft(Box::new(error))
    }
}

struct Unmapped<'f> {
    file: &'f File,
    begin_bytes: u64,
    len_bytes: u64,
}

impl Source<'static> for Unmapped<'_> {
    type Error = ReadError;

    fn sections(&self) -> Result<Vec<Section>, ReadError> {
        let head = self.range(0..self.len_bytes.min(MAX_HEAD_BYTES as u64))?;
        Ok(header::decode_header_of(&head, self.len_bytes)?)
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn begin_bytes(&self) -> u64 {
        self.begin_bytes
    }

    fn range(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>, ReadError> {
        Ok(Cow::Owned(read_at(self.file, self.begin_bytes + range.start, range.end - range.start)?))
    }

    fn body(&self, section: &Section) -> Result<Cow<'_, [u8]>, ReadError> {
        if section.len_bytes > MAX_SECTION_BYTES as u64 {
            let limit = format!("at most {MAX_SECTION_BYTES}");
            return Err(ParseError::invalid("length of a section", limit, section.len_bytes).into());
        }
        self.range(section.offset_bytes..section.offset_bytes + section.len_bytes)
    }

    fn weights(&self, _: &Section) -> &'static [u8] {
        &[]
    }

    fn inner(&self, section: &Section) -> Self {
        let begin_bytes = self.begin_bytes + section.offset_bytes;
        Unmapped { file: self.file, begin_bytes, len_bytes: section.len_bytes }
    }

    fn error_of_inner(error: ReadError) -> ReadError {
        match error {
            ReadError::Artifact(error) => ReadError::Artifact(ParseError::Draft(Box::new(error))),
            file => file,
        }
    }
}

/// Checks that all bytes between the sections, and after the last one, are zero, so that every changed bit is detected. At most
/// [`SECTION_ALIGN`] bytes are read at a time.
fn check_gaps<'a, S: Source<'a>>(source: &S, sections: &[Section]) -> Result<(), S::Error> {
    let len_bytes = source.len_bytes();
    let mut end = header::head_bytes(sections.len()) as u64;
    let starts = sections.iter().map(|section| section.offset_bytes).chain([len_bytes]);
    let ends = sections.iter().map(|section| section.offset_bytes + section.len_bytes).chain([len_bytes]);
    for (next_start, next_end) in starts.zip(ends) {
        while end < next_start {
            let bytes = source.range(end..next_start.min(end + SECTION_ALIGN))?;
            if let Some(at) = bytes.iter().position(|&byte| byte != 0) {
                let what = format!("byte between sections, at offset {}", end + at as u64);
                return Err(ParseError::invalid(what, 0, bytes[at]).into());
            }
            end += bytes.len() as u64;
        }
        end = next_end;
    }
    Ok(())
}

/// The kernels section, with the programs that have sections of their own.
fn kernels<'a, S: Source<'a>>(source: &S, sections: &[Section]) -> Result<Kernels, S::Error> {
    let mut kernels: Kernels = structured(source, sections, SectionKind::Kernels)?;
    let apart = |kind: SectionKind, targets: usize| {
        let lists: Vec<Vec<Program>> = optional(source, sections, kind)?.unwrap_or_default();
        if !lists.is_empty() && lists.len() != targets {
            return Err(ParseError::invalid(format!("lists of {}", kind.name()), targets, lists.len()).into());
        }
        Ok::<_, S::Error>(lists)
    };
    let targets = kernels.targets.len();
    let hidden = apart(SectionKind::HiddenPrograms, targets)?;
    let image = apart(SectionKind::ImagePrograms, targets)?;
    let mixed = apart(SectionKind::MixedPrograms, targets)?;
    let beside_two = apart(SectionKind::BesideTwoPrograms, targets)?;
    let predicted = apart(SectionKind::PredictedPrograms, targets)?;
    kernels.join(ApartPrograms { hidden, image, mixed, beside_two, predicted });
    Ok(kernels)
}

/// The NPU section with its steps and their schedules, if the file has them.
fn npu_section<'a, S: Source<'a>>(source: &S, sections: &[Section]) -> Result<Option<NpuSection>, S::Error> {
    let section: Option<NpuSection> = optional(source, sections, SectionKind::Npu)?;
    let steps: Option<Vec<NpuSteps>> = optional(source, sections, SectionKind::NpuSteps)?;
    let schedules: Option<Vec<Vec<NpuSchedule>>> = optional(source, sections, SectionKind::NpuSchedules)?;
    if let Some(schedules) = &schedules {
        let expected = steps.as_ref().map_or(0, Vec::len);
        if schedules.len() != expected {
            return Err(ParseError::invalid("lists of npu schedules", expected, schedules.len()).into());
        }
    }
    match (section, steps) {
        (section, None) => Ok(section),
        (Some(section), Some(mut steps)) => {
            let of_target = steps.iter_mut().zip(schedules.into_iter().flatten());
            of_target.for_each(|(steps, schedules)| steps.schedules = schedules);
            Ok(Some(NpuSection { steps, ..section }))
        }
        (None, Some(_)) => Err(ParseError::invalid("number of npu sections beside npu steps", 1, 0).into()),
    }
}

/// The draft, if there is one, by the same rules as the artifact that it is in. It cannot have one itself.
fn draft<'a, S: Source<'a>>(
    source: &S,
    sections: &[Section],
    role: Role,
) -> Result<Option<Box<ArtifactView<'a>>>, S::Error> {
    if !has(sections, SectionKind::Draft) {
        return Ok(None);
    }
    if role == Role::Draft {
        let found = sections.iter().filter(|section| section.kind == SectionKind::Draft as u32).count();
        return Err(ParseError::invalid("number of draft sections in a draft", 0, found).into());
    }
    let section = only(sections, SectionKind::Draft)?;
    let inner = source.inner(section);
    let of_inner = || -> Result<_, S::Error> {
        let head = inner.range(0..header::head_bytes(inner.sections()?.len()) as u64)?;
        Ok((ArtifactView::of(&inner, Role::Draft)?, hash(&head)))
    };
    let (view, head_hash) = of_inner().map_err(S::error_of_inner)?;
    compare_hash(SectionKind::Draft.name(), section.offset_bytes, &section.hash, &head_hash)?;
    Ok(Some(Box::new(view)))
}

/// `None`: there is no such section.
fn optional<'a, T: serde::de::DeserializeOwned, S: Source<'a>>(
    source: &S,
    sections: &[Section],
    kind: SectionKind,
) -> Result<Option<T>, S::Error> {
    has(sections, kind).then(|| structured(source, sections, kind)).transpose()
}

/// The image section with its grid.
fn image<'a, S: Source<'a>>(source: &S, sections: &[Section]) -> Result<Option<ImageSection>, S::Error> {
    let image: Option<ImageSection> = optional(source, sections, SectionKind::Image)?;
    let grid = optional(source, sections, SectionKind::ImageGrid)?;
    if grid.is_some() && image.is_none() {
        return Err(ParseError::invalid("number of image sections beside an image grid", 1, 0).into());
    }
    Ok(image.map(|image| ImageSection { grid, ..image }))
}

fn structured<'a, T: serde::de::DeserializeOwned, S: Source<'a>>(
    source: &S,
    sections: &[Section],
    kind: SectionKind,
) -> Result<T, S::Error> {
    let section = only(sections, kind)?;
    let body = source.body(section)?;
    compare_hash(kind.name(), section.offset_bytes, &section.hash, blake3::hash(&body).as_bytes())?;
    Ok(codec::decode(kind.name(), &body)?)
}

fn has(sections: &[Section], kind: SectionKind) -> bool {
    sections.iter().any(|section| section.kind == kind as u32)
}

/// The section of a kind of which there is one.
fn only(sections: &[Section], kind: SectionKind) -> Result<&Section, ParseError> {
    let mut found = sections.iter().filter(|section| section.kind == kind as u32);
    match (found.next(), found.count()) {
        (Some(section), 0) => Ok(section),
        (first, others) => {
            let found = others + usize::from(first.is_some());
            Err(ParseError::invalid(format!("number of {} sections", kind.name()), 1, found))
        }
    }
}

fn weight_sections<'a, S: Source<'a>>(
    source: &S,
    sections: &[Section],
    kind: SectionKind,
) -> Result<Vec<WeightSection<'a>>, ParseError> {
    let mut weights = Vec::new();
    for section in sections.iter().filter(|section| section.kind == kind as u32) {
        if section.index as usize != weights.len() {
            return Err(ParseError::invalid(
                format!("index of a section of {}", kind.name()),
                weights.len(),
                section.index,
            ));
        }
        if section.len_bytes > MAX_SLICE_BYTES {
            return Err(ParseError::invalid(
                format!("length of a section of {}", kind.name()),
                format!("at most {MAX_SLICE_BYTES}"),
                section.len_bytes,
            ));
        }
        weights.push(WeightSection {
            bytes: source.weights(section),
            offset_bytes: source.begin_bytes() + section.offset_bytes,
            len_bytes: section.len_bytes,
            hash: section.hash,
        });
    }
    Ok(weights)
}

/// Reads bytes of a file into memory whose size the file declares; when memory is exhausted, this returns an error.
fn read_at(file: &File, offset_bytes: u64, len_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len_bytes as usize)?;
    bytes.resize(len_bytes as usize, 0);
    file.read_exact_at(&mut bytes, offset_bytes)?;
    Ok(bytes)
}

/// `decode_header` has checked that the range is inside the file.
pub(crate) fn section_bytes<'a>(bytes: &'a [u8], section: &Section) -> &'a [u8] {
    &bytes[section.offset_bytes as usize..(section.offset_bytes + section.len_bytes) as usize]
}

fn compare_hash(what: &str, offset: u64, expected: &[u8; 32], found: &[u8; 32]) -> Result<(), ParseError> {
    if expected == found {
        return Ok(());
    }
    Err(ParseError::Hash {
        what: format!("section {what}"),
        offset,
        expected: header::hex(expected),
        found: header::hex(found),
    })
}
