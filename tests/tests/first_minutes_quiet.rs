//! `--quiet` on every command: nothing but results, and of servers nothing.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tests::hub::Hub;
use tests::models::models;
use tests::programs::{Watched, program, send_signal};
use tests::registry::Registry;
use tests::skip;
use tests::typed::{answer, artifact, device, run};

/// What is typed with `--quiet`, in a folder with an artifact and a text, and whether the command prints a result.
const COMMANDS: &[(&str, &str, bool)] = &[
    ("unicorn-run", "m.unicorn Hello -n 2", true),
    ("unicorn-run", "run m.unicorn Hello -n 2", true),
    ("unicorn-run", "devices m.unicorn", true),
    ("unicorn-run", "doctor m.unicorn", true),
    ("unicorn-run", "top --json --count 1", true),
    ("unicorn-run", "inspect m.unicorn", true),
    ("unicorn-run", "replan m.unicorn --context 512", false),
    ("unicorn-run", "bench m.unicorn -p 8 -n 2 -r 1", true),
    ("unicorn-run", "profile m.unicorn -p 8 -n 2", true),
    ("unicorn-run", "tune m.unicorn --quick -r 1 -n 1 --depth 8 --only combine", true),
    ("unicorn-run", "selftest m.unicorn --sequences 1 --seconds 10", true),
    ("unicorn-run", "perplexity m.unicorn -f text.txt -c 32 --chunks 1", true),
    ("unicorn-run", "logits m.unicorn --tokens tokens.safetensors -o logits.safetensors", false),
    ("unicorn-run", "completions bash", true),
    ("unicorn-compile", "model -o other.unicorn --target generic", false),
    ("unicorn-compile", "retarget other.unicorn --target llvmpipe", false),
    ("unicorn-compile", "replan other.unicorn --context 512", false),
    ("unicorn-compile", "upgrade other.unicorn", false),
    ("unicorn-compile", "verify m.unicorn", false),
    ("unicorn-compile", "completions bash", true),
];

/// The same, with a registry at REGISTRY and a hub.
const COMMANDS_OF_REGISTRIES: &[(&str, &str, bool)] = &[
    ("unicorn-compile", "push m.unicorn REGISTRY --plain-http", false),
    ("unicorn-run", "pull REGISTRY --plain-http", false),
    ("unicorn-run", "list", true),
    ("unicorn-run", "verify model.txt --signature by-key.sig --key key.pub", true),
    ("unicorn-run", "REGISTRY Hello -n 2", true),
    ("unicorn-run", "rm REGISTRY", false),
    ("unicorn-run", "gc", false),
    ("unicorn-run", "list", false),
    ("unicorn-run", "pull hf:tests/draft", false),
];

/// Commands whose quiet is tested elsewhere: servers below, NPUs where there is a simulated one (`npu_model`).
const ELSEWHERE: &[&str] = &["serve", "npu-selftest", "help"];

/// A folder with what the commands read.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::copy(artifact(), path("m.unicorn")).unwrap();
    std::os::unix::fs::symlink(models().join("gemma3-2m-draft"), path("model")).unwrap();
    std::fs::write(path("text.txt"), "Once upon a time there was an island. ".repeat(20)).unwrap();
    let header = r#"{"tokens":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}"#;
    let tokens = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[5, 0, 0, 0, 7, 0, 0, 0]].concat();
    std::fs::write(path("tokens.safetensors"), tokens).unwrap();
    for name in ["model.txt", "by-key.sig", "key.pub"] {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/signing").join(name);
        std::fs::copy(golden, path(name)).unwrap();
    }
    folder
}

/// Types each command with `--quiet` in `folder`: nothing is on stderr, and on stdout only a result.
#[track_caller]
fn check_quiet(folder: &Path, commands: &[(&str, &str, bool)], prepare: impl Fn(&mut Command)) {
    let mut wrong = Vec::new();
    for (name, typed, has_result) in commands {
        let mut command = program(name);
        command.args(typed.split(' ')).arg("--quiet").current_dir(folder).env("UNICORN_DEVICE", device());
        command.stdin(Stdio::null());
        prepare(&mut command);
        let output = command.output().unwrap();
        if !output.status.success() || !output.stderr.is_empty() || output.stdout.is_empty() == *has_result {
            wrong.push(format!("{name} {typed}: {:?} {output:?}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn quiet_is_quiet_on_every_command() {
    check_quiet(folder().path(), COMMANDS, |_| ());
}

#[test]
fn quiet_is_quiet_with_registries() {
    let Some(registry) = Registry::start() else { return skip("registry", "docker-registry is not installed") };
    let (folder, home, hub) = (folder(), tempfile::tempdir().unwrap(), Hub::start(&models().join("gemma3-2m-draft")));
    let reference = registry.reference("draft:1");
    let commands: Vec<(&str, String, bool)> = COMMANDS_OF_REGISTRIES
        .iter()
        .map(|(name, typed, has_result)| (*name, typed.replace("REGISTRY", &reference), *has_result))
        .collect();
    let commands: Vec<(&str, &str, bool)> =
        commands.iter().map(|(name, typed, has_result)| (*name, typed.as_str(), *has_result)).collect();
    check_quiet(folder.path(), &commands, |command| {
        command.env("XDG_DATA_HOME", home.path()).env("XDG_CACHE_HOME", home.path()).env("HF_ENDPOINT", hub.endpoint());
        for name in ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
    });
}

/// A command that is added has to be in a list above.
#[test]
fn no_command_is_left_out() {
    for name in ["unicorn-run", "unicorn-compile"] {
        let help = answer(program(name).arg("--help"));
        let (_, commands) = help.split_once("\nCommands:\n").unwrap_or_else(|| panic!("no commands in {help}"));
        let commands = commands.split("\n\n").next().unwrap_or_default();
        let commands: Vec<&str> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert!(commands.len() > 4, "{help}");
        let is_typed = |command: &&str| {
            let mut lists = COMMANDS.iter().chain(COMMANDS_OF_REGISTRIES);
            lists.any(|(program, typed, _)| *program == name && typed.split(' ').next() == Some(command))
        };
        let left_out: Vec<&&str> =
            commands.iter().filter(|command| !ELSEWHERE.contains(command) && !is_typed(command)).collect();
        assert!(left_out.is_empty(), "{name} {left_out:?}");
    }
}

#[test]
fn servers_can_be_quiet() {
    let (folder, artifact) = (tempfile::tempdir().unwrap(), artifact());
    let lines = [
        &["serve", artifact.to_str().unwrap(), "--parallel", "1", "-c", "64", "--port"][..],
        &["top", "--root", folder.path().to_str().unwrap(), "--metrics"],
    ];
    for line in lines {
        // Free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let place = if line[0] == "serve" { address.port().to_string() } else { address.to_string() };
        let mut server = Watched::start(run(line).args([&place, "--quiet"]));
        while TcpStream::connect(address).is_err() {
            assert_eq!(server.child.try_wait().unwrap(), None, "{line:?}: {}", server.stderr_line());
            thread::sleep(Duration::from_millis(20));
        }
        send_signal(&server.child, Signal::INT);
        server.child.wait().unwrap();
        assert_eq!((server.stdout_line(), server.stderr_line()), Default::default(), "{line:?}");
    }
}
