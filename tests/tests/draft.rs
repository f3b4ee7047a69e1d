//! A draft that is packed into an artifact: what is in the file, what the programs make of it, and that every other command keeps it.
//! llvmpipe unless `UNICORN_DEVICE` names another device.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::{Value, json};
use tempfile::TempDir;
use tests::compiled::{Compiled, Silent, options, with};
use tests::models::models;
use tests::programs::program;
use tests::server::Server;
use unicorn_artifact::header::{SECTION_ALIGN, Section, SectionKind, decode_header, encode_header, head_bytes};
use unicorn_artifact::rewrite::{Change, NewKernels, rewrite};
use unicorn_artifact::{Account, ArtifactView, Budget, Machine, Tier};
use unicorn_compiler::{CompileOptions, Source, compile, plan, reproduce};
use unicorn_spirv::target;

/// A trained model, which is its own draft here: nearly all that it proposes is accepted.
fn trained() -> std::path::PathBuf {
    models().join("gemma3-2m-draft")
}

fn options_for(targets: &[&str]) -> CompileOptions {
    options(targets.iter().map(|name| target::by_name(name).unwrap()).collect(), Vec::new())
}

fn packed_for(targets: &[&str]) -> Compiled {
    Compiled::of_folder(&trained(), &with(options_for(targets), |options| options.draft = Some(trained())))
}

const TARGETS: [&str; 2] = ["llvmpipe", "generic"];
static ALONE: LazyLock<Compiled> = LazyLock::new(|| Compiled::of_folder(&trained(), &options_for(&TARGETS)));
static PACKED: LazyLock<Compiled> = LazyLock::new(|| packed_for(&TARGETS));

/// An artifact with another file as its draft, made without the writer.
fn with_draft(model: &[u8], draft: &[u8]) -> Vec<u8> {
    let mut sections = decode_header(model).unwrap();
    let mut bytes = model.to_vec();
    bytes.resize(bytes.len().next_multiple_of(SECTION_ALIGN as usize), 0);
    let head = draft.get(12..16).map_or(0, |count| u32::from_le_bytes(count.try_into().unwrap()) as usize);
    let head = &draft[..head_bytes(head).min(draft.len())];
    sections.push(Section {
        kind: SectionKind::Draft as u32,
        index: 0,
        offset_bytes: bytes.len() as u64,
        len_bytes: draft.len() as u64,
        hash: *blake3::hash(head).as_bytes(),
    });
    bytes.extend(draft);
    let head = encode_header(&sections, bytes.len() as u64);
    bytes[..head.len()].copy_from_slice(&head);
    bytes
}

/// A file of these bytes in a folder of its own.
fn file_of(bytes: &[u8]) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.unicorn");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// Why mapped bytes are no artifact, which is why a file that is read is none.
fn refusal(bytes: &[u8]) -> String {
    let (_folder, path) = file_of(bytes);
    let read = ArtifactView::read(&std::fs::File::open(path).unwrap()).err().expect("refused").to_string();
    assert_eq!(ArtifactView::parse(bytes).err().expect("refused").to_string(), read);
    read
}

fn unicorn_run() -> Command {
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    command
}

