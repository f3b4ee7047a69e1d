//! RADV for the Radeon 780M without one: Mesa's driver on its null device compiles kernels to real RDNA3 code and runs
//! nothing. It takes Mesa 25. Where the system's is older, Debian's newer packages are unpacked into a folder of ours,
//! from which only our own process loads them: the system stays as it is.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::debian;

/// The first Mesa whose null device gives what the report requires.
const LEAST_MESA: u32 = 25;
/// The Debian release that needs backports, and the packages that hold the driver and what it links to.
const RELEASE: &str = "bookworm";
const BACKPORTS: [&str; 3] = ["mesa-vulkan-drivers", "libdrm2", "libdrm-amdgpu1"];
const PLAIN: [&str; 1] = ["libllvm19"];

/// Where the driver is.
#[derive(Debug, PartialEq, Eq)]
pub struct Radv {
    /// The file that leads Vulkan's loader to it.
    manifest: PathBuf,
    /// The folder of its libraries, where it is not the system's.
    libraries: Option<PathBuf>,
}

/// This system cannot have the driver by our means; says what was found instead.
#[derive(Debug)]
pub struct NoRadv(String);

impl std::error::Error for NoRadv {}

impl std::fmt::Display for NoRadv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RADV of Mesa {LEAST_MESA} or later is missing: {}; install a newer mesa-vulkan-drivers", self.0)
    }
}

impl Radv {
    /// The system's driver if it is recent, or one unpacked into `folder` if it is not.
    ///
    /// # Errors
    /// [`NoRadv`] on a system that has none and that we know no packages for; any other error is one of fetching them.
    pub fn find(folder: &Path) -> Result<Radv> {
        let version = system_mesa();
        if version.as_deref().is_none_or(|version| major(version).is_some_and(|major| major >= LEAST_MESA)) {
            let manifest =
                manifest_in(Path::new("/")).ok_or_else(|| NoRadv("Vulkan has no driver of that name".into()))?;
            return Ok(Radv { manifest, libraries: None });
        }
        let version = version.unwrap_or_default();
        if !folder.exists() {
            if debian::release().as_deref() != Some(RELEASE) {
                bail!(NoRadv(format!("found Mesa {version}")));
            }
            let suite = format!("{RELEASE}-backports");
            let packages = BACKPORTS.iter().map(|package| format!("{package}/{suite}"));
            let download = ["download".to_owned()].into_iter().chain(packages).chain(PLAIN.map(str::to_owned));
            debian::unpack(folder, &[RELEASE, &suite], download)
                .with_context(|| format!("Mesa is {version}, and a newer one from {suite} cannot be had"))?;
        }
        let manifest = manifest_in(folder)
            .with_context(|| format!("RADV is missing in {}; remove that folder and try again", folder.display()))?;
        Ok(Radv { manifest, libraries: Some(libraries_in(folder)?) })
    }

    /// `command` sees RADV's null device for the 780M, and no other.
    pub fn alone_in<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        // Each variable also under the name that it had or has in other versions of the loader and of Mesa.
        command.env("VK_DRIVER_FILES", &self.manifest).env("VK_ICD_FILENAMES", &self.manifest);
        command.env("RADV_FORCE_FAMILY", "phoenix").env("AMD_FORCE_FAMILY", "phoenix");
        if let Some(libraries) = &self.libraries {
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

/// `25` of `25.0.7-2~bpo12+1`.
fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
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
    fn a_version_begins_with_its_major_number() {
        assert_eq!(major("25.0.7-2~bpo12+1"), Some(25));
        assert_eq!(major("22.3.6-1+deb12u2"), Some(22));
        assert_eq!(major("none"), None);
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
        let radv =
            Radv { manifest: manifest_in(root.path()).unwrap(), libraries: Some(libraries_in(root.path()).unwrap()) };
        assert_eq!(radv, Radv { manifest: manifests.join("radeon_icd.json"), libraries: Some(libraries) });
    }
}
