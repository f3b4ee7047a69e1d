//! The parts of an artifact that become layers, and their names.
//!
//! ```text
//! head            header and section table
//! section/K.I     a section of kind K and index I: metadata, plan, tokenizer
//! kernels/NAME    one target's record of the kernels section, whose bytes are their number and these records one after the other
//! hidden/NAME     one target's programs that write hidden rows, of a section with the same structure
//! image/NAME      one target's programs of images, of another such section
//! mixed/NAME      one target's programs of several sequences and a prompt, of another
//! predicted/NAME  one target's programs that predict the token behind the next one, of another
//! beside-two/NAME one target's programs of several sequences and two prompts, of another
//! weights/I/C     chunk C of weight section I
//! ```
//!
//! The zeros between sections belong to no part.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use unicorn_artifact::codec;
use unicorn_artifact::header::{self, ENTRY_BYTES, HEADER_BYTES, SECTION_ALIGN, Section, SectionKind};
use unicorn_artifact::{Kernels, ParseError, Program};

/// Bytes of the number of targets, at the begin of a section that has one record for each target.
pub const COUNT_BYTES: u64 = 8;

/// Name of a part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartName {
    /// Header and section table.
    Head,
    /// A whole section that is neither kernels nor weights.
    Section {
        /// Value in the section table.
        kind: u32,
        /// Value in the section table.
        index: u32,
    },
    /// A target's kernels.
    Kernels(String),
    /// A target's programs that write hidden rows.
    Hidden(String),
    /// A target's programs of images.
    Image(String),
    /// A target's programs of several sequences and a prompt.
    Mixed(String),
    /// A target's programs that predict the token behind the next one.
    Predicted(String),
    /// A target's programs of several sequences and two prompts.
    BesideTwo(String),
    /// A chunk of a weight section.
    Weights {
        /// Index of the section.
        section: u32,
        /// Number of the chunk in it.
        chunk: u32,
    },
    /// The signature, which is not a part of the file; its layer is recognised by its media type, not by this name.
    Signature,
}

/// Gives the part of one target's programs its name, from that of the target.
pub(crate) type NameForTarget = fn(String) -> PartName;

impl PartName {
    /// Kind of a section that has a list of programs for each target, and the name of one of them; `None`: it is another kind.
    pub(crate) fn of_programs(kind: u32) -> Option<(SectionKind, NameForTarget)> {
        match SectionKind::from_u32(kind)? {
            section @ SectionKind::HiddenPrograms => Some((section, PartName::Hidden)),
            section @ SectionKind::ImagePrograms => Some((section, PartName::Image)),
            section @ SectionKind::MixedPrograms => Some((section, PartName::Mixed)),
            section @ SectionKind::PredictedPrograms => Some((section, PartName::Predicted)),
            section @ SectionKind::BesideTwoPrograms => Some((section, PartName::BesideTwo)),
            _ => None,
        }
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartName::Head => f.write_str("head"),
            PartName::Section { kind, index } => write!(f, "section/{kind}.{index}"),
            PartName::Kernels(target) => write!(f, "kernels/{target}"),
            PartName::Hidden(target) => write!(f, "hidden/{target}"),
            PartName::Image(target) => write!(f, "image/{target}"),
            PartName::Mixed(target) => write!(f, "mixed/{target}"),
            PartName::Predicted(target) => write!(f, "predicted/{target}"),
            PartName::BesideTwo(target) => write!(f, "beside-two/{target}"),
            PartName::Weights { section, chunk } => write!(f, "weights/{section:04}/{chunk:04}"),
            PartName::Signature => f.write_str("signature"),
        }
    }
}

impl FromStr for PartName {
    type Err = ();

    fn from_str(name: &str) -> Result<PartName, ()> {
        if name == "head" {
            return Ok(PartName::Head);
        }
        let (kind, rest) = name.split_once('/').ok_or(())?;
        let pair = |separator: char| {
            let (first, second) = rest.split_once(separator)?;
            Some((first.parse().ok()?, second.parse().ok()?))
        };
        match kind {
            "section" => pair('.').map(|(kind, index)| PartName::Section { kind, index }).ok_or(()),
            "kernels" if is_target_name(rest) => Ok(PartName::Kernels(rest.into())),
            "hidden" if is_target_name(rest) => Ok(PartName::Hidden(rest.into())),
            "image" if is_target_name(rest) => Ok(PartName::Image(rest.into())),
            "mixed" if is_target_name(rest) => Ok(PartName::Mixed(rest.into())),
            "predicted" if is_target_name(rest) => Ok(PartName::Predicted(rest.into())),
            "beside-two" if is_target_name(rest) => Ok(PartName::BesideTwo(rest.into())),
            "weights" => pair('/').map(|(section, chunk)| PartName::Weights { section, chunk }).ok_or(()),
            _ => Err(()),
        }
    }
}

/// Checks a target's name, which is part of names of layers and of options.
fn is_target_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.len() <= 64 && name.bytes().all(is_plain)
}

/// A part of an artifact's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Unique in the artifact.
    pub name: PartName,
    /// Range of its bytes in the file.
    pub range: Range<u64>,
}