fn run(artifact: &Path, options: &[&str]) -> Value {
    let mut command = unicorn_run();
    command.arg(artifact).args(["--raw", "--json", "--temp", "0", "-n", "40", "-p", "The island was"]).args(options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn drafted(answer: &Value) -> u64 {
    assert!(answer["draft_n_accepted"].as_u64() <= answer["draft_n"].as_u64());
    answer["draft_n"].as_u64().unwrap()
}

#[test]
fn the_file_is_the_model_s_with_the_draft_s_as_its_last_section() {
    let (packed, alone) = (PACKED.artifact(), ALONE.artifact());
    assert!(packed == with_draft(&alone, &alone), "both are compiled as they are alone");
    let view = ArtifactView::parse(&packed).unwrap();
    let draft = view.draft.as_ref().expect("there is one");
    let other = ArtifactView::parse(&alone).unwrap();
    assert_eq!((draft.content_hash, &draft.plan, &draft.meta), (other.content_hash, &other.plan, &other.meta));
    assert_ne!(view.content_hash, other.content_hash);
    // Offsets are those in the file, for readers that map it and for those that read it.
    let file = std::fs::File::open(PACKED.artifact_path()).unwrap();
    let read = ArtifactView::read(&file).unwrap().draft.expect("there is one");
    assert!(!draft.weights().is_empty());
    for (section, of_read) in draft.weights().iter().zip(read.weights()) {
        section.verify().unwrap();
        of_read.verify_in(&file).unwrap();
        assert_eq!(&packed[section.offset_bytes as usize..][..section.bytes.len()], section.bytes);
    }
}

#[test]
fn the_text_is_the_same_with_it_without_it_and_with_another_file() {
    let expected = run(&ALONE.artifact_path(), &[]);
    assert_eq!(drafted(&expected), 0);
    let file = ALONE.artifact_path();
    for (artifact, options, drafts) in [
        (&PACKED, &[][..], true),
        (&PACKED, &["--lazy"], true),
        (&PACKED, &["--draft", file.to_str().unwrap()], true),
        (&ALONE, &["--draft", file.to_str().unwrap()], true),
        (&PACKED, &["--draft", "none"], false),
        (&PACKED, &["--spec-type", "none"], false),
    ] {
        let answer = run(&artifact.artifact_path(), options);
        assert_eq!(answer["text"], expected["text"], "{options:?}");
        assert_eq!(drafted(&answer) > 0, drafts, "{options:?}: {answer}");
        assert!(!drafts || answer["draft_n_accepted"].as_u64().unwrap() > 0, "{options:?}: {answer}");
    }
}

#[test]
fn servers_use_it_of_one_model_and_of_several() {
    let text = run(&ALONE.artifact_path(), &[])["text"].clone();
    let named = format!("a={}", PACKED.artifact_path().display());
    let one = PACKED.artifact_path();
    for (arguments, drafts) in [
        (&[one.to_str().unwrap()][..], true),
        (&["--model", &named], true),
        (&["--model", &named, "--draft", "none"], false),
        (&[one.to_str().unwrap(), "--sleep-idle-seconds", "60"], true),
        (&[one.to_str().unwrap(), "--deterministic"], false),
    ] {
        let mut command = unicorn_run();
        command.args(["serve", "--parallel", "2", "--ctx", "256"]).args(arguments);
        let server = Server::begin(command);
        let request = json!({"prompt": "The island was", "n_predict": 40, "temperature": 0});
        let answer = server.whole("/completion", &request);
        assert_eq!(answer["content"], text, "{arguments:?}");
        assert_eq!(answer["timings"]["draft_n"].as_u64().unwrap_or(0) > 0, drafts, "{arguments:?}: {answer}");
    }
}

/// Bytes in VRAM of both plans, and bytes of each alone, for a machine with this much of it and any amount of GTT.
fn in_vram(vram_bytes: u64) -> [u64; 2] {
    let mut machine = Machine::generic().plan(&Budget::default()).unwrap();
    for tier in machine.tiers.iter_mut().filter(|tier| tier.tier == Tier::Vram) {
        tier.budget_bytes = Some(vram_bytes);
    }
    let options = |draft: Option<&Path>| {
        with(options_for(&TARGETS), |options| {
            (options.machine, options.context_tokens) = (machine.clone(), Some(512));
            options.draft = draft.map(Path::to_owned);
        })
    };
    let bytes = |options: &CompileOptions| {
        let planned = plan(Source::Model(&trained()), options, &mut Silent).unwrap();
        let tiers = Account::of(planned.plan()).tiers;
        tiers.iter().find(|tier| tier.tier == Tier::Vram).map_or(0, |tier| tier.bytes())
    };
    [bytes(&options(None)), bytes(&options(Some(&trained())))]
}

#[test]
fn the_plan_leaves_the_draft_its_memory() {
    let [alone, beside] = in_vram(1 << 30);
    assert!(alone > 0 && beside == alone, "there is room for both");
    // The draft is as large as the model.
    assert_eq!(in_vram(2 * alone), [alone, alone]);
    let [without, with] = in_vram(2 * alone - 1);
    assert!(
        without == alone && with < alone,
        "{with} of {alone} bytes of the model in a memory that lacks a byte for both"
    );
    let folder = tempfile::tempdir().unwrap();
    let (output, small) = (folder.path().join("m.unicorn"), format!("vram={}KiB,gtt=1MiB", (alone >> 10) + 1024));
    let mut command = program("unicorn-compile");
    command.arg(trained()).args(["--context", "512", "--budget", &small, "--target", "llvmpipe", "--draft"]);
    let output = command.arg(trained()).arg("-o").arg(&output).output().unwrap();
    assert!(!output.status.success() && stderr(&output).contains("does not fit"), "{}", stderr(&output));
}

#[test]
fn replan_moves_both() {
    let (_folder, path) = file_of(&PACKED.artifact());
    let replan = |program_name: &str, arguments: &[&str]| {
        let output = program(program_name).arg("replan").arg(&path).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        std::fs::read(&path).unwrap()
    };
    let bytes = replan("unicorn-compile", &["--budget", "vram=1GiB,gtt=2GiB", "--context", "64"]);
    let view = ArtifactView::parse(&bytes).unwrap();
    let draft = view.draft.as_ref().unwrap();
    assert_eq!((view.plan.planned_context_tokens, draft.plan.planned_context_tokens), (64, 64));
    let budgets = |plan: &unicorn_artifact::Plan| {
        let tiers = plan.machine.tiers.iter().filter(|tier| tier.tier != Tier::Host);
        tiers.map(|tier| tier.budget_bytes.unwrap_or(0)).sum::<u64>()
    };
    let of_draft = Account::of(&draft.plan).tiers.into_iter().filter(|tier| tier.tier != Tier::Host);
    assert_eq!(budgets(&draft.plan), 3 << 30);
    assert_eq!(budgets(&view.plan), (3 << 30) - of_draft.map(|tier| tier.bytes()).sum::<u64>());
    for section in view.weights().iter().chain(draft.weights()) {
        section.verify().unwrap();
    }
    reproduce(&path, None, &mut Silent).unwrap();
    let answer = run(&path, &["--ctx", "128"]);
    assert_eq!((&answer["text"], drafted(&answer) > 0), (&run(&ALONE.artifact_path(), &[])["text"], true));
    // The same again, and then the first file.
    assert!(replan("unicorn-run", &["--context", "64"]) == bytes);
    let packed = PACKED.artifact();
    let context = ArtifactView::parse(&packed).unwrap().plan.planned_context_tokens.to_string();
    assert!(replan("unicorn-compile", &["--machine", "generic", "--context", &context]) == packed);
}

#[test]
fn retarget_gives_both_the_kernels() {
    let less = packed_for(&["llvmpipe"]);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("more.unicorn");
    let mut command = program("unicorn-compile");
    command.arg("retarget").arg(less.artifact_path()).args(["--target", "generic", "-o"]).arg(&output);
    let finished = command.output().unwrap();
    assert!(finished.status.success(), "{}", stderr(&finished));
    assert!(std::fs::read(&output).unwrap() == PACKED.artifact(), "as a compile with both");
}

#[test]
fn verify_makes_both_again() {
    let reproduced = reproduce(&PACKED.artifact_path(), Some(&trained()), &mut Silent).unwrap();
    let draft = reproduced.draft.as_ref().expect("there is one");
    assert_eq!((draft.modules, &draft.targets), (reproduced.modules, &reproduced.targets));
    assert!(reproduced.to_string().contains("draft\n  kernels"), "{reproduced}");
    // Hashes that are right do not help a draft whose kernels are others.
    let (bytes, folder) = (PACKED.artifact(), tempfile::tempdir().unwrap());
    let changed = folder.path().join("changed.unicorn");
    let draft = ArtifactView::parse(&bytes).unwrap().draft.unwrap();
    let mut kernels = draft.kernels.clone();
    kernels.targets[0].programs[0].dispatches[0].label += "?";
    let new = NewKernels { meta: &draft.meta, plan: &draft.plan, kernels: &kernels, npu: None };
    let change = Change::default().with_draft(Some(new.into()));
    rewrite(&PACKED.artifact_path(), &changed, &change, |_| ()).unwrap();
    let error = reproduce(&changed, None, &mut Silent).unwrap_err().to_string();
    assert!(error.contains("draft in the artifact: target "), "{error}");
}

#[test]
fn inspect_names_it() {
    let inspect = |arguments: &[&str]| {
        let output =
            program("unicorn-run").arg("inspect").arg(PACKED.artifact_path()).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let summary = inspect(&[]);
    let line = summary.lines().find(|line| line.starts_with("  draft ")).expect("a line");
    assert!(line.contains("gemma3-2m-draft, ") && line.contains(" of memory besides"), "{line}");
    let all: Value = serde_json::from_str(&inspect(&["--json"])).unwrap();
    assert_eq!(all["draft"]["model"], all["model"]);
    assert_eq!(all["sections"].as_array().unwrap().last().unwrap()["kind"], "draft");
}

#[test]
fn a_draft_that_is_wrong_is_refused_by_name() {
    let alone = ALONE.artifact();
    let sound = with_draft(&alone, &alone);
    let nested = refusal(&with_draft(&alone, &sound));
    assert!(nested.ends_with("number of draft sections in a draft: expected 0, found 1"), "{nested}");
    for len in [0, 7, 63, 70, 4096, alone.len() / 2, alone.len() - 1] {
        let cut = refusal(&with_draft(&alone, &alone[..len]));
        assert!(cut.starts_with("draft in the artifact: "), "{len}: {cut}");
    }
    let [tiny, other] = ["gemma3-text", "mistral-window"]
        .map(|name| Compiled::of_folder(&models().join("tiny").join(name), &options_for(&["generic"])).artifact());
    for (model, draft) in [(&alone, &tiny), (&tiny, &alone), (&other, &alone)] {
        let error = refusal(&with_draft(model, draft));
        assert!(error.ends_with("vocabulary of the draft: expected the model's, found another"), "{error}");
    }
    // A damaged bit of each kind of section, and of the table, is found; one of the weights where those are hashed.
    let begin = sound.len() - alone.len();
    for section in decode_header(&alone).unwrap() {
        let mut damaged = sound.clone();
        damaged[begin + section.offset_bytes as usize] ^= 1;
        if section.kind == SectionKind::Weights as u32 {
            let view = ArtifactView::parse(&damaged).unwrap();
            assert!(view.draft.unwrap().weights().iter().any(|section| section.verify().is_err()));
            let (_folder, path) = file_of(&damaged);
            let output = unicorn_run().arg(&path).args(["-p", "a", "-n", "1"]).output().unwrap();
            assert!(!output.status.success() && stderr(&output).contains("damaged"), "{}", stderr(&output));
        } else {
            assert!(refusal(&damaged).starts_with("draft in the artifact: artifact is damaged"));
        }
    }
    let mut damaged = sound.clone();
    damaged[begin + 80] ^= 1;
    assert!(refusal(&damaged).contains("section table"));
    // A sound draft that is not the one of the table.
    let mut sections = decode_header(&sound).unwrap();
    sections.last_mut().unwrap().hash[0] ^= 1;
    let mut other = sound.clone();
    let head = encode_header(&sections, sound.len() as u64);
    other[..head.len()].copy_from_slice(&head);
    assert!(refusal(&other).contains("section draft at offset"), "{}", refusal(&other));
    let twice = refusal(&with_draft(&sound, &alone));
    assert!(twice.ends_with("number of draft sections: expected 1, found 2"), "{twice}");
}

#[test]
fn the_compiler_refuses_a_draft_that_cannot_propose() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("m.unicorn");
    let refusal = |model: &Path, draft: &Path| {
        let options = with(options_for(&["generic"]), |options| options.draft = Some(draft.to_owned()));
        let error = compile(Source::Model(model), &output, &options, &mut Silent).unwrap_err();
        assert!(!output.exists() && std::fs::read_dir(folder.path()).unwrap().count() == 0);
        error.to_string()
    };
    let tiny = |name: &str| models().join("tiny").join(name);
    let error = refusal(&trained(), &tiny("gemma3-text"));
    assert!(
        error.contains("gemma3-text: draft has a vocabulary of ") && error.contains("that of the model"),
        "{error}"
    );
    let error = refusal(&trained(), &folder.path().join("none"));
    assert!(error.contains("none"), "{error}");
    // Its own files are not replaced.
    let model = tempfile::tempdir().unwrap();
    let config = model.path().join("config.json");
    std::fs::write(&config, "{}").unwrap();
    let options = with(options_for(&["generic"]), |options| options.draft = Some(model.path().to_owned()));
    let error = compile(Source::Model(&trained()), &config, &options, &mut Silent).unwrap_err().to_string();
    assert!(error.contains("belongs to the model"), "{error}");
}
