//! `--keep-alive`: a model that stays loaded between starts, as Ollama's server keeps it.
//!
//! ```text
//! unicorn-run MODEL ──► Key ──► socket of the keeper of this key? ──── none ──► a new one, or no keeper without --keep-alive
//!    │  Request: arguments, prompt, and stdin, stdout and stderr themselves
//!    ▼
//! keeper   unicorn-run of an earlier start, without a terminal: answers, or chats, on the streams that it was given
//!    │  exit code                        Ctrl-C and a new size of the terminal are passed on
//!    ▼
//! unicorn-run ends; the keeper waits for the next start, for as long as --keep-alive says
//! ```
//!
//! A keeper serves one start at a time and has no socket meanwhile: a second start at the same time loads the model itself.

mod keeper;
mod key;
mod request;

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, thread};

use rustix::stdio::stdin;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGINT, SIGWINCH};
use signal_hook::iterator::Signals;

pub use self::keeper::run as keep;
use self::key::Key;
use self::request::{ACCEPTED, INTERRUPT, RESIZE, Request};
use crate::args::RunArgs;
use crate::error::CliError;
use crate::monitor::status;
use crate::terminal::interrupt::EXIT_INTERRUPTED;
use crate::terminal::output::note;

/// Lets the keeper of `artifact` do what `args` ask for; with `--keep-alive` it is started if there is none. The result is its exit code;
/// `None`: this process has to do it.
///
/// # Errors
/// When the keeper ends before its work does.
pub fn answer(args: &RunArgs, artifact: &Path, prompt: Option<&str>) -> Result<Option<u8>, CliError> {
    let key = Key::of(artifact, args);
    let socket = key.socket();
    let request = Request::new(&key, artifact, prompt)?;
    if let Ok(keeper) = UnixStream::connect(&socket)
        && let Some(code) = attend(&keeper, &request)?
    {
        return Ok(Some(code));
    }
    if args.keep_alive.is_none_or(|time| time == Duration::ZERO) {
        return Ok(None);
    }
    let started = start(&socket).and_then(|keeper| attend(&keeper, &request));
    if matches!(started, Ok(None)) {
        note("no process could be started that keeps the model; it is loaded for this answer alone");
    }
    started
}

/// Starts a keeper, which has one end of a connection as its standard input. The other one is returned.
fn start(socket: &Path) -> Result<UnixStream, CliError> {
    let cannot = |error| CliError::new(format!("no process that keeps the model can be started: {error}"));
    status::make_folder();
    let (own, keepers) = UnixStream::pair().map_err(cannot)?;
    let mut keeper = Command::new(std::env::current_exe().map_err(cannot)?);
    keeper.arg("keep").arg(socket).stdin(OwnedFd::from(keepers)).stdout(Stdio::null()).stderr(Stdio::null());
    keeper.spawn().map_err(cannot)?;
    Ok(own)
}

/// Sends `request` and waits for the exit code; `None`: it was not accepted.
fn attend(keeper: &UnixStream, request: &Request) -> Result<Option<u8>, CliError> {
    if request.send(keeper).is_err() || read_byte(keeper) != Some(ACCEPTED) {
        return Ok(None);
    }
    // What a keeper that is killed leaves of the terminal is no use to anybody.
    let terminal = tcgetattr(stdin()).ok();
    let is_interrupted = Arc::new(AtomicBool::new(false));
    pass_on_signals(keeper, &is_interrupted)
        .map_err(|error| CliError::new(format!("Ctrl-C cannot be caught: {error}")))?;
    let code = read_byte(keeper);
    if code.is_none() {
        terminal.inspect(|terminal| {
            let _ = tcsetattr(stdin(), OptionalActions::Now, terminal);
        });
    }
    match code {
        None if is_interrupted.load(Ordering::Relaxed) => Ok(Some(EXIT_INTERRUPTED)),
        None => Err(CliError::new("the process that keeps the model has ended; the same command starts another one")),
        code => Ok(code),
    }
}

/// The next byte; `None`: the other side has gone.
fn read_byte(mut connection: &UnixStream) -> Option<u8> {
    let mut byte = [0];
    connection.read_exact(&mut byte).ok()?;
    Some(byte[0])
}

/// From now on, signals of the terminal go to the keeper, which has none of its own.
fn pass_on_signals(keeper: &UnixStream, is_interrupted: &Arc<AtomicBool>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGWINCH])?;
    let (mut keeper, is_interrupted) = (keeper.try_clone()?, Arc::clone(is_interrupted));
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let is_interrupt = signal == SIGINT;
            is_interrupted.fetch_or(is_interrupt, Ordering::Relaxed);
            // A keeper that has gone is noticed where its exit code is read.
            let _ = keeper.write_all(&[if is_interrupt { INTERRUPT } else { RESIZE }]);
        }
    })?;
    Ok(())
}
