//! What a person types, on the small trained model and on disks of other sizes: commands, their answers and their notes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use crate::compiled::{Compiled, options};
use crate::models::models;
use crate::programs::program;
use crate::skip;

/// The artifact of a small model with a chat template, compiled once a process.
pub fn artifact() -> PathBuf {
    static ARTIFACT: LazyLock<Compiled> = LazyLock::new(|| {
        let targets = ["llvmpipe", "generic-subgroup", "generic"];
        let targets = targets.into_iter().filter_map(unicorn_spirv::target::by_name).collect();
        Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets, vec![]))
    });
    ARTIFACT.artifact_path()
}

/// `unicorn-run` with `arguments`, on the device under test, without a terminal.
pub fn run(arguments: &[&str]) -> Command {
    let mut command = program("unicorn-run");
    command.args(arguments).env("UNICORN_DEVICE", device()).stdin(Stdio::null());
    command
}

/// Name of the device under test.
pub fn device() -> String {
    std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into())
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The text that a command prints.
///
/// # Panics
/// When it fails.
#[track_caller]
pub fn answer(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).expect("it prints UTF-8")
}

/// Names in the cache of compiled models.
///
/// # Panics
/// When a name is not UTF-8.
pub fn cached(cache: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(cache.join("unicorn/models")).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

/// `program` with its cache on a disk of its own: `size` as mount(8) reads it, with `used_bytes` that are taken or as many as there are.
/// Arguments may follow. `None`, and a skipped check: no file system can be mounted here.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn with_cache_on_small_disk(disk: &Path, size: &str, used_bytes: u64, program: &Command) -> Option<Command> {
    // Filling a disk ends with an error, which is what was wanted.
    let fill = "mount -t tmpfs -o size=$1 none \"$0\" && { head -c $2 /dev/zero > \"$0/fill\" 2> /dev/null || true; } && shift 2 && \
                exec \"$@\"";
    let on_disk = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", fill]).arg(disk).args([size, &used_bytes.to_string()]).arg(program);
        command.stdin(Stdio::null()).env("XDG_CACHE_HOME", disk).env("UNICORN_DEVICE", device());
        command.env_remove("MESA_SHADER_CACHE_DISABLE").env_remove("MESA_SHADER_CACHE_DIR");
        command
    };
    if !on_disk(Path::new("true")).output().is_ok_and(|output| output.status.success()) {
        skip("full disk", "no right to mount a file system");
        return None;
    }
    Some(on_disk(Path::new(program.get_program())))
}
