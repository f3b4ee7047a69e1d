//! Samples of the GPUs and of every running `unicorn-run`.
//!
//! ```text
//! sysfs, nvidia-smi ──► gpus ─────┐
//! /proc/PID/fdinfo  ──► clients ──┼─► Sample ──► top: terminal, lines of JSON
//! status files      ──► status ───┘         └──► metrics
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

pub mod gpus;

use crate::monitor::status::{self, Location, Status};
use unicorn_runtime::machine::{DrmUsage, GpuActivity};

/// All GPUs and processes at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    pub gpus: Vec<GpuActivity>,
    pub processes: Vec<ProcessSample>,
}

/// One `unicorn-run`: its own status, and what the kernel reports about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessSample {
    #[serde(flatten)]
    pub status: Status,
    pub vram_bytes: Option<u64>,
    pub gtt_bytes: Option<u64>,
    /// Share of the time since the last sample in which engines worked for it.
    pub gpu_percent: Option<f64>,
}

/// Takes samples, and keeps what the next one needs for differences.
pub struct SystemMonitor {
    /// `/` except in tests.
    root: PathBuf,
    /// Where the processes' status files are.
    location: Location,
    /// When each process was last sampled, and its engines' time then.
    before: BTreeMap<u32, (Instant, u64)>,
}

impl SystemMonitor {
    pub fn new(root: PathBuf) -> SystemMonitor {
        SystemMonitor { root, location: status::location(), before: BTreeMap::new() }
    }

    /// Folder in which it looks for processes.
    pub fn location(&self) -> &Location {
        &self.location
    }

    pub fn sample(&mut self, now: Instant) -> Sample {
        let statuses = status::read_all(&self.location.folder, |pid| is_ours(&self.root, pid));
        let before = std::mem::take(&mut self.before);
        let process = |status: Status| {
            let client = DrmUsage::read(&self.root, status.pid);
            let time = client.engine_nanoseconds;
            let gpu_percent = time.zip(before.get(&status.pid)).and_then(|(time, (since, before))| {
                let elapsed = now.duration_since(*since).as_nanos() as f64;
                // The time of a closed client is no longer counted.
                let worked = time.checked_sub(*before)?;
                (elapsed > 0.0).then(|| 100.0 * worked as f64 / elapsed)
            });
            self.before.extend(time.map(|time| (status.pid, (now, time))));
            ProcessSample { status, vram_bytes: client.vram_bytes, gtt_bytes: client.gtt_bytes, gpu_percent }
        };
        Sample { gpus: gpus::sample(&self.root), processes: statuses.into_iter().map(process).collect() }
    }
}

/// Whether the process runs and is a `unicorn-run`: process ids are reused.
fn is_ours(root: &Path, pid: u32) -> bool {
    std::fs::read_to_string(root.join(format!("proc/{pid}/comm"))).is_ok_and(|name| name.trim_end() == "unicorn-run")
}

#[cfg(test)]
mod tests {
    use super::gpus::tests::write;
    use super::*;
    use crate::monitor::status::tests::status;
    use std::time::Duration;

    #[test]
    fn a_process_is_sampled_while_it_runs() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("run/unicorn");
        let status_text = |pid| serde_json::to_string(&status(pid)).unwrap();
        let info = |time: u64| format!("drm-client-id: 1\ndrm-memory-vram: 1 MiB\ndrm-engine-compute: {time} ns\n");
        write(root.path(), &[("run/unicorn/5.json", &status_text(5)), ("run/unicorn/6.json", &status_text(6))]);
        write(root.path(), &[("proc/5/comm", "unicorn-run\n"), ("proc/6/comm", "someone else\n")]);
        write(root.path(), &[("proc/5/fdinfo/9", &info(1_000))]);
        let location = Location { folder, fallback: None };
        let mut monitor = SystemMonitor { root: root.path().to_owned(), location, before: BTreeMap::new() };
        let begin = Instant::now();
        let first = monitor.sample(begin);
        let [process] = first.processes.as_slice() else { panic!("{first:?}") };
        assert_eq!((process.status.pid, process.vram_bytes, process.gpu_percent), (5, Some(1 << 20), None));

        write(root.path(), &[("proc/5/fdinfo/9", &info(250_001_000))]);
        let second = monitor.sample(begin + Duration::from_secs(1));
        assert_eq!(second.processes[0].gpu_percent, Some(25.0));
        let json = serde_json::to_value(&second).unwrap();
        assert_eq!((&json["processes"][0]["pid"], &json["processes"][0]["doing"]), (&5.into(), &"decode".into()));

        // A sample at the same moment, or less engine time than before, gives no percentage.
        assert_eq!(monitor.sample(begin + Duration::from_secs(1)).processes[0].gpu_percent, None);
        write(root.path(), &[("proc/5/fdinfo/9", &info(7))]);
        assert_eq!(monitor.sample(begin + Duration::from_secs(2)).processes[0].gpu_percent, None);

        std::fs::remove_dir_all(root.path().join("proc/5")).unwrap();
        assert!(monitor.sample(begin + Duration::from_secs(3)).processes.is_empty());
    }
}
