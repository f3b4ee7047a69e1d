//! A draft that is packed into an artifact, on the simulated NPU: decided with the draft's own figures, and its text is the model's.

use std::path::{Path, PathBuf};

use tests::compiled::{Compiled, Silent, options, with};
use tests::models::models;
use tests::programs::program;
use tests::reference::read_golden;
use unicorn_artifact::{ArtifactView, NpuSection};
use unicorn_compiler::{CompileOptions, NpuOptions, ReplanOptions, replan, reproduce};
use unicorn_npu_simulator::Simulator;
use unicorn_runtime::npu::{NpuOpener, NpuUse};
use unicorn_runtime::{DeviceChoice, DraftUse, LoadOptions, Model, Sampling};
use unicorn_spirv::target;

const NAME: &str = "llama3-rope";

fn folder() -> PathBuf {
    models().join("tiny").join(NAME)
}

/// A model that is its own draft.
fn options_with(npu: NpuOptions) -> CompileOptions {
    with(options(vec![target::by_name("generic").unwrap()], Vec::new()), |options| {
        (options.draft, options.npu) = (Some(folder()), Some(npu));
    })
}

fn requested() -> NpuOptions {
    NpuOptions::default().with(|npu| (npu.work, npu.draft) = (Some(Vec::new()), true))
}

/// The NPU sections of the model and of its draft.
fn sections(bytes: &[u8]) -> [NpuSection; 2] {
    let view = ArtifactView::parse(bytes).unwrap();
    let draft = view.draft.expect("a draft").npu;
    [view.npu, draft].map(|section| section.expect("an NPU section"))
}

fn load(artifact: &Path, draft: DraftUse, simulator: &Simulator) -> Model {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let opened = simulator.clone();
    let options = LoadOptions::default().with(|options| {
        (options.device, options.draft, options.npu) = (DeviceChoice::Name(device), draft, NpuUse::Required);
        options.npu_opener = NpuOpener::new(move || opened.open());
    });
    Model::load(artifact, &options).unwrap()
}

#[test]
fn a_packed_draft_computes_its_tokens_on_the_npu() {
    let compiled = Compiled::of_folder(&folder(), &options_with(requested()));
    let [of_model, of_draft] = sections(&compiled.artifact());
    assert!(of_model.products.is_empty() && of_model.steps.is_empty());
    assert!(of_draft.decisions[..3].iter().all(|one| one.on_npu && one.overruled), "{:?}", of_draft.decisions);
    // Every product of a token's step, by GEMVs: three of each layer, and down.
    assert!(of_draft.programs.iter().all(|program| program.shape.core_rows == 8));
    let (path, simulator) = (compiled.artifact_path(), Simulator::default());
    let model = load(&path, DraftUse::Beside, &simulator);
    let draft = load(&path, DraftUse::Alone, &simulator);
    assert_eq!(
        (model.report().npu.driver.as_deref(), draft.report().npu.products),
        (None, of_draft.products.len() as u32)
    );
    let prompt: Vec<u32> = read_golden(folder()).tokens.iter().map(|token| *token as u32).collect();
    let sampling = Sampling::default();
    let mut session = model.session().unwrap();
    let first = session.feed_and_sample(&prompt, &sampling).unwrap().token;
    let expected: Vec<u32> = session.generate(first, &sampling, 12).map(|one| one.unwrap().token).collect();
    assert_eq!(simulator.runs(), 0, "the model's own steps are the GPU's");
    drop(session);
    let mut session = model.session().unwrap();
    let speculation = draft.speculation_for(&model).unwrap().with(|one| one.adaptive = false);
    session.set_speculation(Some(&speculation)).unwrap();
    assert_eq!(session.feed_and_sample(&prompt, &sampling).unwrap().token, first);
    let found: Vec<u32> = session.generate(first, &sampling, 12).map(|one| one.unwrap().token).collect();
    assert_eq!(found, expected);
    let counts = session.take_draft_counts();
    println!(
        "{} of {} drafted tokens accepted, in {} runs of the NPU",
        counts.accepted,
        counts.proposed,
        simulator.runs()
    );
    assert!(counts.proposed > 0 && counts.accepted > 0, "{counts:?}");
    assert!(simulator.runs() >= u64::from(of_draft.products.len() as u32), "{} runs", simulator.runs());
    assert_eq!(simulator.errors(), Vec::<String>::new());
    // The same bytes are made again of what the artifact records.
    reproduce(&path, Some(&folder()), &mut Silent).unwrap();
}

