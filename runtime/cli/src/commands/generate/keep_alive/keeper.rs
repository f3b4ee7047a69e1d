//! The process that keeps a model: `unicorn-run keep SOCKET`, started by `--keep-alive`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::FromArgMatches;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::unlink;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Signal, getpid, kill_process, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdin};

use super::request::{ACCEPTED, INTERRUPT, RESIZE, Request};
use crate::args::{Args, Command, KeepArgs, RunArgs};
use crate::commands::generate::loaded::Loaded;
use crate::commands::generate::task::Task;
use crate::error::CliError;
use crate::exit_code;
use crate::monitor::status::StatusWriter;
use crate::terminal::interrupt::EXIT_INTERRUPTED;
use crate::terminal::output::{Verbosity, set_verbosity};

/// Serves the start that is connected to stdin, then those that connect to the socket, until none has come for the time of `--keep-alive`.
///
/// # Errors
/// Errors of the system, before the first start is served.
pub fn run(args: &KeepArgs) -> Result<(), CliError> {
    let cannot = |error: io::Error| CliError::new(format!("model cannot be kept: {error}"));
    // Signals of the terminal in which it was started are for that start.
    let _ = setsid();
    let first = fcntl_dupfd_cloexec(stdin(), 3).map_err(|error| cannot(error.into()))?;
    let nothing = File::options().read(true).write(true).open("/dev/null").map_err(cannot)?;
    let mut keeper = Keeper { nothing, key: String::new(), keep_alive: Duration::ZERO, loaded: None };
    keeper.put_streams_away().map_err(cannot)?;
    let mut start = UnixStream::from(first);
    loop {
        // A start that goes away is no reason to forget the model.
        let code = keeper.serve(&start);
        // Before the start ends, so that one that follows at once finds the model.
        let waiting = keeper.wait_at(&args.socket);
        let _ = code.and_then(|code| (&start).write_all(&[code]));
        drop(start);
        match waiting.and_then(|waiting| waiting.next(keeper.keep_alive)) {
            Some(next) => start = next,
            None => return Ok(()),
        }
    }
}

/// How long a command may take to end whose start has gone.
const PATIENCE: Duration = Duration::from_secs(3);

struct Keeper {
    /// What its streams are while it waits.
    nothing: File,
    /// That of the first start; those of others have to be the same.
    key: String,
    keep_alive: Duration,
    loaded: Option<Loaded>,
}

