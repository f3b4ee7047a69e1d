//! A program on a terminal of its own: what a person types, and what the screen shows then.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A screen so high that nothing scrolls away.
const ROWS: NonZeroU16 = NonZeroU16::new(300).unwrap();
/// Maximum wait for the screen: first starts compile pipelines, on busy machines.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running program with its terminal. It is ended when the value is dropped.
pub struct Terminal {
    child: Child,
    keyboard: File,
    shown: Arc<Mutex<Shown>>,
    /// Reads until the program's end of the terminal is closed.
    reader: JoinHandle<()>,
}

/// What the program has written: as it is, and as a terminal shows it.
struct Shown {
    bytes: Vec<u8>,
    screen: vt100::Parser,
}

impl Terminal {
    /// Starts `command` as the foreground process of a terminal with `columns` columns.
    ///
    /// # Panics
    /// When the system has no terminal for it, or the program does not start.
    pub fn start(command: &Command, columns: NonZeroU16) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("the system has pseudoterminals");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a new terminal can be unlocked");
        let size = Winsize { ws_row: ROWS.get(), ws_col: columns.get(), ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("a terminal takes a size");
        let name = ptsname(&master, Vec::new()).expect("a terminal has a name");
        let path = std::ffi::OsStr::from_bytes(name.as_bytes());
        let terminal = File::options().read(true).write(true).open(path).expect("the terminal opens");
        // Without a session of its own, a terminal sends no signal for Ctrl-C.
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args()).env("TERM", "xterm-256color");
        for (variable, value) in command.get_envs() {
            match value {
                Some(value) => session.env(variable, value),
                None => session.env_remove(variable),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            session.current_dir(folder);
        }
        let end = |terminal: &File| terminal.try_clone().expect("a terminal can be shared");
        session.stdin(end(&terminal)).stdout(end(&terminal)).stderr(terminal);
        let child = session.spawn().expect("setsid of util-linux starts");

        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().expect("a terminal can be shared");
        let shown = Shown { bytes: Vec::new(), screen: vt100::Parser::new(ROWS, columns, 0) };
        let shown = Arc::new(Mutex::new(shown));
        let writer = Arc::clone(&shown);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails once the program has ended.
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                let mut shown = writer.lock().unwrap_or_else(PoisonError::into_inner);
                shown.bytes.extend_from_slice(&buffer[..count]);
                shown.screen.process(&buffer[..count]);
            }
        });
        Terminal { child, keyboard, shown, reader }
    }

    /// Types `text`; a line ends with `\r`, as the key Enter sends it.
    ///
    /// # Panics
    /// When the terminal is gone.
    pub fn press(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("the terminal takes keys");
    }

    /// Everything on the screen, without empty lines at its end.
    pub fn screen(&self) -> String {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).screen.screen().contents()
    }

    /// All that was written, escape sequences included.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap_or_else(PoisonError::into_inner).bytes).into_owned()
    }

    /// The screen as soon as `is_there` is true of it.
    ///
    /// # Panics
    /// When that takes too long, or the program ends before.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            // Asked before the screen is read, so that the last output counts.
            let status = self.child.try_wait().expect("the program was started here");
            thread::sleep(Duration::from_millis(10));
            let screen = self.screen();
            if is_there(&screen) {
                return screen;
            }
            assert!(status.is_none(), "{what} is not shown, and the program has ended: {status:?}\n{screen}");
            assert!(begun.elapsed() < PATIENCE, "{what} is not shown after {PATIENCE:?}:\n{screen}");
        }
    }

    /// Waits for the program's end, and for all that it has written.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            let status = self.child.try_wait().expect("the program was started here");
            if let Some(status) = status.filter(|_| self.reader.is_finished()) {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the program has not ended after {PATIENCE:?}:\n{}", self.screen());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
