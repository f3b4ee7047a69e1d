//! Commands that end in time: a session on a borrowed GPU is short, and what is measured must come back.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::options::Options;

pub struct Clock {
    end: Instant,
    limit: Duration,
    /// Folder for the output of commands until they have ended.
    output: PathBuf,
}

impl Clock {
    pub fn start(options: &Options) -> Clock {
        let end = Instant::now() + Duration::from_secs(options.total_s);
        Clock { end, limit: Duration::from_secs(options.limit_s), output: options.output.clone() }
    }

    /// Runs `command` and returns what it printed.
    ///
    /// # Errors
    /// A message with the end of its output, when it does not start, does not end in time, or fails.
    pub fn run(&self, command: &mut Command) -> Result<String, String> {
        let begin = Instant::now();
        let limit = self.limit.min(self.end.saturating_duration_since(begin));
        if limit.is_zero() {
            return Err("left out: the time for all is over".into());
        }
        eprintln!("{:?}", command);
        let (out, errors) = (self.output.join("stdout.tmp"), self.output.join("stderr.tmp"));
        let file = |path: &PathBuf| File::create(path).map_err(|error| format!("{}: {error}", path.display()));
        command.stdin(Stdio::null()).stdout(file(&out)?).stderr(file(&errors)?);
        let mut child =
            command.spawn().map_err(|error| format!("{:?} does not start: {error}", command.get_program()))?;
        let status = loop {
            let waited = child.try_wait().map_err(|error| error.to_string())?;
            if waited.is_some() || begin.elapsed() >= limit {
                break waited;
            }
            thread::sleep(Duration::from_millis(20));
        };
        if status.is_none() {
            // It may end by itself just now; either way it is gone afterwards.
            let _ = (child.kill(), child.wait());
        }
        let (stdout, stderr) = (text(&out), text(&errors));
        let _ = (std::fs::remove_file(&out), std::fs::remove_file(&errors));
        match status {
            Some(status) if status.success() => Ok(stdout),
            Some(status) => Err(format!("{status}: {}", last_lines(&(stdout + &stderr)))),
            None => Err(format!("stopped after {} s: {}", limit.as_secs(), last_lines(&stderr))),
        }
    }
}

/// The text of a file, as far as it can be read.
fn text(path: &PathBuf) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
