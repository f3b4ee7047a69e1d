//! The report that is committed, and what changed against it.

use std::path::{Path, PathBuf};

/// Result of the comparison of a report with the golden one.
#[derive(Debug, PartialEq, Eq)]
pub enum Comparison {
    Same,
    /// Made by another driver, or another version of it: its figures do not show a change of ours.
    OtherDriver,
    /// Lines that are gone, marked `-`, and lines that are new, marked `+`.
    Differs(String),
}

/// The first line names the driver.
pub fn compare(golden: &str, report: &str) -> Comparison {
    if golden == report {
        return Comparison::Same;
    }
    if golden.lines().next() != report.lines().next() {
        return Comparison::OtherDriver;
    }
    Comparison::Differs(lines_missing(golden, report, '-') + &lines_missing(report, golden, '+'))
}

/// Where the report of a family is committed.
pub fn path(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/radv/{family}.txt"))
}

/// Lines of `text` that `other` has not as often.
fn lines_missing(text: &str, other: &str, sign: char) -> String {
    let mut left: Vec<&str> = other.lines().collect();
    let is_missing = |line: &&str| match left.iter().position(|one| one == line) {
        Some(at) => {
            left.swap_remove(at);
            false
        }
        None => true,
    };
    text.lines().filter(is_missing).map(|line| format!("{sign} {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_shown() {
        let golden = "driver 1\na 10\nb 20\nb 20\n";
        assert_eq!(compare(golden, golden), Comparison::Same);
        assert_eq!(compare(golden, "driver 2\na 10\n"), Comparison::OtherDriver);
        let changed = "driver 1\na 10\nb 20\nc 30\n";
        assert_eq!(compare(golden, changed), Comparison::Differs("- b 20\n+ c 30\n".into()));
    }
}
