//! Settings that libraries read from the environment when a program begins: this program starts itself again with them, in the same process.

use std::env;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;
use unicorn_artifact::account::size;
use unicorn_runtime::machine::address_space_bytes;
use unicorn_terminal::restart_with_variable;

use crate::files::user_folders;
use crate::terminal::output::note;

/// Under a limit on address space, keeps to one heap for all threads: glibc reserves 64 MiB of address space for each heap. Returns if
/// there is no limit, or if the program cannot be started again.
pub fn keep_to_one_heap() {
    if address_space_bytes().is_some() {
        restart_with_variable("MALLOC_ARENA_MAX", "1");
    }
}

/// Turns Mesa's shader cache off where its disk is full: Mesa maps a file there that is larger than its space, and the process ends
/// with SIGBUS when that is written to. Returns if there is space, or if the program cannot be started again.
pub fn keep_mesa_off_a_full_disk() {
    let Some(folder) = mesa_cache() else { return };
    if env::var_os(MESA_SWITCH).is_some() {
        return;
    }
    if let Some(free_bytes) = free_bytes(&folder).filter(|&free| free < MESA_NEEDS_BYTES) {
        note(format_args!(
            "disk of {} is full ({} free): Mesa's shader cache is off, and kernels are compiled again at each start",
            folder.display(),
            size(free_bytes)
        ));
        restart_with_variable(MESA_SWITCH, "true");
    }
}

const MESA_SWITCH: &str = "MESA_SHADER_CACHE_DISABLE";

/// Mesa's index has 1.3 MB; the rest is for kernels.
const MESA_NEEDS_BYTES: u64 = 16 << 20;

/// Where Mesa keeps compiled shaders.
fn mesa_cache() -> Option<PathBuf> {
    env::var_os("MESA_SHADER_CACHE_DIR").map(PathBuf::from).or_else(user_folders::all_caches)
}

/// Free bytes on the file system of `folder`, or of the nearest folder above it that exists; `None`: the system does not report
/// them.
fn free_bytes(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let found = statvfs(there).ok()?;
    // A file system without blocks, such as procfs, has no free ones either.
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_that_of_the_nearest_folder() {
        let folder = tempfile::tempdir().unwrap();
        let here = free_bytes(folder.path()).unwrap();
        let below = free_bytes(&folder.path().join("not/made/yet")).unwrap();
        assert!(here > 0 && here.abs_diff(below) < 1 << 30, "{here} {below}");
    }
}
