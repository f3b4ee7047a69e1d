//! `cargo xtask fresh`: README's two commands on a system that has only what README requires.
//!
//! ```text
//! target/fresh/base                 Debian, minbase: gcc, git, certificates; made once
//! target/fresh/root                 its copy, made anew for each run and removed after a run that succeeds
//!   opt/rust                        this machine's Rust toolchain, mounted read-only
//!   root/unicorn                    a clone of HEAD: changes that are not committed are not tested
//! ```
//!
//! What this machine has set up to reach its registries (certificates, pip's and cargo's configuration, proxies) is copied
//! into the root or passed in the environment. Nothing of it enters the clone.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::binaries::target_folder;
use crate::debian;
use crate::run::{read, run};
use crate::system;

#[derive(clap::Args)]
pub struct FreshArgs {
    /// Commands of `cargo xtask` to run, in this order
    #[arg(value_name = "COMMAND", default_values = ["demo", "test"])]
    commands: Vec<String>,
    /// Keep the root after a run that succeeds
    #[arg(long)]
    keep: bool,
}

const RELEASE: &str = "bookworm";
/// What README names, and the certificates without which git and cargo reach nothing.
const PACKAGES: &str = "gcc,libc6-dev,git,ca-certificates";
/// Where the clone lies, as seen from within the root.
const CLONE: &str = "root/unicorn";
const TOOLCHAIN: &str = "opt/rust";
/// Files that say how this machine reaches its registries, copied where they exist.
const CONFIGURATION: [&str; 5] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/gitconfig", "/usr/local/share/ca-certificates"];
/// Environment variables of the same purpose, by the beginning or the end of their names.
const PASSED_PREFIXES: [&str; 6] = ["CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "PIP_", "SSL_CERT_"];
const PASSED_SUFFIXES: [&str; 5] = ["_proxy", "_PROXY", "_CA_BUNDLE", "_CAINFO", "_CA_CERTS"];

/// Mounts what a system has, in a mount namespace of its own so that nothing stays mounted, and runs the arguments in the root:
/// `ROOT TOOLCHAIN CLONE PROGRAM ARGUMENT…`. Root and toolchain are bound to themselves because `unshare` and read-only mounts
/// take mount points only.
const ENTER: &str = r#"
root=$1 toolchain=$2 clone=$3
shift 3
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount --bind "$toolchain" "$root/opt/rust"
mount -o remount,bind,ro "$root/opt/rust"
exec chroot "$root" sh -c 'cd "$0" && exec "$@"' "/$clone" "$@"
"#;

/// Makes the root and runs the commands in it, up to the first that fails.
///
/// # Errors
/// Without the right to mount, when a package cannot be had, or when a command fails in the root, which is then kept.
pub fn run_all(args: &FreshArgs) -> Result<()> {
    let own = std::fs::metadata("/proc/self").context("user is unknown: /proc/self cannot be read")?;
    ensure!(own.uid() == 0, "fresh mounts file systems and changes its root, for which it has to run as root");
    let toolchain = toolchain()?;
    let folder = target_folder()?.join("fresh");
    std::fs::create_dir_all(&folder).with_context(|| format!("folder cannot be made: {}", folder.display()))?;
    let base = base(&folder)?;
    let root = folder.join("root");
    remove(&root)?;
    run(Command::new("cp").args(["--archive", "--reflink=auto"]).arg(&base).arg(&root))?;
    configure(&root)?;
    clone_head(&root)?;
    for command in &args.commands {
        let mut inside = enter(&root, &toolchain, &["cargo", "xtask", command]);
        run(&mut inside)
            .with_context(|| format!("`cargo xtask {command}` fails in {}, which is kept", root.display()))?;
    }
    println!("in a fresh Debian {RELEASE}: {} succeeded", args.commands.join(", "));
    if args.keep { Ok(()) } else { remove(&root) }
}

/// The toolchain that runs us, which has cargo beside the compiler.
fn toolchain() -> Result<PathBuf> {
    let sysroot = PathBuf::from(read(Command::new("rustc").args(["--print", "sysroot"]))?.trim());
    let cargo = sysroot.join("bin/cargo");
    ensure!(cargo.exists(), "{} is missing, expected a toolchain as rustup installs it", cargo.display());
    Ok(sysroot)
}

/// A Debian without anything of ours, made once. It gets its name when it is complete.
fn base(folder: &Path) -> Result<PathBuf> {
    let base = folder.join("base");
    if !base.exists() {
        system::install(&["debootstrap"])?;
        let partial = folder.join("base.partial");
        remove(&partial)?;
        let mirror = debian::mirror_or_default();
        run(Command::new("debootstrap")
            .args(["--variant=minbase", &format!("--include={PACKAGES}"), RELEASE])
            .arg(&partial)
            .arg(mirror))?;
        std::fs::rename(&partial, &base).with_context(|| format!("cannot make {}", base.display()))?;
    }
    Ok(base)
}

/// Copies this machine's way to its registries into the root.
fn configure(root: &Path) -> Result<()> {
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
            std::fs::create_dir_all(&cargo).with_context(|| format!("folder cannot be made: {}", cargo.display()))?;
            run(Command::new("cp").arg(&file).arg(cargo))?;
        }
    }
    // A folder of packages that a variable names, such as that of PIP_FIND_LINKS.
    for (name, value) in passed_environment() {
        let path = Path::new(&value);
        let inside = root.join(path.strip_prefix("/").unwrap_or(path));
        if path.is_absolute() && path.exists() && !inside.exists() {
            let parent = inside.parent().with_context(|| format!("{name} names the root folder"))?;
            std::fs::create_dir_all(parent).with_context(|| format!("folder cannot be made: {}", parent.display()))?;
            run(Command::new("cp").args(["--recursive", "--dereference"]).arg(path).arg(&inside))?;
        }
    }
    std::fs::create_dir_all(root.join(TOOLCHAIN)).context("folder of the toolchain cannot be made")
}

/// A clone that shares nothing with this repository.
fn clone_head(root: &Path) -> Result<()> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in no repository")?;
    let changed = read(Command::new("git").arg("-C").arg(repository).args(["status", "--porcelain"]))?;
    if !changed.is_empty() {
        eprintln!("not committed, and so not tested:\n{changed}");
    }
    let clone = root.join(CLONE);
    run(Command::new("git").args(["init", "--quiet"]).arg(&clone))?;
    run(Command::new("git")
        .arg("-C")
        .arg(&clone)
        .args(["fetch", "--quiet", "--depth=1"])
        .arg(format!("file://{}", repository.display()))
        .arg("HEAD"))?;
    run(Command::new("git").arg("-C").arg(&clone).args(["checkout", "--quiet", "FETCH_HEAD"]))
}

const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// `command` within the root, with an environment of its own.
fn enter(root: &Path, toolchain: &Path, command: &[&str]) -> Command {
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "sh", "-euc", ENTER, "sh"]).arg(root).arg(toolchain).arg(CLONE);
    inside.args(["env", "--ignore-environment", "HOME=/root", "LANG=C.UTF-8", "TERM=dumb"]);
    inside.arg(format!("PATH=/{TOOLCHAIN}/bin:{SYSTEM_PATH}"));
    inside.args(passed_environment().into_iter().map(|(name, value)| format!("{name}={value}")));
    inside.args(command);
    inside
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
