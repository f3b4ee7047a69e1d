//! RADV for a family of AMD's GPUs without one: Mesa's driver on its null device compiles kernels to real machine code and runs
//! nothing. It needs a Mesa from 25.0 on and before 26, which no longer has such a device. If the system has another one, Debian's
//! packages are unpacked into a folder of the project, from which only this process loads them: the system is not changed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::debian::{self, Archive, Tree};

/// The first Mesa whose null device supports the report.
const MIN_MESA: (u32, u32) = (25, 0);
/// The first whose RADV reports that AMD_FORCE_FAMILY has been removed.
const FIRST_WITHOUT: (u32, u32) = (26, 0);
/// The Debian release that needs backports, and the packages that hold the driver and what it links to.
const RELEASE: &str = "bookworm";
const BACKPORTS: [&str; 3] = ["mesa-vulkan-drivers", "libdrm2", "libdrm-amdgpu1"];
const PLAIN: [&str; 1] = ["libllvm19"];
/// The first Mesa whose RADV lists matrices for gfx12. No suite of Debian has one that still has the null device; Ubuntu 24.04 has.
const MIN_MESA_OF_GFX12: (u32, u32) = (25, 2);
const UBUNTU_SUITES: [&str; 2] = ["noble", "noble-updates"];
const UBUNTU_PACKAGES: [&str; 2] = ["mesa-vulkan-drivers", "libvulkan1"];

/// Place of the driver.
#[derive(Debug, PartialEq, Eq)]
pub struct Radv {
    /// The file that leads Vulkan's loader to it.
    manifest: PathBuf,
    /// The folder of its libraries, where it is not the system's.
    libraries: Option<PathBuf>,
    /// The dynamic loader under which programs run where the driver needs a newer C library than the system's.
    loader: Option<PathBuf>,
}

/// The driver cannot be had on this system; with what was found instead.
#[derive(Debug)]
pub struct NoRadv(String);

impl std::error::Error for NoRadv {}

impl std::fmt::Display for NoRadv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RADV of Mesa 25 is missing: {}; install mesa-vulkan-drivers of such a version", self.0)
    }
}

impl Radv {
    /// The system's driver if it is recent, or one unpacked into `folder` if it is not.
    ///
    /// # Errors
    /// [`NoRadv`] on a system that has none and whose packages are not listed here; any other error is one of fetching them.
    pub fn find(folder: &Path) -> Result<Radv> {
        let version = system_mesa();
        if suits(version.as_deref(), MIN_MESA) {
            return Radv::of_the_system();
        }
        let version = version.unwrap_or_default();
        if !folder.exists() {
            if debian::release().as_deref() != Some(RELEASE) {
                bail!(NoRadv(format!("found Mesa {version}")));
            }
            let suite = format!("{RELEASE}-backports");
            let packages = BACKPORTS.iter().map(|package| format!("{package}/{suite}"));
            let download = ["download".to_owned()].into_iter().chain(packages).chain(PLAIN.map(str::to_owned));
            debian::unpack(folder, Archive::Debian, &[RELEASE, &suite], download)
                .with_context(|| format!("Mesa is {version}, and a newer one from {suite} cannot be had"))?;
        }
        let manifest = manifest_in(folder)
            .with_context(|| format!("RADV is missing in {}; remove that folder and try again", folder.display()))?;
        Ok(Radv { manifest, libraries: Some(libraries_in(folder)?), loader: None })
    }

    /// The same for gfx12, whose matrices only newer drivers list.
    ///
    /// # Errors
    /// As [`Radv::find`].
    pub fn find_for_gfx12(folder: &Path) -> Result<Radv> {
        let version = system_mesa();
        if suits(version.as_deref(), MIN_MESA_OF_GFX12) {
            return Radv::of_the_system();
        }
        if debian::release().is_none() {
            bail!(NoRadv(format!("found Mesa {}", version.unwrap_or_default())));
        }
        // A network may let Debian's mirrors through, and no other archive.
        let tree = Tree::unpacked(folder, Archive::Ubuntu, &UBUNTU_SUITES, &UBUNTU_PACKAGES)
            .map_err(|error| NoRadv(format!("Mesa 25.2 cannot be had from Ubuntu 24.04: {error:#}")))?;
        let manifest = manifest_in(folder)
            .with_context(|| format!("RADV is missing in {}; remove that folder and try again", folder.display()))?;
        Ok(Radv { manifest, libraries: Some(libraries_in(folder)?), loader: Some(tree.loader()?) })
    }

