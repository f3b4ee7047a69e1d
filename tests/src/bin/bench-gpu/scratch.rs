//! Models that are made for one measurement: two of them would fill many a disk.

use std::path::PathBuf;

/// A file that is deleted when the value is dropped.
pub struct Scratch {
    pub path: PathBuf,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A file that was never written need not be removed.
        let _ = std::fs::remove_file(&self.path);
    }
}
