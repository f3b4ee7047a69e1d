//! What a person sees on a terminal: words wrap at its width, commands stay whole, and NO_COLOR is plain text.

use std::num::NonZeroU16;
use std::path::Path;
use std::process::Command;

use tests::programs::program;
use tests::terminal::Terminal;
use tests::tiny_model::TinyModel;

const NARROW: NonZeroU16 = NonZeroU16::new(60).unwrap();
const WIDE: NonZeroU16 = NonZeroU16::new(100).unwrap();

/// What is typed in `folder`.
fn typed(folder: &Path, line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = program(words.next().expect("a line names a program"));
    command.args(words).current_dir(folder).env("UNICORN_DEVICE", "llvmpipe").env_remove("NO_COLOR");
    command
}

/// All that the command writes to a terminal of `columns` columns, until it ends with `status`.
#[track_caller]
fn written(command: &Command, columns: NonZeroU16, status: i32) -> String {
    let mut terminal = Terminal::start(command, columns);
    assert_eq!(terminal.wait().code(), Some(status), "{}", terminal.screen());
    terminal.written().replace("\r\n", "\n")
}

fn lay_out(folder: &Path) {
    TinyModel::default().write(folder.join("model"));
    std::fs::write(folder.join("notes.txt"), "Dear diary").unwrap();
    std::fs::create_dir(folder.join("two")).unwrap();
    for name in ["two/one.gguf", "two/other.gguf"] {
        std::fs::write(folder.join(name), "GGUF").unwrap();
    }
}

#[test]
fn errors_wrap_between_words_and_leave_commands_whole() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path());
    for (line, command) in [
        ("unicorn-run two Hello", "unicorn-run two/one.gguf"),
        ("unicorn-run inspect two", "unicorn-compile two/one.gguf -o one.unicorn"),
        ("unicorn-compile two -q -o x.unicorn", "unicorn-compile two/one.gguf -o one.unicorn"),
    ] {
        let error = written(&typed(folder.path(), line), NARROW, 1);
        let lines: Vec<&str> = error.lines().collect();
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() < 60), "{line}: {error}");
        assert!(lines.iter().any(|line| line.contains(command)), "{line}: {error}");
        // Without a terminal, an error is one line.
        let output = typed(folder.path(), line).output().unwrap();
        let plain = String::from_utf8(output.stderr).unwrap();
        assert_eq!(plain.lines().count(), 1, "{plain}");
        assert_eq!(plain.split_whitespace().collect::<Vec<_>>(), error.split_whitespace().collect::<Vec<_>>());
    }
}

#[test]
fn a_compile_has_no_bars_with_no_color_and_a_summary_that_wraps() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path());
    let compile = "unicorn-compile model -o m.unicorn --target generic";
    let coloured = written(&typed(folder.path(), compile), WIDE, 0);
    assert!(coloured.contains('\x1b'), "bars: {coloured:?}");
    for plain in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let mut command = typed(folder.path(), compile);
        command.env(plain.0, plain.1);
        let shown = written(&command, NARROW, 0);
        assert!(
            !shown.contains('\x1b') && !shown.contains('█') && shown.contains("\nkernels\n"),
            "{plain:?}: {shown:?}"
        );
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines.iter().all(|line| line.len() < 60), "{shown}");
        let fits =
            lines.iter().position(|line| line.starts_with("  fits      8 of 8 known machines; at most ")).unwrap();
        assert!(lines[fits + 1].starts_with("            "), "what continues a line is below it: {shown}");
        assert_eq!(lines.last(), Some(&"  run it    unicorn-run m.unicorn"), "{shown}");
    }
}
