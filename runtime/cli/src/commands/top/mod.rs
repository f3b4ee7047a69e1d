//! `top`: what the GPUs and every running `unicorn-run` do now, live on a terminal, as lines of JSON, as metrics over HTTP.

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
use crate::monitor::watch::{Sample, Watch};
use crate::terminal::output::print_json;

pub fn run(args: &TopArgs) -> Result<(), CliError> {
    let mut watch = Watch::new(args.root.clone().unwrap_or_else(|| PathBuf::from("/")));
    let endpoint = args.metrics.as_deref().map(Endpoint::open).transpose()?;
    if let Some(endpoint) = &endpoint {
        eprintln!("metrics are at http://{}/metrics", endpoint.address());
    }
    // Whoever is shown a look, whoever asks for metrics sees the same.
    let mut look = || {
        let sample = watch.sample(Instant::now());
        if let Some(endpoint) = &endpoint {
            endpoint.publish(render(&sample));
        }
        sample
    };
    let looks = args.count.map_or(u64::MAX, u64::from);
    let pause = Duration::from_millis(args.interval_ms.into());
    if args.json {
        return each(looks, pause, || print_json(&look()));
    }
    if io::stdout().is_terminal() {
        let mut terminal = ratatui::try_init().map_err(terminal_error)?;
        let watched = show(&mut look, &mut terminal, pause, looks);
        ratatui::restore();
        return watched.map_err(terminal_error);
    }
    match endpoint {
        Some(_) => each(looks, pause, || {
            look();
            Ok(())
        }),
        None => {
            Err(CliError::new("stdout is no terminal: --json prints the same figures as lines, --metrics serves them"))
        }
    }
}

/// Does `work` so many times, with a pause between.
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
    look: &mut impl FnMut() -> Sample,
    terminal: &mut DefaultTerminal,
    pause: Duration,
    looks: u64,
) -> io::Result<()> {
    for _ in 0..looks {
        let begin = Instant::now();
        let sample = look();
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
