//! What a person types in the first minutes: one command to an answer, what it prints, and the mistakes that people make.

use std::num::NonZeroU16;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tests::models::models;
use tests::programs::{Watched, program, send_signal};
use tests::terminal::Terminal;
use tests::typed::{answer, artifact, cached, run, stderr, with_cache_on_small_disk};
use unicorn_runtime::DeviceKind;

#[track_caller]
fn json(command: &mut Command) -> Value {
    serde_json::from_str(&answer(command)).unwrap()
}

#[test]
fn a_folder_is_compiled_once_even_by_two_processes() {
    let (model, cache) = (models().join("gemma3-2m-draft"), tempfile::tempdir().unwrap());
    let ask = || {
        let mut command = run(&[model.to_str().unwrap(), "who", "lives", "there", "-n", "8", "--temp", "0"]);
        command.env("XDG_CACHE_HOME", cache.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let both = [ask().spawn().unwrap(), ask().spawn().unwrap()].map(|child| child.wait_with_output().unwrap());
    for output in &both {
        assert!(output.status.success(), "{}", stderr(output));
        assert!(output.stdout.len() > 1 && output.stdout == both[0].stdout);
        // What follows in a log or a file begins on a line of its own.
        assert!(output.stdout.ends_with(b"\n"), "{:?}", String::from_utf8_lossy(&output.stdout));
    }
    let compiled: Vec<String> = both.iter().map(stderr).filter(|notes| notes.contains("compiled in ")).collect();
    assert_eq!(compiled.len(), 1, "{both:?}");
    assert!(compiled[0].contains("once: about ") && compiled[0].contains(" MiB in "), "{}", compiled[0]);
    let names = cached(cache.path());
    assert!(
        matches!(&names[..], [name] if name.starts_with("gemma3-2m-draft.") && name.ends_with(".unicorn")),
        "{names:?}"
    );

    let again = ask().output().unwrap();
    assert_eq!((&again.stdout, stderr(&again).contains("compil")), (&both[0].stdout, false), "{}", stderr(&again));
    assert_eq!(cached(cache.path()), names);

    // Other commands take the same.
    let bench = run(&["bench", model.to_str().unwrap(), "-p", "8", "-n", "2", "-r", "1", "--json"])
        .env("XDG_CACHE_HOME", cache.path())
        .output()
        .unwrap();
    assert!(bench.status.success() && !stderr(&bench).contains("compil"), "{}", stderr(&bench));
}

/// On a software device, whose kernels every test runs, there is nothing to offer.
#[test]
fn a_driver_never_seen_before_is_offered_a_selftest_once() {
    let cache = tempfile::tempdir().unwrap();
    let offers = || {
        let mut command = run(&[artifact().to_str().unwrap(), "-p", "hello", "-n", "2"]);
        let output = command.env("XDG_CACHE_HOME", cache.path()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output).matches("first start on ").count()
    };
    let is_software = tests::launch::device().kind == DeviceKind::Cpu;
    let expected = if is_software { [0, 0] } else { [1, 0] };
    assert_eq!([offers(), offers()], expected, "first and second start");
}

#[test]
fn ctrl_c_ends_a_compile_and_leaves_nothing() {
    let (model, cache) = (models().join("gemma3-2m-draft"), tempfile::tempdir().unwrap());
    let mut running =
        Watched::start(run(&[model.to_str().unwrap(), "who", "-n", "1"]).env("XDG_CACHE_HOME", cache.path()));
    assert!(running.stderr_line().starts_with("compiling "), "announced before it begins");
    send_signal(&running.child, Signal::INT);
    assert_eq!(running.child.wait().unwrap().code(), Some(130));
    assert_eq!(cached(cache.path()), [""; 0]);
}

#[test]
fn a_prompt_comes_from_words_an_option_a_file_or_stdin() {
    let (artifact, folder) = (artifact(), tempfile::tempdir().unwrap());
    let artifact = artifact.to_str().unwrap();
    let ask = |arguments: &[&str]| {
        let mut command = run(&[&["-n", "6", "--temp", "0", "--json"], arguments].concat());
        json(&mut command)["tokens"].clone()
    };
    let prompt = "Who lives on the island?";
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, format!("{prompt}\n")).unwrap();
    let expected = ask(&[artifact, "-p", prompt]);
    assert_eq!(ask(&[artifact, "Who", "lives", "on", "the", "island?"]), expected);
    assert_eq!(ask(&[artifact, "-f", file.to_str().unwrap()]), expected);
    for alias in ["run", "chat"] {
        let mut command = run(&[alias, artifact, prompt, "-n", "6", "--temp", "0", "--json"]);
        assert_eq!(json(&mut command)["tokens"], expected);
    }
    let mut piped = run(&[artifact, "-n", "6", "--temp", "0", "--json"]);
    assert_eq!(json(piped.stdin(std::fs::File::open(&file).unwrap()))["tokens"], expected);

    // A chat template adds tokens to the prompt; --raw has only those of the text.
    let prefill = |raw: &[&str]| {
        let command = [&[artifact, "-p", prompt, "-n", "1", "--json"], raw].concat();
        json(&mut run(&command))["prefill_tokens"].as_u64().unwrap()
    };
    assert!(prefill(&[]) > prefill(&["--raw"]), "{} {}", prefill(&[]), prefill(&["--raw"]));
}

#[test]
fn a_summary_is_two_lines_and_all_figures_are_asked_for() {
    let artifact = artifact();
    let notes = |option: &[&str]| {
        let line = [&[artifact.to_str().unwrap(), "Who are you?", "-n", "4", "--temp", "0"], option].concat();
        let output = run(&line).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let summary = notes(&[]);
    let figures: Vec<&str> = summary.lines().filter(|line| !line.starts_with("software device")).collect();
    assert!(figures.len() == 2, "{summary}");
    assert!(figures[0].starts_with("prefill ") && figures[0].contains("first token after "), "{summary}");
    assert!(figures[1].starts_with("decode ") && figures[1].ends_with(" tokens/s"), "{summary}");
    assert_eq!(notes(&["--quiet"]), "");
    let all = notes(&["--verbose"]);
    for subject in ["device ", "loaded ", "memory ", "prefill ", "decode ", "latency ", "seed ", "stopped "] {
        assert!(all.lines().any(|line| line.starts_with(subject)), "{subject} in {all}");
    }
    assert!(all.contains("read bandwidth"), "{all}");
    let quick = json(&mut run(&[artifact.to_str().unwrap(), "Who?", "-n", "1", "--json"]));
    assert!(quick["read_bandwidth_gb_per_s"].is_null() && quick["prefill_tokens"].as_u64() > Some(0), "{quick}");
}

/// A prompt that takes seconds: llvmpipe has one thread.
fn ask_at_length(folder: &Path) -> Command {
    ask_about(folder, 100)
}

/// A prompt of so many sentences, about 15 tokens each.
fn ask_about(folder: &Path, sentences: usize) -> Command {
    let (text, artifact) = (folder.join("long.txt"), artifact());
    std::fs::write(&text, "Once upon a time a ship lay at anchor off an island. ".repeat(sentences)).unwrap();
    let mut command = run(&[artifact.to_str().unwrap(), "-f", text.to_str().unwrap(), "-n", "4", "--temp", "0"]);
    command.env("LP_NUM_THREADS", "1").env_remove("NO_COLOR");
    command
}

const COLUMNS: NonZeroU16 = NonZeroU16::new(100).unwrap();

#[test]
fn a_long_prefill_shows_its_progress() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(&ask_at_length(folder.path()), COLUMNS);
    let shown = terminal.wait_until("a bar", |screen| progress(screen).is_some());
    let (done, all) = progress(&shown).unwrap();
    assert!(0 < done && done < all && all > 1000, "{shown}");

    assert_eq!(terminal.wait().code(), Some(0), "{}", terminal.screen());
    let screen = terminal.screen();
    assert!(!screen.contains('█') && screen.contains(&format!("prefill  {all} tokens, ")), "cleared: {screen}");
}

/// A step of 512 tokens holds the whole prompt; with slow kernels, since a bar appears after half a second.
#[test]
fn a_prompt_of_one_step_shows_its_progress() {
    let folder = tempfile::tempdir().unwrap();
    let mut ask = ask_about(folder.path(), 32);
    let mut terminal = Terminal::start(ask.args(["--target", "generic", "--submission-ms", "1"]), COLUMNS);
    let shown =
        terminal.wait_until("progress within a step", |screen| progress(screen).is_some_and(|(done, _)| done > 0));
    let (done, all) = progress(&shown).unwrap();
    assert!(done < all && (300..512).contains(&all), "{shown}");
    assert_eq!(terminal.wait().code(), Some(0), "{}", terminal.screen());
}

/// Tokens that are done, and all, of the bar of prefill: `prefill ████░░░░ 512 of 1504 tokens, 1s`.
fn progress(screen: &str) -> Option<(u32, u32)> {
    let bar = screen.lines().find(|line| line.starts_with("prefill ") && line.contains('█'))?;
    let words: Vec<&str> = bar.split_whitespace().collect();
    let of = words.iter().position(|word| *word == "of")?;
    let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("{bar}"));
    Some((number(words[of - 1]), number(words[of + 1])))
}

