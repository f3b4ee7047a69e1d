//! Steps in very short submissions: every dispatch by itself, and those that read weights in ranges of their workgroups. Nothing
//! but the number of submissions changes.

use std::path::Path;
use std::time::Duration;

use tests::compiled::{Compiled, Silent, options};
use tests::models::models;
use tests::mutated_plan::with_kernels_changed;
use unicorn_artifact::{ArtifactView, MappedFile};
use unicorn_compiler::{Source, compile};
use unicorn_runtime::{BatchRow, DeviceChoice, DeviceKind, LoadOptions, Model, RunError, Sampling};
use unicorn_spirv::target;

/// Bounds in microseconds, of which the first is taken that cuts dispatches on the device at hand: the validation layer takes its
/// time for every submission.
const BOUNDS: [u64; 3] = [100, 10, 1];

/// Submissions of a long prefill of two million weights in 0.2 core milliseconds each, as a software device is estimated, at least. There are
/// 1024; by workgroups and KV cache alone, there would be 81.
const MIN_FORESEEN: u32 = 512;

/// Logits of a prompt and of tokens after it, bit for bit; sampled tokens, and those of a batch.
#[derive(Debug, PartialEq)]
struct Seen {
    logits: Vec<u32>,
    samples: Vec<u32>,
    batch: Vec<u32>,
}

fn measure(model: &Model) -> Result<Seen, RunError> {
    let vocab_size = model.meta().model.vocab_size;
    let prompt: Vec<u32> = (0..75).map(|index| (index * 7919 + 13) % vocab_size).collect();
    let sampling = Sampling::default().with(|sampling| {
        sampling.temperature = 1.0;
        sampling.repeat_penalty = 1.3;
        sampling.seed = 3;
    });
    let mut logits = Vec::new();
    let mut keep = |_: u32, row: &[f32]| logits.extend(row.iter().map(|logit| logit.to_bits()));
    let mut session = model.session()?;
    session.feed(&prompt[..70])?;
    session.feed_with_logits(&prompt[70..], &mut keep)?;
    let first = session.feed_and_sample(&prompt[..1], &sampling)?;
    let mut samples = vec![first.token];
    for sampled in session.generate(first.token, &sampling, 8) {
        samples.push(sampled?.token);
    }
    session.feed_with_logits(&prompt[..2], &mut keep)?;
    let mut other = model.session()?;
    other.feed(&prompt[..9])?;
    let rows = [&mut session, &mut other].map(|session| BatchRow { session, token: 5, sampling: &sampling });
    let batch = model.decode_batch(rows)?.iter().map(|sampled| sampled.token).collect();
    Ok(Seen { logits, samples, batch })
}

#[test]
fn short_submissions_give_the_same_logits_bit_for_bit() {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let device = DeviceChoice::Name(device);
    // Uncut steps of decode go together, too.
    let as_they_come = LoadOptions::default().with(|options| {
        options.device = device;
        options.slots = 2;
        options.multistep = Duration::MAX;
    });
    for (name, of_target) in [("gemma3-text", "llvmpipe"), ("phi3-longrope-long", "generic")] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny").join(name);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.unicorn");
        let targets = ["llvmpipe", "generic"].into_iter().filter_map(target::by_name).collect();
        compile(Source::Model(&source), &path, &options(targets, Vec::new()), &mut Silent).expect("it compiles");
        let as_they_come = as_they_come.clone().with(|options| options.target = Some(of_target.into()));
        let load = |options: &LoadOptions| Model::load(&path, options).expect("it loads");

        let file = MappedFile::open(&path).expect("it loads");
        let view = ArtifactView::read(file.file()).expect("it loads");
        let target = view.kernels.targets.iter().find(|target| target.name == of_target).expect("it was requested");
        let dispatches: usize = target.programs.iter().map(|program| program.dispatches.len()).sum();

        let expected = measure(&load(&as_they_come)).expect("the steps run");
        let cut = BOUNDS.iter().find_map(|&microseconds| {
            let options =
                as_they_come.clone().with(|options| options.submission = Some(Duration::from_micros(microseconds)));
            let model = load(&options);
            // Each dispatch is in one submission at least.
            (model.report().submissions.iter().sum::<u32>() as usize > dispatches).then_some((model, options))
        });
        let (model, options) = cut.unwrap_or_else(|| panic!("{name}: {dispatches} dispatches, and none was ever cut"));
        assert!(measure(&model).expect("the steps run") == expected, "{name}, {:?}: other bits", options.submission);
        drop(model);

        // A profile counts a dispatch once, however often it was submitted.
        let model = load(&options.with(|options| options.profile = true));
        model.session().expect("a slot").feed(&[1, 2, 3]).expect("a step");
        let [step] = model.take_profiles().try_into().expect("one step");
        assert_eq!(step.seconds.len(), step.dispatches.len());
    }
    assert_eq!(unicorn_runtime::validation_messages(), 0, "the validation layer reported messages");
}

/// A plan that declares no weights is split by what its dispatches are bound to, and computes the same.
#[test]
fn submissions_are_foreseen_whatever_a_plan_declares() {
    let targets = target::by_name("generic").into_iter().collect();
    let compiled = Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets, Vec::new()));
    let undeclared =
        with_kernels_changed(&std::fs::read(compiled.artifact_path()).expect("it was written"), |kernels| {
            let programs = kernels.targets.iter_mut().flat_map(|target| &mut target.programs);
            programs.flat_map(|program| &mut program.dispatches).for_each(|dispatch| dispatch.weight_bytes = 0);
        });
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("undeclared.unicorn");
    std::fs::write(&path, undeclared).expect("a temporary file");
    let load = |path: &Path, bound: Option<Duration>| {
        let options = LoadOptions::default().with(|options| {
            options.device = DeviceChoice::Name(std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
            (options.slots, options.context_tokens, options.submission) = (2, Some(128), bound);
        });
        Model::load(path, &options).expect("it loads")
    };
    let expected = measure(&load(&compiled.artifact_path(), None)).expect("the steps run");
    // Nothing is measured that declares nothing, so that the estimate of prefill's arithmetic is all that there is.
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let cut = load(&path, Some(Duration::from_micros(200) / cores));
    let most = cut.report().submissions.iter().copied().max().expect("a program was recorded");
    assert!(cut.device().kind != DeviceKind::Cpu || most >= MIN_FORESEEN, "a step has {most} submissions at most");
    assert!(measure(&cut).expect("the steps run") == expected, "other bits");
}
