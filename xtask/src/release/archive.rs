//! The archive for any Linux, and the checksums of all packages.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::{Release, VERSION, tree};
use crate::run::run;

/// Programs, README, licences, manuals, completions and the unit, in one folder.
///
/// # Errors
/// When a file is missing, or tar fails.
pub fn make(release: &Release) -> Result<PathBuf> {
    let name = format!("unicorn-{VERSION}-{}", release.target);
    let stage = release.out.join("stage");
    tree::empty(&stage)?;
    let folder = stage.join(&name);
    for program in [release.binaries.compiler_path(), release.binaries.runtime_path()] {
        let file = program.file_name().context("program has no name")?;
        tree::write_program(&folder.join("bin").join(file), &tree::read(&program)?)?;
    }
    for file in ["README.md", "LICENSE-APACHE", "LICENSE-MIT", "SECURITY.md"] {
        tree::copy(&release.root.join(file), &folder.join(file))?;
    }
    tree::write(&folder.join("THIRD-PARTY-LICENSES.gz"), &release.notices)?;
    for page in tree::files(&release.man_pages)? {
        tree::copy(&page, &folder.join("share/man/man1").join(page.file_name().context("page has no name")?))?;
    }
    for script in tree::files(&release.completions)? {
        tree::copy(&script, &folder.join("share/completions").join(script.file_name().context("script has no name")?))?;
    }
    for file in ["unicorn-run.service", "unicorn-run.socket", "unicorn-run.default"] {
        tree::copy(&release.root.join("packaging").join(file), &folder.join("share/systemd").join(file))?;
    }
    let archive = release.out.join(format!("{name}.tar.gz"));
    run(Command::new("tar")
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--use-compress-program=gzip -n9"])
        .arg(format!("--mtime=@{}", release.epoch))
        .arg("--directory")
        .arg(&stage)
        .arg("--create")
        .arg("--file")
        .arg(&archive)
        .arg(&name))?;
    std::fs::remove_dir_all(&stage).context("cannot remove the folder of the archive's files")?;
    Ok(archive)
}

/// Writes SHA256SUMS in the form that `sha256sum --check` reads.
///
/// # Errors
/// When a package cannot be read.
pub fn sums(out: &Path, packages: &[&Path]) -> Result<()> {
    let mut lines = String::new();
    for package in packages {
        let hash: String = Sha256::digest(tree::read(package)?).iter().map(|byte| format!("{byte:02x}")).collect();
        let name = package.file_name().context("package has no name")?.to_string_lossy();
        lines += &format!("{hash}  {name}\n");
    }
    tree::write(&out.join("SHA256SUMS"), lines.as_bytes())?;
    run(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(out))
}

/// `content` compressed by gzip, without name and time.
///
/// # Errors
/// When gzip does not run.
pub fn gzipped(content: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = Command::new("gzip")
        .args(["-n9", "--stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("gzip did not start")?;
    let mut input = gzip.stdin.take().context("gzip has no input")?;
    let output = std::thread::scope(|scope| {
        let written = scope.spawn(move || input.write_all(content));
        let output = gzip.wait_with_output();
        written.join().map_err(|_| anyhow::anyhow!("gzip's input was not written"))??;
        output.context("gzip did not end")
    })?;
    ensure!(output.status.success(), "gzip fails with {}", output.status);
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_that_sha256sum_reads() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.deb");
        std::fs::write(&file, "abc").unwrap();
        sums(folder.path(), &[&file]).unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a.deb\n";
        assert_eq!(std::fs::read_to_string(folder.path().join("SHA256SUMS")).unwrap(), expected);
    }

    #[test]
    fn the_same_content_is_packed_to_the_same_bytes() {
        let content = vec![7; 1 << 20];
        let packed = gzipped(&content).unwrap();
        assert!(packed.starts_with(&[0x1f, 0x8b]) && packed[4..8] == [0; 4], "without a time");
        assert_eq!(packed, gzipped(&content).unwrap());
    }
}
