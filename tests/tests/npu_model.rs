//! Whole models whose QKV and FFN products of prefill run on the simulated NPU and the rest on llvmpipe, from the compiler to logits and text.

use std::path::{Path, PathBuf};

use tests::compiled::{Compiled, Silent, options, with};
use tests::models::models;
use tests::programs::program;
use tests::reference::{Reference, read_golden, read_logits, relative_error};
use unicorn_artifact::ArtifactView;
use unicorn_compiler::{CompileOptions, NpuOptions, NpuWork, export};
use unicorn_npu_simulator::{Fault, Simulator};
use unicorn_runtime::npu::{NpuOpener, NpuUse};
use unicorn_runtime::{DeviceChoice, LoadError, LoadOptions, Model, RunError, Sampling};
use unicorn_spirv::target;

/// Of the logits that transformers computes of the same weights in f32. What is left are INT8 activations, half a step of 1/127 of a group's largest value, over
/// a few layers of random weights, which forgive less than trained ones. Products alone are compared bit for bit in `npu_device.rs`, the kernels around them in `differential`.
const NPU_TOLERANCE: f64 = 3e-2;

fn folder(name: &str) -> PathBuf {
    models().join("tiny").join(name)
}

fn compile_options() -> CompileOptions {
    with(options(vec![target::by_name("generic").unwrap()], Vec::new()), |options| {
        let work = Some(vec![NpuWork::Qkv, NpuWork::Ffn]);
        options.npu = Some(NpuOptions::default().with(|npu| (npu.rows, npu.work) = (64, work)));
    })
}

fn load(artifact: &Path, simulator: Option<&Simulator>, npu: NpuUse) -> Result<Model, LoadError> {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(device);
        options.npu = npu;
        if let Some(simulator) = simulator.cloned() {
            options.npu_opener = NpuOpener::new(move || simulator.open());
        }
    });
    Model::load(artifact, &options)
}

fn logits(model: &Model, tokens: &[u32]) -> Result<Vec<f32>, RunError> {
    let mut session = model.session()?;
    let mut all = Vec::new();
    session.feed_with_logits(tokens, &mut |_, row| all.extend_from_slice(row))?;
    Ok(all)
}

fn greedy(model: &Model, prompt: &[u32], count: u32) -> Result<Vec<u32>, RunError> {
    let mut session = model.session()?;
    let first = session.feed_and_sample(prompt, &Sampling::default())?;
    let more: Result<Vec<u32>, RunError> =
        session.generate(first.token, &Sampling::default(), count).map(|one| one.map(|one| one.token)).collect();
    Ok([vec![first.token], more?].concat())
}

/// transformers' logits of the exported weights of a model and the tokens of [`prompt`]: `tests/golden/README.md` says how they were made. The reference of this
/// project computes the same of the folder that was exported here: weights that are packed in another way need a new golden.
fn transformers(name: &str, exported: &Path) -> Vec<f32> {
    let logits = read_logits(folder(name).join("npu.safetensors"));
    let ids: Vec<i32> = prompt(name).iter().map(|token| *token as i32).collect();
    let error = relative_error(&logits, &Reference::open(exported).logits(&ids));
    assert!(
        error <= SAME_WEIGHTS,
        "{name}: the reference is {error} from npu.safetensors, which is of other weights: see tests/golden/README.md"
    );
    logits
}

/// Two implementations in f32, of the same weights: sums in another order.
const SAME_WEIGHTS: f64 = 1e-5;

/// The tokens of a model's goldens: 48, which a step of 64 rows takes.
fn prompt(name: &str) -> Vec<u32> {
    read_golden(folder(name)).tokens.iter().map(|token| *token as u32).collect()
}

