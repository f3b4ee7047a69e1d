//! New small sections for the same weights: a copy of the artifact in which some sections, their entries in the table and the
//! places of the small sections behind them are new.
//!
//! The copy gets its name when it is whole, so that a crash leaves the old file and a reader that has mapped the old one keeps
//! it; overwriting in place would lose the old file in a crash and change the bytes that a reader has mapped. The system copies
//! weights from file to file, and shares their blocks instead where the file system can (Btrfs, XFS).

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::codec;
use crate::header::{ENTRY_BYTES, HEADER_BYTES, SECTION_ALIGN, Section, SectionKind, decode_header};
use crate::kernels::Kernels;
use crate::map::MappedFile;
use crate::meta::Meta;
use crate::npu::NpuSection;
use crate::partial;
use crate::plan::Plan;
use crate::view::section_bytes;
use crate::write::{into_place, new_file_permissions};

/// Replaces the plan of the artifact at `path`, and with `npu` its NPU section, whose steps stay as they are. `begun` receives the path of
/// the copy, which must be removed when a signal ends the process.
///
/// # Errors
/// When `path` is not an artifact, when the new plan does not match its other sections, and when the disk has no space for the
/// copy. The old artifact is then unchanged.
pub fn replace_plan(path: &Path, plan: &Plan, npu: Option<&NpuSection>, begun: impl FnOnce(&Path)) -> io::Result<u64> {
    let mut new = vec![(SectionKind::Plan, codec::encode(plan))];
    new.extend(npu.map(|section| (SectionKind::Npu, codec::encode(section))));
    replace(path, path, &new, &[], begun)
}

/// Kernels, and the sections that change with them.
#[derive(Clone, Copy)]
pub struct NewKernels<'a> {
    /// Metadata, which names the targets.
    pub meta: &'a Meta,
    /// Plan with the arena that the programs need.
    pub plan: &'a Plan,
    /// The kernels of all targets.
    pub kernels: &'a Kernels,
    /// NPU section with the steps of all targets; `None`: as before.
    pub npu: Option<&'a NpuSection>,
}

/// Writes the artifact at `path` to `output`, which may be the same file, with new kernels and the sections that change with
/// them, and without sections of the kinds `removed`. Returns its length in bytes; `begun` as in [`replace_plan`].
///
/// # Errors
/// Errors of [`replace_plan`]. The file at `output` is then unchanged.
pub fn replace_kernels(
    path: &Path,
    output: &Path,
    with: NewKernels,
    removed: &[SectionKind],
    begun: impl FnOnce(&Path),
) -> io::Result<u64> {
    let NewKernels { meta, plan, kernels, npu } = with;
    let (kernels, hidden) = kernels.split_hidden();
    let mut new = vec![
        (SectionKind::Metadata, codec::encode(meta)),
        (SectionKind::Plan, codec::encode(plan)),
        (SectionKind::Kernels, codec::encode(&kernels)),
    ];
    if hidden.iter().any(|programs| !programs.is_empty()) {
        new.push((SectionKind::HiddenPrograms, codec::encode(&hidden)));
    }
    if let Some(section) = npu {
        new.push((SectionKind::Npu, codec::encode(section)));
        if !section.steps.is_empty() {
            new.push((SectionKind::NpuSteps, codec::encode(&section.steps)));
        }
    }
    replace(path, output, &new, removed, begun)
}

fn replace(
    path: &Path,
    output: &Path,
    new: &[(SectionKind, Vec<u8>)],
    removed: &[SectionKind],
    begun: impl FnOnce(&Path),
) -> io::Result<u64> {
    // A link is kept: the file that it points to is replaced.
    let path = &path.canonicalize()?;
    let output = &output.canonicalize().unwrap_or(output.to_owned());
    let old = MappedFile::open(path)?;
    let mut sections = decode_header(old.bytes()).map_err(io::Error::other)?;
    let replacement = |section: &Section| new.iter().find(|(kind, _)| *kind as u32 == section.kind);
    let is_removed = |section: &Section| removed.iter().any(|kind| *kind as u32 == section.kind);
    let first = sections.iter().position(|section| replacement(section).is_some() || is_removed(section));
    let first = first.ok_or_else(|| io::Error::other("artifact has none of the sections to replace"))?;
    let (begin_bytes, kept_bytes) = (sections[0].offset_bytes, sections[first].offset_bytes);
    sections.retain(|section| !is_removed(section));

    let mut file = partial::beside(output)?;
    begun(file.path());
    let mut source = old.file();
    // Zeros in place of the table before the first section, which is written at the end and may be shorter than the old one.
    source.seek(SeekFrom::Start(begin_bytes))?;
    file.as_file_mut().write_all(&vec![0; begin_bytes as usize])?;
    let copied = io::copy(&mut source.take(kept_bytes - begin_bytes), file.as_file_mut())?;
    if copied != kept_bytes - begin_bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "artifact was cut while it was copied"));
    }
    let mut end = kept_bytes;
    for section in sections.iter_mut().skip(first) {
        let replacement = replacement(section).map(|(_, bytes)| &bytes[..]);
        let body = replacement.unwrap_or_else(|| section_bytes(old.bytes(), section));
        let offset_bytes = end.next_multiple_of(SECTION_ALIGN);
        file.as_file_mut().write_all(&vec![0; (offset_bytes - end) as usize])?;
        file.as_file_mut().write_all(body)?;
        end = offset_bytes + body.len() as u64;
        section.offset_bytes = offset_bytes;
        if replacement.is_some() {
            section.len_bytes = body.len() as u64;
            section.hash = *blake3::hash(body).as_bytes();
        }
    }
    // Sections that the old file does not have are appended.
    let begin_bytes = sections.first().map_or(0, |section| section.offset_bytes);
    for (kind, body) in new {
        let is_there = sections.iter().any(|section| section.kind == *kind as u32);
        let head_bytes = HEADER_BYTES + (sections.len() + 1) * ENTRY_BYTES;
        if is_there || head_bytes as u64 > begin_bytes {
            continue;
        }
        let offset_bytes = end.next_multiple_of(SECTION_ALIGN);
        file.as_file_mut().write_all(&vec![0; (offset_bytes - end) as usize])?;
        file.as_file_mut().write_all(body)?;
        end = offset_bytes + body.len() as u64;
        let (len_bytes, hash) = (body.len() as u64, *blake3::hash(body).as_bytes());
        sections.push(Section { kind: *kind as u32, index: 0, offset_bytes, len_bytes, hash });
    }
    let permissions = match path == output {
        true => old.file().metadata()?.permissions(),
        false => new_file_permissions(),
    };
    into_place(file, &sections, end, output, permissions)?;
    Ok(end)
}
