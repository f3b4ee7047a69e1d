//! The status of a running `unicorn-run`, for `top`: a small file in [`location`]'s folder, named by its process, written when the process begins to
//! do something else, otherwise at most twice a second, and removed at the end. Files of processes that are gone are ignored.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
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
    /// Rate over the last half second or more of decoding; `None` when not decoding.
    pub tokens_per_s: Option<f64>,
    /// Tokens generated since the process began.
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
/// Largest file that is read; longer than any status.
const MAX_BYTES: u64 = 64 << 10;

/// Folder of status files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub folder: PathBuf,
    /// Why it is not in $XDG_RUNTIME_DIR; `None`: it is there.
    pub fallback: Option<&'static str>,
}

/// Folder of this user's status files.
pub fn location() -> Location {
    location_of(std::env::var_os("XDG_RUNTIME_DIR"), user(), Path::new("/run/user"), &std::env::temp_dir())
}

/// Creates that folder, as the first status would, while the process still can.
pub fn make_folder() {
    make(&location().folder);
}

/// `$XDG_RUNTIME_DIR/unicorn`; without the variable, the folder that systemd gives the user, or else one of the user's own among
/// temporary files.
fn location_of(variable: Option<OsString>, user: u32, systemd: &Path, temporary: &Path) -> Location {
    let fallback = match variable.map(PathBuf::from) {
        Some(runtime) if runtime.is_absolute() => return Location { folder: runtime.join("unicorn"), fallback: None },
        Some(_) => "XDG_RUNTIME_DIR is not an absolute path",
        None => "XDG_RUNTIME_DIR is not set",
    };
    let of_systemd = systemd.join(user.to_string());
    let folder = match is_private(&of_systemd, user) {
        true => of_systemd.join("unicorn"),
        false => temporary.join(format!("unicorn-{user}")),
    };
    Location { folder, fallback: Some(fallback) }
}

/// `no status file in FOLDER`, and why it is that folder.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no status file of a running unicorn-run in {}", self.folder.display())?;
        match self.fallback {
            Some(why) => write!(f, " ({why}; give both programs the same value, such as /run/user/{})", user()),
            None => write!(f, " (XDG_RUNTIME_DIR)"),
        }
    }
}

/// This process's user, to whom `/proc/self` belongs. Read once: a sandbox may hide it later.
fn user() -> u32 {
    static USER: LazyLock<u32> = LazyLock::new(|| fs::metadata("/proc/self").map_or(0, |data| data.uid()));
    *USER
}

/// Whether `folder` is a folder, not a link to one, and belongs to `user`: in a folder of somebody else, names can be links to
/// this user's files.
fn is_private(folder: &Path, user: u32) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|data| data.is_dir() && data.uid() == user)
}

