//! The Debian package, made by dpkg-deb from a folder with a control file.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Release, VERSION, archive, tree};
use crate::run::{read, run};

/// Debian has another package called unicorn.
pub const NAME: &str = "unicorn-run";
const MAINTAINER: &str = "The Unicorn authors <unicorn@project.invalid>";

/// Packs it. `glibc` is the version of the C library that the programs need.
///
/// # Errors
/// When a file is missing, or dpkg-deb fails.
pub fn make(release: &Release, glibc: &str) -> Result<PathBuf> {
    let root = release.out.join("stage");
    tree::empty(&root)?;
    let packaging = release.root.join("packaging");
    for program in [release.binaries.compiler_path(), release.binaries.runtime_path()] {
        let file = program.file_name().context("program has no name")?;
        tree::write_program(&root.join("usr/bin").join(file), &tree::read(&program)?)?;
    }
    for page in tree::files(&release.man_pages)? {
        let name = format!("{}.gz", page.file_name().context("page has no name")?.to_string_lossy());
        tree::write(&root.join("usr/share/man/man1").join(name), &archive::gzipped(&tree::read(&page)?)?)?;
    }
    for script in tree::files(&release.completions)? {
        tree::copy(&script, &root.join(completion(&script)?))?;
    }
    for unit in ["unicorn-run.service", "unicorn-run.socket"] {
        tree::copy(&packaging.join(unit), &root.join("usr/lib/systemd/system").join(unit))?;
    }
    tree::copy(&packaging.join("unicorn-run.default"), &root.join("etc/default/unicorn-run"))?;
    let doc = root.join("usr/share/doc").join(NAME);
    tree::copy(&packaging.join("copyright"), &doc.join("copyright"))?;
    tree::write(&doc.join("THIRD-PARTY-LICENSES.gz"), &release.notices)?;
    tree::write(&doc.join("sbom.cdx.json.gz"), &archive::gzipped(&release.sbom)?)?;
    for (from, to) in [("README.md", "README.md.gz"), ("CHANGELOG.md", "changelog.gz")] {
        tree::write(&doc.join(to), &archive::gzipped(&tree::read(&release.root.join(from))?)?)?;
    }

    let control = root.join("DEBIAN");
    let architecture = read(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    tree::write(&control.join("control"), text(&architecture, glibc, installed_kib(&root)?).as_bytes())?;
    tree::write(&control.join("conffiles"), b"/etc/default/unicorn-run\n")?;
    for script in ["postinst", "prerm", "postrm"] {
        tree::write_program(&control.join(script), &tree::read(&packaging.join(script))?)?;
    }
    let package = release.out.join(format!("{NAME}_{VERSION}-1_{architecture}.deb"));
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(&root)
        .arg(&package)
        .env("SOURCE_DATE_EPOCH", &release.epoch))?;
    std::fs::remove_dir_all(&root).context("cannot remove the folder of the package's files")?;
    Ok(package)
}

/// Where a shell looks for a script called PROGRAM.SHELL.
fn completion(script: &Path) -> Result<PathBuf> {
    let name = script.file_name().context("script has no name")?.to_string_lossy();
    let (program, shell) = name.rsplit_once('.').with_context(|| format!("{name} names no shell"))?;
    Ok(match shell {
        "bash" => format!("usr/share/bash-completion/completions/{program}").into(),
        "zsh" => format!("usr/share/zsh/vendor-completions/_{program}").into(),
        _ => format!("usr/share/fish/vendor_completions.d/{program}.{shell}").into(),
    })
}

fn installed_kib(root: &Path) -> Result<u64> {
    let total = read(Command::new("du").args(["--summarize", "--apparent-size", "--block-size=1024"]).arg(root))?;
    total.split_whitespace().next().and_then(|number| number.parse().ok()).context("du prints no number")
}

fn text(architecture: &str, glibc: &str, installed_kib: u64) -> String {
    format!(
        "Package: {NAME}\n\
         Version: {VERSION}-1\n\
         Architecture: {architecture}\n\
         Maintainer: {MAINTAINER}\n\
         Installed-Size: {installed_kib}\n\
         Depends: libc6 (>= {glibc}), libgcc-s1, libvulkan1\n\
         Recommends: mesa-vulkan-drivers | vulkan-icd, ca-certificates\n\
         Section: science\n\
         Priority: optional\n\
         Description: ahead-of-time compiler and Vulkan runtime for language models\n\
         \x20unicorn-compile makes one file of a Hugging Face folder or a GGUF: packed\n\
         \x20weights, and kernels for the GPUs that it is meant for. unicorn-run runs it\n\
         \x20on any Vulkan device: chat, completion, and APIs over HTTP.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_lie_where_the_shells_look() {
        for (script, place) in [
            ("unicorn-run.bash", "usr/share/bash-completion/completions/unicorn-run"),
            ("unicorn-compile.zsh", "usr/share/zsh/vendor-completions/_unicorn-compile"),
            ("unicorn-run.fish", "usr/share/fish/vendor_completions.d/unicorn-run.fish"),
        ] {
            assert_eq!(completion(Path::new(script)).unwrap(), Path::new(place));
        }
    }
}
