//! Artifacts that were cut, damaged, or come from another time, as input of `unicorn-run inspect`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;
use tests::generators::rehash_table;
use tests::programs::program;
use tests::tiny_model::TinyModel;
use unicorn_artifact::ArtifactView;
use unicorn_artifact::header::{ENTRY_BYTES, HEADER_BYTES, SECTION_ALIGN, SectionKind, VERSION_MAJOR, decode_header};

use crate::refusal::{assert_refused, compile_command};

/// An artifact for llvmpipe and for any device, compiled once.
pub fn sound_artifact() -> &'static [u8] {
    static ARTIFACT: OnceLock<Vec<u8>> = OnceLock::new();
    ARTIFACT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        TinyModel { layers: 1, max_position_embeddings: 128, ..Default::default() }.write(folder.path());
        let path = folder.path().join("model.unicorn");
        let output = compile_command(folder.path(), &path).args(["--target", "llvmpipe"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(path).unwrap()
    })
}

/// The sound artifact, changed, in a folder of its own.
pub fn changed_artifact(change: impl FnOnce(&mut Vec<u8>)) -> (TempDir, PathBuf) {
    let mut artifact = sound_artifact().to_vec();
    change(&mut artifact);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.unicorn");
    std::fs::write(&path, artifact).unwrap();
    (folder, path)
}

/// Offset and length of the first section of this kind.
pub fn section_of(artifact: &[u8], kind: SectionKind) -> (usize, usize) {
    let sections = decode_header(artifact).unwrap();
    let section = sections.iter().find(|section| section.kind == kind as u32).unwrap();
    (section.offset_bytes as usize, section.len_bytes as usize)
}

fn inspect(path: &Path) -> Command {
    let mut command = program("unicorn-run");
    command.arg("inspect").arg(path);
    command
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Vec<u8>), expected: &[&str]) {
    let (folder, path) = changed_artifact(change);
    assert_refused(&mut inspect(&path), folder.path(), &[&["model.unicorn"], expected].concat());
}

#[track_caller]
fn accepted(change: impl FnOnce(&mut Vec<u8>)) {
    let (_folder, path) = changed_artifact(change);
    let output = inspect(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stdout.is_empty());
}

#[test]
fn the_artifact_that_the_others_are_made_from_is_sound() {
    accepted(|_| ());
}

/// The runtime reads what others map; both refuse the same, in the same words.
#[test]
fn reading_refuses_what_parsing_refuses() {
    let len = sound_artifact().len();
    let cuts = [0, 7, HEADER_BYTES - 1, HEADER_BYTES + 5, len / 3, len - 1, len].map(|end| (end, None));
    let flips = (0..len).step_by(len / 40).map(|at| (len, Some(at)));
    for (end, flipped) in cuts.into_iter().chain(flips) {
        let (_folder, path) = changed_artifact(|artifact| {
            flipped.iter().for_each(|&at| artifact[at] ^= 1);
            artifact.truncate(end);
        });
        let bytes = std::fs::read(&path).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        match (ArtifactView::parse(&bytes), ArtifactView::read(&file)) {
            (Err(parsed), Err(read)) => assert_eq!(parsed.to_string(), read.to_string()),
            (Ok(parsed), Ok(read)) => {
                for (parsed, read) in parsed.weights().iter().zip(read.weights()) {
                    assert_eq!((parsed.offset_bytes, parsed.len_bytes), (read.offset_bytes, read.len_bytes));
                    let words = |error: &dyn std::fmt::Display| error.to_string();
                    let (parsed, read) = (parsed.verify(), read.verify_in(&file));
                    assert_eq!(parsed.map_err(|error| words(&error)), read.map_err(|error| words(&error)));
                }
            }
            (parsed, read) => panic!("cut at {end}, {flipped:?}: {:?}, {:?}", parsed.err(), read.err()),
        }
    }
}

#[test]
fn a_cut_artifact_is_an_error_with_the_missing_bytes() {
    let whole = sound_artifact().len();
    let table_end = HEADER_BYTES + decode_header(sound_artifact()).unwrap().len() * ENTRY_BYTES;
    let (kernels, _) = section_of(sound_artifact(), SectionKind::Kernels);
    for len in [whole - 1, whole / 2, kernels, kernels + 1, table_end, table_end - 1, HEADER_BYTES] {
        refused(|artifact| artifact.truncate(len), &["artifact is cut", &whole.to_string(), &len.to_string()]);
    }
    for len in [HEADER_BYTES - 1, 8] {
        refused(|artifact| artifact.truncate(len), &["artifact is cut", "header"]);
    }
    for len in [7, 1, 0] {
        refused(|artifact| artifact.truncate(len), &["model.unicorn is ", "expected an artifact"]);
    }
}

/// Opening a named pipe waits for a writer unless it is opened without blocking.
#[test]
fn a_named_pipe_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.unicorn");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let run = program("unicorn-run");
    let output = Command::new("timeout").arg("30").arg(run.get_program()).arg("inspect").arg(&path).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        message.contains("not a regular file") && message.contains("model.unicorn"),
        "{:?}: {message}",
        output.status
    );
}

#[test]
fn a_longer_artifact_is_refused() {
    refused(|artifact| artifact.push(0), &["expected", "found"]);
}

