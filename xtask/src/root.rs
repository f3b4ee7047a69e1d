//! A bare Debian in a folder: debootstrap makes it once, each use copies it, and commands run in it by chroot.
//!
//! What this machine has set up to reach its registries (certificates, pip's and cargo's configuration, proxies) is copied
//! into the root or passed in the environment.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::debian;
use crate::run::run;
use crate::system;

/// The release that roots are of.
pub const RELEASE: &str = "bookworm";
/// Where a toolchain is mounted, as seen from within the root.
const TOOLCHAIN: &str = "opt/rust";
/// Files that say how this machine reaches its registries, copied where they exist.
const CONFIGURATION: [&str; 5] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/gitconfig", "/usr/local/share/ca-certificates"];
/// Environment variables of the same purpose, by the beginning or the end of their names.
const PASSED_PREFIXES: [&str; 6] = ["CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "PIP_", "SSL_CERT_"];
const PASSED_SUFFIXES: [&str; 5] = ["_proxy", "_PROXY", "_CA_BUNDLE", "_CAINFO", "_CA_CERTS"];

/// Mounts what a system has, in a mount namespace of its own so that nothing stays mounted, and runs the arguments in the root:
/// `ROOT TOOLCHAIN FOLDER PROGRAM ARGUMENT…`. Root and toolchain (none: an empty word) are bound to themselves because `unshare` and
/// read-only mounts take mount points only.
const ENTER: &str = r#"
root=$1 toolchain=$2 folder=$3
shift 3
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
if [ -n "$toolchain" ]; then
    mount --bind "$toolchain" "$root/opt/rust"
    mount -o remount,bind,ro "$root/opt/rust"
fi
exec chroot "$root" sh -c 'cd "$0" && exec "$@"' "/$folder" "$@"
"#;

const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A copy of a bare Debian, for one use.
pub struct Root {
    path: PathBuf,
    toolchain: Option<PathBuf>,
}

impl Root {
    /// Replaces `folder/root` by a copy of `folder/base`, which is made of minbase and `packages` if it is missing.
    ///
    /// # Errors
    /// Without the right to mount, and when a package cannot be had.
    pub fn fresh(folder: &Path, packages: &str, toolchain: Option<PathBuf>) -> Result<Root> {
        let own = std::fs::metadata("/proc/self").context("user is unknown: /proc/self cannot be read")?;
        ensure!(own.uid() == 0, "a bare Debian is mounted and entered by chroot, which root alone can do");
        std::fs::create_dir_all(folder).with_context(|| format!("folder cannot be made: {}", folder.display()))?;
        let base = base(folder, packages)?;
        let root = Root { path: folder.join("root"), toolchain };
        remove(&root.path)?;
        run(Command::new("cp").args(["--archive", "--reflink=auto"]).arg(&base).arg(&root.path))?;
        root.configure()?;
        Ok(root)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `command` in a folder of the root, with an environment of its own.
    pub fn command(&self, folder: &str, command: &[&str]) -> Command {
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "sh", "-euc", ENTER, "sh"]).arg(&self.path);
        inside.arg(self.toolchain.as_deref().unwrap_or(Path::new(""))).arg(folder);
        inside.args(["env", "--ignore-environment", "HOME=/root", "LANG=C.UTF-8", "TERM=dumb"]);
        inside.arg(format!("PATH=/{TOOLCHAIN}/bin:{SYSTEM_PATH}"));
        inside.args(passed_environment().into_iter().map(|(name, value)| format!("{name}={value}")));
        inside.args(command);
        inside
    }

    /// Removes it.
    ///
    /// # Errors
    /// When something is still mounted in it.
    pub fn remove(self) -> Result<()> {
        remove(&self.path)
    }

    /// Copies this machine's way to its registries into the root.
    fn configure(&self) -> Result<()> {
        let root = &self.path;
        for file in CONFIGURATION.map(Path::new).into_iter().filter(|path| path.exists()) {
            let parent = root.join(file.strip_prefix("/")?).parent().context("a file lies in a folder")?.to_owned();
            std::fs::create_dir_all(&parent).with_context(|| format!("folder cannot be made: {}", parent.display()))?;
            // `resolv.conf` is a link on many systems.
            run(Command::new("cp").args(["--recursive", "--dereference"]).arg(file).arg(&parent))?;
        }
        run(Command::new("chroot").arg(root).arg("update-ca-certificates").env("PATH", SYSTEM_PATH))?;
        for name in ["config.toml", "config"] {
            let file = cargo_home().join(name);
            if file.exists() {
                let cargo = root.join("root/.cargo");
                std::fs::create_dir_all(&cargo)
                    .with_context(|| format!("folder cannot be made: {}", cargo.display()))?;
                run(Command::new("cp").arg(&file).arg(cargo))?;
            }
        }
        // A folder of packages that a variable names, such as that of PIP_FIND_LINKS.
        for (name, value) in passed_environment() {
            let path = Path::new(&value);
            let inside = root.join(path.strip_prefix("/").unwrap_or(path));
            if path.is_absolute() && path.exists() && !inside.exists() {
                let parent = inside.parent().with_context(|| format!("{name} names the root folder"))?;
                std::fs::create_dir_all(parent)
                    .with_context(|| format!("folder cannot be made: {}", parent.display()))?;
                run(Command::new("cp").args(["--recursive", "--dereference"]).arg(path).arg(&inside))?;
            }
        }
        std::fs::create_dir_all(root.join(TOOLCHAIN)).context("folder of the toolchain cannot be made")
    }
}

