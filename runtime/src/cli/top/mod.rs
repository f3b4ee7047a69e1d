//! `top`: what the GPUs and every running `unicorn-run` do now, live on a terminal, or as lines of JSON.
//!
//! ```text
//! sysfs, nvidia-smi ──► gpus ─────┐
//! /proc/PID/fdinfo  ──► clients ──┼─► Sample ──► view (terminal) | --json (a line each)
//! status files      ──► status ───┘
//! ```

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use serde::Serialize;

mod clients;
pub mod gpus;
mod view;

use self::gpus::GpuSample;
use super::args::TopArgs;
use super::doctor::machine::text;
use super::error::CliError;
use super::output::print_json;
use super::status::{self, Status};

pub fn run(args: &TopArgs) -> Result<(), CliError> {
    let root = args.root.clone().unwrap_or_else(|| PathBuf::from("/"));
    let mut watch = Watch { root, folder: status::folder(), before: BTreeMap::new() };
    let pause = Duration::from_millis(args.interval_ms.into());
    let samples = args.count.map_or(u64::MAX, u64::from);
    if args.json {
        for index in 0..samples {
            if index > 0 {
                thread::sleep(pause);
            }
            print_json(&watch.sample(Instant::now()))?;
        }
        return Ok(());
    }
    if !io::stdout().is_terminal() {
        return Err(CliError::new("stdout is no terminal: --json prints the same figures as lines"));
    }
    let mut terminal = ratatui::try_init().map_err(terminal_error)?;
    let watched = show(&mut watch, &mut terminal, pause, samples);
    ratatui::restore();
    watched.map_err(terminal_error)
}

/// What is seen at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    pub gpus: Vec<GpuSample>,
    pub processes: Vec<ProcessSample>,
}

/// One `unicorn-run`: what it says of itself, and what the kernel says of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessSample {
    #[serde(flatten)]
    pub status: Status,
    pub vram_bytes: Option<u64>,
    pub gtt_bytes: Option<u64>,
    /// Of the time since the last sample, engines worked this part for it.
    pub gpu_percent: Option<f64>,
}

struct Watch {
    root: PathBuf,
    folder: Option<PathBuf>,
    /// When each process was last looked at, and its engines' time then.
    before: BTreeMap<u32, (Instant, u64)>,
}

impl Watch {
    fn sample(&mut self, now: Instant) -> Sample {
        let statuses = self.folder.iter().flat_map(|folder| status::read_all(folder, |pid| is_ours(&self.root, pid)));
        let statuses: Vec<Status> = statuses.collect();
        let before = std::mem::take(&mut self.before);
        let process = |status: Status| {
            let client = clients::read(&self.root, status.pid);
            let time = client.map(|client| client.engine_nanoseconds);
            let gpu_percent = time.zip(before.get(&status.pid)).and_then(|(time, (since, before))| {
                let elapsed = now.duration_since(*since).as_nanos() as f64;
                (elapsed > 0.0).then(|| 100.0 * time.saturating_sub(*before) as f64 / elapsed)
            });
            self.before.extend(time.map(|time| (status.pid, (now, time))));
            ProcessSample {
                status,
                vram_bytes: client.map(|client| client.vram_bytes),
                gtt_bytes: client.map(|client| client.gtt_bytes),
                gpu_percent,
            }
        };
        Sample { gpus: gpus::sample(&self.root), processes: statuses.into_iter().map(process).collect() }
    }
}

fn show(watch: &mut Watch, terminal: &mut ratatui::DefaultTerminal, pause: Duration, samples: u64) -> io::Result<()> {
    for _ in 0..samples {
        let begin = Instant::now();
        let sample = watch.sample(begin);
        terminal.draw(|frame| view::draw(frame, &sample))?;
        loop {
            let left = pause.saturating_sub(begin.elapsed());
            if !event::poll(left)? {
                break;
            }
            match event::read()? {
                Event::Key(key) if is_end(key.code, key.modifiers) => return Ok(()),
                Event::Resize(..) => {
                    terminal.draw(|frame| view::draw(frame, &sample))?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn is_end(code: KeyCode, modifiers: KeyModifiers) -> bool {
    let is_interrupt = code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL);
    is_interrupt || matches!(code, KeyCode::Char('q') | KeyCode::Esc)
}

/// Whether the process runs and is a `unicorn-run`: ids are given out again.
fn is_ours(root: &Path, pid: u32) -> bool {
    text(&root.join(format!("proc/{pid}/comm"))).as_deref() == Some("unicorn-run")
}

fn terminal_error(error: io::Error) -> CliError {
    CliError::new(format!("terminal cannot be used: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::status::tests::status;
    use super::gpus::tests::write;
    use super::*;

    #[test]
    fn a_process_is_watched_while_it_runs() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("run/unicorn");
        let status_text = |pid| serde_json::to_string(&status(pid)).unwrap();
        let info = |time: u64| format!("drm-client-id: 1\ndrm-memory-vram: 1 MiB\ndrm-engine-compute: {time} ns\n");
        write(root.path(), &[("run/unicorn/5.json", &status_text(5)), ("run/unicorn/6.json", &status_text(6))]);
        write(root.path(), &[("proc/5/comm", "unicorn-run\n"), ("proc/6/comm", "someone else\n")]);
        write(root.path(), &[("proc/5/fdinfo/9", &info(1_000))]);
        let mut watch = Watch { root: root.path().to_owned(), folder: Some(folder), before: BTreeMap::new() };
        let begin = Instant::now();
        let first = watch.sample(begin);
        let [process] = first.processes.as_slice() else { panic!("{first:?}") };
        assert_eq!((process.status.pid, process.vram_bytes, process.gpu_percent), (5, Some(1 << 20), None));

        write(root.path(), &[("proc/5/fdinfo/9", &info(250_001_000))]);
        let second = watch.sample(begin + Duration::from_secs(1));
        assert_eq!(second.processes[0].gpu_percent, Some(25.0));
        let json = serde_json::to_value(&second).unwrap();
        assert_eq!((&json["processes"][0]["pid"], &json["processes"][0]["doing"]), (&5.into(), &"decode".into()));

        std::fs::remove_dir_all(root.path().join("proc/5")).unwrap();
        assert!(watch.sample(begin + Duration::from_secs(2)).processes.is_empty());
    }

    #[test]
    fn q_escape_and_ctrl_c_end_it() {
        assert!(is_end(KeyCode::Char('q'), KeyModifiers::NONE) && is_end(KeyCode::Esc, KeyModifiers::NONE));
        assert!(is_end(KeyCode::Char('c'), KeyModifiers::CONTROL) && !is_end(KeyCode::Char('c'), KeyModifiers::NONE));
    }
}
