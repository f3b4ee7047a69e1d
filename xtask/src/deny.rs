//! cargo-deny: licences, duplicate versions, sources and advisories of all dependencies, by the policy in `deny.toml`; those of the fuzz
//! targets, which are a workspace of their own, too.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::binaries::target_folder;
use crate::run::{cargo, run, succeeds};
use crate::skipped::Skipped;

const VERSION: &str = "0.20.2";
const POLICY: &str = "deny.toml";
const WORKSPACES: [&str; 2] = ["Cargo.toml", "tests/fuzz/Cargo.toml"];

/// Checks the dependencies. Advisories are in a database that is fetched: without a network, that check is skipped.
///
/// # Errors
/// When a dependency violates the policy.
pub fn run_where_possible(skipped: &Skipped) -> Result<()> {
    let Ok(deny) = program() else {
        return skipped.skip("dependencies", "cargo-deny cannot be installed");
    };
    for workspace in WORKSPACES {
        run(deny_command(&deny, workspace).args(["check", "licenses", "bans", "sources"]))?;
    }
    if run(deny_command(&deny, WORKSPACES[0]).args(["fetch", "db"])).is_err() {
        return skipped.skip("advisories", "the database of advisories cannot be fetched");
    }
    WORKSPACES
        .iter()
        .try_for_each(|workspace| run(deny_command(&deny, workspace).args(["--offline", "check", "advisories"])))
}

fn deny_command(deny: &PathBuf, workspace: &str) -> Command {
    let mut command = Command::new(deny);
    command.args(["--config", POLICY, "--manifest-path", workspace, "--workspace", "--log-level", "warn"]);
    command
}

/// cargo-deny of the system, or one that is installed in the target folder, not optimised, because it runs only for seconds.
fn program() -> Result<PathBuf> {
    let on_path = PathBuf::from("cargo-deny");
    if succeeds(Command::new(&on_path).arg("--version")) {
        return Ok(on_path);
    }
    let root = target_folder()?.join("tools");
    let own = root.join("bin/cargo-deny");
    if !succeeds(Command::new(&own).arg("--version")) {
        run(cargo().args(["install", "cargo-deny", "--version", VERSION, "--locked", "--debug", "--root"]).arg(&root))?;
    }
    Ok(own)
}
