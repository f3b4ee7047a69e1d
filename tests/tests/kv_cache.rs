//! KV caches in a folder: a conversation goes on where it ended, in another session and in another process, with the same numbers.

use std::path::Path;

use serde_json::{Value, json};
use tests::compiled::{Compiled, options, with};
use tests::models::models;
use tests::programs::program;
use tests::recorder::{Answer, Recorder, ask, text};
use tests::server::Server;
use unicorn_compiler::WeightsOption;
use unicorn_runtime::scheduler::Scheduler;
use unicorn_runtime::{DeviceChoice, LoadOptions, Model};
use unicorn_spirv::target;

/// Pages of all tokens; of a sliding window; recurrent state beside others.
const FAMILIES: [&str; 3] = ["llama-tied", "mistral-window", "qwen35-delta"];
const MAX_BYTES: u64 = 1 << 30;

fn compiled(family: &str) -> Compiled {
    let generic = target::by_name("generic").expect("a preset");
    let options = with(options(vec![generic], Vec::new()), |options| options.policy.weights = WeightsOption::F16);
    Compiled::of_folder(&models().join("tiny").join(family), &options)
}

fn load(artifact: &Path, slots: u32) -> Model {
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
        options.slots = slots;
    });
    Model::load(artifact, &options).expect("it loads")
}

fn with_store(model: &Model, folder: &Path) -> Scheduler<Recorder> {
    let mut scheduler = model.scheduler().expect("slots");
    scheduler.set_kv_store(Some(model.kv_store(folder, MAX_BYTES).expect("a temporary folder")));
    scheduler
}

#[test]
fn a_conversation_goes_on_with_the_same_numbers_in_another_process() {
    for family in FAMILIES {
        let compiled = compiled(family);
        let folder = tempfile::tempdir().unwrap();
        let question = text(1, 100);
        let more = |answer: &Answer| [&question[..], &answer.tokens, &text(2, 9)].concat();

        // Where nothing needs its memory, the session keeps it.
        let model = load(&compiled.artifact_path(), 2);
        let mut scheduler = model.scheduler().expect("slots");
        let first = ask(&mut scheduler, &question, 6);
        let expected = ask(&mut scheduler, &more(&first), 6);
        assert_eq!((first.cached_tokens, expected.cached_tokens), (0, 105), "{family}");
        drop((scheduler, model));

        let model = load(&compiled.artifact_path(), 1);
        assert_eq!(ask(&mut with_store(&model, folder.path()), &question, 6), first, "{family}");
        drop(model);

        let model = load(&compiled.artifact_path(), 1);
        let mut scheduler = with_store(&model, folder.path());
        assert!(ask(&mut scheduler, &more(&first), 6) == expected, "{family}: after a restart");
        let third = [&more(&first)[..], &expected.tokens, &text(4, 70)].concat();
        assert_eq!(ask(&mut scheduler, &text(3, 440), 3).cached_tokens, 0, "{family}: another one takes its pages");
        let again = ask(&mut scheduler, &third, 2);
        assert!(again.cached_tokens >= 105, "{family}: {}", again.cached_tokens);
        assert!(scheduler.take_kv_store_error().is_none());
    }
}

/// Another question behind the same system prompt: only where all pages are kept.
#[test]
fn a_part_of_what_is_kept_is_enough() {
    for (family, expected) in [("llama-tied", 90), ("mistral-window", 0), ("qwen35-delta", 0)] {
        let compiled = compiled(family);
        let folder = tempfile::tempdir().unwrap();
        let model = load(&compiled.artifact_path(), 1);
        let mut scheduler = with_store(&model, folder.path());
        let (system, questions) = (text(1, 90), [text(2, 40), text(3, 40)]);
        let [first, second] = questions.map(|question| [&system[..], &question].concat());
        ask(&mut scheduler, &first, 2);
        ask(&mut scheduler, &text(5, 440), 2);
        let answer = ask(&mut scheduler, &second, 4);
        assert_eq!(answer.cached_tokens, expected, "{family}");
        let mut alone = model.scheduler::<Recorder>();
        drop(scheduler);
        if alone.is_err() {
            alone = model.scheduler();
        }
        assert_eq!(ask(&mut alone.expect("slots"), &second, 4).tokens, answer.tokens, "{family}");
    }
}

/// A conversation that is longer than the context of another start: its beginning fits.
#[test]
fn a_shorter_context_takes_the_beginning_of_a_long_conversation() {
    let compiled = compiled("llama-tied");
    let folder = tempfile::tempdir().unwrap();
    let question = text(1, 400);
    let model = load(&compiled.artifact_path(), 1);
    ask(&mut with_store(&model, folder.path()), &question, 2);
    let other = [&question[..150], &text(2, 20)].concat();
    drop(model);
    let with_context = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
        (options.slots, options.context_tokens) = (2, Some(192));
    });
    let model = Model::load(&compiled.artifact_path(), &with_context).expect("it loads");
    let mut scheduler = with_store(&model, folder.path());
    let answer = ask(&mut scheduler, &other, 8);
    assert_eq!(answer.cached_tokens, 150);
    drop(scheduler);
    assert_eq!(ask(&mut model.scheduler().expect("slots"), &other, 8).tokens, answer.tokens);
}

