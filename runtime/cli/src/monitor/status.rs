//! The status of a running `unicorn-run`, for `top`: a small file under $XDG_RUNTIME_DIR/unicorn, named by its process, written at
//! most twice a second and removed at the end. Files of processes that are gone are ignored.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use unicorn_runtime::Model;

/// Status of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub pid: u32,
    pub model: String,
    pub device: String,
    pub doing: State,
    /// Over the last half second or more of decoding; `None` when not decoding.
    pub tokens_per_s: Option<f64>,
    /// Generated since the process began.
    pub tokens: u64,
    pub kv_pages_used: u32,
    pub kv_pages: u32,
    /// Requests that wait for a sequence to end; 0 without a server.
    pub queue: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Prefill,
    Decode,
    Idle,
}

const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// More than a status takes.
const MAX_BYTES: u64 = 64 << 10;

/// Folder of status files; `None`: the system has no such folder, and no status is written.
pub fn folder() -> Option<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute())?;
    Some(runtime.join("unicorn"))
}

/// The statuses in `folder` of running processes, in the order of their ids.
pub fn read_all(folder: &Path, is_running: impl Fn(u32) -> bool) -> Vec<Status> {
    let read = |entry: fs::DirEntry| {
        let path = entry.path();
        let pid: u32 = path.file_name()?.to_str()?.strip_suffix(".json")?.parse().ok()?;
        let is_small = entry.metadata().is_ok_and(|data| data.is_file() && data.len() <= MAX_BYTES);
        let status: Status = serde_json::from_slice(&fs::read(path).ok().filter(|_| is_small)?).ok()?;
        (status.pid == pid && is_running(pid)).then_some(status)
    };
    let mut statuses: Vec<Status> = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(read).collect();
    statuses.sort_by_key(|status| status.pid);
    statuses
}

/// Writes this process's status. Its failures are ignored: a run does not depend on them.
pub struct StatusWriter {
    folder: Option<PathBuf>,
    status: Status,
    /// When the rate was last taken, and the tokens there were then.
    last: (Instant, u64),
}

impl StatusWriter {
    pub fn new(folder: Option<PathBuf>, model: &Model) -> StatusWriter {
        let (_, kv_pages) = model.kv_pages();
        let status = Status {
            pid: std::process::id(),
            model: model.meta().model.name.clone(),
            device: model.device().name.clone(),
            doing: State::Idle,
            tokens_per_s: None,
            tokens: 0,
            kv_pages_used: 0,
            kv_pages,
            queue: 0,
        };
        let mut writer = StatusWriter { folder, status, last: (Instant::now(), 0) };
        writer.write(model);
        writer
    }

    /// Sets state and number of waiting requests, and writes them if they have changed.
    pub fn set(&mut self, doing: State, queue: u32, model: &Model) {
        if (self.status.doing, self.status.queue) == (doing, queue) {
            return;
        }
        if self.status.doing != doing {
            self.status.tokens_per_s = None;
            self.last = (Instant::now(), self.status.tokens);
        }
        self.status.doing = doing;
        self.status.queue = queue;
        self.write(model);
    }

    /// Adds sampled tokens.
    pub fn add_tokens(&mut self, n_tokens: u64, model: &Model) {
        self.status.tokens += n_tokens;
        let (since, tokens) = self.last;
        let elapsed = since.elapsed();
        if elapsed >= MIN_INTERVAL {
            self.status.tokens_per_s = Some((self.status.tokens - tokens) as f64 / elapsed.as_secs_f64());
            self.last = (Instant::now(), self.status.tokens);
            self.write(model);
        }
    }

    fn write(&mut self, model: &Model) {
        (self.status.kv_pages_used, _) = model.kv_pages();
        if let Some(folder) = &self.folder {
            put(folder, &self.status);
        }
    }
}

impl Drop for StatusWriter {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = fs::remove_file(file(folder, self.status.pid));
        }
    }
}

fn file(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("{pid}.json"))
}

/// Replaces the file by a rename, so that no reader sees a part of it. Errors, such as a full disk, are ignored.
fn put(folder: &Path, status: &Status) {
    let json = serde_json::to_vec(status).expect("a status is plain data with text keys");
    let partial = folder.join(format!("{}.partial", status.pid));
    let _ = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&partial, json))
        .and_then(|()| fs::rename(&partial, file(folder, status.pid)))
        .or_else(|_| fs::remove_file(&partial));
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn status(pid: u32) -> Status {
        Status {
            pid,
            model: "some model".into(),
            device: "Some GPU".into(),
            doing: State::Decode,
            tokens_per_s: Some(12.5),
            tokens: 40,
            kv_pages_used: 3,
            kv_pages: 64,
            queue: 0,
        }
    }

    #[test]
    fn statuses_of_running_processes_are_read_and_others_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("unicorn");
        assert!(read_all(&below, |_| true).is_empty());
        [7, 3, 9].into_iter().for_each(|pid| put(&below, &status(pid)));
        fs::write(below.join("11.json"), "{ half of").unwrap();
        fs::write(below.join("12.json"), serde_json::to_vec(&status(99)).unwrap()).unwrap();
        fs::write(below.join("notes.txt"), "mine").unwrap();
        fs::create_dir(below.join("13.json")).unwrap();
        assert_eq!(read_all(&below, |pid| pid != 9), [status(3), status(7)]);
        // Nothing half-written is left.
        assert!(fs::read_dir(&below).unwrap().all(|one| !one.unwrap().path().ends_with("partial")));
    }

    #[test]
    fn a_place_that_takes_no_files_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::write(&taken, "a file").unwrap();
        put(&taken, &status(1));
        assert_eq!(fs::read(&taken).unwrap(), b"a file");
    }
}
