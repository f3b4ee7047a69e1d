//! Limits on this process (`ulimit`), from `/proc/self/limits`, and the memory that is available to it.

use std::fs;

/// Bytes of address space that this process may have (`ulimit -v`): all that is mapped or allocated counts, including drivers and a
/// mapped artifact. `None`: unlimited or unknown.
pub fn address_space_bytes() -> Option<u64> {
    soft_limit(&fs::read_to_string("/proc/self/limits").ok()?, ADDRESS_SPACE)?
}

/// Bytes that programs can take before the system swaps, its page cache included; `None`: unknown.
pub fn available_memory_bytes() -> Option<u64> {
    available_bytes(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit on the line of `limits` that begins with `name`; `Some(None)`: unlimited, `None`: there is no such line.
pub(super) fn soft_limit(limits: &str, name: &str) -> Option<Option<u64>> {
    let soft = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    if soft == "unlimited" { Some(None) } else { soft.parse().ok().map(Some) }
}

/// Name of the limit on address space.
pub(super) const ADDRESS_SPACE: &str = "Max address space";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        assert_eq!(available_bytes("MemTotal: 9 kB\nMemAvailable:    8192 kB\n"), Some(8 << 20));
        assert_eq!(available_bytes("MemAvailable: 99999999999999999999 kB\n"), None);
    }

    #[test]
    fn limits_have_a_value_or_none() {
        let limits = "Limit          Soft Limit   Hard Limit   Units\n\
                      Max address space         524288000            unlimited            bytes\n\
                      Max locked memory         unlimited            unlimited            bytes\n\
                      Max processes             garbage              4                    processes\n";
        assert_eq!(soft_limit(limits, ADDRESS_SPACE), Some(Some(524_288_000)));
        assert_eq!(soft_limit(limits, "Max locked memory"), Some(None));
        assert_eq!((soft_limit(limits, "Max processes"), soft_limit(limits, "Max files")), (None, None));
    }
}
