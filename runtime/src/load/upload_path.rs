//! The four paths of weight bytes to the device.
//!
//! ```text
//! import   file pages ═══ device memory             no copy; the file must not change while the model exists
//! map      file ──pread──► device memory            memory of the tier that the host can map
//! host     file ──pread──► pages ═══ device         imported host memory, for tiers in host memory
//! staging  file ──pread──► buffer ──copy──► device  one staging buffer a thread
//! ```

use std::fmt;
use std::str::FromStr;

use unicorn_artifact::Tier;

/// How weight bytes reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadPath {
    /// The mapped file is imported as device memory (VK_EXT_external_memory_host). Never chosen automatically: the system may drop its
    /// pages at any time, and a program that writes the file waits until the step ends.
    Import,
    /// Read into mapped memory of the tier.
    Map,
    /// Read into host memory that is imported as device memory.
    Host,
    /// Read into a staging buffer and copied by the device.
    Staging,
}

/// How the weights of one tier reached the device.
#[derive(Clone, Debug, PartialEq)]
pub struct TierUpload {
    /// The plan's tier.
    pub tier: Tier,
    /// The path that was taken.
    pub path: UploadPath,
    /// The buffers lie in the device's own memory.
    pub device_local: bool,
    /// The file stays in the page cache.
    pub keeps_page_cache: bool,
    /// Bytes per second of each path that was measured before the choice; empty: nothing was measured.
    pub measured: Vec<(UploadPath, f64)>,
}

impl UploadPath {
    /// All paths.
    pub const ALL: [UploadPath; 4] = [UploadPath::Import, UploadPath::Map, UploadPath::Host, UploadPath::Staging];

    /// The name that [`str::parse`] accepts.
    pub fn name(self) -> &'static str {
        match self {
            UploadPath::Import => "import",
            UploadPath::Map => "map",
            UploadPath::Host => "host",
            UploadPath::Staging => "staging",
        }
    }
}

impl fmt::Display for UploadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for UploadPath {
    type Err = String;

    fn from_str(text: &str) -> Result<UploadPath, String> {
        UploadPath::ALL
            .into_iter()
            .find(|path| path.name() == text)
            .ok_or_else(|| format!("expected one of {}", UploadPath::ALL.map(UploadPath::name).join(", ")))
    }
}

impl fmt::Display for TierUpload {
    /// Text such as `staging copies into device-local memory, page cache released (measured: map 6.10, staging 9.03 GB/s)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match (self.path, self.device_local) {
            (UploadPath::Import, _) => "import of the mapped file",
            (UploadPath::Map, true) => "pread into device-local memory",
            (UploadPath::Map, false) => "pread into memory that the device reads in place",
            (UploadPath::Host, _) => "pread into imported memory",
            (UploadPath::Staging, true) => "staging copies into device-local memory",
            (UploadPath::Staging, false) => "staging copies into memory that the device reads in place",
        };
        f.write_str(text)?;
        if self.path != UploadPath::Import {
            write!(f, ", page cache {}", if self.keeps_page_cache { "kept" } else { "released" })?;
        }
        if self.measured.is_empty() {
            return Ok(());
        }
        let rates = self.measured.iter().map(|(path, rate)| format!("{path} {:.2}", rate / 1e9));
        write!(f, " (measured: {} GB/s)", rates.collect::<Vec<_>>().join(", "))
    }
}
