//! Licences of linked crates: most require that their text is distributed with the program.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::crates::Crate;
use super::tree;

/// Beginnings of the names of such files.
const NAMES: [&str; 4] = ["LICEN", "COPYING", "NOTICE", "UNLICENSE"];

/// Every text once, below the crates to which it applies.
///
/// # Errors
/// When a crate's folder cannot be read, or names no licence in any way.
pub fn of(crates: &[Crate]) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut bare = Vec::new();
    for one in crates.iter().filter(|one| one.checksum.is_some()) {
        let name = format!("{} {} ({})", one.name, one.version, one.licence);
        let is_licence = |name: &str| NAMES.iter().any(|begin| name.to_uppercase().starts_with(begin));
        let mut found = false;
        for path in tree::files(&one.folder)? {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_file() && is_licence(&file) {
                let text = String::from_utf8_lossy(&tree::read(&path)?).replace("\r\n", "\n");
                texts.entry(text).or_default().push(name.clone());
                found = true;
            }
        }
        if !found {
            ensure!(!one.licence.is_empty(), "{name} names no licence");
            bare.push(name);
        }
    }
    let mut parts: Vec<(Vec<String>, String)> = texts.into_iter().map(|(text, names)| (names, text)).collect();
    parts.sort();
    let mut all = String::from("The programs are linked with the following crates of crates.io.\n\n");
    for (names, text) in parts {
        all += &format!("{}\n\n{}\n{}\n\n", names.join("\n"), text.trim_end(), "-".repeat(80));
    }
    all +=
        &format!("Without a text of their own, under the licences that their manifests name:\n\n{}\n", bare.join("\n"));
    Ok(all)
}

/// Text in place of a licence expression, for a crate whose manifest names a file instead.
pub fn text_of_unlisted(one: &Crate) -> String {
    format!("licence file of {} {}", one.name, one.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_two_crates_is_there_once() {
        let folder = tempfile::tempdir().unwrap();
        let one = |name: &str, text: Option<&str>| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            if let Some(text) = text {
                std::fs::write(path.join("LICENSE-MIT"), text).unwrap();
            }
            let (name, version, licence) = (name.into(), "1".into(), "MIT".into());
            Crate { name, version, licence, folder: path, checksum: Some("01".into()), links: vec![] }
        };
        let all =
            of(&[one("a", Some("text")), one("b", Some("text\n")), one("c", None), one("d", Some("text"))]).unwrap();
        assert!(all.contains("a 1 (MIT)\nd 1 (MIT)\n\ntext\n---"), "{all}");
        assert!(all.ends_with("c 1 (MIT)\n"), "{all}");
    }
}
