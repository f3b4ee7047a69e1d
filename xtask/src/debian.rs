//! Packages of Debian, and of Ubuntu, that are not installed but unpacked into a folder of the project: the system is not changed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run::{read, run, succeeds};

/// For a machine that gets its release under another name.
const DEFAULT_MIRROR: &str = "http://deb.debian.org/debian";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const UBUNTU_MIRROR: &str = "https://archive.ubuntu.com/ubuntu";
/// Ubuntu Archive Automatic Signing Key (2018), F6EC B376 2474 EDA9 D21B 7022 8719 20D1 991B C93C, of its package ubuntu-keyring: a Debian
/// does not have it.
const UBUNTU_KEY: &str = include_str!("ubuntu-archive-2018.asc");

/// Whose packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archive {
    /// Those of this system's release, and of others.
    Debian,
    /// What no suite of Debian has.
    Ubuntu,
}

/// The name of this system's release, if it is a Debian.
pub fn release() -> Option<String> {
    let os = std::fs::read_to_string("/etc/os-release").ok()?;
    let value = |name: &str| os.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value("ID").filter(|id| *id == "debian").and_then(|_| value("VERSION_CODENAME")).map(str::to_owned)
}

/// Packages with all their libraries, unpacked with their paths below `/`. Their programs run under the packages' own dynamic
/// loader, because it must be as new as they are.
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Fetches `packages` of the last of an archive's `suites`, if they are not there yet.
    ///
    /// # Errors
    /// Errors of [`unpack`].
    pub fn unpacked(root: &Path, archive: Archive, suites: &[&str], packages: &[&str]) -> Result<Tree> {
        if !root.exists() {
            let newest = suites.last().copied().unwrap_or_default();
            let install =
                ["install", "--download-only", "--yes", "--no-install-recommends", "--target-release", newest];
            unpack(root, archive, suites, install.iter().chain(packages).map(|argument| (*argument).to_owned()))?;
        }
        Ok(Tree { root: root.to_owned() })
    }

    /// A path of the tree.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// `ld-linux` of the tree's own C library.
    ///
    /// # Errors
    /// When it is missing.
    pub fn loader(&self) -> Result<PathBuf> {
        let is_loader =
            |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"));
        self.find(&["usr/lib64", "usr/lib"], is_loader).context("dynamic loader is missing")
    }

    /// The folder of `library`.
    ///
    /// # Errors
    /// When it is missing.
    pub fn libraries(&self, library: &str) -> Result<PathBuf> {
        self.find(&["usr/lib"], |path| path.join(library).exists()).with_context(|| format!("{library} is missing"))
    }

    fn find(&self, folders: &[&str], wanted: impl Fn(&Path) -> bool) -> Result<PathBuf> {
        let entries = folders.iter().filter_map(|folder| std::fs::read_dir(self.root.join(folder)).ok()).flatten();
        let mut paths = entries.filter_map(Result::ok).map(|entry| entry.path());
        paths.find(|path| wanted(path)).with_context(|| {
            format!("{} is not what it should be; remove that folder and try again", self.root.display())
        })
    }

    /// Writes a script that runs a program of the tree with these libraries.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn program(&self, name: &str, libraries: &Path) -> Result<PathBuf> {
        let script = format!(
            "#!/bin/sh\nexec '{}' --library-path '{}' '{}' \"$@\"\n",
            self.loader()?.display(),
            libraries.display(),
            self.path("usr/bin").join(name).display()
        );
        let folder = self.root.join("programs");
        let path = folder.join(name);
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&folder)?;
            std::fs::write(&path, script)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// Lets apt-get load packages of an archive's `suites` with these `arguments` and unpacks them; `folder` gets its name when it is
