//! `cargo xtask phoenix-report`: every kernel of two models, compiled for the Radeon 780M on a machine without one.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::binaries::{build_with_tests, target_folder};
use crate::radv::{NoRadv, Radv};
use crate::run::run;
use crate::system;
use crate::test::Skipped;

#[derive(clap::Args, Default)]
pub struct PhoenixReportArgs {
    /// Rewrite the golden report
    #[arg(long)]
    bless: bool,
    /// Lanes of a subgroup instead of the target's own; the report is then not compared
    #[arg(long, value_name = "LANES")]
    subgroup_size: Option<u32>,
    /// Write each kernel's machine code into this folder
    #[arg(long, value_name = "FOLDER")]
    dump: Option<PathBuf>,
}

/// The report as one of the tests: skipped where the system cannot have the driver.
///
/// # Errors
/// As [`run_report`].
pub fn run_where_possible(skipped: &Skipped) -> Result<()> {
    match run_report(&PhoenixReportArgs::default()) {
        Err(error) if error.is::<NoRadv>() => skipped.skip("Debian packages", &error.to_string()),
        done => done,
    }
}

/// Sets the driver up, builds the programs and runs the report's.
///
/// # Errors
/// When the driver cannot be had, a kernel spills or lacks what it promises, or the report differs from the golden one.
pub fn run_report(args: &PhoenixReportArgs) -> Result<()> {
    system::install(&system::VULKAN)?;
    let target = target_folder()?;
    let radv = Radv::find(&target.join("radv"))?;
    build_with_tests()?;
    // Not through cargo run: the driver's libraries are for this program only.
    let mut report = Command::new(target.join("debug/phoenix-report"));
    if args.bless {
        report.arg("--bless");
    }
    if let Some(lanes) = args.subgroup_size {
        report.args(["--subgroup-size", &lanes.to_string()]);
    }
    if let Some(folder) = &args.dump {
        report.arg("--dump").arg(folder);
    }
    run(radv.alone_in(&mut report))
}