#[test]
fn the_estimate_decides_on_a_draft_with_its_own_figures() {
    let compiled = Compiled::of_folder(&folder(), &options_with(NpuOptions::default()));
    let [_, of_draft] = sections(&compiled.artifact());
    for decision in &of_draft.decisions[..3] {
        let reason = &decision.reason;
        assert!(!decision.on_npu && !decision.overruled && reason.contains("estimate for 1 tokens: "), "{reason}");
        assert!(
            reason.contains("ms on the GPU at 4.7 TOP/s or 73 GB/s of weights, ") && reason.contains(" commands"),
            "{reason}"
        );
    }
    // Work of the model that was requested leaves the draft to the GPU, and the figures stay.
    let of_ffn = NpuOptions::default().with(|npu| npu.work = Some(vec![unicorn_compiler::NpuWork::Ffn]));
    let [_, of_draft] = sections(&Compiled::of_folder(&folder(), &options_with(of_ffn)).artifact());
    assert!(
        of_draft.decisions[0].reason.starts_with("not requested; estimate for 1 tokens"),
        "{:?}",
        of_draft.decisions
    );
}

/// What a compile of the same without `--npu` has, of both models.
#[test]
fn a_plan_without_an_npu_takes_it_out_of_the_draft() {
    let compiled = Compiled::of_folder(&folder(), &options_with(requested()));
    let path = compiled.artifact_path();
    let mut options = ReplanOptions::default();
    options.no_npu = true;
    replan(&path, &options, &mut Silent).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let view = ArtifactView::parse(&bytes).unwrap();
    let draft = view.draft.as_ref().unwrap();
    assert!(view.npu.is_none() && draft.npu.is_none() && draft.npu_weights().is_empty());
    let without = with(options_with(requested()), |options| options.npu = None);
    let without = Compiled::of_folder(&folder(), &without).artifact();
    let expected = ArtifactView::parse(&without).unwrap();
    let expected_draft = expected.draft.as_ref().unwrap();
    assert!(view.plan == expected.plan && view.kernels == expected.kernels && view.meta == expected.meta);
    assert!(draft.plan == expected_draft.plan && draft.kernels == expected_draft.kernels);
    assert_eq!(draft.meta, expected_draft.meta);
    options.no_npu = false;
    options.npu_control = Some(folder());
    let error = replan(&path, &options, &mut Silent).unwrap_err().to_string();
    assert!(error.contains("control images are of NPU programs, of which the artifact has none"), "{error}");
}

#[test]
fn the_option_is_for_the_draft_that_is_packed() {
    let output = tempfile::tempdir().unwrap();
    let mut command = program("unicorn-compile");
    command.arg(folder()).args(["--target", "generic", "--npu", "phoenix", "--npu-for", "draft", "--draft"]);
    let done = command.arg(folder()).arg("-o").arg(output.path().join("model.unicorn")).output().unwrap();
    let text = [done.stdout, done.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert!(done.status.success(), "{text}");
    let [of_model, of_draft] = sections(&std::fs::read(output.path().join("model.unicorn")).unwrap());
    assert!(of_model.products.is_empty() && !of_draft.products.is_empty());
    inspect_shows_the_drafts_part(&output.path().join("model.unicorn"), &of_draft);
    for part in
        ["attention on the GPU: no kernel of the GPU writes its operands for the NPU yet; estimate for ", "draft: "]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

/// As text, in the summary, as JSON and in the page.
fn inspect_shows_the_drafts_part(artifact: &Path, of_draft: &NpuSection) {
    let inspect = |arguments: &[&str]| {
        let output = program("unicorn-run").arg("inspect").arg(artifact).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = inspect(&["--section", "npu"]);
    let (of_model, of_draft_text) = text.split_once("\nDraft ").expect("the draft has a part of its own");
    assert!(of_model.contains("qkv on the GPU: not requested"), "{of_model}");
    let programs = format!("NPU (npu1), {} programs, ", of_draft.programs.len());
    for part in [&programs, "qkv on the NPU: requested", "of system memory: NPU weights ", &of_draft.programs[0].name] {
        assert!(of_draft_text.contains(part), "{part} is not in {of_draft_text}");
    }
    assert!(inspect(&[]).lines().any(|line| line.trim_start().starts_with("npu ") && line.ends_with(" for the draft")));
    let json: serde_json::Value = serde_json::from_str(&inspect(&["--json"])).unwrap();
    assert_eq!(json["draft"]["npu"]["products"].as_array().map(Vec::len), Some(of_draft.products.len()));
    let page = artifact.with_extension("html");
    inspect(&["--html", page.to_str().unwrap()]);
    assert!(std::fs::read_to_string(&page).unwrap().contains(&of_draft.programs[0].name));
}
