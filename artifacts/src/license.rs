//! The license section: the terms under which a model's authors publish it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The license section. Its author's words: nothing of it is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LicenseSection {
    /// Identifier or name, such as `apache-2.0`.
    pub name: Option<String>,
    /// Where the text is published.
    pub link: Option<String>,
    /// The text.
    pub text: Option<String>,
}

impl LicenseSection {
    /// `None` for a section that says nothing.
    pub fn or_none(self) -> Option<LicenseSection> {
        (self != LicenseSection::default()).then_some(self)
    }

    /// One line: name and link, or else the first line of the text.
    pub fn title(&self) -> String {
        let LicenseSection { name, link, text } = self;
        let named: Vec<&str> = [name, link].into_iter().flatten().map(String::as_str).collect();
        match text
            .as_ref()
            .filter(|_| named.is_empty())
            .and_then(|text| text.lines().find(|line| !line.trim().is_empty()))
        {
            Some(line) => line.trim().to_owned(),
            None => named.join(", "),
        }
    }
}

/// Name and link in one line, then the text.
impl fmt::Display for LicenseSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, &self.link, &self.text) {
            (None, None, Some(text)) => f.write_str(text),
            (_, _, Some(text)) => write!(f, "{}\n\n{text}", self.title()),
            (_, _, None) => f.write_str(&self.title()),
        }
    }
}
