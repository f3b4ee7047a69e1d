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

fn manual() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md")).expect("docs/cli.md")
}

#[test]
fn every_command_and_option_is_in_the_manual() {
    let manual = manual();
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

/// Long options in the first cells of a section's tables.
fn options_of_section<'m>(manual: &'m str, title: &str) -> BTreeSet<&'m str> {
    let (_, section) = manual.split_once(&format!("\n### {title}\n")).expect("the manual has the section");
    let section = section.split("\n### ").next().unwrap_or_default();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let words = cells.flat_map(|cell| cell.split(['`', ' ', ',', '\\']));
    words.filter(|word| word.starts_with("--")).collect()
}

#[test]
fn options_stand_in_the_section_of_their_commands() {
    let manual = manual();
    for (title, commands) in [
        ("Generating", &[None][..]),
        (
            "Loading",
            &[
                None,
                Some("serve"),
                Some("bench"),
                Some("profile"),
                Some("tune"),
                Some("selftest"),
                Some("perplexity"),
                Some("logits"),
            ],
        ),
        ("serve", &[Some("serve")]),
    ] {
        let listed = options_of_section(&manual, title);
        assert!(listed.len() > 10, "{title}: {listed:?}");
        for command in commands {
            let help = help("unicorn-run", *command);
            // Some are other names of an option.
            let absent: Vec<_> = listed.iter().filter(|option| !help.contains(**option)).collect();
            assert!(absent.is_empty(), "{title} in docs/cli.md lists {absent:?}, which {command:?} does not take");
        }
    }
}

#[test]
fn every_section_of_inspect_is_in_the_manual() {
    let manual = manual();
    let row = manual.lines().find(|line| line.starts_with("| `inspect --section")).expect("the manual has the option");
    let help = help("unicorn-run", Some("inspect"));
    let (_, option) = help.split_once("--section").expect("the option is in the help");
    let values = option.lines().map(str::trim_start).skip_while(|line| !line.starts_with("- "));
    let values =
        values.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("- ")?.split(':').next());
    let values: Vec<&str> = values.collect();
    assert!(values.contains(&"weights"), "{values:?} of {help}");
    let absent: Vec<_> = values.iter().filter(|value| !row.contains(&format!("`{value}`"))).collect();
    assert!(absent.is_empty(), "not in docs/cli.md: {absent:?}");
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
