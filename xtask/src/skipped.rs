//! Checks that were skipped: what `cargo xtask test` shows at its end.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use test_support::skip;

/// The checks that did not run, one a line of a file which the tests write: see `tests/support/src/skip.rs`.
pub struct Skipped {
    file: PathBuf,
    strict: String,
}

impl Skipped {
    pub fn none_yet(file: &Path) -> Result<Skipped> {
        std::fs::write(file, "").with_context(|| format!("cannot write {}", file.display()))?;
        let strict = std::env::var("UNICORN_STRICT").unwrap_or("1".into());
        Ok(Skipped { file: file.to_owned(), strict })
    }

    /// `command` reports its skipped checks here, and fails where one is not permitted.
    pub fn reported_by<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("UNICORN_SKIPS", &self.file).env("UNICORN_STRICT", &self.strict)
    }

    /// A check of ours that this system cannot run.
    ///
    /// # Errors
    /// Where that is not permitted.
    pub fn skip(&self, check: &str, reason: &str) -> Result<()> {
        eprintln!("skipped: {check}: {reason}");
        skip::record(&self.file, check, reason)?;
        match skip::refusal(&self.strict, check) {
            Some(complaint) => bail!("{check} is skipped ({reason}), {complaint}"),
            None => Ok(()),
        }
    }

    pub fn print(&self) -> Result<()> {
        let lines =
            std::fs::read_to_string(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        eprintln!("\n{}", summary(&lines));
        Ok(())
    }
}

/// Each skipped check once for each reason, with how often.
fn summary(lines: &str) -> String {
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for line in lines.lines() {
        match counted.iter_mut().find(|(known, _)| *known == line) {
            Some((_, count)) => *count += 1,
            None => counted.push((line, 1)),
        }
    }
    if counted.is_empty() {
        return "no check was skipped".into();
    }
    counted.sort_unstable();
    let lines = counted.into_iter().map(|(line, count)| format!("skipped {count:>3} × {line}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_checks_are_counted() {
        assert_eq!(summary(""), "no check was skipped");
        let text = summary("b: no b here\na: no a here\nb: no b here\n");
        assert_eq!(text, "skipped   1 × a: no a here\nskipped   2 × b: no b here");
    }

    #[test]
    fn a_strict_run_fails_where_a_skip_is_not_listed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skipped.txt");
        let skipped = |strict: &str| Skipped { file: file.clone(), strict: strict.into() };
        skipped("1").skip("Debian packages", "another system").unwrap();
        skipped("0").skip("anything", "a reason").unwrap();
        assert!(skipped("1").skip("anything", "a reason").unwrap_err().to_string().contains("skips.txt"));
        assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 3);
    }
}