#[test]
fn a_flipped_bit_in_a_section_is_found() {
    for (kind, name) in [
        (SectionKind::Metadata, "metadata"),
        (SectionKind::Plan, "plan"),
        (SectionKind::Kernels, "kernels"),
        (SectionKind::Tokenizer, "tokenizer"),
    ] {
        let (offset, len) = section_of(sound_artifact(), kind);
        for at in [offset, offset + len / 2, offset + len - 1] {
            refused(|artifact| artifact[at] ^= 0x10, &["damaged", name, "hash"]);
        }
    }
}

#[test]
fn a_flipped_bit_in_header_or_table_is_found() {
    refused(|artifact| artifact[0] ^= 1, &["model.unicorn is ", "expected an artifact"]);
    refused(|artifact| artifact[10] ^= 1, &["section table", "hash"]);
    refused(|artifact| artifact[12] ^= 1, &["section table", "hash"]);
    refused(|artifact| artifact[15] ^= 0x40, &["section count"]);
    refused(|artifact| artifact[17] ^= 1, &["artifact is cut"]);
    for at in [24, 40, HEADER_BYTES, HEADER_BYTES + 9, HEADER_BYTES + 17, HEADER_BYTES + 40] {
        refused(|artifact| artifact[at] ^= 1, &["section table", "hash"]);
    }
}

/// A change of any bit of the file is detected, even of an unused one.
#[test]
fn a_flipped_bit_between_sections_is_found() {
    let (metadata, len) = section_of(sound_artifact(), SectionKind::Metadata);
    let table_end = HEADER_BYTES + decode_header(sound_artifact()).unwrap().len() * ENTRY_BYTES;
    for at in [table_end, SECTION_ALIGN as usize - 1, metadata - 1, metadata + len] {
        refused(|artifact| artifact[at] ^= 4, &["damaged", "between sections", &at.to_string(), "expected 0, found 4"]);
    }
}

#[test]
fn another_major_version_is_refused_by_name() {
    let newer = |artifact: &mut Vec<u8>| {
        artifact[8..10].copy_from_slice(&(VERSION_MAJOR + 1).to_le_bytes());
        artifact[10..12].copy_from_slice(&7u16.to_le_bytes());
        rehash_table(artifact);
    };
    let (found, supported) = (format!("version {}.7", VERSION_MAJOR + 1), format!("{VERSION_MAJOR}.x"));
    refused(newer, &[&found, &supported, "use one of that version or compile the model again"]);
}

#[test]
fn a_newer_minor_version_is_read() {
    accepted(|artifact| {
        artifact[10..12].copy_from_slice(&9u16.to_le_bytes());
        rehash_table(artifact);
    });
}

/// A table may grow into the zeros behind it: sections begin on multiples of 64 KiB.
#[test]
fn an_unknown_section_is_ignored() {
    accepted(|artifact| {
        let count = decode_header(artifact).unwrap().len();
        let offset = (artifact.len() as u64).next_multiple_of(SECTION_ALIGN);
        let body = b"from a later version";
        artifact.resize(offset as usize, 0);
        artifact.extend(body);
        let entry = HEADER_BYTES + count * ENTRY_BYTES;
        artifact[entry..entry + 4].copy_from_slice(&99u32.to_le_bytes());
        artifact[entry + 8..entry + 16].copy_from_slice(&offset.to_le_bytes());
        artifact[entry + 16..entry + 24].copy_from_slice(&(body.len() as u64).to_le_bytes());
        artifact[entry + 32..entry + 64].copy_from_slice(blake3::hash(body).as_bytes());
        let len_bytes = artifact.len() as u64;
        artifact[12..16].copy_from_slice(&(count as u32 + 1).to_le_bytes());
        artifact[16..24].copy_from_slice(&len_bytes.to_le_bytes());
        rehash_table(artifact);
    });
}

#[test]
fn a_missing_section_is_named() {
    for (kind, name) in [(SectionKind::Plan, "plan"), (SectionKind::Kernels, "kernels")] {
        let hide = |artifact: &mut Vec<u8>| {
            let index =
                decode_header(artifact).unwrap().iter().position(|section| section.kind == kind as u32).unwrap();
            artifact[HEADER_BYTES + index * ENTRY_BYTES] = 98;
            rehash_table(artifact);
        };
        refused(hide, &[&format!("number of {name} sections")]);
    }
}

#[test]
fn sections_that_overlap_or_reach_outside_are_refused() {
    let set = |at: usize, value: u64| {
        move |artifact: &mut Vec<u8>| {
            let field = HEADER_BYTES + ENTRY_BYTES + at;
            artifact[field..field + 8].copy_from_slice(&value.to_le_bytes());
            rehash_table(artifact);
        }
    };
    refused(set(8, 0), &["offset of section"]);
    refused(set(8, SECTION_ALIGN), &["offset of section"]);
    refused(set(8, SECTION_ALIGN / 2), &["offset of section"]);
    refused(set(8, u64::MAX - SECTION_ALIGN + 1), &["artifact is cut"]);
    refused(set(16, u64::MAX), &["artifact is cut"]);
    refused(set(16, 1 << 40), &["artifact is cut"]);
}

#[test]
fn what_is_no_artifact_at_all() {
    refused(|artifact| *artifact = b"{\"architectures\": []}".to_vec(), &["model.unicorn is ", "expected an artifact"]);
    let folder = tempfile::tempdir().unwrap();
    assert_refused(
        &mut inspect(folder.path()),
        folder.path(),
        &["is a folder, expected an artifact", "unicorn-compile"],
    );
    assert_refused(&mut inspect(&folder.path().join("missing.unicorn")), folder.path(), &["missing.unicorn"]);
}
