//! The reader: from bytes to checked, borrowed parts. Everything read from a file is checked once, here, and then trusted.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::codec::{self, MAX_SECTION_BYTES};
use crate::error::ParseError;
use crate::hash::{SUBTREE_BYTES, hash, hash_parts, join, subtrees_at};
use crate::header::{
    self, ENTRY_BYTES, HEADER_BYTES, MAGIC, MAX_HEAD_BYTES, MAX_SLICE_BYTES, SECTION_ALIGN, Section, SectionKind,
};
use crate::kernels::{Kernels, Program};
use crate::license::LicenseSection;
use crate::map::open_regular;
use crate::meta::Meta;
use crate::npu::{self, NpuSection};
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
    /// The license section, if there is one.
    pub license: Option<LicenseSection>,
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
    /// Checks header, table, the structured sections' hashes and contents, and the plan against the sections. Weight
    /// bytes are not touched: see [`WeightSection::verify`].
    ///
    /// # Errors
    /// For any bytes that are not an artifact of this version, [`ParseError`] names what is wrong and where.
    pub fn parse(bytes: &'a [u8]) -> Result<ArtifactView<'a>, ParseError> {
        let sections = header::decode_header(bytes)?;
        let between =
            |gap: Range<u64>| Ok::<_, ParseError>(Cow::Borrowed(&bytes[gap.start as usize..gap.end as usize]));
        check_gaps(&sections, bytes.len() as u64, between)?;
        let body = |section: &Section| Ok::<_, ParseError>(Cow::Borrowed(section_bytes(bytes, section)));
        ArtifactView::assemble(&sections, body, |section| section_bytes(bytes, section))
    }

    /// The same from a file that is not mapped: everything except the weights is read into memory of this process. If the file is
    /// cut meanwhile, this returns an error, where reading a map would end the process.
    ///
    /// # Errors
    /// Errors of [`ArtifactView::parse`], and when the file cannot be read.
    pub fn read(file: &File) -> Result<ArtifactView<'static>, ReadError> {
        let len_bytes = file.metadata()?.len();
        let head = read_at(file, 0, len_bytes.min(MAX_HEAD_BYTES as u64))?;
        let sections = header::decode_header_of(&head, len_bytes)?;
        check_gaps(&sections, len_bytes, |gap| {
            Ok::<_, ReadError>(Cow::Owned(read_at(file, gap.start, gap.end - gap.start)?))
        })?;
        let body = |section: &Section| {
            if section.len_bytes > MAX_SECTION_BYTES as u64 {
                let limit = format!("at most {MAX_SECTION_BYTES}");
                return Err(ParseError::invalid("length of a section", limit, section.len_bytes).into());
            }
            Ok::<_, ReadError>(Cow::Owned(read_at(file, section.offset_bytes, section.len_bytes)?))
        };
        ArtifactView::assemble(&sections, body, |_| &[])
    }

    fn assemble<'s, E: From<ParseError>>(
        sections: &[Section],
        body: impl Fn(&Section) -> Result<Cow<'s, [u8]>, E>,
        weights: impl Fn(&Section) -> &'a [u8],
    ) -> Result<ArtifactView<'a>, E> {
        let view = ArtifactView {
            meta: structured(&body, sections, SectionKind::Metadata)?,
            plan: structured(&body, sections, SectionKind::Plan)?,
            kernels: kernels(&body, sections)?,
            tokenizer: structured(&body, sections, SectionKind::Tokenizer)?,
            content_hash: hash_parts(sections.iter().map(|section| &section.hash[..])),
            npu: npu_section(&body, sections)?,
            license: optional(&body, sections, SectionKind::License)?,
            weights: weight_sections(&weights, sections, SectionKind::Weights)?,
            npu_weights: weight_sections(&weights, sections, SectionKind::NpuWeights)?,
        };
        let slice_lens: Vec<u64> = view.weights.iter().map(|section| section.len_bytes).collect();
        validate::validate(&view.meta, &view.plan, &view.kernels, view.npu.as_ref(), &slice_lens)?;
        view.check_npu()?;
        Ok(view)
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
        if self.len_bytes <= SUBTREE_BYTES { vec![hash(bytes)] } else { subtrees_at(at, bytes) }
    }
}

