//! The license of a model in a Hugging Face folder: its text from LICENSE, its name and link from the model card.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use unicorn_artifact::LicenseSection;

use crate::error::{CompileError, Result};

/// Longer than any license or the front matter of a model card; what lies behind is not read.
const MAX_BYTES: u64 = 1 << 20;
/// Names of the text, the first of which is taken.
const TEXTS: [&str; 4] = ["LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE"];
const MODEL_CARD: &str = "README.md";

/// `None`: the folder has none of these files, or they name no license.
pub(super) fn of_folder(folder: &Path) -> Result<Option<LicenseSection>> {
    let card = read(&folder.join(MODEL_CARD))?.map(|card| of_model_card(&card)).unwrap_or_default();
    for name in TEXTS {
        if let Some(text) = read(&folder.join(name))? {
            return Ok(Some(LicenseSection { text: Some(text), ..card }));
        }
    }
    Ok(card.or_none())
}

/// Whether [`of_folder`] reads a file of this name.
pub(crate) fn is_license_file(name: &str) -> bool {
    name == MODEL_CARD || TEXTS.contains(&name)
}

/// `None` when there is no such file.
fn read(path: &Path) -> Result<Option<String>> {
    if !path.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)).map_err(CompileError::io(path))?;
    Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned()))
}

/// By Hugging Face's keys, see <https://huggingface.co/docs/hub/model-cards>: `license`, and if that is `other`, `license_name` and
/// `license_link`. They stand as scalars, one a line, in the YAML between the first two lines `---`.
fn of_model_card(card: &str) -> LicenseSection {
    let mut lines = card.lines();
    if lines.next().map(str::trim_end) != Some("---") {
        return LicenseSection::default();
    }
    let front_matter: Vec<&str> = lines.take_while(|line| line.trim_end() != "---").collect();
    let scalar = |key: &str| {
        let values = front_matter.iter().filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let mut texts = values.map(|value| value.trim().trim_matches(['"', '\'']).to_owned());
        texts.find(|text| !text.is_empty())
    };
    let name = scalar("license").filter(|name| name != "other");
    LicenseSection { name: name.or_else(|| scalar("license_name")), link: scalar("license_link"), text: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(name: Option<&str>, link: Option<&str>, text: Option<&str>) -> LicenseSection {
        let [name, link, text] = [name, link, text].map(|one| one.map(str::to_owned));
        LicenseSection { name, link, text }
    }

    #[test]
    fn a_model_card_names_the_license() {
        let cards = [
            (
                "---\nlicense: apache-2.0\ntags:\n- a\n---\n# Model\nlicense: mit\n",
                section(Some("apache-2.0"), None, None),
            ),
            (
                "---\r\nlicense: other\r\nlicense_name: 'gemma'\r\nlicense_link: https://ai.google.dev/gemma/terms\r\n---\r\n",
                section(Some("gemma"), Some("https://ai.google.dev/gemma/terms"), None),
            ),
            ("---\nlicense:\n- mit\n---\n", LicenseSection::default()),
            ("# Model\n---\nlicense: mit\n---\n", LicenseSection::default()),
            ("", LicenseSection::default()),
        ];
        for (card, expected) in cards {
            assert_eq!(of_model_card(card), expected, "{card:?}");
        }
    }

    #[test]
    fn a_folder_has_the_text_beside_the_card() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of_folder(folder.path()).unwrap(), None);
        std::fs::write(folder.path().join(MODEL_CARD), "---\nlicense: mit\n---\n").unwrap();
        assert_eq!(of_folder(folder.path()).unwrap(), Some(section(Some("mit"), None, None)));
        std::fs::write(folder.path().join("LICENSE.md"), b"MIT License \xff\n").unwrap();
        let text = Some("MIT License \u{fffd}");
        assert_eq!(of_folder(folder.path()).unwrap(), Some(section(Some("mit"), None, text)));
    }
}
