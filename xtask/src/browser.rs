//! `cargo xtask browser`: the page of `unicorn-run inspect --html` and the chat page of `unicorn-run serve` in a headless Chromium. A
//! browser is a large package for two small pages, so these tests are a command of their own.

use anyhow::Result;

use crate::binaries::build_with_tests;
use crate::run::{cargo, run};
use crate::system;

/// Installs Chromium where it is missing, builds the programs and runs the pages' tests.
///
/// # Errors
/// The step that failed.
pub fn run_all() -> Result<()> {
    system::install(&["chromium"])?;
    build_with_tests()?;
    run(cargo().args(["test", "--workspace", "--test", "page", "--test", "chat_page", "--", "--ignored"]))
}