/// complete. For apt-get nothing is installed, so an `install --download-only` loads every dependency.
///
/// # Errors
/// When packages cannot be loaded, their signatures are not the archive's, or the disk is full.
pub fn unpack(
    folder: &Path,
    archive: Archive,
    suites: &[&str],
    arguments: impl IntoIterator<Item = String>,
) -> Result<()> {
    let partial = folder.with_extension("partial");
    if partial.exists() {
        std::fs::remove_dir_all(&partial).with_context(|| format!("cannot remove {}", partial.display()))?;
    }
    let (work, root) = (partial.join("apt"), partial.join("root"));
    for new in [work.join("lists/partial"), work.join("packages/partial"), root.clone()] {
        std::fs::create_dir_all(&new).with_context(|| format!("folder cannot be made: {}", new.display()))?;
    }
    let write = |name: &str, text: String| {
        let path = work.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let sources = match archive {
        Archive::Debian => source_list(&mirror()?, Path::new(KEYRING), suites),
        Archive::Ubuntu => {
            write("ubuntu.asc", UBUNTU_KEY.into())?;
            source_list(UBUNTU_MIRROR, &work.join("ubuntu.asc"), suites)
        }
    };
    write("sources.list", sources)?;
    write("installed", String::new())?;
    run(apt(&work).arg("update"))?;
    let packages = work.join("packages");
    run(apt(&work).args(arguments).current_dir(&packages))?;
    for entry in std::fs::read_dir(&packages).with_context(|| format!("cannot read {}", packages.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg").arg("--extract").arg(&path).arg(&root))?;
        }
    }
    std::fs::rename(&root, folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::remove_dir_all(&partial).with_context(|| format!("cannot remove {}", partial.display()))
}

/// apt-get with lists, packages and sources of its own.
fn apt(work: &Path) -> Command {
    let mut command = Command::new("apt-get");
    let settings = [
        ("Dir::Etc::SourceList", work.join("sources.list")),
        ("Dir::Etc::SourceParts", "/dev/null".into()),
        ("Dir::State::Lists", work.join("lists")),
        ("Dir::State::Status", work.join("installed")),
        ("Dir::Cache", work.to_owned()),
        ("Dir::Cache::Archives", work.join("packages")),
        // apt's own user may not write to this folder.
        ("APT::Sandbox::User", "root".into()),
        // An outdated mirror is accepted: the packages' signatures are checked anyway.
        ("Acquire::Check-Valid-Until", "false".into()),
        // Seconds, where a network lets nothing through.
        ("Acquire::http::Timeout", "30".into()),
        ("Acquire::https::Timeout", "30".into()),
    ];
    for (name, value) in settings {
        command.arg("--option").arg(format!("{name}={}", value.display()));
    }
    command
}

/// The mirror that this machine gets its release from; on a system other than Debian, the public one.
pub fn mirror_or_default() -> String {
    release().and_then(|_| mirror().ok()).unwrap_or_else(|| DEFAULT_MIRROR.to_owned())
}

/// The mirror that this machine gets its release from.
fn mirror() -> Result<String> {
    if !succeeds(Command::new("apt-get").arg("--version")) {
        bail!("apt-get is missing, though this is a Debian");
    }
    // Without what Release files say, apt-get answers also where no list has been loaded yet.
    let mut question = Command::new("apt-get");
    question.args(["--no-release-info", "indextargets", "--format", "$(RELEASE) $(REPO_URI)"]);
    let release = release().unwrap_or_default();
    Ok(mirror_in(&read(&mut question)?, &release).unwrap_or(DEFAULT_MIRROR).to_owned())
}

/// From lines of a release and an address.
fn mirror_in<'t>(targets: &'t str, release: &str) -> Option<&'t str> {
    targets.lines().find_map(|line| line.strip_prefix(release)?.strip_prefix(' '))
}

fn source_list(mirror: &str, key: &Path, suites: &[&str]) -> String {
    let key = key.display();
    suites.iter().map(|suite| format!("deb [signed-by={key}] {mirror} {suite} main\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_that_of_the_release_itself() {
        let targets = "bookworm-security http://a/security/\nbookworm http://b/debian/\nbookworm http://c/debian/\n";
        assert_eq!(mirror_in(targets, "bookworm"), Some("http://b/debian/"));
        assert_eq!(mirror_in("stable http://b/debian/\n", "bookworm"), None);
    }

    #[test]
    fn packages_are_taken_only_with_the_archives_signature() {
        let list = source_list("http://a/debian", Path::new(KEYRING), &["sid", "other"]);
        assert_eq!(list.lines().count(), 2);
        assert!(list.lines().all(|line| line.starts_with("deb [signed-by=/usr/share/keyrings/debian-")), "{list}");
    }
}
