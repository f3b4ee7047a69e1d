//! The manual, docs/cli.md, against what the programs print with `--help`.

use std::collections::BTreeSet;
use std::path::Path;

use tests::programs::program;

/// Help of a program's command, or of the program itself.
fn help(name: &str, command: Option<&str>) -> String {
    let output = program(name).args(command).arg("--help").output().expect("the program starts");
    assert!(output.status.success(), "{name} {command:?} --help: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("help is text")
}

/// Names after the line `Commands:`, except `help`.
fn commands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

/// Long options at the beginning of a line.
fn options(help: &str) -> BTreeSet<&str> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines.flat_map(|line| line.split([' ', ','])).filter(|word| word.starts_with("--")).collect()
}

#[test]
fn every_command_and_option_is_in_the_manual() {
    let manual =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md")).expect("docs/cli.md");
    let mut missing = Vec::new();
    for name in ["unicorn-compile", "unicorn-run"] {
        let own = help(name, None);
        let commands = commands(&own);
        assert!(!commands.is_empty(), "{name} --help lists no commands:\n{own}");
        for command in std::iter::once(None).chain(commands.iter().copied().map(Some)) {
            if let Some(command) = command.filter(|command| !manual.contains(&format!("{name} {command}"))) {
                missing.push(format!("{name} {command}"));
            }
            let help = help(name, command);
            // As it stands in a table: in backquotes, alone or before its value.
            let is_there = |option: &str| [" ", "`", "\\"].iter().any(|end| manual.contains(&format!("{option}{end}")));
            let absent = options(&help).into_iter().filter(|option| !is_there(option)).map(str::to_owned);
            missing.extend(absent.map(|option| format!("{name} {} {option}", command.unwrap_or_default())));
        }
    }
    assert!(missing.is_empty(), "not in docs/cli.md:\n{}", missing.join("\n"));
}

#[test]
fn the_refusal_in_the_placement_page_is_what_the_compiler_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/placement.md")).expect("docs/placement.md");
    let (_, sample) =
        page.split_once("<!-- checked by tests/tests/manual.rs -->\n```text\n").expect("the page has a sample");
    let (sample, _) = sample.split_once("\n```").expect("the sample ends");
    let output = program("unicorn-compile")
        .args(["--plan-only", "--machine", "phoenix-16gb", "--synthetic"])
        .arg(root.join("tests/benches/shapes/gemma-3-27b.json"))
        .output()
        .expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    // Before it stand the names of the phases.
    assert_eq!(stderr.find("error: ").map(|at| stderr[at..].trim_end()), Some(sample), "{stderr}");
    assert_eq!(output.status.code(), Some(1));
}