#[test]
fn no_color_is_plain_text() {
    let folder = tempfile::tempdir().unwrap();
    let written = |command: &Command| {
        let mut terminal = Terminal::start(command, COLUMNS);
        assert_eq!(terminal.wait().code(), Some(0), "{}", terminal.screen());
        terminal.written()
    };
    let plain = written(ask_at_length(folder.path()).env("NO_COLOR", "1"));
    assert!(!plain.contains('\x1b') && plain.contains("\nprefill  "), "{plain:?}");
    let quiet = written(ask_at_length(folder.path()).arg("--quiet"));
    assert!(!quiet.contains('\x1b') && !quiet.contains("prefill"), "{quiet:?}");
}

#[test]
fn a_program_without_arguments_shows_what_can_be_typed() {
    let help = stderr(&run(&[]).env("UNICORN_DEVICE", "llvmpipe").output().unwrap());
    assert!(help.contains("unicorn-run [OPTIONS] <MODEL> [PROMPT]...") && help.contains("\nCommon:\n"), "{help}");
    let help = stderr(&program("unicorn-compile").output().unwrap());
    assert!(help.contains("unicorn-compile [OPTIONS] [MODEL]") && help.contains("retarget"), "{help}");
}

#[test]
fn ctrl_c_ends_an_answer_with_130() {
    let artifact = artifact();
    let mut running =
        Watched::start(&mut run(&[artifact.to_str().unwrap(), "--raw", "-p", "Once upon a time", "--temp", "2"]));
    running.wait_for_stdout();
    send_signal(&running.child, Signal::INT);
    assert_eq!(running.child.wait().unwrap().code(), Some(130));
}

