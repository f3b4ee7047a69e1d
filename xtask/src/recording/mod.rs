//! Records commands on a terminal and draws them as one animated SVG, in real time but for long waits.

mod svg;

use std::ffi::OsString;
use std::num::NonZeroU16;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

const COLUMNS: NonZeroU16 = NonZeroU16::new(100).unwrap();
const ROWS: NonZeroU16 = NonZeroU16::new(16).unwrap();
/// A longer wait is cut to this.
const MAX_WAIT_S: f64 = 2.0;
/// Output that comes within this time is one picture.
const FRAME_S: f64 = 0.05;
/// Between a command's end and the next one.
const PAUSE_S: f64 = 1.5;

/// The terminal from one moment until the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub lines: Vec<String>,
    pub seconds: f64,
}

/// A piece of a command's output, and the time since the one before.
type Output = (f64, Vec<u8>);

/// Runs each line in `folder` with these variables, by a shell on a terminal of its own, and writes the recording to `file`.
///
/// # Errors
/// When `script`, of util-linux, is missing, or a command fails.
pub fn record(lines: &[String], folder: &Path, variables: &[(&str, OsString)], file: &Path) -> Result<()> {
    let mut outputs = Vec::new();
    for line in lines {
        outputs.push((0.3, format!("$ {line}").into_bytes()));
        outputs.push((0.7, b"\r\n".to_vec()));
        outputs.extend(run(line, folder, variables)?);
        outputs.push((PAUSE_S, Vec::new()));
    }
    std::fs::write(file, svg::draw(&frames(&outputs), COLUMNS.get(), ROWS.get()))
        .with_context(|| format!("recording cannot be written: {}", file.display()))
}

/// The output of one line, with its times.
fn run(line: &str, folder: &Path, variables: &[(&str, OsString)]) -> Result<Vec<Output>> {
    eprintln!("$ {line}");
    let [output, times] = ["output", "times"].map(|name| folder.join(format!("recorded-{name}")));
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--flush", "--logging-format", "classic"]);
    script.arg("--log-out").arg(&output).arg("--log-timing").arg(&times);
    script.arg("--command").arg(format!("stty cols {COLUMNS} rows {ROWS} && {line}"));
    let variables = variables.iter().map(|(name, value)| (name, value));
    let status = script.current_dir(folder).envs(variables).stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.context("script of util-linux, which records terminals, did not start")?;
    ensure!(status.success(), "recorded command failed with {status}: {line}");
    let (text, times) = (std::fs::read(&output)?, std::fs::read_to_string(&times)?);
    parse(&text, &times)
}

/// What `script` logged: a header line and the output, and in the other file a line for each piece: seconds and bytes.
fn parse(text: &[u8], times: &str) -> Result<Vec<Output>> {
    let start = text.iter().position(|&byte| byte == b'\n').context("log of script has no header")? + 1;
    let mut rest = &text[start..];
    let mut outputs = Vec::new();
    for line in times.lines() {
        let (seconds, bytes) = line.split_once(' ').with_context(|| format!("not a time and a length: {line}"))?;
        let piece =
            rest.split_at_checked(bytes.trim().parse()?).context("log of script is shorter than its times say")?;
        outputs.push((seconds.parse()?, piece.0.to_vec()));
        rest = piece.1;
    }
    Ok(outputs)
}

/// The pictures of a terminal that shows `outputs`.
fn frames(outputs: &[Output]) -> Vec<Frame> {
    let mut terminal = vt100::Parser::new(ROWS, COLUMNS, 0);
    let mut frames: Vec<Frame> = Vec::new();
    let mut waited = 0.0;
    for (seconds, piece) in outputs {
        waited += seconds.min(MAX_WAIT_S);
        if waited >= FRAME_S {
            let lines: Vec<String> =
                terminal.screen().rows(0, COLUMNS.get()).map(|line| line.trim_end().to_owned()).collect();
            match frames.last_mut() {
                Some(last) if last.lines == lines => last.seconds += waited,
                _ => frames.push(Frame { lines, seconds: waited }),
            }
            waited = 0.0;
        }
        terminal.process(piece);
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_becomes_pictures_in_time() {
        let text = b"Script started\nab\rc\r\nd";
        let outputs = parse(text, "0.5 2\n0.01 2\n9 3\n").unwrap();
        assert_eq!(outputs, [(0.5, b"ab".to_vec()), (0.01, b"\rc".to_vec()), (9.0, b"\r\nd".to_vec())]);
        assert!(parse(text, "1 99\n").is_err());
        let frames = frames(&[outputs, vec![(1.0, Vec::new())]].concat());
        let shown: Vec<(&str, &str, f64)> =
            frames.iter().map(|frame| (frame.lines[0].as_str(), frame.lines[1].as_str(), frame.seconds)).collect();
        assert_eq!(shown, [("", "", 0.5), ("cb", "", 2.01), ("cb", "d", 1.0)]);
    }
}
