//! Runs other programs: the command is printed before, and the status is checked after.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `command` with its output going straight through and nothing on its standard input.
///
/// # Errors
/// When the program cannot be started or does not end with 0; the message is its command line.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    eprintln!("$ {line}");
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("command did not start: {line}"))?;
    if !status.success() {
        bail!("command failed with {status}: {line}");
    }
    Ok(())
}

/// Like [`run`], but returns standard output.
pub fn read(command: &mut Command) -> Result<String> {
    let line = line(command);
    eprintln!("$ {line}");
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("command did not start: {line}"))?;
    if !output.status.success() {
        bail!("command failed with {}: {line}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("output is not UTF-8: {line}"))
}

/// Whether `command` runs and ends with 0; prints nothing.
pub fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// The cargo that runs this program, or the one on the path.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What cargo says of this package to its programs. Build scripts run again when it changes (ring's), and with them a third of
    // the workspace, so that cargo here and cargo in a shell would build in turn.
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|of_package| name.to_string_lossy().starts_with(of_package)) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// The command as one would type it.
fn line(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    // CARGO is a path inside the toolchain; people type the name.
    let program = if program.ends_with("/cargo") { "cargo".into() } else { program };
    let variables = command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_string_lossy();
        Some(format!("{}={}", name.to_string_lossy(), quoted(&value)))
    });
    let arguments = command.get_args().map(|argument| quoted(&argument.to_string_lossy()));
    variables.chain([program.into_owned()]).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// `text` as a shell reads it back, in quotes only if it needs them.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("/toolchain/bin/cargo");
        command.args(["test", "it's here", ""]).env("UNICORN_DEVICE", "llvmpipe");
        assert_eq!(line(&command), r"UNICORN_DEVICE=llvmpipe cargo test 'it'\''s here' ''");
    }

    #[test]
    fn failure_names_the_command() {
        let message = run(&mut Command::new("false")).unwrap_err().to_string();
        assert!(message.contains("failed with exit status: 1: false"), "{message}");
        let message = run(&mut Command::new("no-such-program")).unwrap_err().to_string();
        assert!(message.contains("did not start: no-such-program"), "{message}");
        assert_eq!(read(Command::new("echo").arg("a")).unwrap(), "a\n");
        assert!(succeeds(&mut Command::new("true")) && !succeeds(&mut Command::new("false")));
    }
}