#[test]
fn an_empty_answer_is_explained() {
    let artifact = artifact();
    let output = run(&[artifact.to_str().unwrap(), "Who?", "-n", "0"]).output().unwrap();
    assert!(stderr(&output).contains("answer is empty") && stderr(&output).contains("-n"), "{}", stderr(&output));
}

/// Mesa maps a file on that disk and is ended by SIGBUS when it writes there.
#[test]
fn a_full_disk_under_mesas_cache_is_no_end() {
    let (disk, artifact) = (tempfile::tempdir().unwrap(), artifact());
    let Some(mut ask) = with_cache_on_small_disk(disk.path(), "64k", 1_000_000, &program("unicorn-run")) else {
        return;
    };
    let output = ask.arg(artifact).args(["Who?", "-n", "1"]).output().unwrap();
    assert!(output.status.success(), "{:?}: {}", output.status, stderr(&output));
    assert!(stderr(&output).contains("is full (0 bytes free): Mesa's shader cache is off"), "{}", stderr(&output));
}

#[test]
fn both_programs_write_completions_and_man_pages() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["unicorn-compile", "unicorn-run"] {
        for shell in ["bash", "zsh", "fish"] {
            assert!(answer(program(name).args(["completions", shell])).contains("replan"), "{name} {shell}");
        }
        answer(program(name).arg("man").arg(folder.path()));
        let page = |page: &str| std::fs::read_to_string(folder.path().join(format!("{page}.1"))).unwrap();
        assert!(page(name).contains(".TH ") && page(&format!("{name}-replan")).contains("budget"), "{name}");
    }
}