#[test]
fn logits_of_prefill_on_the_npu_are_transformers_on_the_exported_weights() {
    for name in ["llama3-rope", "gemma3-text", "qwen3-qknorm"] {
        let compiled = Compiled::of_folder(&folder(name), &compile_options());
        let bytes = compiled.artifact();
        let section = ArtifactView::parse(&bytes).unwrap().npu.unwrap();
        let products = section.products.len() as u64;
        assert!(products > 0 && section.steps.len() == 1, "{name}");
        let simulator = Simulator::default();
        let model = load(&compiled.artifact_path(), Some(&simulator), NpuUse::Required).unwrap();
        let report = model.report().npu;
        assert_eq!((report.driver.as_deref(), report.products), (Some("a simulated driver"), products as u32));

        let tokens = prompt(name);
        let found = logits(&model, &tokens).unwrap();
        // Each product of each layer once, in one step.
        assert_eq!((simulator.runs(), simulator.errors()), (products, vec![]), "{name}");
        let exported = tempfile::tempdir().unwrap();
        export(&folder(name), &compiled.artifact_path(), &compile_options(), exported.path(), &mut Silent).unwrap();
        let expected = transformers(name, exported.path());
        let error = relative_error(&expected, &found);
        println!("{name}: {products} products on the NPU, {error:.4} from transformers");
        assert!(error <= NPU_TOLERANCE, "{name}: relative error {error}, at most {NPU_TOLERANCE}");
        // The check itself: the GPU's own weights are others, and farther away.
        let gpu = logits(&load(&compiled.artifact_path(), None, NpuUse::Off).unwrap(), &tokens).unwrap();
        assert!(relative_error(&expected, &gpu) > error, "{name}");
        assert_eq!(simulator.runs(), products);

        // Text: the prompt's step on the NPU, then a token a step on the GPU.
        let text = greedy(&model, &tokens, 8).unwrap();
        assert_eq!((text.len(), simulator.runs()), (9, 2 * products), "{name}");
    }
}

/// Steps of more rows than the NPU's programs have run them several times: once for each 8 rows that a step of 64 rows is given.
#[test]
fn a_longer_step_runs_a_program_for_each_part_of_its_rows() {
    let name = "llama3-rope";
    let options = with(compile_options(), |options| {
        let work = Some(vec![NpuWork::Qkv, NpuWork::Ffn]);
        options.npu = Some(NpuOptions::default().with(|npu| (npu.rows, npu.work) = (8, work)));
    });
    let compiled = Compiled::of_folder(&folder(name), &options);
    let bytes = compiled.artifact();
    let section = ArtifactView::parse(&bytes).unwrap().npu.unwrap();
    let products = section.products.len() as u64;
    let rows: Vec<u32> = section.steps[0].kernels.programs.iter().map(|program| program.rows).collect();
    assert!(rows.contains(&8) && rows.contains(&64) && !rows.contains(&512), "at most 8 runs: {rows:?}");
    let simulator = Simulator::default();
    let model = load(&compiled.artifact_path(), Some(&simulator), NpuUse::Required).unwrap();
    // 40 rows are five parts of a step of 64; of 43, the last one is not full.
    let exported = tempfile::tempdir().unwrap();
    export(&folder(name), &compiled.artifact_path(), &options, exported.path(), &mut Silent).unwrap();
    let reference = Reference::open(exported.path());
    for (n_tokens, parts) in [(40, 5), (43, 6)] {
        let tokens: Vec<u32> = prompt(name).into_iter().take(n_tokens).collect();
        let before = simulator.runs();
        let found = logits(&model, &tokens).unwrap();
        assert_eq!((simulator.runs() - before, simulator.errors()), (parts * products, vec![]), "{n_tokens} tokens");
        let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
        let error = relative_error(&reference.logits(&ids), &found);
        println!("{n_tokens} tokens: {parts} runs of each product, relative error {error:.4}");
        assert!(error <= NPU_TOLERANCE, "{n_tokens} tokens: relative error {error}, at most {NPU_TOLERANCE}");
    }
}

