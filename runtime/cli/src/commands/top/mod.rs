//! `top`: the GPUs and every running `unicorn-run`, live on a terminal, as lines of JSON, as metrics over HTTP.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};

mod view;

use crate::args::TopArgs;
use crate::error::CliError;
use crate::monitor::metrics::{Endpoint, render};
use crate::monitor::system::{Sample, SystemMonitor};
use crate::terminal::output::{note, print_json};

pub fn run(args: &TopArgs) -> Result<(), CliError> {
    let mut monitor = SystemMonitor::new(args.root.clone().unwrap_or_else(|| PathBuf::from("/")));
    let endpoint = args.metrics.as_deref().map(|address| Endpoint::open(address, &args.allowed_host)).transpose()?;
    if let Some(endpoint) = &endpoint {
        note(format_args!("serving metrics at http://{}/metrics", endpoint.address()));
    }
    let if_none = monitor.location().to_string();
    // The terminal and the metrics show the same sample.
    let mut take_sample = || {
        let sample = monitor.sample(Instant::now());
        if let Some(endpoint) = &endpoint {
            endpoint.publish(render(&sample));
        }
        sample
    };
    let n_samples = args.count.map_or(u64::MAX, u64::from);
    let pause = Duration::from_millis(args.interval_ms.into());
    if args.json {
        let mut noted = false;
        return each(n_samples, pause, || {
            let sample = take_sample();
            if sample.processes.is_empty() && !std::mem::replace(&mut noted, true) {
                note(&if_none);
            }
            print_json(&sample)
        });
    }
    if io::stdout().is_terminal() {
        let mut terminal = ratatui::try_init().map_err(terminal_error)?;
        let shown = show(&mut take_sample, &if_none, &mut terminal, pause, n_samples);
        ratatui::restore();
        return shown.map_err(terminal_error);
    }
    match endpoint {
        Some(_) => each(n_samples, pause, || {
            take_sample();
            Ok(())
        }),
        None => Err(CliError::new(
            "stdout is no terminal: --json prints each sample as a line, --metrics serves them over HTTP",
        )),
    }
}

/// Does `work` `times` times, with a pause between.
fn each(times: u64, pause: Duration, mut work: impl FnMut() -> Result<(), CliError>) -> Result<(), CliError> {
    for index in 0..times {
        if index > 0 {
            thread::sleep(pause);
        }
        work()?;
    }
    Ok(())
}

fn show(
    take_sample: &mut impl FnMut() -> Sample,
    if_none: &str,
    terminal: &mut DefaultTerminal,
    pause: Duration,
    n_samples: u64,
) -> io::Result<()> {
    for _ in 0..n_samples {
        let begin = Instant::now();
        let sample = take_sample();
        terminal.draw(|frame| view::draw(frame, &sample, if_none))?;
        loop {
            let left = pause.saturating_sub(begin.elapsed());
            if !event::poll(left)? {
                break;
            }
            match event::read()? {
                Event::Key(key) if is_end(key.code, key.modifiers) => return Ok(()),
                Event::Resize(..) => {
                    terminal.draw(|frame| view::draw(frame, &sample, if_none))?;
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

fn terminal_error(error: io::Error) -> CliError {
    CliError::new(format!("terminal cannot be used: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_ctrl_c_end_it() {
        assert!(is_end(KeyCode::Char('q'), KeyModifiers::NONE) && is_end(KeyCode::Esc, KeyModifiers::NONE));
        assert!(is_end(KeyCode::Char('c'), KeyModifiers::CONTROL) && !is_end(KeyCode::Char('c'), KeyModifiers::NONE));
    }
}