/// Whether the file at `path` begins as an artifact does; such a file must not be overwritten with something else.
pub fn is_artifact(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut start));
    read.is_ok() && start == MAGIC
}

/// Checks that all bytes between the sections, and after the last one, are zero, so that every changed bit is detected. `read` is
/// called for at most [`SECTION_ALIGN`] bytes at a time.
fn check_gaps<'s, E: From<ParseError>>(
    sections: &[Section],
    len_bytes: u64,
    read: impl Fn(Range<u64>) -> Result<Cow<'s, [u8]>, E>,
) -> Result<(), E> {
    let mut end = (HEADER_BYTES + sections.len() * ENTRY_BYTES) as u64;
    let starts = sections.iter().map(|section| section.offset_bytes).chain([len_bytes]);
    let ends = sections.iter().map(|section| section.offset_bytes + section.len_bytes).chain([len_bytes]);
    for (next_start, next_end) in starts.zip(ends) {
        while end < next_start {
            let bytes = read(end..next_start.min(end + SECTION_ALIGN))?;
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

/// The kernels section, with the programs that write hidden rows, if the file has a section of them.
fn kernels<'s, E: From<ParseError>>(
    body: impl Fn(&Section) -> Result<Cow<'s, [u8]>, E>,
    sections: &[Section],
) -> Result<Kernels, E> {
    let mut kernels: Kernels = structured(&body, sections, SectionKind::Kernels)?;
    if let Some(hidden) = optional::<Vec<Vec<Program>>, E>(&body, sections, SectionKind::HiddenPrograms)? {
        if hidden.len() != kernels.targets.len() {
            return Err(ParseError::invalid("lists of hidden programs", kernels.targets.len(), hidden.len()).into());
        }
        kernels.join_hidden(hidden);
    }
    Ok(kernels)
}

/// The NPU section with its steps, if the file has them.
fn npu_section<'s, E: From<ParseError>>(
    body: impl Fn(&Section) -> Result<Cow<'s, [u8]>, E>,
    sections: &[Section],
) -> Result<Option<NpuSection>, E> {
    let section: Option<NpuSection> = optional(&body, sections, SectionKind::Npu)?;
    match (section, optional(&body, sections, SectionKind::NpuSteps)?) {
        (section, None) => Ok(section),
        (Some(section), Some(steps)) => Ok(Some(NpuSection { steps, ..section })),
        (None, Some(_)) => Err(ParseError::invalid("number of npu sections beside npu steps", 1, 0).into()),
    }
}

/// `None`: there is no such section.
fn optional<'s, T: serde::de::DeserializeOwned, E: From<ParseError>>(
    body: impl Fn(&Section) -> Result<Cow<'s, [u8]>, E>,
    sections: &[Section],
    kind: SectionKind,
) -> Result<Option<T>, E> {
    let has_one = sections.iter().any(|section| section.kind == kind as u32);
    has_one.then(|| structured(body, sections, kind)).transpose()
}

fn structured<'s, T: serde::de::DeserializeOwned, E: From<ParseError>>(
    body: impl Fn(&Section) -> Result<Cow<'s, [u8]>, E>,
    sections: &[Section],
    kind: SectionKind,
) -> Result<T, E> {
    let mut found = sections.iter().filter(|section| section.kind == kind as u32);
    let (Some(section), None) = (found.next(), found.next()) else {
        return Err(ParseError::invalid(
            format!("number of {} sections", kind.name()),
            1,
            sections.iter().filter(|section| section.kind == kind as u32).count(),
        )
        .into());
    };
    let body = body(section)?;
    compare_hash(kind.name(), section.offset_bytes, &section.hash, blake3::hash(&body).as_bytes())?;
    Ok(codec::decode(kind.name(), &body)?)
}

fn weight_sections<'a>(
    bytes: impl Fn(&Section) -> &'a [u8],
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
            bytes: bytes(section),
            offset_bytes: section.offset_bytes,
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
