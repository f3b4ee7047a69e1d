//! Hashes the sources that decide what the compiler makes of a model: its own and those of the packages whose kernels and programs it packs.
//! A published package has no neighbours: their versions are then those of its own version.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Folders of this package's sources and of its neighbours'.
const SOURCES: [&str; 6] =
    ["src", "../artifacts/machines", "../artifacts/src", "../kernels/src", "../npu-gen/src", "../shaders-gen/src"];

fn main() {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut hasher = DefaultHasher::new();
    for source in SOURCES {
        let folder = package.join(source);
        if folder.is_dir() {
            println!("cargo::rerun-if-changed={}", folder.display());
            hash_folder(&folder, source, &mut hasher);
        }
    }
    println!("cargo::rustc-env=UNICORN_COMPILER_SOURCES={:016x}", hasher.finish());
}

/// Names and contents of the files, in the order of their names.
fn hash_folder(folder: &Path, name: &str, hasher: &mut DefaultHasher) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry of the folder").path()).collect();
    paths.sort();
    for path in paths {
        let name = format!("{name}/{}", path.file_name().expect("an entry has a name").to_string_lossy());
        if path.is_dir() {
            hash_folder(&path, &name, hasher);
        } else {
            name.hash(hasher);
            fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).hash(hasher);
        }
    }
}
