//! `cargo xtask bench-gpu`: everything that a machine with a GPU needs to check and time the programs, as a folder and a .tar.xz.
//!
//! ```text
//! bench-gpu.sh   the one thing to start there
//! bin/           unicorn-compile, unicorn-run · differential, e2e · bench-gpu, random-gguf · xtask, for `loading`
//! shapes/ models/ perplexity.json             what is timed, what is checked: among the models one that was trained
//! lib/           the Vulkan loader and what drivers link to, for systems that lack them
//! llama/         llama-bench with its libraries, if requested
//! ```

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::binaries::Binaries;
use crate::files::{copy, entries};
use crate::llama;
use crate::run::run;
use crate::suites;

#[derive(clap::Args)]
pub struct BenchGpuArgs {
    /// llama.cpp to time as well: a .tar.xz with llama-bench and lib/, as an earlier bundle's llama folder has them
    #[arg(long, value_name = "FILE.tar.xz", conflicts_with = "llama_root")]
    llama: Option<PathBuf>,
    /// Or the root folder of a Debian with the packages llama.cpp and libggml0-backend-vulkan, to take it from
    #[arg(long, value_name = "FOLDER")]
    llama_root: Option<PathBuf>,
}

/// The loader, and what NVIDIA's driver links to even where nothing is shown.
const PACKAGES: [&str; 12] = [
    "libvulkan1",
    "libglvnd0",
    "libglx0",
    "libgl1",
    "libegl1",
    "libx11-6",
    "libxext6",
    "libxcb1",
    "libxau6",
    "libxdmcp6",
    "libbsd0",
    "libmd0",
];
/// What can be carried to most machines.
const MAX_BYTES: u64 = 60 << 20;

/// Builds the bundle in the target folder and says where it is.
///
/// # Errors
/// The step that failed; or the bundle is too large.
pub fn run_build(args: &BenchGpuArgs) -> Result<()> {
    let binaries = Binaries::build()?;
    let work = binaries.folder("bench-gpu")?;
    let bundle = work.join("unicorn-bench");
    if bundle.exists() {
        std::fs::remove_dir_all(&bundle).with_context(|| format!("cannot be removed: {}", bundle.display()))?;
    }
    for folder in ["bin", "lib", "shapes", "models"] {
        let folder = bundle.join(folder);
        std::fs::create_dir_all(&folder).with_context(|| format!("folder cannot be made: {}", folder.display()))?;
    }
    for program in programs(&binaries)? {
        let name = program.file_name().context("program has no name")?.to_string_lossy();
        // Cargo adds a hash to the names of tests.
        let name = name.rsplit_once('-').filter(|(_, hash)| is_hash(hash)).map_or(&*name, |(name, _)| name);
        run(Command::new("strip").arg("--strip-all").arg("-o").arg(bundle.join("bin").join(name)).arg(&program))?;
    }
    let tests = repository()?.join("tests");
    copy(&tests.join("benches/bench-gpu.sh"), &bundle.join("bench-gpu.sh"))?;
    for shape in entries(&tests.join("benches/shapes"))? {
        copy(&shape, &bundle.join("shapes").join(shape.file_name().context("shape has no name")?))?;
    }
    copy(&tests.join("benches/perplexity.json"), &bundle.join("perplexity.json"))?;
    for models in ["tiny", "gguf", "gemma3-2m-draft", "eval"] {
        run(Command::new("cp").arg("-R").arg(tests.join("models").join(models)).arg(bundle.join("models")))?;
    }
    libraries(&work.join("packages"), &bundle.join("lib"))?;
    if let Some(root) = &args.llama_root {
        llama::pack(root, &bundle.join("llama"))?;
    }
    if let Some(archive) = &args.llama {
        let folder = bundle.join("llama");
        std::fs::create_dir_all(&folder).with_context(|| format!("folder cannot be made: {}", folder.display()))?;
        run(Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(&folder))?;
        let lacking = ["llama-bench", "lib/ld-linux-x86-64.so.2"].into_iter().find(|file| !folder.join(file).exists());
        ensure!(lacking.is_none(), "{} holds no {}", archive.display(), lacking.unwrap_or_default());
    }
    let archive = work.join("unicorn-bench.tar.xz");
    run(Command::new("tar").args(["-cJf"]).arg(&archive).arg("-C").arg(&work).arg("unicorn-bench"))?;
    let bytes = archive.metadata().with_context(|| format!("archive is missing: {}", archive.display()))?.len();
    ensure!(bytes <= MAX_BYTES, "bundle has {bytes} bytes, expected at most {MAX_BYTES}");
    println!("{} ({:.1} MiB) and {}", archive.display(), bytes as f64 / f64::from(1 << 20), bundle.display());
    println!("on a machine with a GPU: tar -xJf unicorn-bench.tar.xz && unicorn-bench/bench-gpu.sh");
    Ok(())
}

