//! Filetests: one file holds settings and what is expected for them.
//!
//! ```text
//! ;! test = "fuse"             settings: the stage, then what it needs; values are JSON, an unknown key is an error
//! ;! family = "gemma3"         a line that begins with `;!` and two spaces continues the one before
//!
//! ; %0 embedding[64] = …       the stage's text, compared line by line; blessing writes it
//! ```
//!
//! A blessed file shows *that* something changed; only the differential tests say it is right.

mod kernel;
mod program;
mod settings;
mod stages;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use settings::Settings;

/// Whether to compare with the expected text, or to replace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Compare,
    Bless,
}

/// What a run over the files found.
#[derive(Debug, Default)]
pub struct Outcome {
    pub files: usize,
    pub blessed: Vec<PathBuf>,
    /// The message of each file that failed.
    pub failures: Vec<String>,
}

/// Runs every file below `tests/filetests` whose path contains `filter`.
///
/// # Panics
/// If a file or folder cannot be read or written.
pub fn run(filter: &str, mode: Mode) -> Outcome {
    let mut outcome = Outcome::default();
    let mut paths = Vec::new();
    collect(&root(), &mut paths);
    paths.sort();
    paths.retain(|path| path.to_string_lossy().contains(filter));
    for path in paths {
        outcome.files += 1;
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        match run_file(&path, mode) {
            Ok(true) => outcome.blessed.push(path),
            Ok(false) => {}
            Err(failure) => outcome.failures.push(format!("{name}: {failure}")),
        }
    }
    outcome
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests")
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry of the folder").path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "test") {
            paths.push(path);
        }
    }
}

/// Whether the file was rewritten.
fn run_file(path: &Path, mode: Mode) -> Result<bool, String> {
    let file = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let settings = Settings::parse(&file)?;
    let found = expected_form(&stages::run(&settings)?);
    let expected: String = file.lines().filter(|line| is_expected(line)).map(|line| format!("{line}\n")).collect();
    if expected == found {
        return Ok(false);
    }
    if mode == Mode::Compare {
        return Err(difference(&expected, &found));
    }
    let header: String = file.lines().take_while(|line| !is_expected(line)).map(|line| format!("{line}\n")).collect();
    let blessed = format!("{}\n\n{found}", header.trim_end());
    std::fs::write(path, blessed).map_err(|error| error.to_string())?;
    Ok(true)
}

/// A stage's text as lines of the file.
fn expected_form(text: &str) -> String {
    text.lines().map(|line| format!("; {line}").trim_end().to_owned() + "\n").collect()
}

fn is_expected(line: &str) -> bool {
    line.starts_with(';') && !line.starts_with(";!")
}

/// The first lines that differ, and how to accept them.
fn difference(expected: &str, found: &str) -> String {
    const SHOWN_LINES: usize = 5;
    let (expected, found): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), found.lines().collect());
    let same = expected.iter().zip(&found).take_while(|(left, right)| left == right).count();
    let mut text = format!("differs from line {} of what is expected on", same + 1);
    for (sign, lines) in [('-', &expected), ('+', &found)] {
        for line in lines.iter().skip(same).take(SHOWN_LINES) {
            write!(text, "\n  {sign} {line}").expect("writing to a String");
        }
    }
    text + "\n  BLESS=1 cargo test -p tests --test filetests accepts it; read the change as if someone else wrote it"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_shows_both_sides_from_the_first_line_that_differs() {
        let text = difference("; a\n; b\n; c\n", "; a\n; x\n; c\n");
        assert!(text.starts_with("differs from line 2 of what is expected on\n  - ; b\n  - ; c\n  + ; x\n"), "{text}");
    }

    #[test]
    fn an_empty_line_of_a_stage_has_no_space_at_its_end() {
        assert_eq!(expected_form("a\n\nb"), "; a\n;\n; b\n");
    }
}
