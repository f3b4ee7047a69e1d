//! Settings that libraries read from the environment when a program begins: the program starts itself again with them, in the same process.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Starts this program again with a variable of the environment, unless it is set. Returns if it is, or if the program cannot be started.
pub fn restart_with_variable(name: &str, value: &str) {
    if env::var_os(name).is_some() {
        return;
    }
    let Ok(program) = env::current_exe() else { return };
    let mut arguments = env::args_os();
    let mut again = Command::new(program);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    let _ = again.args(arguments).env(name, value).exec();
}