/// A Debian without anything of ours, made once. It gets its name when it is complete.
fn base(folder: &Path, packages: &str) -> Result<PathBuf> {
    let base = folder.join("base");
    if !base.exists() {
        system::install(&["debootstrap"])?;
        let partial = folder.join("base.partial");
        remove(&partial)?;
        let mirror = debian::mirror_or_default();
        run(Command::new("debootstrap")
            .args(["--variant=minbase", &format!("--include={packages}"), RELEASE])
            .arg(&partial)
            .arg(mirror))?;
        std::fs::rename(&partial, &base).with_context(|| format!("cannot make {}", base.display()))?;
    }
    Ok(base)
}

fn passed_environment() -> Vec<(String, String)> {
    let text =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    text.filter(|(name, _)| is_passed(name)).collect()
}

fn is_passed(name: &str) -> bool {
    let is_token = name.ends_with("_TOKEN");
    let begins = PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    (begins || PASSED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))) && !is_token
}

fn cargo_home() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cargo");
    std::env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}

/// Removes a root. What is still mounted in it would be removed with it, and is refused.
fn remove(root: &Path) -> Result<()> {
    if !root.exists() {
        return Ok(());
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("mounts are unknown")?;
    if let Some(mounted) = mounted_below(&mounts, root) {
        bail!("{mounted} is still mounted; umount it and try again");
    }
    std::fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))
}

/// The first mount point in or at `root`, of lines as in `/proc/self/mounts`.
fn mounted_below<'m>(mounts: &'m str, root: &Path) -> Option<&'m str> {
    mounts.lines().filter_map(|line| line.split(' ').nth(1)).find(|point| Path::new(point).starts_with(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_to_a_registry_is_passed_and_no_token() {
        for name in
            ["PIP_INDEX_URL", "CARGO_REGISTRIES_OURS_INDEX", "https_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"]
        {
            assert!(is_passed(name), "{name}");
        }
        for name in ["CARGO_REGISTRY_TOKEN", "CARGO_MANIFEST_DIR", "PATH", "RUSTFLAGS", "UNICORN_DEVICE"] {
            assert!(!is_passed(name), "{name}");
        }
    }

    #[test]
    fn a_root_in_use_is_not_removed() {
        let mounts = "proc /proc proc rw 0 0\nproc /t/fresh/root/proc proc rw 0 0\n";
        assert_eq!(mounted_below(mounts, Path::new("/t/fresh/root")), Some("/t/fresh/root/proc"));
        assert_eq!(mounted_below(mounts, Path::new("/t/fresh/roo")), None);
    }
}
