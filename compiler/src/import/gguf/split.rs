//! Models that llama.cpp has split into several files: `NAME-00001-of-00003.gguf` and so on. The first holds the metadata of the
//! model, and each holds the tensors that are announced in it.

use std::path::{Path, PathBuf};

use super::reader::Gguf;
use crate::error::{CompileError, Result};

/// Splits the name of a part, without its extension, into `NAME`, the number of the part, from 1, and the number of parts.
pub fn part_of(stem: &str) -> Option<(&str, usize, usize)> {
    /// Digits of a number, as llama.cpp writes and expects them.
    const DIGITS: usize = 5;
    let number = |text: &str| (text.len() == DIGITS).then(|| text.parse().ok()).flatten();
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((name, part, count))
}

/// All parts of the model of which `path` is one, in order: `path` alone, unless its name is that of a part of several.
///
/// # Errors
/// When one is missing.
pub fn parts(path: &Path) -> Result<Vec<PathBuf>> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let Some((name, _, count)) = stem.and_then(part_of).filter(|(_, _, count)| *count > 1) else {
        return Ok(vec![path.to_owned()]);
    };
    let parts = (1..=count).map(|part| path.with_file_name(format!("{name}-{part:05}-of-{count:05}.gguf")));
    let parts: Vec<PathBuf> = parts.collect();
    match parts.iter().find(|part| !part.exists()) {
        None => Ok(parts),
        Some(missing) => {
            let missing = missing.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Err(CompileError::MissingPart { path: path.to_owned(), parts: count, missing })
        }
    }
}

/// Parses all parts and joins them: the metadata of the first, and the tensors of all.
///
/// # Errors
/// Errors of [`Gguf::read`] for each part; when a part is not the one in its name, and when two hold the same tensor.
pub fn read<'a>(parts: &[(&'a Path, &'a [u8])]) -> Result<Gguf<'a>> {
    let [(path, bytes), others @ ..] = parts else { unreachable!("a model has a file") };
    let mut whole = Gguf::read(path, bytes)?;
    check_number(&whole, 0, parts.len())?;
    for (index, (path, bytes)) in others.iter().enumerate() {
        let part = Gguf::read(path, bytes)?;
        check_number(&part, index + 1, parts.len())?;
        whole.append(part)?;
    }
    Ok(whole)
}

fn check_number(gguf: &Gguf, index: usize, count: usize) -> Result<()> {
    let (found_index, found_count) =
        (gguf.unsigned("split.no")?.unwrap_or(0), gguf.unsigned("split.count")?.unwrap_or(1));
    // Older files of a single part have 0 of 0.
    if (found_index, found_count.max(1)) == (index, count) {
        return Ok(());
    }
    let found = format!("part {} of {found_count}", found_index + 1);
    Err(gguf.malformed(match count {
        1 => format!(
            "file is {found} of a model, expected the name NAME-{:05}-of-{found_count:05}.gguf",
            found_index + 1
        ),
        _ => format!("file is {found}, expected part {} of {count}, as in its name", index + 1),
    }))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::test_file::{TestFile, TestValue};
    use super::*;
    use crate::import::open_model;

    /// The test model as three parts: the first with its metadata alone, the tensors in the others.
    fn split_model() -> (TempDir, [PathBuf; 3]) {
        let folder = tempfile::tempdir().unwrap();
        let whole = TestFile::model("llama");
        let half = whole.tensors.len() / 2;
        let tensors = [&[][..], &whole.tensors[..half], &whole.tensors[half..]];
        let paths = [0, 1, 2].map(|part| {
            let metadata = if part == 0 { whole.metadata.clone() } else { Vec::new() };
            let mut file = TestFile { metadata, tensors: tensors[part].to_vec(), ..whole.clone() };
            file.set("split.no", TestValue::U32(part as u32));
            file.set("split.count", TestValue::U32(3));
            let path = folder.path().join(format!("m-q8-{:05}-of-00003.gguf", part + 1));
            std::fs::write(&path, file.bytes()).unwrap();
            path
        });
        (folder, paths)
    }

    #[test]
    fn a_split_model_is_the_whole_model_whichever_part_is_given() {
        let single = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(single.path(), TestFile::model("llama").bytes()).unwrap();
        let whole = open_model(single.path()).unwrap();
        let (_folder, paths) = split_model();
        for path in &paths {
            let joined = open_model(path).unwrap();
            assert_eq!((joined.source_bytes, joined.tensors.len()), (whole.source_bytes, whole.tensors.len()));
            for (name, tensor) in &whole.tensors {
                let values = |tensor: &crate::import::Tensor| {
                    let mut values = vec![0.0; tensor.rows * tensor.cols];
                    tensor.read_rows(0..tensor.rows, &mut values);
                    values
                };
                assert_eq!(values(tensor), values(&joined.tensors[name]), "{name}");
            }
        }
    }

    #[test]
    fn parts_that_are_missing_or_misnamed_are_refused() {
        let (_folder, [first, second, third]) = split_model();
        let refusal = |path: &Path| open_model(path).err().expect("refused").to_string();
        let alone = first.with_file_name("renamed.gguf");
        std::fs::copy(&second, &alone).unwrap();
        assert!(
            refusal(&alone).ends_with("file is part 2 of 3 of a model, expected the name NAME-00002-of-00003.gguf")
        );
        std::fs::copy(&second, &third).unwrap();
        assert!(refusal(&first).ends_with("file is part 2 of 3, expected part 3 of 3, as in its name"));
        std::fs::remove_file(&second).unwrap();
        let message = refusal(&third);
        assert!(
            message.ends_with("one of 3 parts of a model, m-q8-00002-of-00003.gguf is missing beside it"),
            "{message}"
        );
    }

    #[test]
    fn names_of_parts_have_two_numbers_of_five_digits() {
        assert_eq!(part_of("a-b-00002-of-00003"), Some(("a-b", 2, 3)));
        for other in ["a", "a-00001", "a-1-of-3", "a-00004-of-00003", "a-00000-of-00003", "a-00001-of-0000x"] {
            assert_eq!(part_of(other), None, "{other}");
        }
    }
}
