//! Models of the Hugging Face Hub, from a local one that serves the same calls: fetched, compiled, kept; interrupted, damaged, refused.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tests::compiled::{Compiled, options};
use tests::hub::Hub;
use tests::models::models;
use tests::programs::program;
use tests::{packages, skip};
use unicorn_spirv::target;

const PROMPT: [&str; 7] = ["who", "lives", "there", "-n", "12", "--temp", "0"];
const NAME: &str = "hf:tests/draft";

/// A user with caches of its own.
struct User {
    home: TempDir,
    endpoint: String,
}

impl User {
    fn of(hub: &Hub) -> User {
        User { home: tempfile::tempdir().unwrap(), endpoint: hub.endpoint() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program("unicorn-run");
        command.args(arguments).stdin(Stdio::null());
        command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
        command.env("XDG_CACHE_HOME", self.home.path()).env("HF_ENDPOINT", &self.endpoint);
        for name in ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
        command
    }

    #[track_caller]
    fn text(&self, arguments: &[&str]) -> String {
        text(self.command(arguments).output().unwrap())
    }

    #[track_caller]
    fn pull(&self, more: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[&["pull", NAME, "--json"], more].concat())).unwrap()
    }

    #[track_caller]
    fn refusal(&self, arguments: &[&str]) -> String {
        refusal(self.command(arguments))
    }

    fn cache(&self) -> PathBuf {
        self.home.path().join("huggingface/hub/models--tests--draft")
    }

    fn incomplete(&self) -> Vec<PathBuf> {
        let blobs = std::fs::read_dir(self.cache().join("blobs")).into_iter().flatten();
        let paths = blobs.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "incomplete")).collect()
    }
}

#[track_caller]
fn text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refusal(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{command:?} is refused");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn draft() -> PathBuf {
    models().join("gemma3-2m-draft")
}

