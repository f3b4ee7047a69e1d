//! The user's folders for this program's files.

use std::path::PathBuf;

/// `unicorn` in $XDG_CACHE_HOME or else in ~/.cache. A relative path is ignored, as the XDG specification requires.
pub fn cache() -> Option<PathBuf> {
    Some(all_caches()?.join("unicorn"))
}

/// The folder of all programs' caches.
pub fn all_caches() -> Option<PathBuf> {
    let folder = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_absolute());
    folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
}
