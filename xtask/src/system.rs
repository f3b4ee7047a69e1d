//! System packages: what is missing is installed with apt-get; elsewhere a message names what is needed.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run::{cargo, run, succeeds};

/// The Vulkan loader, and Mesa's drivers for AMD and Intel GPUs and for llvmpipe. NVIDIA's driver brings its own.
pub const VULKAN: [&str; 2] = ["libvulkan1", "mesa-vulkan-drivers"];
/// Tools with which the tests inspect Vulkan and SPIR-V.
pub const VALIDATION: [&str; 2] = ["vulkan-validationlayers", "spirv-tools"];
/// LLVM and MLIR 19 as static libraries, what generates their bindings, the libraries that they link, and `c++`, which compiles a part of
/// the bindings: README asks for gcc only.
pub const MLIR: [&str; 11] = [
    "g++",
    "libmlir-19-dev",
    "mlir-19-tools",
    "llvm-19-dev",
    "clang-19",
    "libclang-19-dev",
    "libpolly-19-dev",
    "libzstd-dev",
    "zlib1g-dev",
    "libxml2-dev",
    "libz3-dev",
];
/// The registry to which tests push artifacts; openssl makes keys and certificates.
pub const REGISTRY: [&str; 2] = ["docker-registry", "openssl"];
/// An independent validator of JSON schemas, for the server's structured output.
pub const SCHEMAS: [&str; 2] = ["python3", "python3-jsonschema"];

/// Installs those of `packages` that are missing. A system without apt-get is trusted to have them.
///
/// # Errors
/// When apt-get cannot install them.
pub fn install(packages: &[&str]) -> Result<()> {
    if !succeeds(Command::new("apt-get").arg("--version")) {
        eprintln!("no apt-get here: this needs what Debian calls {}", packages.join(", "));
        return Ok(());
    }
    let missing: Vec<&str> = packages.iter().copied().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    // A list of packages that is too old, or one mirror that does not answer, need not keep the next line from working.
    if let Err(error) = run(as_root()?.args(["apt-get", "update"])) {
        eprintln!("{error:#}; going on with the package lists as they are");
    }
    run(as_root()?
        .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "--yes", "--no-install-recommends"])
        .args(&missing))
    .with_context(|| format!("system packages are missing: {}; install them by hand and try again", missing.join(", ")))
}

/// `fincore`, with which the tests inspect the page cache. Debian has it in a package of its own, others beside `mount`.
///
/// # Errors
/// Errors of [`install`].
pub fn install_fincore() -> Result<()> {
    if succeeds(Command::new("fincore").arg("--version")) { Ok(()) } else { install(&["util-linux-extra"]) }
}

/// pip and npm, by which the tests install client libraries. npm also comes with other distributions of node, which Debian's would replace.
///
/// # Errors
/// Errors of [`install`].
pub fn install_package_managers() -> Result<()> {
    let has = |program: &str, arguments: &[&str]| succeeds(Command::new(program).args(arguments));
    if !has("python3", &["-m", "pip", "--version"]) {
        install(&["python3-pip"])?;
    }
    if has("npm", &["--version"]) { Ok(()) } else { install(&["nodejs", "npm"]) }
}

/// Rust's formatter and linter, which a minimal toolchain lacks.
///
/// # Errors
/// When they are missing and rustup cannot add them.
pub fn install_rust_components() -> Result<()> {
    for (component, subcommand) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !succeeds(cargo().args([subcommand, "--version"])) {
            run(Command::new("rustup").args(["component", "add", component])).with_context(|| {
                format!("Rust component is missing: {component}; install it, or leave its check out with --fast")
            })?;
        }
    }
    Ok(())
}

/// `env` with the rights to install: `VAR=value` and a program follow as arguments.
fn as_root() -> Result<Command> {
    let own = std::fs::metadata("/proc/self").context("user is unknown: /proc/self cannot be read")?;
    if own.uid() == 0 {
        return Ok(Command::new("env"));
    }
    let mut command = Command::new("sudo");
    command.arg("env");
    Ok(command)
}

fn is_installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${db:Status-Status}", package]);
    query.output().is_ok_and(|output| output.stdout == b"installed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_a_known_source_is_not_installed() {
        assert!(!is_installed("no-such-package-as-this"));
    }
}
