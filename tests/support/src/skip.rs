//! Checks that this machine cannot run are reported, never passed over in silence.
//!
//! | variable | meaning |
//! |---|---|
//! | `UNICORN_STRICT=1` | a skipped check fails, unless `tests/skips.txt` lists it; CI, `.ci/run` and `cargo xtask test` set it |
//! | `UNICORN_STRICT=all` | a skipped check fails |
//! | `UNICORN_SKIPS=FILE` | each skipped check is appended to FILE as a line `check: reason` |

use std::io::Write;
use std::path::Path;

/// One check a line, `check: why it may be skipped`.
const PERMITTED: &str = include_str!("../../skips.txt");

/// Reports that `check` does not run on this machine for this `reason`; the test that calls it then returns.
///
/// # Panics
/// Where skipping is a failure: see the table above.
#[track_caller]
pub fn skip(check: &str, reason: impl std::fmt::Display) {
    eprintln!("skipped: {check}: {reason}");
    if let Some(path) = std::env::var_os("UNICORN_SKIPS") {
        let recorded = record(path.as_ref(), check, &reason.to_string());
        recorded.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let strict = std::env::var("UNICORN_STRICT").unwrap_or_default();
    if let Some(complaint) = refusal(&strict, check) {
        panic!("{check} is skipped ({reason}), {complaint}");
    }
}

/// Appends a line to the file of skipped checks.
///
/// # Errors
/// When the file cannot be written.
pub fn record(file: &Path, check: &str, reason: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
    // In one write, so that lines of tests that run at the same time do not mix.
    file.write_all(format!("{check}: {}\n", reason.replace('\n', " ")).as_bytes())
}

/// Why `check` must not be skipped, if it must not; `strict` as in `UNICORN_STRICT`.
pub fn refusal(strict: &str, check: &str) -> Option<&'static str> {
    match strict {
        "" | "0" => None,
        "all" => Some("and UNICORN_STRICT=all permits no skipped check"),
        _ if is_permitted(check, PERMITTED) => None,
        _ => Some("and tests/skips.txt does not list it: install what is missing, or set UNICORN_STRICT=0"),
    }
}

fn is_permitted(check: &str, permitted: &str) -> bool {
    let lines = permitted.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(": ")).any(|(listed, reason)| listed == check && !reason.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strict_run_permits_what_is_listed_with_a_reason() {
        let permitted = "# a comment: of the file\nfull disk: needs mount\nno reason: \n";
        assert!(is_permitted("full disk", permitted));
        for check in ["full", "no reason", "# a comment", "other"] {
            assert!(!is_permitted(check, permitted), "{check}");
        }
        assert_eq!(refusal("", "other"), None);
        assert_eq!(refusal("1", "full disk"), None);
        assert!(refusal("1", "other").is_some_and(|complaint| complaint.contains("skips.txt")));
        assert!(refusal("all", "full disk").is_some());
    }

    #[test]
    fn every_listed_check_has_a_reason_and_stands_there_once() {
        let lines: Vec<&str> = PERMITTED.lines().filter(|line| !line.starts_with('#')).collect();
        let mut checks: Vec<&str> = lines.iter().map(|line| line.split_once(": ").expect("check: reason").0).collect();
        assert!(checks.iter().all(|check| is_permitted(check, PERMITTED)), "{checks:?}");
        checks.sort_unstable();
        assert!(checks.windows(2).all(|pair| pair[0] != pair[1]), "{checks:?}");
    }
}