/// Everything for `bin`: our two programs as users run them, the checks and helpers as tests run them, and what runs now.
fn programs(binaries: &Binaries) -> Result<Vec<PathBuf>> {
    let tests = ["test", "--package", "tests", "--no-run", "--test", "differential", "--test", "e2e"];
    let helpers = ["build", "--package", "tests", "--bin", "bench-gpu", "--bin", "random-gguf"];
    let of_kind = |arguments: &[&str], kind: &str| -> Result<Vec<PathBuf>> {
        let built = suites::build(arguments)?.into_iter().filter(|one| one.kind == kind);
        Ok(built.map(|one| one.path).collect())
    };
    let (tests, helpers) = (of_kind(&tests, "test")?, of_kind(&helpers, "bin")?);
    let xtask = std::env::current_exe().context("path of xtask is unknown")?;
    let own = [binaries.compiler_path(), binaries.runtime_path(), xtask];
    let programs: Vec<PathBuf> = own.into_iter().chain(tests).chain(helpers).collect();
    ensure!(programs.len() == 7, "{programs:?} are at hand, expected seven programs");
    Ok(programs)
}

/// Fetches the packages into `work` and puts their libraries into `lib`, each under the name that programs load.
fn libraries(work: &Path, lib: &Path) -> Result<()> {
    let root = work.join("root");
    std::fs::create_dir_all(&root).with_context(|| format!("folder cannot be made: {}", root.display()))?;
    run(Command::new("apt-get").arg("download").args(PACKAGES).current_dir(work))
        .context("packages cannot be fetched; apt-get update may help, and a system without apt-get has none")?;
    for package in entries(work)?.iter().filter(|path| path.extension() == Some(OsStr::new("deb"))) {
        run(Command::new("dpkg").arg("-x").arg(package).arg(&root))?;
    }
    let mut found = 0;
    for base in [root.join("usr/lib"), root.join("lib")].into_iter().filter(|base| base.is_dir()) {
        for folder in entries(&base)?.into_iter().filter(|path| path.is_dir()) {
            for library in entries(&folder)? {
                let Some(name) = library.file_name().and_then(OsStr::to_str) else { continue };
                if is_soname(name) {
                    copy(&library, &lib.join(name))?;
                    found += 1;
                }
            }
        }
    }
    if found < PACKAGES.len() {
        bail!("packages hold {found} libraries, expected one each of {}", PACKAGES.join(", "));
    }
    Ok(())
}

/// `libvulkan.so.1`, not `libvulkan.so.1.3.239`.
fn is_soname(name: &str) -> bool {
    name.split_once(".so.").is_some_and(|(_, version)| version.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_hash(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn repository() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(own.parent().context("xtask lies in no repository")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_name_libraries_by_their_major_version() {
        assert!(is_soname("libvulkan.so.1") && is_soname("libX11.so.6"));
        assert!(!is_soname("libvulkan.so.1.3.239") && !is_soname("libvulkan.so") && !is_soname("x11.conf"));
    }

    #[test]
    fn a_test_program_ends_in_a_hash() {
        assert!(is_hash("0123456789abcdef") && !is_hash("gguf"));
    }
}
