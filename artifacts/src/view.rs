//! The reader: bytes to checked, borrowed parts. Everything read from a file is checked once, here, and trusted after.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::codec;
use crate::error::ParseError;
use crate::header::{self, MAGIC, MAX_SLICE_BYTES, Section, SectionKind};
use crate::kernels::Kernels;
use crate::meta::Meta;
use crate::plan::Plan;
use crate::tokenizer::TokenizerSection;
use crate::validate;

/// A checked artifact over borrowed bytes.
pub struct ArtifactView<'a> {
    pub meta: Meta,
    pub plan: Plan,
    pub kernels: Kernels,
    pub tokenizer: TokenizerSection,
    weights: Vec<WeightSection<'a>>,
}

/// One weight section, not yet hashed.
#[derive(Clone, Copy)]
pub struct WeightSection<'a> {
    pub bytes: &'a [u8],
    /// Of its first byte in the file.
    pub offset_bytes: u64,
    hash: [u8; 32],
}

impl<'a> ArtifactView<'a> {
    /// Checks header, table, the structured sections' hashes and contents, and the plan against the sections. Weight
    /// bytes are not touched: see [`WeightSection::verify`].
    ///
    /// # Errors
    /// For any bytes that are not an artifact of this version, [`ParseError`] says what is wrong and where.
    pub fn parse(bytes: &'a [u8]) -> Result<ArtifactView<'a>, ParseError> {
        let sections = header::decode_header(bytes)?;
        let view = ArtifactView {
            meta: structured(bytes, &sections, SectionKind::Metadata)?,
            plan: structured(bytes, &sections, SectionKind::Plan)?,
            kernels: structured(bytes, &sections, SectionKind::Kernels)?,
            tokenizer: structured(bytes, &sections, SectionKind::Tokenizer)?,
            weights: weight_sections(bytes, &sections)?,
        };
        validate::validate(&view)?;
        Ok(view)
    }

    /// Weight sections in the order of their index.
    pub fn weights(&self) -> &[WeightSection<'a>] {
        &self.weights
    }
}

impl<'a> WeightSection<'a> {
    /// Hashes the bytes on all cores and compares.
    ///
    /// # Errors
    /// [`ParseError::Hash`] with both hashes if a bit changed since the file was written.
    pub fn verify(&self) -> Result<(), ParseError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_rayon(self.bytes);
        self.compare(*hasher.finalize().as_bytes())
    }

    /// Whether this is the hash of the bytes that were written.
    ///
    /// # Errors
    /// [`ParseError::Hash`] with both hashes if it is not.
    pub fn compare(&self, found: [u8; 32]) -> Result<(), ParseError> {
        compare_hash("weights", self.offset_bytes, &self.hash, &found)
    }
}

/// Whether the file at `path` begins as an artifact does: then nobody wants it overwritten with something else.
pub fn is_artifact(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut start));
    read.is_ok() && start == MAGIC
}

fn structured<T: serde::de::DeserializeOwned>(
    bytes: &[u8],
    sections: &[Section],
    kind: SectionKind,
) -> Result<T, ParseError> {
    let mut found = sections.iter().filter(|section| section.kind == kind as u32);
    let (Some(section), None) = (found.next(), found.next()) else {
        return Err(ParseError::invalid(
            format!("number of {} sections", kind.name()),
            1,
            sections.iter().filter(|section| section.kind == kind as u32).count(),
        ));
    };
    let body = section_bytes(bytes, section);
    compare_hash(kind.name(), section.offset_bytes, &section.hash, blake3::hash(body).as_bytes())?;
    codec::decode(kind.name(), body)
}

fn weight_sections<'a>(bytes: &'a [u8], sections: &[Section]) -> Result<Vec<WeightSection<'a>>, ParseError> {
    let mut weights = Vec::new();
    for section in sections.iter().filter(|section| section.kind == SectionKind::Weights as u32) {
        if section.index as usize != weights.len() {
            return Err(ParseError::invalid("index of a weight section", weights.len(), section.index));
        }
        if section.len_bytes > MAX_SLICE_BYTES {
            return Err(ParseError::invalid(
                "length of a weight section",
                format!("at most {MAX_SLICE_BYTES}"),
                section.len_bytes,
            ));
        }
        weights.push(WeightSection {
            bytes: section_bytes(bytes, section),
            offset_bytes: section.offset_bytes,
            hash: section.hash,
        });
    }
    Ok(weights)
}

/// `decode_header` has checked that the range lies in the file.
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