    fn of_the_system() -> Result<Radv> {
        let manifest = manifest_in(Path::new("/")).ok_or_else(|| NoRadv("Vulkan has no driver of that name".into()))?;
        Ok(Radv { manifest, libraries: None, loader: None })
    }

    /// Runs `program` with RADV's null device for `family` as the only device.
    pub fn command(&self, program: &Path, family: &str) -> Command {
        let mut command = match (&self.loader, &self.libraries) {
            (Some(loader), Some(libraries)) => {
                let mut command = Command::new(loader);
                command.arg("--library-path").arg(libraries).arg(program);
                command
            }
            _ => Command::new(program),
        };
        // Each variable also under the name that it had or has in other versions of the loader and of Mesa.
        command.env("VK_DRIVER_FILES", &self.manifest).env("VK_ICD_FILENAMES", &self.manifest);
        command.env("RADV_FORCE_FAMILY", family).env("AMD_FORCE_FAMILY", family);
        if let (Some(libraries), None) = (&self.libraries, &self.loader) {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }
}

/// Version of the system's package; `None` where dpkg has none.
fn system_mesa() -> Option<String> {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${Version}", "mesa-vulkan-drivers"]);
    let output = query.output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().filter(|version| !version.is_empty())
}

/// Whether a system's Mesa has a null device as the report needs it; one that is of no Debian package is tried.
fn suits(version: Option<&str>, least: (u32, u32)) -> bool {
    version.is_none_or(|version| numbers(version).is_some_and(|numbers| (least..FIRST_WITHOUT).contains(&numbers)))
}

/// `25` and `0` of `25.0.7-2~bpo12+1`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn manifest_in(root: &Path) -> Option<PathBuf> {
    let folder = root.join("usr/share/vulkan/icd.d");
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let is_radv = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // A 64-bit system may have the driver for 32-bit programs as well.
        name.starts_with("radeon_icd") && !name.contains("i686") && name.ends_with(".json")
    };
    entries.filter(is_radv).min()
}

/// `usr/lib/<architecture>` of an unpacked driver.
fn libraries_in(root: &Path) -> Result<PathBuf> {
    let folder = root.join("usr/lib");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut folders = entries.filter_map(Result::ok).map(|entry| entry.path());
    let found = folders.find(|path| path.join("libvulkan_radeon.so").exists());
    found.with_context(|| format!("libvulkan_radeon.so is missing below {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_first_two_numbers() {
        assert_eq!(numbers("25.0.7-2~bpo12+1"), Some((25, 0)));
        assert_eq!(numbers("none"), None);
        let versions = ["22.3.6-1+deb12u2", "25.0.7-2~bpo12+1", "25.2.6-1", "26.1.6-1"];
        assert_eq!(versions.map(|version| suits(Some(version), MIN_MESA)), [false, true, true, false]);
        assert_eq!(versions.map(|version| suits(Some(version), MIN_MESA_OF_GFX12)), [false, false, true, false]);
    }

    #[test]
    fn an_unpacked_driver_is_found_by_its_manifest_and_library() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(manifest_in(root.path()), None);
        let (manifests, libraries) =
            (root.path().join("usr/share/vulkan/icd.d"), root.path().join("usr/lib/some-arch"));
        std::fs::create_dir_all(&manifests).unwrap();
        std::fs::create_dir_all(&libraries).unwrap();
        for name in ["intel_icd.json", "radeon_icd.i686.json", "radeon_icd.json"] {
            std::fs::write(manifests.join(name), "{}").unwrap();
        }
        assert!(libraries_in(root.path()).is_err());
        std::fs::write(libraries.join("libvulkan_radeon.so"), "").unwrap();
        let found = libraries_in(root.path()).ok();
        let radv = Radv { manifest: manifest_in(root.path()).unwrap(), libraries: found, loader: None };
        let expected = Radv { manifest: manifests.join("radeon_icd.json"), libraries: Some(libraries), loader: None };
        assert_eq!(radv, expected);
    }
}