/// A folder with links to some files of the model, and names of others.
fn folder_of(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        symlink(draft().join(name), folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn a_model_is_fetched_compiled_and_kept() {
    let hub = Hub::start(&draft());
    hub.state().token = Some("hf_secret".into());
    let user = User::of(&hub);
    let with_token = |arguments: &[&str]| text(user.command(arguments).env("HF_TOKEN", "hf_secret").output().unwrap());
    let expected = user.text(&[&[draft().to_str().unwrap()], &PROMPT[..]].concat());
    assert!(!expected.is_empty());
    assert_eq!(with_token(&[&[NAME], &PROMPT[..]].concat()), expected);

    let requests = hub.state().take_requests();
    let (own, cdn): (Vec<_>, Vec<_>) = requests.iter().partition(|request| request.starts_with(&hub.address));
    assert!(own.iter().all(|request| request.contains("hf_secret")), "{own:#?}");
    assert_eq!(cdn.len(), 1, "weights are elsewhere: {cdn:#?}");
    assert!(!cdn[0].contains("hf_secret"), "the token goes to the hub and to nobody else: {}", cdn[0]);

    // As the hub's own programs keep it.
    let commit = hub.state().commit.clone();
    assert_eq!(std::fs::read_to_string(user.cache().join("refs/main")).unwrap(), commit);
    let weights = user.cache().join("snapshots").join(&commit).join("model.safetensors");
    let link = std::fs::read_link(&weights).unwrap();
    assert!(link.starts_with("../../blobs"), "{}", link.display());
    assert!(std::fs::read(&weights).unwrap() == std::fs::read(draft().join("model.safetensors")).unwrap());
    assert!(user.incomplete().is_empty());

    // What is there needs no hub and no token; the second run does not compile.
    hub.state().take_requests();
    let again = user.command(&[&[NAME], &PROMPT[..]].concat()).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert!(!String::from_utf8_lossy(&again.stderr).contains("compil"), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(text(again), expected);
    assert!(hub.state().take_requests().is_empty());
    let other = user.command(&["hf:tests/other", "hi"]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert!(String::from_utf8_lossy(&other.stderr).contains("HF_HUB_OFFLINE forbids"));
}

#[test]
fn a_broken_line_costs_what_was_on_its_way() {
    let hub = Hub::start(&draft());
    let user = User::of(&hub);
    let size = |name: &str| std::fs::metadata(draft().join(name)).unwrap().len();
    hub.state().cut_bytes = Some(1 << 20);
    let pulled = user.pull(&[]);
    let requests = hub.state().take_requests();
    let ranges: Vec<_> = requests.iter().filter(|request| request.to_lowercase().contains("range: bytes=")).collect();
    assert_eq!(ranges.len() as u64, 2 * (size("model.safetensors") >> 20), "each hub and elsewhere: {ranges:#?}");
    let moved = pulled["pulled_bytes"].as_u64().unwrap();
    let commit = pulled["commit"].as_str().unwrap();
    let snapshot = user.cache().join("snapshots").join(commit);
    let all = std::fs::read_dir(snapshot).unwrap().map(|entry| std::fs::metadata(entry.unwrap().path()).unwrap().len());
    assert_eq!(moved, all.sum::<u64>(), "every byte once");

    // A hub without ranges sends all again.
    let other = User::of(&hub);
    (hub.state().cut_bytes, hub.state().no_ranges) = (None, true);
    let blob = user.cache().join("blobs").join(weights_blob(&user, commit));
    let blobs = other.cache().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let partial = blobs.join(format!("{}.incomplete", blob.file_name().unwrap().to_str().unwrap()));
    std::fs::write(&partial, &std::fs::read(&blob).unwrap()[..1000]).unwrap();
    assert_eq!(other.pull(&[])["pulled_bytes"].as_u64().unwrap(), moved);
}

fn weights_blob(user: &User, commit: &str) -> String {
    let link = std::fs::read_link(user.cache().join("snapshots").join(commit).join("model.safetensors")).unwrap();
    link.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_download_that_was_killed_goes_on_and_a_wrong_hash_is_refused() {
    let hub = Hub::start(&draft());
    let user = User::of(&hub);
    // Five attempts bring something less than all.
    hub.state().cut_bytes = Some(0);
    let error = user.refusal(&["pull", NAME]);
    assert!(error.contains("hf:tests/draft: ") && error.contains("connection to the hub failed"), "{error}");
    assert!(!user.cache().join("refs").exists(), "nothing has a name");

    let weights = std::fs::read(draft().join("model.safetensors")).unwrap();
    hub.state().cut_bytes = Some(weights.len() as u64 / 32);
    let mut child = user.command(&["pull", NAME]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while !user.incomplete().iter().any(|path| std::fs::metadata(path).is_ok_and(|found| found.len() > 200_000)) {
        assert!(begun.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none(), "it is still coming");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    (hub.state().cut_bytes, hub.state().damaged) = (None, Some("model.safetensors".into()));
    hub.state().take_requests();
    let error = user.refusal(&["pull", NAME]);
    assert!(error.contains("model.safetensors has hash ") && error.contains(", expected "), "{error}");
    assert!(
        hub.state().take_requests().iter().any(|request| request.to_lowercase().contains("range: bytes=")),
        "it went on"
    );
    // Only large files are called by as many digits.
    let is_large = |path: &PathBuf| path.file_stem().is_some_and(|digits| digits.len() == 64);
    assert!(!user.incomplete().iter().any(is_large), "no damaged byte is kept");
    // A small file is compared with git's hash.
    hub.state().damaged = Some("config.json".into());
    let error = User::of(&hub).refusal(&["pull", NAME]);
    assert!(error.contains("config.json has hash "), "{error}");
    hub.state().damaged = None;
    user.pull(&[]);
    assert_eq!(user.pull(&[])["pulled_bytes"], 0, "all is there");
}

#[test]
fn a_hub_that_refuses_is_explained() {
    let hub = Hub::start(&draft());
    let user = User::of(&hub);
    for (name, message) in [
        ("hf:tests/drafd", "hub has no such model; check the name"),
        ("hf:tests/draft@v9", "repository has no revision v9, expected a branch, a tag or a commit of it"),
        ("hf:draft", "no owner is named, expected hf:OWNER/NAME"),
        ("hf:tests/draft:Q4_K_M", "no artifact and no GGUF file has Q4_K_M in its name"),
    ] {
        let error = user.refusal(&[name, "hi"]);
        assert!(error.contains(message) && error.contains(name), "{error}");
        assert_eq!(error.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{error}");
    }
    hub.state().token = Some("right".into());
    let error = user.refusal(&["pull", NAME]);
    assert!(error.contains("hub has no such public model") && error.contains("set HF_TOKEN"), "{error}");
    let mut command = user.command(&["pull", NAME]);
    command.env("HF_TOKEN", "wrong");
    assert!(refusal(command).contains("hub refuses the token, or has no such model"));
    // As `hf auth login` stores it.
    hub.state().token = Some("stored".into());
    std::fs::create_dir_all(user.home.path().join("huggingface")).unwrap();
    std::fs::write(user.home.path().join("huggingface/token"), "stored\n").unwrap();
    user.pull(&[]);
    let mut command = user.command(&["pull", "hf:tests/draft@refs/pr/1"]);
    assert!(command.output().unwrap().status.success());
    command = user.command(&["pull", NAME]);
    command.env("HF_ENDPOINT", "localhost");
    assert!(refusal(command).contains("HF_ENDPOINT is localhost, expected an address"));
    let error = user.refusal(&["pull", NAME, "--key", "none.pub"]);
    assert!(error.contains("none.pub"), "{error}");
}

#[test]
fn a_later_commit_is_fetched_by_pull_alone() {
    let folder = folder_of(&["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]);
    let hub = Hub::start(folder.path());
    let user = User::of(&hub);
    let first = user.pull(&[]);
    std::fs::write(folder.path().join("generation_config.json"), "{}").unwrap();
    hub.commit(&"f".repeat(40));
    hub.state().take_requests();
    user.text(&[&[NAME], &PROMPT[..]].concat());
    assert!(hub.state().take_requests().is_empty(), "what is there is used");
    let second = user.pull(&[]);
    assert_eq!((second["commit"].as_str(), &second["pulled_bytes"]), (Some(&"f".repeat(40)[..]), &2.into()));
    assert_ne!(first["model"], second["model"]);
    // The commit itself is a revision, and its files are all there.
    let by_commit = format!("{NAME}@{}", first["commit"].as_str().unwrap());
    hub.state().take_requests();
    user.text(&[&[&by_commit[..]], &PROMPT[..]].concat());
    assert!(hub.state().take_requests().is_empty());
}

#[test]
fn an_artifact_in_the_repository_is_run_as_it_is_and_one_gguf_of_several_is_chosen() {
    let targets = ["llvmpipe"].into_iter().filter_map(target::by_name).collect();
    let compiled = Compiled::of_folder(&draft(), &options(targets, vec![]));
    let folder = folder_of(&["config.json", "model.safetensors", "tokenizer.json"]);
    symlink(compiled.artifact_path(), folder.path().join("draft.unicorn")).unwrap();
    let hub = Hub::start(folder.path());
    let user = User::of(&hub);
    let output = user.home.path().join("own.unicorn");
    let pulled = user.pull(&["-o", output.to_str().unwrap()]);
    assert!(std::fs::read(&output).unwrap() == compiled.artifact(), "the same bytes");
    assert_eq!(pulled["pulled_bytes"].as_u64().unwrap(), compiled.artifact().len() as u64, "nothing else");
    assert!(!user.home.path().join("unicorn/models").exists(), "nothing was compiled");
    user.text(&[&[NAME], &PROMPT[..]].concat());

    let gguf = tempfile::tempdir().unwrap();
    for (from, to) in [("mixtral.gguf", "m-Q4_0.gguf"), ("olmoe.gguf", "m-Q8_0.gguf")] {
        symlink(models().join("gguf").join(from), gguf.path().join(to)).unwrap();
    }
    let hub = Hub::start(gguf.path());
    let user = User::of(&hub);
    let error = user.refusal(&["pull", NAME]);
    assert!(error.contains("several GGUF files") && error.contains("m-Q4_0.gguf, m-Q8_0.gguf"), "{error}");
    let chosen: Value = serde_json::from_str(&user.text(&["pull", &format!("{NAME}:q8_0"), "--json"])).unwrap();
    assert!(Path::new(chosen["model"].as_str().unwrap()).ends_with("m-Q8_0.gguf"), "{chosen}");
    assert_eq!(
        chosen["pulled_bytes"].as_u64(),
        Some(std::fs::metadata(models().join("gguf/olmoe.gguf")).unwrap().len())
    );
}

/// Each finds in the cache what the other has fetched.
#[test]
fn the_hubs_own_client_and_this_one_share_what_they_fetch() {
    let packages = match packages::of_pypi(Path::new(env!("CARGO_TARGET_TMPDIR")), &["huggingface_hub==2.4.0"]) {
        Ok(packages) => packages,
        Err(error) => return skip("hub client", error),
    };
    let hub = Hub::start(&draft());
    let path_of = |user: &User, call: &str| {
        let mut python = Command::new("python3");
        python.args([
            "-c",
            &format!("import huggingface_hub as hub; assert not hub.scan_cache_dir().warnings; print(hub.{call})"),
        ]);
        python.env("PYTHONPATH", &packages).env("HF_ENDPOINT", hub.endpoint());
        python.env("HF_HOME", user.home.path().join("huggingface")).env("HF_HUB_DISABLE_TELEMETRY", "1");
        PathBuf::from(text(python.output().unwrap()).trim())
    };
    let model = |pulled: &Value| PathBuf::from(pulled["model"].as_str().unwrap().trim_end_matches('/'));

    let ours = User::of(&hub);
    let pulled = ours.pull(&[]);
    let found = path_of(&ours, "hf_hub_download('tests/draft', 'model.safetensors', local_files_only=True)");
    assert_eq!(found.parent(), Some(&*model(&pulled)));

    let theirs = User::of(&hub);
    std::fs::create_dir_all(theirs.home.path().join("huggingface/hub")).unwrap();
    let folder = path_of(&theirs, "snapshot_download('tests/draft')");
    hub.state().take_requests();
    let pulled = theirs.pull(&[]);
    assert_eq!((model(&pulled), pulled["pulled_bytes"].as_u64()), (folder, Some(0)));
    let requests = hub.state().take_requests();
    assert!(requests.iter().all(|request| request.starts_with(&hub.address)), "no weights are fetched: {requests:#?}");
}
