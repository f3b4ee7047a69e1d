//! The packages in a bare Debian: installed, used as their man pages show, and removed again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Release, deb, tree};
use crate::binaries::target_folder;
use crate::root::{RELEASE, Root};
use crate::run::{read, run};
use crate::system;

/// Certificates, without which apt-get does not reach every mirror.
const PACKAGES: &str = "ca-certificates";
/// The model of the tests, under the name that the examples have for one.
const MODEL: &str = "tests/models/gemma3-2m-draft";
const NAME: &str = "SmolLM2-135M-Instruct";
/// Where the examples run, as seen from within the root.
const HOME: &str = "root";
const APT: [&str; 5] =
    ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes", "--option=APT::Install-Recommends=false"];
/// The most that `systemd-analyze security` may find exposed, of 100.
const MAX_EXPOSURE: &str = "30";
/// The port is the default of `serve`, and the unit's.
const ADDRESS: &str = "127.0.0.1:8006";
/// Time for a server to load its model.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the test. A root in which it failed is kept.
///
/// # Errors
/// The first command that fails in the root.
pub fn test(release: &Release, archive: &Path, package: &Path, keep: bool) -> Result<()> {
    let root = Root::fresh(&target_folder()?.join("packages"), PACKAGES, None)?;
    let bare = Bare { root: &root };
    bare.test(release, archive, package).with_context(|| format!("{} is kept", root.path().display()))?;
    println!("in a bare Debian {RELEASE}: packages installed, every example of the manual ran, nothing is left");
    if keep { Ok(()) } else { root.remove() }
}

struct Bare<'a> {
    root: &'a Root,
}

