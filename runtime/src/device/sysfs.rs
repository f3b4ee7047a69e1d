//! Small files of the kernel (sysfs, procfs), below any folder. What is missing, unreadable or malformed is `None`.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

/// Most bytes that are read of one file: longer than any of them.
pub const MAX_TEXT_BYTES: u64 = 64 << 10;

/// Names of a folder's entries, sorted; none if it cannot be read.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Whether a name is `prefix` and a number: `card0`, but not `card0-HDMI-A-1`.
pub fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A small file's text, trimmed; `None` if it is empty.
pub fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    // Reading a pipe or a device might never end.
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file).and_then(|_| fs::File::open(path).ok())?;
    file.take(MAX_TEXT_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The number in a file.
pub fn number<N: FromStr>(path: &Path) -> Option<N> {
    text(path)?.parse().ok()
}

/// The number in a file, written like `0x15bf`.
pub fn hex(path: &Path) -> Option<u32> {
    u32::from_str_radix(text(path)?.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_small_text_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("number"), "42\n").unwrap();
        fs::write(at("id"), "0x15bf\n").unwrap();
        fs::write(at("large"), "9".repeat(1 << 20)).unwrap();
        fs::write(at("bytes"), [0xff, 0xfe]).unwrap();
        fs::create_dir(at("folder")).unwrap();
        std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
        assert_eq!((number(&at("number")), hex(&at("id"))), (Some(42_u64), Some(0x15bf)));
        for name in ["large", "bytes", "folder", "loop", "missing", "id", "number/below"] {
            assert_eq!(number::<u64>(&at(name)), None, "{name}");
        }
        assert_eq!(text(&at("large")).map(|text| text.len() as u64), Some(MAX_TEXT_BYTES));
        assert_eq!([hex(&at("number")), hex(&at("large"))], [None, None]);
        assert!(names(&at("number")).is_empty() && names(&at("missing")).is_empty());
        assert!(is_numbered("card0", "card") && !is_numbered("card0-HDMI-A-1", "card") && !is_numbered("card", "card"));
    }
}