/// All parts of an artifact in the order of the file.
///
/// # Errors
/// For bytes that are not an artifact, and for an artifact whose sections are not placed as the writer places them.
///
/// # Panics
/// For chunks of 0 bytes.
pub fn cut(bytes: &[u8], chunk_bytes: u64) -> Result<Vec<Part>, ParseError> {
    let sections = header::decode_header(bytes)?;
    let head_bytes = head_bytes(sections.len());
    check_packed(&sections, bytes.len() as u64)?;
    let mut parts = vec![Part { name: PartName::Head, range: 0..head_bytes }];
    let mut targets = Vec::new();
    for section in &sections {
        let range = section.offset_bytes..section.offset_bytes + section.len_bytes;
        let Section { kind, index, .. } = *section;
        if kind == SectionKind::Kernels as u32 {
            let body = &bytes[range.start as usize..range.end as usize];
            let kernels: Kernels = codec::decode("kernels", body)?;
            targets = kernels.targets.iter().map(|target| target.name.clone()).collect();
            if let Some(name) = targets.iter().find(|name| !is_target_name(name)) {
                return Err(invalid("name of a target", "letters, digits, - _ and .", name.escape_debug()));
            }
            let lens = kernels.targets.iter().map(|target| codec::encode(target).len() as u64);
            parts.extend(cut_by_target(&range, &targets, lens, PartName::Kernels));
        } else if let Some((section, name)) = PartName::of_programs(kind) {
            let body = &bytes[range.start as usize..range.end as usize];
            let lists: Vec<Vec<Program>> = codec::decode(section.name(), body)?;
            if lists.len() != targets.len() {
                return Err(invalid(format!("lists of {}", section.name()), targets.len(), lists.len()));
            }
            let lens = lists.iter().map(|programs| codec::encode(programs).len() as u64);
            parts.extend(cut_by_target(&range, &targets, lens, name));
        } else if kind == SectionKind::Weights as u32 {
            let starts = range.clone().step_by(chunk_bytes as usize);
            parts.extend(starts.zip(0..).map(|(start, chunk)| Part {
                name: PartName::Weights { section: index, chunk },
                range: start..range.end.min(start.saturating_add(chunk_bytes)),
            }));
        } else if !range.is_empty() {
            parts.push(Part { name: PartName::Section { kind, index }, range });
        }
    }
    Ok(parts)
}

/// The records of a section that has one for each target; `lens` are their lengths in bytes. They are consecutive.
fn cut_by_target(
    range: &Range<u64>,
    targets: &[String],
    lens: impl Iterator<Item = u64>,
    name: fn(String) -> PartName,
) -> Vec<Part> {
    let mut at = range.start + COUNT_BYTES;
    let mut parts = Vec::new();
    for (target, len) in targets.iter().zip(lens) {
        parts.push(Part { name: name(target.clone()), range: at..at + len });
        at += len;
    }
    assert_eq!(at, range.end, "targets fill the section");
    parts
}

/// Header and table of `n_sections` sections.
pub fn head_bytes(n_sections: usize) -> u64 {
    (HEADER_BYTES + n_sections * ENTRY_BYTES) as u64
}

/// Checks that there are only zeros between sections, up to the next multiple: otherwise, a small download with a malformed table
/// could make an arbitrarily large file.
pub fn check_packed(sections: &[Section], file_bytes: u64) -> Result<(), ParseError> {
    let mut end = head_bytes(sections.len());
    for section in sections {
        let expected = end.next_multiple_of(SECTION_ALIGN);
        if section.offset_bytes != expected {
            return Err(invalid(
                format!("offset of section {}.{}", section.kind, section.index),
                expected,
                section.offset_bytes,
            ));
        }
        end = section.offset_bytes + section.len_bytes;
    }
    if end != file_bytes {
        return Err(invalid("end of the last section", file_bytes, end));
    }
    Ok(())
}

/// The error for an invalid number or name.
pub fn invalid(what: impl Into<String>, expected: impl fmt::Display, found: impl fmt::Display) -> ParseError {
    ParseError::Invalid { what: what.into(), expected: expected.to_string(), found: found.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a pull of some targets would keep the programs of all.
    #[test]
    fn every_section_of_programs_is_cut_by_target() {
        let kinds =
            (0..64).filter(|&kind| SectionKind::from_u32(kind).is_some_and(|kind| kind.name().contains("programs")));
        let kinds: Vec<u32> = kinds.collect();
        assert!(kinds.len() >= 5, "{kinds:?}");
        for kind in kinds {
            let (section, name) = PartName::of_programs(kind).expect("a part for each target");
            assert_eq!(section as u32, kind);
            let name = name("generic".into());
            assert_eq!(name.to_string().parse(), Ok(name));
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in [
            PartName::Head,
            PartName::Section { kind: 2, index: 0 },
            PartName::Kernels("nvidia-server".into()),
            PartName::Image("generic".into()),
            PartName::Mixed("generic".into()),
            PartName::Predicted("generic".into()),
            PartName::BesideTwo("generic".into()),
            PartName::Weights { section: 3, chunk: 12 },
        ] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for wrong in ["", "heads", "kernels/", "kernels/../x", "weights/1", "section/a.b", "weights/-1/0"] {
            assert_eq!(wrong.parse::<PartName>(), Err(()), "{wrong}");
        }
    }
}
