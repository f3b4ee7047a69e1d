//! The limit on this process's address space (`ulimit -v`): everything that is mapped or allocated counts, the program, its
//! drivers and a mapped file as well.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Bytes of address space that this process may have; `None`: no limit is set, or none is known.
pub fn address_space_bytes() -> Option<u64> {
    soft_limit(&fs::read_to_string("/proc/self/limits").ok()?, ADDRESS_SPACE)?
}

/// A line of `/proc/self/limits`, by the name of the limit; `Some(None)`: unlimited, `None`: it is not there.
pub fn soft_limit(limits: &str, name: &str) -> Option<Option<u64>> {
    let soft = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    if soft == "unlimited" { Some(None) } else { soft.parse().ok().map(Some) }
}

/// Where there is a limit, begins this program anew in its place, with one heap for all of its threads. glibc would give
/// each thread a heap of its own and 64 MiB of address space for it, of which little is ever used; to share one costs a wait
/// now and then.
pub fn keep_to_one_heap() {
    if address_space_bytes().is_none() || env::var_os(HEAPS).is_some() {
        return;
    }
    let Ok(program) = env::current_exe() else { return };
    let mut arguments = env::args_os();
    let mut again = Command::new(program);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    // Returns only if that cannot be done, and then all goes on as it is.
    let _ = again.args(arguments).env(HEAPS, "1").exec();
}

/// As [`soft_limit`] takes it.
pub const ADDRESS_SPACE: &str = "Max address space";
/// Read by glibc when a program begins.
const HEAPS: &str = "MALLOC_ARENA_MAX";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_a_value_or_none() {
        let limits = "Limit          Soft Limit   Hard Limit   Units\n\
                      Max address space         524288000            unlimited            bytes\n\
                      Max locked memory         unlimited            unlimited            bytes\n\
                      Max processes             garbage              4                    processes\n";
        assert_eq!(soft_limit(limits, ADDRESS_SPACE), Some(Some(524_288_000)));
        assert_eq!(soft_limit(limits, "Max locked memory"), Some(None));
        assert_eq!((soft_limit(limits, "Max processes"), soft_limit(limits, "Max wishes")), (None, None));
    }
}
