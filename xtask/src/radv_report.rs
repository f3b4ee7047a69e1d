//! `cargo xtask radv-report`: every kernel of a dense model, compiled for seven families of AMD's GPUs on a machine without one.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::binaries::{build_with_tests, target_folder};
use crate::radv::{NoRadv, Radv};
use crate::run::run;
use crate::skipped::Skipped;
use crate::system;

/// The family that needs a newer driver than the others.
const GFX12: &str = "gfx1201";
/// RADV's names of the families; `tests/src/radv/family.rs` lists their devices.
const FAMILIES: [&str; 7] = ["phoenix", "gfx1151", "navi31", "navi21", "rembrandt", "renoir", GFX12];

#[derive(clap::Args, Default)]
pub struct RadvReportArgs {
    /// Only this family of GPUs, such as phoenix
    #[arg(long, value_name = "NAME", value_parser = FAMILIES)]
    family: Option<String>,
    /// Rewrite the golden reports
    #[arg(long)]
    bless: bool,
    /// Lanes of a subgroup instead of the target's own; the report is then not compared
    #[arg(long, value_name = "LANES")]
    subgroup_size: Option<u32>,
    /// Write each kernel's machine code into this folder
    #[arg(long, value_name = "FOLDER")]
    dump: Option<PathBuf>,
}

/// Runs the reports as a part of all tests: skipped where the system cannot have a family's driver.
///
/// # Errors
/// Errors of [`run_report`], but for drivers that cannot be had.
pub fn run_where_possible(skipped: &Skipped) -> Result<()> {
    for (family, missing) in reports(&RadvReportArgs::default())? {
        let check = if family == GFX12 { "RADV for gfx12" } else { "Debian packages" };
        skipped.skip(check, &missing.to_string())?;
    }
    Ok(())
}

/// Sets the driver up, builds the programs and runs the report's.
///
/// # Errors
/// When the driver cannot be had, a kernel spills or lacks an instruction that its capabilities require, or the report differs from the golden one.
pub fn run_report(args: &RadvReportArgs) -> Result<()> {
    match reports(args)?.into_iter().next() {
        Some((_, missing)) => Err(missing),
        None => Ok(()),
    }
}

/// Returns the families whose driver cannot be had.
fn reports(args: &RadvReportArgs) -> Result<Vec<(&'static str, anyhow::Error)>> {
    system::install(&system::VULKAN)?;
    let target = target_folder()?;
    build_with_tests()?;
    let (mut failed, mut missing) = (Vec::new(), Vec::new());
    for family in FAMILIES.into_iter().filter(|family| args.family.as_deref().is_none_or(|only| only == *family)) {
        let found = match family {
            GFX12 => Radv::find_for_gfx12(&target.join("radv-gfx12")),
            _ => Radv::find(&target.join("radv")),
        };
        let radv = match found {
            Ok(radv) => radv,
            Err(error) if error.is::<NoRadv>() => {
                missing.push((family, error));
                continue;
            }
            Err(error) => return Err(error),
        };
        // Not through cargo run: the driver's libraries are for this program only.
        let mut report = radv.command(&target.join("debug/radv-report"), family);
        report.args(["--family", family]);
        if args.bless {
            report.arg("--bless");
        }
        if let Some(lanes) = args.subgroup_size {
            report.args(["--subgroup-size", &lanes.to_string()]);
        }
        if let Some(folder) = &args.dump {
            let folder = folder.join(family);
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            report.arg("--dump").arg(folder);
        }
        if let Err(error) = run(&mut report) {
            failed.push(format!("{family}: {error:#}"));
        }
    }
    if !failed.is_empty() {
        bail!("reports fail:\n{}", failed.join("\n"));
    }
    Ok(missing)
}