/// `--npu-for draft`: every product of a step of one token on the NPU, by GEMVs, whether its logits are read or a token is sampled of them.
#[test]
fn a_draft_decodes_on_the_npu() {
    for name in ["llama3-rope", "qwen3-qknorm"] {
        let count = 3;
        let options = with(compile_options(), |options| {
            let work = Some(NpuWork::ALL.to_vec());
            options.npu = Some(NpuOptions::default().with(|npu| (npu.rows, npu.work) = (1, work)));
        });
        let compiled = Compiled::of_folder(&folder(name), &options);
        let bytes = compiled.artifact();
        let section = ArtifactView::parse(&bytes).unwrap().npu.unwrap();
        let products = section.products.len() as u64;
        assert!(section.programs.iter().all(|program| program.shape.core_rows == 8), "{name}");
        let simulator = Simulator::default();
        let model = load(&compiled.artifact_path(), Some(&simulator), NpuUse::Required).unwrap();
        // A token at a time.
        let tokens = &prompt(name)[..count as usize];
        let mut session = model.session().unwrap();
        let mut found = Vec::new();
        for token in tokens {
            session.feed_with_logits(&[*token], &mut |_, row| found.extend_from_slice(row)).unwrap();
        }
        drop(session);
        assert_eq!((simulator.runs(), simulator.errors()), (u64::from(count) * products, vec![]), "{name}");
        let exported = tempfile::tempdir().unwrap();
        export(&folder(name), &compiled.artifact_path(), &options, exported.path(), &mut Silent).unwrap();
        let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
        let error = relative_error(&Reference::open(exported.path()).logits(&ids), &found);
        println!("{name}: {products} products of a token on the NPU, relative error {error:.4}");
        assert!(error <= NPU_TOLERANCE, "{name}: relative error {error}, at most {NPU_TOLERANCE}");
        // The GPU computes the prompt, the NPU each further token; steps that run ahead of the host may be discarded.
        let before = simulator.runs();
        assert_eq!(greedy(&model, &prompt(name), count).unwrap().len(), 4);
        let decoded = simulator.runs() - before;
        assert!(decoded.is_multiple_of(products) && decoded >= u64::from(count) * products, "{name}: {decoded} runs");
    }
}

#[test]
fn a_failed_command_is_an_error_or_the_gpu_goes_on() {
    let name = "llama3-rope";
    let compiled = Compiled::of_folder(&folder(name), &compile_options());
    let tokens = prompt(name);
    let on_gpu = greedy(&load(&compiled.artifact_path(), None, NpuUse::Off).unwrap(), &tokens, 8).unwrap();
    for (fault, part) in
        [(Fault::Hang, "did not finish within 2000 ms"), (Fault::Error, "state error"), (Fault::Reset, "state abort")]
    {
        let simulator = Simulator::default();
        simulator.inject(2, fault);
        let model = load(&compiled.artifact_path(), Some(&simulator), NpuUse::Required).unwrap();
        let error = greedy(&model, &tokens, 8).unwrap_err();
        assert!(matches!(error, RunError::Npu { .. }) && error.to_string().contains(part), "{error}");
        // The array was reset: the next prompt runs on it.
        assert_eq!(greedy(&model, &tokens, 8).unwrap().len(), 9);
        assert!(model.take_recoveries().is_empty());

        let simulator = Simulator::default();
        simulator.inject(2, fault);
        let model = load(&compiled.artifact_path(), Some(&simulator), NpuUse::Optional).unwrap();
        assert_eq!(greedy(&model, &tokens, 8).unwrap(), on_gpu, "{fault:?}");
        let [recovery] = &model.take_recoveries()[..] else { panic!("one recovery") };
        assert!(recovery.without_npu && recovery.cause.contains(part), "{recovery:?}");
        // From then on, nothing is given to the NPU.
        let runs = simulator.runs();
        assert_eq!(greedy(&model, &tokens, 8).unwrap(), on_gpu);
        assert_eq!(simulator.runs(), runs);
    }
}

#[test]
fn an_npu_that_is_missing_is_named() {
    let compiled = Compiled::of_folder(&folder("llama3-rope"), &compile_options());
    if Path::new("/dev/accel").exists() {
        return tests::skip::skip("missing NPU", "this machine has a node in /dev/accel");
    }
    let error = load(&compiled.artifact_path(), None, NpuUse::Required).err().expect("there is no NPU").to_string();
    assert!(error.contains("the artifact's plan uses an NPU: no NPU can be used: "), "{error}");
    let model = load(&compiled.artifact_path(), None, NpuUse::Optional).unwrap();
    let report = model.report().npu;
    assert!(report.driver.is_none() && report.note.is_some_and(|note| note.contains("no NPU can be used")));
    assert_eq!(greedy(&model, &prompt("llama3-rope"), 4).unwrap().len(), 5);
    // In use by others: six contexts, which are all that there are.
    let simulator = Simulator::default();
    simulator.take_contexts(6);
    let error = load(&compiled.artifact_path(), Some(&simulator), NpuUse::Required).err().unwrap().to_string();
    assert!(error.contains("NPU is busy") && error.contains("end one of them"), "{error}");
}

