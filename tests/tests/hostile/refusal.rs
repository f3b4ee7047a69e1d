//! How a program must refuse: one error, a status of failure, nothing left behind.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use tests::programs::program;

/// `unicorn-compile model -o output` for the least work there is.
pub fn compile_command(model: &Path, output: &Path) -> Command {
    let mut command = program("unicorn-compile");
    command.arg(model).arg("-o").arg(output).args(["--target", "generic", "--quiet"]);
    command
}

/// Runs `command`, which must end with one error that contains every one of `expected`, and must leave `folder` as it found it. An
/// error is a line `error: …`; a list in it follows on indented lines.
#[track_caller]
pub fn assert_refused(command: &mut Command, folder: &Path, expected: &[&str]) {
    let before = listing(folder);
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8(output.stderr).expect("stderr is text");
    assert!(!output.status.success(), "{command:?} was expected to fail; stderr: {stderr}");
    assert_eq!(output.status.code(), Some(1), "status of {command:?}; stderr: {stderr}");
    assert!(!stderr.contains("panicked"), "{command:?} panicked: {stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    let errors: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("error: ")).collect();
    let [first] = errors[..] else { panic!("one line with error: was expected, found: {stderr}") };
    let list: Vec<&str> = lines.iter().skip_while(|line| !line.starts_with("error: ")).skip(1).copied().collect();
    assert!(list.iter().all(|line| line.starts_with("  ")), "something follows the error: {stderr}");
    let message = [&[first][..], &list].concat().join("\n");
    assert!(!message.ends_with('.'), "message ends with a full stop: {message}");
    for words in expected {
        assert!(message.contains(words), "message does not say {words:?}: {message}");
    }
    assert!(output.stdout.is_empty(), "stdout of a failed run: {}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(listing(folder), before, "files before and after {command:?}");
}

/// Names and lengths of what lies in `folder`.
pub fn listing(folder: &Path) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let described = entries.map(|entry| {
        let entry = entry.expect("an entry of the folder");
        (entry.file_name().to_string_lossy().into_owned(), entry.metadata().expect("its size").len())
    });
    described.collect()
}
