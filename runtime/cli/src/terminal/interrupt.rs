//! Ctrl-C ends an answer, not the program; pressed again before the answer has ended, it ends the program. Commands that write a
//! file are ended by it at once, and the partial file is removed.

use std::io;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use unicorn_runtime::CancelToken;

use crate::error::CliError;

/// From now on, Ctrl-C cancels [`token`]. Until then it ends the program at once, and also where no thread can be started to wait
/// for the signal.
pub fn catch() -> Result<(), CliError> {
    catch_with(|| ())
}

/// The same, and calls `pressed`.
pub fn catch_with(mut pressed: impl FnMut() + Send + 'static) -> Result<(), CliError> {
    on_press(move || {
        if PRESSED.is_cancelled() {
            std::process::exit(EXIT_INTERRUPTED.into());
        }
        PRESSED.cancel();
        pressed();
    })
}

/// Ctrl-C cancels [`token`] until this value is dropped; then it does again what it did before.
pub struct InterruptScope {
    before: Action,
}

/// As [`catch`], for a piece of work within others.
pub fn catch_within() -> Result<InterruptScope, CliError> {
    let scope = InterruptScope { before: std::mem::replace(&mut *action(), Box::new(end_at_once)) };
    catch()?;
    Ok(scope)
}

impl Drop for InterruptScope {
    fn drop(&mut self) {
        *action() = std::mem::replace(&mut self.before, Box::new(end_at_once));
    }
}

/// From now on, Ctrl-C ends the program and removes the file `partial`. One file per process: a second one is not removed.
pub fn remove_partial(partial: PathBuf) {
    // Without a handler, Ctrl-C ends the program and leaves the file.
    let _ = on_press(move || {
        let _ = std::fs::remove_file(&partial);
        std::process::exit(EXIT_INTERRUPTED.into());
    });
}

/// From now on, Ctrl-C ends the program at once.
pub fn release() {
    *action() = Box::new(end_at_once);
}

fn end_at_once() {
    std::process::exit(EXIT_INTERRUPTED.into());
}

/// Whether a thread can be started. A signal's handler is replaced before the thread is started that waits for the signal: if that failed,
/// the signal would have no effect.
pub fn has_thread() -> bool {
    thread::Builder::new().spawn(|| ()).is_ok_and(|thread| thread.join().is_ok())
}

/// Whether Ctrl-C was pressed since the last call.
pub fn take_pressed() -> bool {
    PRESSED.reset()
}

/// A token that Ctrl-C cancels and [`take_pressed`] resets.
pub fn token() -> CancelToken {
    PRESSED.clone()
}

/// What shells report for a program that SIGINT ended.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Sets what Ctrl-C does. The signal's handler is installed by the first call.
fn on_press(pressed: impl FnMut() + Send + 'static) -> Result<(), CliError> {
    *action() = Box::new(pressed);
    LazyLock::force(&HANDLER)
        .as_ref()
        .map_err(|error| CliError::new(format!("Ctrl-C cannot be caught: {error}")))
        .copied()
}

fn action() -> MutexGuard<'static, Action> {
    ACTION.lock().unwrap_or_else(PoisonError::into_inner)
}

static PRESSED: LazyLock<CancelToken> = LazyLock::new(CancelToken::new);

/// What Ctrl-C does once the signal's handler is installed.
type Action = Box<dyn FnMut() + Send>;

static ACTION: LazyLock<Mutex<Action>> = LazyLock::new(|| Mutex::new(Box::new(end_at_once)));

static HANDLER: LazyLock<Result<(), io::Error>> = LazyLock::new(|| {
    if !has_thread() {
        return Ok(());
    }
    LazyLock::force(&PRESSED);
    let mut signals = Signals::new([SIGINT])?;
    thread::Builder::new().name("ctrl-c".into()).spawn(move || signals.forever().for_each(|_| action()()))?;
    Ok(())
});
