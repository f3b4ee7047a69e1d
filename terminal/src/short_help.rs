//! `-h` of one screen: commands by their names alone, in one block. `--help` describes each.

use clap::Command;

/// Columns of the block of names, so that with its indent it fits a terminal of 80.
const COLUMNS: usize = 78;

/// Usage, commands, and what clap makes of arguments and options.
const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}";

/// `command`, of the program `name`, whose short help lists the names of its commands, and whose long help also what they do.
///
/// # Panics
/// If it has no commands.
pub fn with_short_help(mut command: Command, name: &'static str) -> Command {
    // Adds the command `help`.
    command.build();
    let usage = command.render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").expect("clap begins so").to_owned();
    let described = command.clone().mut_args(|one| one.hide(true)).help_template("{all-args}").render_help();
    let described = described.ansi().to_string().trim_end().to_owned();
    let names: Vec<&str> = command.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name).collect();
    let names = crate::wrapped(&format!("Commands: {}", names.join(", ")), COLUMNS).replace('\n', "\n  ");
    let names = format!("{names}\n  {name} COMMAND -h shows the options of one");
    // Both lists are made here, so clap makes none.
    command
        .mut_subcommands(|one| one.hide(true))
        .override_usage(usage)
        .help_template(TEMPLATE)
        .before_help(names)
        .before_long_help(described)
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn program() -> Command {
        let option = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help_heading("Common");
        let own = Command::new("program").args_conflicts_with_subcommands(true).arg(option("all"));
        let hidden = Command::new("man").hide(true);
        with_short_help(own.subcommand(Command::new("list").about("List what is there")).subcommand(hidden), "program")
    }

    #[test]
    fn short_help_has_names_and_long_help_has_descriptions() {
        let short = program().render_help().to_string();
        assert!(short.contains("\nCommands: list, help\n  program COMMAND -h"), "{short}");
        assert!(!short.contains("List what is there") && short.contains("\nCommon:\n      --all"), "{short}");
        let long = program().render_long_help().to_string();
        assert!(long.contains("\nCommands:\n  list  List what is there\n  help  "), "{long}");
        assert!(long.contains("       program <COMMAND>\n") && !long.contains("\n  man"), "{long}");
    }

    #[test]
    fn all_commands_and_options_are_parsed() {
        program().debug_assert();
        for command in ["list", "man"] {
            let matches = program().try_get_matches_from(["program", command]).unwrap();
            assert_eq!(matches.subcommand_name(), Some(command));
        }
        assert!(program().try_get_matches_from(["program", "--all"]).unwrap().get_flag("all"));
    }
}
