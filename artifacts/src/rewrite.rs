//! New small sections for the same weights: a copy of the artifact in which some sections, their entries in the table and the
//! places of the small sections behind them are new.
//!
//! The copy gets its name when it is whole, so that a crash leaves the old file and a reader that has mapped the old one keeps
//! it; overwriting in place would lose the old file in a crash and change the bytes that a reader has mapped. The system copies
//! weights from file to file, and shares their blocks instead where the file system can (Btrfs, XFS).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::codec;
use crate::hash::hash;
use crate::header::{SECTION_ALIGN, Section, SectionKind, decode_header, encode_header, head_bytes};
use crate::kernels::Kernels;
use crate::map::MappedFile;
use crate::meta::Meta;
use crate::npu::NpuSection;
use crate::partial;
use crate::plan::Plan;
use crate::write::{into_place, new_file_permissions, npu_sections};

/// Sections that change with a new plan.
#[derive(Clone, Copy)]
pub struct NewPlan<'a> {
    /// Where every byte is placed.
    pub plan: &'a Plan,
    /// The NPU section, whose steps stay as they are; `None`: as before.
    pub npu: Option<&'a NpuSection>,
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

/// What changes in an artifact. The default: nothing.
#[derive(Default)]
pub struct Change {
    /// Records in the place of those of these kinds, or behind the others where there is none of the kind.
    new: Vec<(SectionKind, Vec<u8>)>,
    removed: Vec<SectionKind>,
    /// What changes in the draft.
    draft: Option<Box<Change>>,
}

impl From<NewPlan<'_>> for Change {
    fn from(NewPlan { plan, npu }: NewPlan) -> Change {
        let mut new = vec![(SectionKind::Plan, codec::encode(plan))];
        new.extend(npu.map(|section| (SectionKind::Npu, codec::encode(section))));
        Change { new, ..Change::default() }
    }
}

impl From<NewKernels<'_>> for Change {
    fn from(NewKernels { meta, plan, kernels, npu }: NewKernels) -> Change {
        let (kernels, apart) = kernels.split();
        let mut new = vec![
            (SectionKind::Metadata, codec::encode(meta)),
            (SectionKind::Plan, codec::encode(plan)),
            (SectionKind::Kernels, codec::encode(&kernels)),
        ];
        new.extend(apart.sections());
        new.extend(npu.into_iter().flat_map(npu_sections));
        Change { new, ..Change::default() }
    }
}

impl Change {
    /// The same without sections of these kinds.
    #[must_use]
    pub fn without(self, removed: &[SectionKind]) -> Change {
        Change { removed: removed.to_vec(), ..self }
    }

    /// The same with a change of the draft.
    #[must_use]
    pub fn with_draft(self, draft: Option<Change>) -> Change {
        Change { draft: draft.map(Box::new), ..self }
    }

    fn replacement(&self, section: &Section) -> Option<&[u8]> {
        self.new.iter().find(|(kind, _)| *kind as u32 == section.kind).map(|(_, bytes)| &bytes[..])
    }

    fn removes(&self, section: &Section) -> bool {
        self.removed.iter().any(|kind| *kind as u32 == section.kind)
    }

    /// The change of a section that is an artifact.
    fn inside(&self, section: &Section) -> Option<&Change> {
        self.draft.as_deref().filter(|_| section.kind == SectionKind::Draft as u32)
    }

    fn touches(&self, section: &Section) -> bool {
        self.replacement(section).is_some() || self.removes(section) || self.inside(section).is_some()
    }
}