/// Without the feature `npu-simulator`, `unicorn-run` has no other NPU than this machine's.
#[test]
fn the_command_line_names_the_option_and_reports_the_use_of_the_npu() {
    if Path::new("/dev/accel").exists() {
        return tests::skip::skip("missing NPU", "this machine has a node in /dev/accel");
    }
    let compiled = Compiled::of_folder(&folder("llama3-rope"), &compile_options());
    let output = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str], fault: Option<&str>| {
        let mut command = program("unicorn-run");
        command.arg("logits").arg(compiled.artifact_path()).args(["--device", "llvmpipe"]).args(arguments);
        command.arg("--tokens").arg(folder("llama3-rope").join("golden.safetensors"));
        command.arg("-o").arg(output.path().join("logits.safetensors"));
        if let Some(fault) = fault {
            command.env("UNICORN_NPU", "simulated").env("UNICORN_NPU_FAULT", fault);
        }
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (done, text) = run(&[], None);
    for part in
        ["plan uses an NPU: no NPU can be used", "try --npu-optional", "unicorn-compile replan ARTIFACT --no-npu"]
    {
        assert!(!done && text.contains(part), "{part} is not in: {text}");
    }
    let (done, text) = run(&["--npu-optional"], None);
    assert!(done && text.contains("the GPU does the NPU's work: no NPU can be used"), "{text}");
    let (done, text) = run(&[], Some("hang@1000"));
    if !text.contains("simulated NPU") {
        return tests::skip::skip("simulated NPU", "unicorn-run was built without the feature npu-simulator");
    }
    assert!(done && text.contains("NPU by a simulated driver: computes 6 products of prefill"), "{text}");
    let (done, text) = run(&[], Some("hang@2"));
    assert!(!done && text.contains("did not finish within 2000 ms") && text.contains("try --npu-optional"), "{text}");
    let selftest = |fault: &str| {
        let mut command = program("unicorn-run");
        command.arg("npu-selftest").arg(compiled.artifact_path()).args(["--device", "llvmpipe", "--quiet"]);
        let output = command.env("UNICORN_NPU", "simulated").env("UNICORN_NPU_FAULT", fault).output().unwrap();
        let [page, notes] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert_eq!(notes.is_empty(), output.status.success(), "quiet, but for an error: {notes}");
        (output.status.success(), page + &notes)
    };
    let (done, text) = selftest("hang@1000000");
    for part in [
        "NPU by a simulated driver",
        "passthrough: right, 0 of 1048576 bytes differ after 4 columns; ",
        "products: right, 0 of ",
        "wrong values",
        "prompt: right, logits are 0.0 % from those of the products' definition, expected at most 3 %; ",
        "tokens with the NPU: ",
        "tokens GPU alone: ",
    ] {
        assert!(done && text.contains(part), "{part} is not in: {text}");
    }
    // A wrong bit of the first command, and of the first one behind those of the passthrough: one, 16, and 16 in a chain.
    let (done, text) = selftest("wrong@0");
    assert!(
        !done && text.contains("passthrough: WRONG, 1 of 1048576 bytes differ") && text.contains("products: right"),
        "{text}"
    );
    let (done, text) = selftest("wrong@33");
    assert!(!done && text.contains("passthrough: right") && text.contains("products: WRONG, 1 of "), "{text}");
    assert!(text.contains("1 of 3 checks of the NPU are wrong: products"), "{text}");
    // Outputs that are not there when a command ends, of the timed prefill: passthrough and three programs have 33 commands each, and a prefill six.
    let (done, text) = selftest("stale@139");
    assert!(!done && text.contains("products: right") && text.contains("prompt: WRONG, logits are "), "{text}");
    assert!(text.contains("1 of 3 checks of the NPU are wrong: prompt"), "{text}");
    // The third command is one of the passthrough; the others are right.
    let (done, text) = selftest("error@3");
    for part in [
        "passthrough: WRONG, not finished: NPU program passthrough ended in state error",
        "products: right, 0 of ",
        "prompt: right, ",
        "1 of 3 checks of the NPU are wrong: passthrough; please report this page",
    ] {
        assert!(!done && text.contains(part), "{part} is not in: {text}");
    }
    let (done, text) = run(&["--npu-optional"], Some("hang@2"));
    assert!(done && text.contains("NPU failed (NPU program ") && text.contains("GPU does all of its work"), "{text}");
}
