//! The libraries that the programs link: only the C library and the compiler's. Vulkan's loader is opened at run time.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::run::read;

/// Every Linux with glibc has them.
const PERMITTED: [&str; 4] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-"];

/// Checks that the programs link nothing else, and returns the version of glibc that they need, such as 2.34.
///
/// # Errors
/// When a program links another library.
pub fn check(programs: &[PathBuf]) -> Result<String> {
    let mut newest = (0, 0);
    for program in programs {
        let listed = read(Command::new("objdump").arg("--private-headers").arg(program))?;
        for library in libraries(&listed) {
            let is_permitted = PERMITTED.iter().any(|permitted| library.starts_with(permitted));
            ensure!(is_permitted, "{} links {library}, which not every system has", program.display());
        }
        newest = newest.max(glibc(&listed).with_context(|| format!("{} needs no glibc", program.display()))?);
    }
    Ok(format!("{}.{}", newest.0, newest.1))
}

fn libraries(listed: &str) -> impl Iterator<Item = &str> {
    listed.lines().filter_map(|line| Some(line.trim().strip_prefix("NEEDED")?.trim()))
}

/// The newest version among the references, as in `0x09691974 0x00 05 GLIBC_2.34`.
fn glibc(listed: &str) -> Option<(u32, u32)> {
    let versions = listed.split_whitespace().filter_map(|word| {
        let mut numbers = word.strip_prefix("GLIBC_")?.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "Dynamic Section:\n  NEEDED               libgcc_s.so.1\n  NEEDED               libc.so.6\n\
        Version References:\n  required from libc.so.6:\n    0x0 0x00 02 GLIBC_2.9\n    0x0 0x00 03 GLIBC_2.34\n    0x0 0x00 04 GLIBC_2.3.4\n";

    #[test]
    fn libraries_and_the_newest_version_are_read() {
        assert_eq!(libraries(LISTED).collect::<Vec<_>>(), ["libgcc_s.so.1", "libc.so.6"]);
        assert_eq!(glibc(LISTED), Some((2, 34)));
        assert_eq!(glibc("NEEDED libc.so.6"), None);
    }
}
