//! llama.cpp for the bundle of `bench-gpu`: Debian's own build with its Vulkan backend, loader and libraries, so that it
//! runs where nothing of it is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::files::{copy, entries};
use crate::run::read;

/// Debian's folder of libraries on x86-64, and the loader's place.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";

/// Copies llama-bench out of the system under `root` into `folder`, and what it needs into `folder/lib`.
///
/// # Errors
/// When something is missing there, by name.
pub fn pack(root: &Path, folder: &Path) -> Result<()> {
    let lib = folder.join("lib");
    std::fs::create_dir_all(&lib).with_context(|| format!("folder cannot be made: {}", lib.display()))?;
    let program = root.join("usr/bin/llama-bench");
    ensure!(program.exists(), "llama-bench is missing: install llama.cpp under {}", root.display());
    copy(&program, &folder.join("llama-bench"))?;
    copy(&root.join(LOADER), &lib.join("ld-linux-x86-64.so.2"))?;
    // Which of the numbered backends folders there is depends on ggml's version.
    let ggml = entries(&root.join(LIBRARIES).join("ggml")).context("ggml's backends are missing")?;
    let mut backends = Vec::new();
    for folder in ggml.iter().filter(|path| path.is_dir()) {
        backends.extend(entries(folder)?.into_iter().filter(|path| is_wanted(path)));
    }
    let has_vulkan = backends.iter().any(|path| path.ends_with("libggml-vulkan.so"));
    ensure!(has_vulkan, "libggml-vulkan.so is missing; install libggml0-backend-vulkan under {}", root.display());
    for backend in &backends {
        copy(backend, &lib.join(backend.file_name().context("backend has no name")?))?;
    }
    for user in [program].iter().chain(&backends) {
        for library in needed(root, user)? {
            copy(&library, &lib.join(library.file_name().context("library has no name")?))?;
        }
    }
    Ok(())
}

/// Vulkan, and the CPU's, without which no model loads.
fn is_wanted(backend: &Path) -> bool {
    let name = backend.file_name().unwrap_or_default().to_string_lossy();
    name == "libggml-vulkan.so" || (name.starts_with("libggml-cpu") && name.ends_with(".so"))
}

/// Libraries under `root` that a program or library there requires, as its own loader finds them.
fn needed(root: &Path, user: &Path) -> Result<Vec<PathBuf>> {
    let folder = root.join(LIBRARIES);
    // llama.cpp's tools have a folder of their own, and alternatives are links that lead out of the root.
    let folders = ["", "llama", "blas", "lapack"].map(|name| folder.join(name).display().to_string());
    let mut list = Command::new(root.join(LOADER));
    list.arg("--library-path").arg(folders.join(":")).arg("--list").arg(user);
    Ok(paths(&read(&mut list)?).into_iter().filter(|path| path.starts_with(root)).collect())
}

/// The paths in lines like `libm.so.6 => /lib/libm.so.6 (0x…)`.
fn paths(list: &str) -> Vec<PathBuf> {
    let path = |line: &str| Some(PathBuf::from(line.split_once(" => ")?.1.split_once(" (")?.0));
    list.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaders_list_names_files() {
        let list = "\tlinux-vdso.so.1 (0x7ff)\n\tlibm.so.6 => /sid/lib/libm.so.6 (0x7ff)\n\tlibx.so => not found\n";
        assert_eq!(paths(list), [PathBuf::from("/sid/lib/libm.so.6")]);
    }

    #[test]
    fn a_root_without_llama_cpp_is_named() {
        let root = tempfile::tempdir().unwrap();
        let message = pack(root.path(), &root.path().join("out")).unwrap_err().to_string();
        assert!(message.contains("llama-bench is missing"), "{message}");
    }
}