impl Bare<'_> {
    fn test(&self, release: &Release, archive: &Path, package: &Path) -> Result<()> {
        let home = self.root.path().join(HOME);
        for file in tree::files(&release.root.join(MODEL))? {
            tree::copy(&file, &home.join(NAME).join(file.file_name().context("file has no name")?))?;
        }
        self.archive(archive)?;

        self.apt(&["update"])?;
        let name = package.file_name().context("package has no name")?.to_string_lossy().into_owned();
        tree::copy(package, &home.join(&name))?;
        self.apt(&["install", &format!("./{name}")])?;
        self.apt(&["install", system::VULKAN[1]])?;
        self.check_files()?;
        self.examples("unicorn-compile")?;
        self.examples("unicorn-run")?;
        self.service()?;
        self.apt(&["purge", deb::NAME])?;
        // Where packages put files: models, and status files of running programs, are a user's.
        let places = ["/etc", "/opt", "/run", "/usr", "/var"];
        let left = read(&mut self.command(&[&["find"], &places[..], &["-name", "*unicorn*"]].concat()))?;
        ensure!(left.is_empty(), "files are left when the package is removed:\n{left}");
        Ok(())
    }

    /// The archive's programs start where it was unpacked.
    fn archive(&self, archive: &Path) -> Result<()> {
        let folder = self.root.path().join(HOME).join("archive");
        tree::empty(&folder)?;
        run(Command::new("tar").arg("--extract").arg("--file").arg(archive).arg("--directory").arg(&folder))?;
        run(&mut self.shell("archive/*/bin/unicorn-compile --version && archive/*/bin/unicorn-run --version"))
    }

    /// Checks that the files of every command are there and correct.
    fn check_files(&self) -> Result<()> {
        let listed = read(&mut self.command(&["dpkg", "--listfiles", deb::NAME]))?;
        for path in [
            "/usr/bin/unicorn-compile",
            "/usr/share/man/man1/unicorn-compile-verify.1.gz",
            "/usr/share/man/man1/unicorn-run-serve.1.gz",
            "/usr/share/bash-completion/completions/unicorn-run",
            "/usr/share/zsh/vendor-completions/_unicorn-run",
            "/usr/share/fish/vendor_completions.d/unicorn-run.fish",
            "/usr/share/doc/unicorn-run/copyright",
            "/usr/share/doc/unicorn-run/sbom.cdx.json.gz",
        ] {
            ensure!(listed.lines().any(|line| line == path), "package has no {path}:\n{listed}");
        }
        run(&mut self.shell("bash -n /usr/share/bash-completion/completions/unicorn-*"))?;
        run(&mut self.command(&["dpkg", "--verify", deb::NAME]))
    }

    /// Runs every example of a program's man page, as it is installed.
    fn examples(&self, program: &str) -> Result<()> {
        let page = read(&mut self.shell(&format!("gzip -dc /usr/share/man/man1/{program}.1.gz")))?;
        let lines = examples(&page);
        ensure!(lines.len() >= 3, "man page of {program} has {} examples, expected several", lines.len());
        for line in lines {
            if line.contains(" serve ") {
                // In the shell's place, so that it ends with the process that is killed.
                self.serve(&format!("exec {line}"))?;
            } else {
                run(&mut self.shell(&line))?;
            }
        }
        Ok(())
    }

    /// systemd accepts the unit and finds little exposed, and its command serves a model.
    fn service(&self) -> Result<()> {
        self.apt(&["install", "systemd"])?;
        run(&mut self.command(&[
            "systemd-analyze",
            "verify",
            "--man=no",
            "/usr/lib/systemd/system/unicorn-run.service",
            "/usr/lib/systemd/system/unicorn-run.socket",
        ]))?;
        run(&mut self.command(&[
            "systemd-analyze",
            "security",
            "--no-pager",
            "--offline=true",
            &format!("--threshold={MAX_EXPOSURE}"),
            "/usr/lib/systemd/system/unicorn-run.service",
        ]))?;
        let root = self.root.path();
        let unit = tree::read(&root.join("usr/lib/systemd/system/unicorn-run.service"))?;
        let unit = String::from_utf8(unit).context("unit is no text")?;
        let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).context("unit starts nothing")?;
        tree::copy(&root.join(HOME).join("smol.unicorn"), &root.join("srv/models/model.unicorn"))?;
        self.serve(&format!(". /etc/default/unicorn-run; exec {command}"))
    }

    /// Starts a server, asks it for text, and ends it.
    fn serve(&self, line: &str) -> Result<()> {
        ensure!(TcpStream::connect(ADDRESS).is_err(), "{ADDRESS} is in use, expected no server before `{line}`");
        let mut command = self.shell(line);
        eprintln!("$ {line}");
        let mut server = command.stdin(Stdio::null()).spawn().with_context(|| format!("did not start: {line}"))?;
        let asked = ask(&mut server);
        // It may have ended by itself, which is then the error.
        let _ = server.kill();
        server.wait().context("server cannot be waited for")?;
        asked.with_context(|| format!("`{line}` does not serve"))
    }

    fn apt(&self, arguments: &[&str]) -> Result<()> {
        run(&mut self.command(&[&APT[..], arguments].concat()))
    }

    fn shell(&self, line: &str) -> Command {
        self.command(&["env", "UNICORN_DEVICE=llvmpipe", "sh", "-ec", line])
    }

    fn command(&self, command: &[&str]) -> Command {
        self.root.command(HOME, command)
    }
}

fn ask(server: &mut Child) -> Result<()> {
    let begun = Instant::now();
    while !answer("GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n").is_ok_and(|answer| answer.contains(" 200 ")) {
        if let Some(status) = server.try_wait().context("server is unknown")? {
            bail!("it ended with {status}");
        }
        ensure!(begun.elapsed() < START_TIMEOUT, "no answer within {} s", START_TIMEOUT.as_secs());
        sleep(Duration::from_millis(100));
    }
    let body = r#"{"prompt": "who lives there", "max_tokens": 4}"#;
    let head = "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json";
    let found = answer(&format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))?;
    ensure!(found.contains(" 200 ") && found.contains("\"text\""), "a completion is {found}");
    Ok(())
}

fn answer(request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(ADDRESS)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The indented lines below `Examples:`, as one types them.
fn examples(page: &str) -> Vec<String> {
    let lines = page.lines().skip_while(|line| *line != "Examples:").skip(1);
    let lines = lines.take_while(|line| line.starts_with("  "));
    lines
        .map(|line| line.trim().replace("\\-", "-").replace("\\*(Aq", "'").replace("\\(aq", "'").replace("\\\\", "\\"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_read_from_a_page() {
        let page = ".SH EXTRA\nExamples:\n  unicorn\\-run smol.unicorn \\-n 8\n  echo a | unicorn\\-run b\n.SH VERSION\nv0.1.0\n  c\n";
        assert_eq!(examples(page), ["unicorn-run smol.unicorn -n 8", "echo a | unicorn-run b"]);
        assert!(examples(".SH NAME\n").is_empty());
    }
}