/// The statuses in `folder` of running processes, in the order of their ids.
pub fn read_all(folder: &Path, is_running: impl Fn(u32) -> bool) -> Vec<Status> {
    let read = |entry: fs::DirEntry| {
        let path = entry.path();
        let stem = path.file_name()?.to_str()?.strip_suffix(".json")?;
        let pid: u32 = stem.split_once('-').map_or(stem, |(pid, _)| pid).parse().ok()?;
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
    folder: PathBuf,
    /// Name of the file, without its ending.
    stem: String,
    status: Status,
    /// When the rate was last taken, and the tokens there were then.
    last: (Instant, u64),
    /// When the file was last written, and the length of the queue then.
    written: (Instant, u32),
}

impl StatusWriter {
    pub fn new(model: &Model) -> StatusWriter {
        StatusWriter::named(model, &model.meta().model.name, std::process::id().to_string())
    }

    /// Writes the status of one of several models of this process: number `number`, which requests call `name`.
    pub fn of_several(model: &Model, name: &str, number: usize) -> StatusWriter {
        StatusWriter::named(model, name, format!("{}-{number}", std::process::id()))
    }

    fn named(model: &Model, name: &str, stem: String) -> StatusWriter {
        let (_, kv_pages) = model.kv_pages();
        let status = Status {
            pid: std::process::id(),
            model: name.to_owned(),
            device: model.device().name.clone(),
            doing: State::Idle,
            tokens_per_s: None,
            tokens: 0,
            kv_pages_used: 0,
            kv_pages,
            queue: 0,
        };
        let now = Instant::now();
        let mut writer = StatusWriter { folder: location().folder, stem, status, last: (now, 0), written: (now, 0) };
        writer.write(model);
        writer
    }

    /// Sets state and number of waiting requests. A new state is written at once; a number, which changes with each request, at some later call, so
    /// that steps do not wait for files.
    pub fn set(&mut self, doing: State, queue: u32, model: &Model) {
        let is_new_state = self.status.doing != doing;
        if is_new_state {
            self.status.tokens_per_s = None;
            self.last = (Instant::now(), self.status.tokens);
        }
        (self.status.doing, self.status.queue) = (doing, queue);
        let (written, written_queue) = self.written;
        if is_new_state || queue != written_queue && written.elapsed() >= MIN_INTERVAL {
            self.write(model);
        }
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
        self.written = (Instant::now(), self.status.queue);
        put(&self.folder, &self.stem, &self.status);
    }
}

impl Drop for StatusWriter {
    fn drop(&mut self) {
        if is_private(&self.folder, user()) {
            let _ = fs::remove_file(file(&self.folder, &self.stem));
        }
    }
}

fn file(folder: &Path, stem: &str) -> PathBuf {
    folder.join(format!("{stem}.json"))
}

fn make(folder: &Path) {
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
}

/// Replaces the file by a rename, so that no reader gets a part of it. Errors, such as a full disk, are ignored.
fn put(folder: &Path, stem: &str, status: &Status) {
    let json = serde_json::to_vec(status).expect("a status is plain data with text keys");
    let partial = folder.join(format!("{stem}.partial"));
    make(folder);
    if !is_private(folder, user()) {
        return;
    }
    let _ = fs::write(&partial, json)
        .and_then(|()| fs::rename(&partial, file(folder, stem)))
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
        [("7", 7), ("3-1", 3), ("9", 9)].into_iter().for_each(|(stem, pid)| put(&below, stem, &status(pid)));
        fs::write(below.join("11.json"), "{ half of").unwrap();
        fs::write(below.join("12.json"), serde_json::to_vec(&status(99)).unwrap()).unwrap();
        fs::write(below.join("notes.txt"), "mine").unwrap();
        fs::create_dir(below.join("13.json")).unwrap();
        assert_eq!(read_all(&below, |pid| pid != 9), [status(3), status(7)]);
        // Nothing half-written is left.
        assert!(fs::read_dir(&below).unwrap().all(|one| !one.unwrap().path().ends_with("partial")));
    }

    #[test]
    fn without_the_variable_there_is_a_fallback_with_a_note() {
        let folder = tempfile::tempdir().unwrap();
        let [systemd, temporary] = ["run", "tmp"].map(|name| folder.path().join(name));
        let found = |variable: Option<&str>| location_of(variable.map(OsString::from), user(), &systemd, &temporary);
        let given = Location { folder: "/given/unicorn".into(), fallback: None };
        assert_eq!(found(Some("/given")), given);
        let unset = Some("XDG_RUNTIME_DIR is not set");
        let own = temporary.join(format!("unicorn-{}", user()));
        assert_eq!(found(None), Location { folder: own, fallback: unset });
        assert_eq!(found(Some("given")).fallback, Some("XDG_RUNTIME_DIR is not an absolute path"));
        let of_systemd = systemd.join(user().to_string());
        fs::create_dir_all(&of_systemd).unwrap();
        let found = found(None);
        assert_eq!(found, Location { folder: of_systemd.join("unicorn"), fallback: unset });
        assert!(found.to_string().contains("unicorn (XDG_RUNTIME_DIR is not set; give both"), "{found}");
    }

    /// In a folder that somebody else made, a name can be a link to a file of ours.
    #[test]
    fn nothing_is_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        put(&link, "5", &status(5));
        assert_eq!(fs::read_dir(&real).unwrap().count(), 0);
        assert!(!is_private(&real, user() + 1) && is_private(&real, user()));
    }

    #[test]
    fn a_place_that_takes_no_files_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::write(&taken, "a file").unwrap();
        put(&taken, "1", &status(1));
        assert_eq!(fs::read(&taken).unwrap(), b"a file");
    }
}