/// Files and folders that are mistaken for something else.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        file("notes.txt", b"Dear diary");
        file("model.safetensors", b"\x08\0\0\0\0\0\0\0{}      ");
        file("pytorch_model.bin", b"PK\x03\x04 and more");
        file("broken.gguf", b"GGUF\x03\0\0\0");
        for name in ["empty", "lora", "two", "mamba", "iq", "split", "torch"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        file("lora/adapter_config.json", br#"{"peft_type": "LORA", "base_model_name_or_path": "org/base"}"#);
        file("lora/adapter_model.safetensors", b"");
        file("mamba/config.json", br#"{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}"#);
        file("mamba/model.safetensors", b"\x08\0\0\0\0\0\0\0{}      ");
        let gguf = tests::generators::smallest_gguf();
        file("iq/model.gguf", &tests::generators::with_tensor_type(&gguf, 16));
        file("split/m-00001-of-00003.gguf", &gguf);
        file("torch/config.json", b"{}");
        file("torch/pytorch_model.bin", b"PK\x03\x04 and more");
        file("two/one.gguf", b"GGUF\x03\0\0\0");
        file("two/other.gguf", b"GGUF\x03\0\0\0");
        std::fs::copy(artifact(), folder.path().join("m.unicorn")).unwrap();
        let whole = std::fs::read(artifact()).unwrap();
        file("cut.unicorn", &whole[..whole.len() / 2]);
        Place { folder }
    }
}

/// What is typed, in a folder with those files, and what the one message on stderr has to name.
const MISTAKES: &[(&str, &[&str])] = &[
    (
        "nothing.unicorn Hello",
        &[
            "nothing.unicorn: no such file",
            "expected an artifact",
            "in its folder: broken.gguf, cut.unicorn, m.unicorn",
        ],
    ),
    (
        "HuggingFaceTB/SmolLM2-135M Hello",
        &["no such file", "download and run it: unicorn-run hf:HuggingFaceTB/SmolLM2-135M"],
    ),
    ("--temp 0 devices", &["devices is a command", "unicorn-run devices"]),
    ("notes.txt Hello", &["notes.txt is not a Unicorn artifact", "Dear dia", "GGUF"]),
    ("model.safetensors Hello", &["model.safetensors: file has weights alone", "config.json", ": unicorn-run ."]),
    ("pytorch_model.bin Hello", &["PyTorch checkpoint", "safe_serialization=True"]),
    (
        "torch Hello",
        &[
            "torch: weights are a PyTorch checkpoint",
            "python -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('torch')",
            "; then: unicorn-run torch",
        ],
    ),
    (
        "iq/model.gguf Hello",
        &[
            "has GGUF type IQ2_XXS",
            "llama-quantize --allow-requantize iq/model.gguf requantized.gguf Q8_0; then: unicorn-run requantized.gguf",
        ],
    ),
    (
        "split/m-00001-of-00003.gguf Hello",
        &[
            "one of 3 parts",
            "m-00002-of-00003.gguf is missing beside it",
            "hf download OWNER/NAME m-00002-of-00003.gguf --local-dir split",
        ],
    ),
    ("broken.gguf Hello", &["broken.gguf"]),
    ("cut.unicorn Hello", &["cut.unicorn: artifact is cut: expected ", "copy, pull or compile the artifact again"]),
    ("empty Hello", &["empty", "config.json"]),
    (
        "lora Hello",
        &["LoRA adapter of org/base", "unicorn-compile MODEL --lora lora -o lora.unicorn", "unicorn-run lora.unicorn"],
    ),
    ("two Hello", &["2 models", "such as: unicorn-run two/one.gguf"]),
    (
        "m.unicorn Hello --budget vram=1MiB",
        &[
            "available 1.00 MiB by the caller's budget",
            "unicorn-run replan m.unicorn --budget vram=1MiB,gtt=",
            "MiB --context ",
        ],
    ),
    (
        "inspect broken.gguf",
        &["broken.gguf is a GGUF file, expected an artifact", "unicorn-compile broken.gguf -o broken.unicorn"],
    ),
    (
        "inspect m.unicorn --diff broken.gguf",
        &["broken.gguf is a GGUF file, expected an artifact", "unicorn-compile broken.gguf -o broken.unicorn"],
    ),
    ("inspect m.unicorn --diff notes.txt", &["notes.txt is no model", "Dear dia", "expected an artifact"]),
    ("inspect org/m", &["org/m is no file here", "expected an artifact", "unicorn-run pull hf:org/m -o m.unicorn"]),
    ("inspect nothing.unicorn", &["nothing.unicorn: no such file or folder, expected an artifact; in its folder: "]),
    ("inspect empty", &["empty is a folder, expected an artifact", "unicorn-compile empty -o empty.unicorn"]),
    ("devices broken.gguf", &["unicorn-compile broken.gguf -o broken.unicorn"]),
    ("replan broken.gguf --context 512", &["unicorn-compile broken.gguf -o broken.unicorn"]),
    ("m.unicorn Hello --device 4711", &["device 4711", "this machine has device 0: ", "such as --device 0,"]),
    ("m.unicorn Hello --device GeForce", &["a name that contains \"GeForce\"", "device 0: "]),
    ("m.unicorn Hello --target rdna3", &["not rdna3, which was requested"]),
    // What is wrong with the model comes before what is wrong with the device.
    ("mamba Hello", &["MambaForCausalLM", "is not supported", "LlamaForCausalLM"]),
    ("mamba Hello --device 4711", &["MambaForCausalLM", "LlamaForCausalLM"]),
    ("empty Hello --target nonsense", &["no target is called nonsense", "\n  generic: "]),
    ("serve m.unicorn --port 0 --kv-cache notes.txt/kv", &["notes.txt/kv: ", "expected a folder", "--kv-cache DIR"]),
    ("serve m.unicorn --port 0 --deterministic --spec-type ngram-simple", &["leave out --spec-type and --model-draft"]),
    ("serv m.unicorn", &["serv: no such file or folder", "did you mean the command serve?"]),
    ("m.unicorn Hello --device 0x1002", &["expected a name that contains \"0x1002\"", "not by a PCI id"]),
    ("m.unicorn Hello --ctx 999999", &["context must be 1 to ", "found 999999"]),
    ("m.unicorn --json", &["prompt on standard input is empty", "unicorn-run MODEL why is the sky blue"]),
    ("m.unicorn --system Brief --raw Hello", &["--system <TEXT>", "--raw"]),
];

#[test]
fn each_mistake_is_answered_with_a_remedy() {
    let place = Place::new();
    let mut wrong = Vec::new();
    for (typed, expected) in MISTAKES {
        let words: Vec<&str> = typed.split(' ').collect();
        let output = run(&words).current_dir(place.folder.path()).output().unwrap();
        let message = stderr(&output);
        let is_refused = matches!(output.status.code(), Some(1 | 2)) && message.matches("error: ").count() == 1;
        let missing: Vec<&&str> = expected.iter().filter(|part| !message.contains(**part)).collect();
        if !is_refused || !missing.is_empty() {
            wrong.push(format!(
                "unicorn-run {typed}\n  exit {:?}, missing {missing:?} in: {message}",
                output.status.code()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A machine may have no device but a software one, which is taken where it is selected only.
#[test]
fn a_model_that_is_not_supported_is_named_before_a_device_that_is_missing() {
    let place = Place::new();
    let said = |typed: &[&str]| {
        let mut command = run(typed);
        stderr(&command.env_remove("UNICORN_DEVICE").current_dir(place.folder.path()).output().unwrap())
    };
    let unsupported = said(&["mamba", "Hello"]);
    assert!(unsupported.contains("MambaForCausalLM") && unsupported.contains("LlamaForCausalLM"), "{unsupported}");
    assert!(!unsupported.contains("--device"), "{unsupported}");
    // A model that is supported leaves the device's own error.
    let model = models().join("gemma3-2m-draft");
    let missing = said(&[model.to_str().unwrap(), "Hello", "--device", "4711"]);
    assert!(missing.contains("device 4711") && missing.contains("such as --device "), "{missing}");
}