/// Writes the artifact at `path` to `output`, which may be the same file, with this change. Returns its length in bytes; `begun`
/// receives the path of the copy, which must be removed when a signal ends the process.
///
/// # Errors
/// When `path` is not an artifact, when the new sections do not match its other ones, and when the disk has no space for the copy. The
/// file at `output` is then unchanged.
pub fn rewrite(path: &Path, output: &Path, change: &Change, begun: impl FnOnce(&Path)) -> io::Result<u64> {
    // A link is kept: the file that it points to is replaced.
    let path = &path.canonicalize()?;
    let output = &output.canonicalize().unwrap_or(output.to_owned());
    let old = MappedFile::open(path)?;
    let mut file = partial::beside(output)?;
    begun(file.path());
    let (sections, end) = copy_changed(&old, 0..old.bytes().len(), change, file.as_file_mut())?;
    let permissions = match path == output {
        true => old.file().metadata()?.permissions(),
        false => new_file_permissions(),
    };
    into_place(file, &sections, end, output, permissions)?;
    Ok(end)
}

/// Appends the artifact in this range of `old` to `file`, changed, with zeros in the place of header and table. Returns the sections, whose
/// offsets are those in the artifact, and its length in bytes.
fn copy_changed(
    old: &MappedFile,
    range: Range<usize>,
    change: &Change,
    file: &mut File,
) -> io::Result<(Vec<Section>, u64)> {
    let bytes = &old.bytes()[range.clone()];
    let mut sections = decode_header(bytes).map_err(io::Error::other)?;
    let first = sections.iter().position(|section| change.touches(section));
    let first = first.ok_or_else(|| io::Error::other("artifact has none of the sections to replace"))?;
    let (begin_bytes, kept_bytes) = (sections[0].offset_bytes, sections[first].offset_bytes);
    sections.retain(|section| !change.removes(section));

    let mut source = old.file();
    // Zeros in place of the table before the first section, which is written at the end and may be shorter than the old one.
    source.seek(SeekFrom::Start(range.start as u64 + begin_bytes))?;
    file.write_all(&vec![0; begin_bytes as usize])?;
    let copied = io::copy(&mut source.take(kept_bytes - begin_bytes), file)?;
    if copied != kept_bytes - begin_bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "artifact was cut while it was copied"));
    }
    let mut end = kept_bytes;
    for section in sections.iter_mut().skip(first) {
        let offset_bytes = end.next_multiple_of(SECTION_ALIGN);
        file.write_all(&vec![0; (offset_bytes - end) as usize])?;
        let old_body = section.offset_bytes as usize..(section.offset_bytes + section.len_bytes) as usize;
        section.offset_bytes = offset_bytes;
        if let Some(inside) = change.inside(section) {
            let range = range.start + old_body.start..range.start + old_body.end;
            (section.len_bytes, section.hash) = copy_changed_draft(old, range, inside, file)?;
        } else if let Some(body) = change.replacement(section) {
            file.write_all(body)?;
            (section.len_bytes, section.hash) = (body.len() as u64, hash(body));
        } else {
            file.write_all(&bytes[old_body])?;
        }
        end = offset_bytes + section.len_bytes;
    }
    // Sections that the old file does not have are appended.
    let begin_bytes = sections.first().map_or(0, |section| section.offset_bytes);
    for (kind, body) in &change.new {
        let is_there = sections.iter().any(|section| section.kind == *kind as u32);
        if is_there || head_bytes(sections.len() + 1) as u64 > begin_bytes {
            continue;
        }
        let offset_bytes = end.next_multiple_of(SECTION_ALIGN);
        file.write_all(&vec![0; (offset_bytes - end) as usize])?;
        file.write_all(body)?;
        end = offset_bytes + body.len() as u64;
        sections.push(Section {
            kind: *kind as u32,
            index: 0,
            offset_bytes,
            len_bytes: body.len() as u64,
            hash: hash(body),
        });
    }
    Ok((sections, end))
}

/// Appends a draft, changed, with its header and table. Returns its length in bytes and its hash.
fn copy_changed_draft(
    old: &MappedFile,
    range: Range<usize>,
    change: &Change,
    file: &mut File,
) -> io::Result<(u64, [u8; 32])> {
    let begin_bytes = file.stream_position()?;
    let (sections, len_bytes) = copy_changed(old, range, change, file)?;
    let head = encode_header(&sections, len_bytes);
    file.write_all_at(&head, begin_bytes)?;
    Ok((len_bytes, hash(&head)))
}
