//! `cargo xtask browser`: the page of `unicorn-run inspect --html` in a headless Chromium. A browser is a large package for
//! a small page, so these tests are a command of their own.

use anyhow::Result;

use crate::binaries::build_with_tests;
use crate::run::{cargo, run};
use crate::system;

/// Installs Chromium where it is missing, builds the programs and runs the page's tests.
///
/// # Errors
/// The step that failed.
pub fn run_all() -> Result<()> {
    system::install(&["chromium"])?;
    build_with_tests()?;
    run(cargo().args(["test", "--workspace", "--test", "page", "--", "--ignored"]))
}