impl Keeper {
    /// Does what a start asks for; the result is the exit code.
    fn serve(&mut self, start: &UnixStream) -> io::Result<u8> {
        let began = Instant::now();
        let (request, streams) = Request::receive(start)?;
        if self.key.is_empty() {
            self.key.clone_from(&request.key);
        }
        if self.key != request.key {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        (&mut &*start).write_all(&[ACCEPTED])?;
        let [stdin, stdout, stderr] = streams;
        let is_active = self.take_signals(start)?;
        dup2_stdin(&stdin)?;
        dup2_stdout(&stdout)?;
        dup2_stderr(&stderr)?;
        drop((stdin, stdout, stderr));
        let code = exit_code(self.carry_out(&request, began));
        *is_active.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.put_streams_away()?;
        Ok(code)
    }

    fn carry_out(&mut self, request: &Request, began: Instant) -> Result<(), CliError> {
        std::env::set_current_dir(&request.folder).map_err(|error| CliError::at(&request.folder, error))?;
        let (args, verbosity) = parsed(request)?;
        set_verbosity(verbosity);
        self.keep_alive = args.keep_alive.unwrap_or(self.keep_alive);
        let task = Task::new(&args, request.prompt.clone())?;
        // A chat may have changed to another model.
        self.loaded.take_if(|loaded| !loaded.is_of(&request.artifact, args.ctx));
        match &mut self.loaded {
            Some(loaded) => loaded.started = began,
            None => self.loaded = Some(Loaded::open(&request.artifact, args.ctx, &args)?),
        }
        let done = task.carry_out(&mut self.loaded, &request.artifact, &args);
        self.loaded.take_if(|loaded| loaded.model.is_broken());
        done
    }

    /// Streams and folder of a start stay no longer than that.
    fn put_streams_away(&self) -> io::Result<()> {
        io::stdout().flush().ok();
        dup2_stdin(&self.nothing)?;
        dup2_stdout(&self.nothing)?;
        dup2_stderr(&self.nothing)?;
        std::env::set_current_dir("/")
    }

    /// From now on, signals that the start passes on reach this process as if its terminal had sent them, until the result is false.
    fn take_signals(&self, start: &UnixStream) -> io::Result<Arc<Mutex<bool>>> {
        let is_active = Arc::new(Mutex::new(true));
        let (mut start, nothing) = (start.try_clone()?, self.nothing.try_clone()?);
        let is_still_active = Arc::clone(&is_active);
        thread::Builder::new().name("signals".into()).spawn(move || {
            loop {
                let mut byte = [0];
                let has_gone = start.read_exact(&mut byte).is_err();
                let is_active = is_still_active.lock().unwrap_or_else(PoisonError::into_inner);
                if !*is_active {
                    return;
                }
                if has_gone {
                    // An answer ends by the signal, and a chat that waits for a line reads the end of its input.
                    let _ = dup2_stdin(&nothing);
                }
                if byte == [RESIZE] || has_gone {
                    let _ = kill_process(getpid(), Signal::WINCH);
                }
                if byte == [INTERRUPT] || has_gone {
                    let _ = kill_process(getpid(), Signal::INT);
                }
                if has_gone {
                    break;
                }
            }
            // The terminal is no longer its own.
            thread::sleep(PATIENCE);
            if *is_still_active.lock().unwrap_or_else(PoisonError::into_inner) {
                std::process::exit(EXIT_INTERRUPTED.into());
            }
        })?;
        Ok(is_active)
    }

    /// From now on, starts find this process; `None`: there is nothing to keep, or another keeper waits there.
    fn wait_at<'a>(&self, socket: &'a Path) -> Option<Waiting<'a>> {
        let loaded = self.loaded.as_ref().filter(|_| !self.keep_alive.is_zero())?;
        let status = StatusWriter::new(&loaded.model);
        // Where there is a file already, another keeper was started meanwhile, or one was killed.
        let listener = UnixListener::bind(socket).or_else(|_| {
            if UnixStream::connect(socket).is_err() {
                let _ = unlink(socket);
            }
            UnixListener::bind(socket)
        });
        Some(Waiting { listener: listener.ok()?, socket, _status: status })
    }
}

/// A keeper between two starts.
struct Waiting<'a> {
    listener: UnixListener,
    socket: &'a Path,
    /// `top` shows what takes the memory.
    _status: StatusWriter,
}

impl Waiting<'_> {
    /// The next start; `None`: none has come within `time`.
    fn next(self, time: Duration) -> Option<UnixStream> {
        let next = wait(&self.listener, time);
        let _ = unlink(self.socket);
        next
    }
}

/// The first connection within `time`.
fn wait(listener: &UnixListener, time: Duration) -> Option<UnixStream> {
    let until = Instant::now() + time;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()?;
        match poll(&mut [PollFd::new(&listener.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(0) => return None,
            Ok(_) => return listener.accept().ok().map(|(start, _)| start),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// The start's own options.
fn parsed(request: &Request) -> Result<(RunArgs, Verbosity), CliError> {
    let unexpected = || CliError::new("a model is kept for `unicorn-run MODEL` alone");
    let matches = Args::shown().try_get_matches_from(&request.arguments).map_err(|_| unexpected())?;
    let args = Args::from_arg_matches(&matches).map_err(|_| unexpected())?;
    let verbosity = Verbosity::of(&args.output);
    match args.command {
        None => Ok((args.run, verbosity)),
        Some(Command::Run(run)) => Ok((*run, verbosity)),
        Some(_) => Err(unexpected()),
    }
}
