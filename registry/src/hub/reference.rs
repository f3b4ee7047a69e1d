//! `hf:owner/name[@revision][:part]`: the reference to a model on the hub.

use std::fmt;
use std::str::FromStr;

use crate::error::RegistryError;

/// Begin of every such reference.
const SCHEME: &str = "hf:";
const DEFAULT_REVISION: &str = "main";
/// The hub's own limit.
const MAX_NAME_BYTES: usize = 96;

/// A model's name on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubReference {
    owner: String,
    name: String,
    /// A branch, a tag or a commit.
    revision: Option<String>,
    /// Part of a file's name, which selects one of several models in the repository.
    part: Option<String>,
}

impl HubReference {
    /// Whether a text begins as a reference, well-formed or not.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    pub(crate) fn part(&self) -> Option<&str> {
        self.part.as_deref()
    }
}

impl FromStr for HubReference {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<HubReference, RegistryError> {
        let wrong = |what: &str| RegistryError::HubReference { text: text.into(), what: what.into() };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| wrong("not a name on the hub"))?;
        let (rest, part) = split(rest, ':');
        let (name, revision) = split(rest, '@');
        let (owner, name) = name.split_once('/').ok_or_else(|| wrong("no owner is named"))?;
        for one in [owner, name] {
            if !is_name(one) {
                return Err(wrong("owner and name have letters, digits, dots, dashes and underscores"));
            }
        }
        if revision.is_some_and(|revision| !is_revision(revision)) {
            return Err(wrong("revision is none"));
        }
        if part.is_some_and(|part| part.is_empty() || part.chars().any(char::is_control)) {
            return Err(wrong("part of a file's name is missing"));
        }
        let (revision, part) = (revision.map(str::to_owned), part.map(str::to_owned));
        Ok(HubReference { owner: owner.into(), name: name.into(), revision, part })
    }
}

impl fmt::Display for HubReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.owner, self.name)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        self.part.iter().try_for_each(|part| write!(f, ":{part}"))
    }
}

fn split(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(first, second)| (first, Some(second)))
}

/// Checks a name, which must not lead out of a folder.
fn is_name(text: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let begins = text.starts_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
    begins && text.len() <= MAX_NAME_BYTES && text.chars().all(is_plain) && !text.contains("..") && !text.contains("--")
}

fn is_revision(text: &str) -> bool {
    text.split('/').all(is_name_or_dashed)
}

fn is_name_or_dashed(text: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.+".contains(letter);
    !text.is_empty()
        && !text.starts_with('.')
        && text.len() <= 255
        && text.chars().all(is_plain)
        && !text.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_an_owner_and_may_have_revision_and_part() {
        let read = |text: &str| text.parse::<HubReference>().unwrap();
        let whole = read("hf:HuggingFaceTB/SmolLM2-135M@refs/pr/3:Q4_K_M");
        assert_eq!((whole.owner(), whole.name()), ("HuggingFaceTB", "SmolLM2-135M"));
        assert_eq!((whole.revision(), whole.part()), ("refs/pr/3", Some("Q4_K_M")));
        assert_eq!(read("hf:a/b").revision(), "main");
        assert_eq!(read("hf:a/b:Q8_0").part(), Some("Q8_0"));
        for text in ["hf:a/b", "hf:a/b@v1.0", "hf:a/b:Q8_0", "hf:a/b@main:x.gguf"] {
            assert_eq!(read(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "a/b",
            "hf:",
            "hf:gpt2",
            "hf:a/",
            "hf:/b",
            "hf:a/b/c",
            "hf:../b",
            "hf:a/..",
            "hf:a/b@",
            "hf:a/b@../c",
            "hf:a/b@/c",
            "hf:a/b:",
            "hf:a b/c",
            "hf:.a/b",
            "hf:a/b@v 1",
            "hf:a/b@.git",
        ] {
            assert!(text.parse::<HubReference>().is_err(), "{text}");
        }
    }
}