/// More conversations than sessions: each continues from the pages that it kept, and those used longest ago are given up first.
#[test]
fn conversations_without_a_session_keep_their_pages() {
    let compiled = compiled("llama-tied");
    let model = load(&compiled.artifact_path(), 1);
    // Sixteen pages of 32 tokens, four for each.
    assert_eq!(model.context_tokens(), 512);
    let mut scheduler = model.scheduler().expect("slots");
    let questions = [1, 2, 3].map(|seed| text(seed, 110));
    let answers = questions.each_ref().map(|question| ask(&mut scheduler, question, 4));
    let continued = |number: usize| [&questions[number][..], &answers[number].tokens, &text(9, 5)].concat();
    for number in [0, 1, 2, 0] {
        let cached = ask(&mut scheduler, &continued(number), 4).cached_tokens;
        assert!(cached >= 96, "{cached} of conversation {number}");
    }
    assert_eq!(scheduler.running_pages(), 0);
    // One that needs most of the cache.
    assert_eq!(ask(&mut scheduler, &text(4, 400), 4).tokens.len(), 4);
    let cached = [1, 0].map(|number| ask(&mut scheduler, &continued(number), 4).cached_tokens);
    assert_eq!(cached[0], 0, "its pages were needed");
    drop(scheduler);
    // The numbers of an adopted start are those of its session.
    let again = ask(&mut model.scheduler().expect("slots"), &questions[0], 4);
    assert_eq!(again, answers[0]);
}

#[test]
fn damaged_files_and_those_of_other_artifacts_are_not_used() {
    let [mine, other] = ["llama-tied", "llama-biases"].map(compiled);
    let folder = tempfile::tempdir().unwrap();
    let question = text(1, 100);
    let model = load(&mine.artifact_path(), 1);
    let first = ask(&mut with_store(&model, folder.path()), &question, 6);
    assert!(ask(&mut with_store(&model, folder.path()), &question, 6).cached_tokens == 99);
    let foreign = load(&other.artifact_path(), 1);
    assert_eq!(ask(&mut with_store(&foreign, folder.path()), &question, 2).cached_tokens, 0);
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 0x40;
        std::fs::write(&path, bytes).unwrap();
    }
    let mut scheduler = with_store(&model, folder.path());
    assert_eq!(ask(&mut scheduler, &question, 6), first);
    // And it was written again.
    drop(scheduler);
    assert_eq!(ask(&mut with_store(&model, folder.path()), &question, 6).cached_tokens, 99);
}

#[test]
fn a_folder_that_is_gone_ends_the_keeping_and_no_request() {
    let compiled = compiled("llama-tied");
    let folder = tempfile::tempdir().unwrap();
    let model = load(&compiled.artifact_path(), 1);
    let mut scheduler = with_store(&model, &folder.path().join("gone"));
    std::fs::remove_dir(folder.path().join("gone")).unwrap();
    assert_eq!(ask(&mut scheduler, &text(1, 100), 6).tokens.len(), 6);
    assert_eq!(scheduler.take_kv_store_error().map(|error| error.kind()), Some(std::io::ErrorKind::NotFound));
    assert!(ask(&mut scheduler, &text(2, 100), 6).tokens.len() == 6 && scheduler.take_kv_store_error().is_none());
}

/// As people start it, also in its sandbox, with files that only their owner can read.
#[test]
fn a_server_continues_conversations_after_a_restart() {
    let generic = ["llvmpipe", "generic"].into_iter().filter_map(target::by_name).collect();
    let compiled = Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(generic, Vec::new()));
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("made/by/serve");
    let start = || {
        let mut command = program("unicorn-run");
        command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
        let arguments = ["--parallel", "1", "--ctx", "1024", "--sandbox", "--kv-cache", cache.to_str().unwrap()];
        Server::start(command, &compiled.artifact_path(), &arguments)
    };
    let long = "The island lay in the sun, and the sea was calm. ".repeat(20);
    let ask = |server: &Server, prompt: &str| {
        let answer = server.whole("/v1/completions", &json!({"prompt": prompt, "max_tokens": 12, "temperature": 0}));
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        (answer["choices"][0]["text"].clone(), cached, answer["usage"]["prompt_tokens"].clone())
    };
    let server = start();
    let (text, cached, _) = ask(&server, &long);
    let longer = format!("{long}{}", text.as_str().expect("text"));
    let (expected, in_memory, _) = ask(&server, &longer);
    assert!(cached == 0 && in_memory > 200, "{cached}, {in_memory}");
    // The file appears once no request waits.
    let kept = |n| move |folder: &Path| std::fs::read_dir(folder).is_ok_and(|files| files.count() == n);
    let begun = std::time::Instant::now();
    while !kept(1)(&cache) {
        assert!(begun.elapsed().as_secs() < 60, "nothing is kept");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(server);
    use std::os::unix::fs::PermissionsExt;
    for entry in std::fs::read_dir(&cache).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o77, 0);
    }
    let server = start();
    let (again, from_disk, n_prompt): (Value, u64, Value) = ask(&server, &longer);
    assert_eq!(again, expected);
    assert!(from_disk > 200 && from_disk < n_prompt.as_u64().unwrap(), "{from_disk} of {n_prompt}");
}
