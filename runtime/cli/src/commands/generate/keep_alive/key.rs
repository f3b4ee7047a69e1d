//! What two starts have in common that can share a loaded model.

use std::env;
use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use unicorn_artifact::hash::hash_parts;

use crate::args::{DraftModel, RunArgs};
use crate::files::{corrections_file, tuning_file};
use crate::monitor::status;

/// Beginnings of the environment variables on which a loaded model, or what a terminal shows, depends.
const PREFIXES: [&str; 12] =
    ["UNICORN_", "VK_", "MESA_", "RADV_", "AMD_", "LP_", "LD_", "LC_", "XDG_", "HF_", "DRI_", "SSL_"];
/// And their whole names.
const NAMES: [&str; 9] = ["HOME", "PATH", "TERM", "COLORTERM", "NO_COLOR", "LANG", "VISUAL", "EDITOR", "TZ"];

/// The program, the files that are loaded, how they are loaded, and the environment. Files are represented by size, time of change and
/// number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(pub String);

impl Key {
    pub fn of(artifact: &Path, args: &RunArgs) -> Key {
        let mut key = format!("{:?} {:?} {:?} {}", args.load, args.ctx, args.speculation, args.lazy);
        let of_draft = corrections_file::path_for(&corrections_file::of_draft(artifact));
        let files =
            [artifact.to_owned(), tuning_file::path_for(artifact), corrections_file::path_for(artifact), of_draft];
        let draft = match args.speculation.draft_model() {
            DraftModel::Other(path) => Some(path.to_owned()),
            DraftModel::Packed | DraftModel::OwnHead | DraftModel::None => None,
        };
        for file in files.into_iter().chain(draft).chain(env::current_exe().ok()) {
            let file = fs::canonicalize(&file).unwrap_or(file);
            let identity = fs::metadata(&file)
                .map(|data| (data.dev(), data.ino(), data.len(), data.mtime(), data.mtime_nsec()))
                .ok();
            let _ = write!(key, "\n{file:?} {identity:?}");
        }
        let mut variables: Vec<_> = env::vars_os().filter(|(name, _)| matters(name.as_bytes())).collect();
        variables.sort();
        let _ = write!(key, "\n{variables:?}");
        Key(key)
    }

    /// Where the keeper of such a model listens: in the folder of status files, which is the user's alone.
    pub fn socket(&self) -> PathBuf {
        let hash: String = hash_parts([self.0.as_bytes()]).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        status::location().folder.join(format!("keeper-{hash}"))
    }
}

/// Whether a variable may change what a start does. How long a model is kept is not a matter of which it is.
fn matters(name: &[u8]) -> bool {
    let is_prefix = |prefix: &&str| name.starts_with(prefix.as_bytes());
    let is_listed = PREFIXES.iter().any(is_prefix) || NAMES.iter().any(|whole| whole.as_bytes() == name);
    is_listed && name != b"UNICORN_KEEP_ALIVE"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shells_own_variables_change_nothing() {
        let names = ["UNICORN_DEVICE", "VK_DRIVER_FILES", "HOME", "PWD", "HOMEBREW", "SHLVL", "UNICORN_KEEP_ALIVE"];
        let found: Vec<&str> = names.into_iter().filter(|name| matters(name.as_bytes())).collect();
        assert_eq!(found, ["UNICORN_DEVICE", "VK_DRIVER_FILES", "HOME"]);
    }
}
