//! NPU programs with MLIR, which other builds leave out because they need the system's LLVM and MLIR 19.

use std::process::Command;

use anyhow::{Context, Result};

use crate::binaries::target_folder;
use crate::debian::{self, Archive, Tree};
use crate::run::{cargo, run, succeeds};
use crate::skipped::Skipped;
use crate::system;

/// Where Debian's packages put LLVM 19.
const PREFIX: &str = "/usr/lib/llvm-19";
/// Where the crates that bind LLVM 19 look for it.
const PREFIX_VARIABLES: [&str; 2] = ["MLIR_SYS_190_PREFIX", "TABLEGEN_190_PREFIX"];
/// The tests that need MLIR; all others run without. They bring a `unicorn-compile` with NPU programs, which the next build replaces.
const MLIR_TESTS: [&str; 8] = [
    "--features",
    "unicorn-npu/mlir,unicorn-compiler/npu",
    "--test",
    "bodies",
    "--test",
    "mlir",
    "--test",
    "npu_programs",
];

#[derive(clap::Args)]
pub struct NpuReportArgs {
    /// Rewrite the golden report
    #[arg(long, conflicts_with = "whole")]
    bless: bool,
    /// Run whole designs at their real sizes in place of the report, and compare every value: of all models, or of MODEL. Minutes, on all processors
    #[arg(long, value_name = "MODEL")]
    whole: Option<Option<String>>,
}

/// Runs the test that makes the report, or the one of whole designs. Neither needs MLIR.
///
/// # Errors
/// When a design is not legal or computes something else, or the report differs from the golden one.
pub fn run_report(args: &NpuReportArgs) -> Result<()> {
    let mut test = cargo();
    if let Some(model) = &args.whole {
        // Nothing else is built with optimisations, so that no other package's features matter.
        test.args(["test", "--release", "--package", "unicorn-npu", "--test", "whole"]);
        test.args(["--", "--ignored", "--nocapture"]);
        if let Some(model) = model {
            test.env("NPU_MODEL", model);
        }
        return run(&mut test);
    }
    test.args(["test", "--workspace", "--test", "report"]);
    if args.bless {
        test.env("BLESS", "1");
    }
    run(&mut test)?;
    println!("the report is tests/golden/npu-report.txt");
    Ok(())
}

/// Where AMD's tools for instruction streams and containers are packaged for Debian, and in what. They run on every Linux with the libraries of
/// that release.
const TOOL_SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const TOOL_PACKAGES: [&str; 3] = ["libxrt-utils-npu", "libxrt-utils", "xilinx-bootgen"];
/// Variables by which the tests find them.
const TOOLS: [(&str, &str); 4] =
    [("AIEBU_ASM", "aiebu-asm"), ("AIEBU_DUMP", "aiebu-dump"), ("BOOTGEN", "bootgen"), ("XCLBINUTIL", "xclbinutil")];

/// Lets AMD's tools read instruction streams, and read and write device images and XCLBIN files, and compares what the runtime calls with XRT's
/// library: skipped on a system that gets no packages
/// from Debian.
///
/// # Errors
/// When the packages cannot be had, or a tool reads or writes something else.
pub fn compare_with_tools_where_possible(skipped: &Skipped) -> Result<()> {
    if debian::release().is_none() {
        let what = "NPU instruction streams and containers were not read by AMD's tools: this is no Debian";
        return skipped.skip("Debian packages", what);
    }
    let tree = Tree::unpacked(&target_folder()?.join("npu-tools"), Archive::Debian, &TOOL_SUITES, &TOOL_PACKAGES)
        .context("AMD's tools cannot be had from Debian")?;
    let libraries = tree.libraries("libc.so.6")?;
    let mut test = cargo();
    test.args(["test", "--workspace", "--test", "aiebu", "--test", "bootgen", "--test", "xclbinutil"]);
    for (variable, tool) in TOOLS {
        test.env(variable, tree.program(tool, &libraries)?);
    }
    // Here nothing is skipped.
    run(test.env("UNICORN_STRICT", "all"))?;
    let mut test = cargo();
    test.args(["test", "--workspace", "--lib", "--", "npu::xrt"]);
    test.env("XRT_LIBRARY", tree.path("usr/lib/x86_64-linux-gnu/libxrt_coreutil.so.2"));
    run(test.env("UNICORN_STRICT", "all"))
}

/// Debian's package of the kernel's headers; amdxdna's is among them since Linux 6.14.
const HEADER_SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const HEADER_PACKAGES: [&str; 1] = ["linux-libc-dev"];

/// Compares the structs of the runtime's NPU driver with the kernel's headers: skipped on a system that gets no packages from Debian.
///
/// # Errors
/// When the package cannot be had, or a struct differs.
pub fn compare_headers_where_possible(skipped: &Skipped) -> Result<()> {
    if debian::release().is_none() {
        return skipped
            .skip("Debian packages", "structs of amdxdna were not compared with the kernel's: this is no Debian");
    }
    let tree = Tree::unpacked(&target_folder()?.join("amdxdna"), Archive::Debian, &HEADER_SUITES, &HEADER_PACKAGES)
        .context("headers of the kernel cannot be had from Debian")?;
    let mut test = cargo();
    test.args(["test", "--workspace", "--lib", "--", "npu::uapi"]);
    test.env("AMDXDNA_HEADERS", tree.path("usr/include"));
    run(&mut test)
}

/// Selects the tests that need MLIR, for a cargo that [`find_mlir`] prepares: none where no package has LLVM 19, as on other systems than Debian.
///
/// # Errors
/// When nothing may be skipped.
pub fn mlir_where_possible(skipped: &Skipped) -> Result<&'static [&'static str]> {
    let reason = match system::install(&system::MLIR) {
        Err(error) => format!("{error:#}"),
        Ok(()) if !succeeds(Command::new(format!("{PREFIX}/bin/llvm-config")).arg("--version")) => {
            format!("there is no LLVM 19 in {PREFIX}")
        }
        Ok(()) => return Ok(&MLIR_TESTS),
    };
    skipped.skip("MLIR", &reason)?;
    Ok(&[])
}

/// Tells `cargo` where MLIR is.
pub fn find_mlir(cargo: &mut Command) {
    for variable in PREFIX_VARIABLES {
        cargo.env(variable, PREFIX);
    }
}
