//! Another plan for the same weights: a copy of the artifact in which only the plan section, its entry in the table and the
//! places of the small sections behind it are new.
//!
//! The copy takes the artifact's name when it is whole, so that a crash leaves the old file and a reader that has mapped
//! the old one keeps it; overwriting in place would pull the plan away from under both. Weights are handed from file to
//! file by the kernel, which shares their blocks instead of copying them where the file system can (Btrfs, XFS).

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::codec;
use crate::header::{SECTION_ALIGN, Section, SectionKind, decode_header};
use crate::map::MappedFile;
use crate::partial;
use crate::plan::Plan;
use crate::view::section_bytes;
use crate::write::into_place;

/// Replaces the plan of the artifact at `path`; `begun` receives the path of the copy, which must be removed when a
/// signal ends the process.
///
/// # Errors
/// Where `path` is no artifact, where the new plan does not go with its other sections, and when there is no room for the
/// copy. The old artifact is then as it was.
pub fn replace_plan(path: &Path, plan: &Plan, begun: impl FnOnce(&Path)) -> io::Result<u64> {
    // A link stays one: what it points to is replaced.
    let path = &path.canonicalize()?;
    let old = MappedFile::open(path)?;
    let mut sections = decode_header(old.bytes()).map_err(io::Error::other)?;
    let is_plan = |section: &Section| section.kind == SectionKind::Plan as u32;
    let at = sections.iter().position(is_plan).ok_or_else(|| io::Error::other("artifact has no plan section"))?;

    let mut file = partial::beside(path)?;
    begun(file.path());
    let mut source = old.file();
    source.seek(SeekFrom::Start(0))?;
    let kept_bytes = sections[at].offset_bytes;
    let copied = io::copy(&mut source.take(kept_bytes), file.as_file_mut())?;
    if copied != kept_bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "artifact was cut while it was copied"));
    }
    let new_plan = codec::encode(plan);
    let mut end = kept_bytes;
    for (index, section) in sections.iter_mut().enumerate().skip(at) {
        let body = if index == at { &new_plan } else { section_bytes(old.bytes(), section) };
        let offset_bytes = end.next_multiple_of(SECTION_ALIGN);
        file.as_file_mut().write_all(&vec![0; (offset_bytes - end) as usize])?;
        file.as_file_mut().write_all(body)?;
        end = offset_bytes + body.len() as u64;
        section.offset_bytes = offset_bytes;
        if index == at {
            section.len_bytes = new_plan.len() as u64;
            section.hash = *blake3::hash(&new_plan).as_bytes();
        }
    }
    into_place(file, &sections, end, path, old.file().metadata()?.permissions())?;
    Ok(end)
}
