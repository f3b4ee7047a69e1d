//! `unicorn-run selftest`: right kernels pass, a kernel whose module was changed is found, named and left out by later starts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::SafeTensors;
use serde_json::Value;
use tempfile::TempDir;
use tests::compiled::{Compiled, options, with};
use tests::launch::device;
use tests::models::models;
use tests::programs::program;
use tests::reference::relative_error;
use tests::tiny_model::TinyModel;
use unicorn_artifact::rewrite::{Change, NewKernels, rewrite};
use unicorn_artifact::{
    ArtifactView, Kernels, LogitsRows, MappedFile, Module, ModuleSet, Pipeline, Program, TargetKernels,
};
use unicorn_runtime::{Corrections, DeviceChoice, ImagePatches, LoadOptions, Model};
use unicorn_spirv::{Target, target};

/// The target under test, made for subgroups of the device at hand; it has alternatives.
const OWN: &str = "generic-subgroup";
/// Only the order of sums differs between targets without rounded activations.
const SAME: f64 = 1e-3;
/// Minimum relative error of logits by a wrong kernel.
const WRONG: f64 = 5e-2;

/// Positions of the model: 20 cached tokens and the greedy text fit, and of prefill only steps of 8 tokens.
const CONTEXT: usize = 64;

#[test]
fn right_kernels_pass_and_a_changed_one_is_named_and_left_out() {
    let (folder, path) = artifact(&[OWN, "generic"], true);
    let output = selftest(&path, &["--sequences", "1", "--seconds", "600"]);
    let page = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{page}{}", String::from_utf8_lossy(&output.stderr));
    let last = page.lines().last().expect("a page");
    assert!(last.starts_with("selftest right: ") && last.contains(&format!("target {OWN} against generic")), "{page}");
    for part in ["decode ", "prefill of 8 tokens", "greedy text", "transfers", "memory", "KL"] {
        assert!(page.contains(part), "{part:?} is missing in {page}");
    }
    // It exceeds a context of 64 tokens, which the page reports.
    assert!(page.contains("needs a context of 534 tokens, found 64"), "{page}");
    assert!(page.contains("decode of 64 sequences") && page.contains("model was loaded for: 1"), "{page}");
    assert!(!folder.path().join("model.unicorn.selftest.json").exists());

    let right = logits(&path).0;
    let kernel = change_kernel(&path, "down_proj");
    let (wrong, _) = logits(&path);
    assert!(relative_error(&right, &wrong) > WRONG, "the change has no effect");
    let output = selftest(&path, &["--sequences", "1", "--seconds", "600", "--json"]);
    assert!(!output.status.success());
    let json: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    let result = json["result"].as_str().expect("a last line");
    let expected = format!("WRONG: target {OWN}");
    assert!(result.starts_with(&expected) && result.contains(&kernel), "{result}, not {kernel}");
    let checks = json["checks"].as_array().expect("checks");
    let check = |name: &str| {
        let found = checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {json}"));
        (found["verdict"].as_str().expect("a verdict"), found["what"].as_str().unwrap_or_default())
    };
    // Exactly that kernel, and where it is used first; other kinds of steps have other kernels.
    assert_eq!(check("decode"), ("wrong", &*format!("{kernel} at 0.down_proj")));
    assert_eq!(check("prefill of 8 tokens"), ("right", ""));

    let (corrected, stderr) = logits(&path);
    assert!(relative_error(&right, &corrected) <= SAME, "{}", relative_error(&right, &corrected));
    let expected = format!("decode: {kernel} is switched off on this device, an alternative runs");
    assert!(stderr.contains(&expected), "{stderr}");
    // The kernels of another target are not concerned, and it is said that the file is not for them.
    let other = run(unicorn_run("bench", &path).args(["--target", "generic", "-p", "0", "-n", "1", "-r", "1"]));
    let stderr = String::from_utf8_lossy(&other.stderr);
    assert!(stderr.contains("result of selftest is not used") && stderr.contains("another artifact"), "{stderr}");
}

#[test]
fn without_an_alternative_the_other_targets_kernels_run() {
    let (_folder, path) = artifact(&[OWN, "generic"], false);
    let right = logits(&path).0;
    let kernel = change_kernel(&path, "o_proj");
    let output = selftest(&path, &["--sequences", "1", "--seconds", "600"]);
    let page = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && page.contains(&kernel), "{page}");
    let (corrected, stderr) = logits(&path);
    assert!(relative_error(&right, &corrected) <= SAME, "{}", relative_error(&right, &corrected));
    assert!(stderr.contains("is switched off on this device, kernels of target generic run"), "{stderr}");
    // `doctor` names it as well, for the device and the driver that it is about.
    let doctor = || {
        let output = program("unicorn-run").arg("doctor").arg(&path).output().expect("the program starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = format!("decode: {kernel} is switched off on this device, kernels of target generic run");
    let has_line = |page: &str, mark: &str| {
        page.lines().any(|line| line.starts_with(&format!("{mark:<8} kernels ")) && line.contains(&said))
    };
    let page = doctor();
    assert!(has_line(&page, "PROBLEM") && page.contains(&format!("{} with ", device().name)), "{page}");
    let file = corrections_path(&path);
    let mut json: Value = serde_json::from_slice(&std::fs::read(&file).expect("selftest wrote it")).expect("JSON");
    json["driver"] = "an older driver".into();
    std::fs::write(&file, json.to_string()).expect("the folder takes files");
    let page = doctor();
    assert!(has_line(&page, "unknown") && page.contains("with an older driver"), "{page}");
    std::fs::remove_file(&file).expect("it is there");
    assert!(!doctor().contains("switched off"));
}

#[test]
fn an_artifact_without_kernels_to_compare_with_is_refused_with_the_command_that_adds_them() {
    let (_folder, path) = artifact(&[OWN], false);
    let output = selftest(&path, &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let command = format!("unicorn-compile retarget {} --target generic", path.display());
    assert!(!output.status.success() && stderr.contains(&command), "{stderr}");
    let output = selftest(&path, &["--against", OWN]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("would be compared with themselves"), "{stderr}");
}

/// An artifact of a model with few positions, and its folder: no kernels are compiled for steps that exceed them.
fn artifact(targets: &[&str], alternatives: bool) -> (TempDir, PathBuf) {
    artifact_of(CONTEXT, targets, alternatives)
}

/// The same of a model with so many positions.
fn artifact_of(positions: usize, targets: &[&str], alternatives: bool) -> (TempDir, PathBuf) {
    let model = TinyModel { layers: 1, max_position_embeddings: positions, ..Default::default() };
    let options = with(options(targets.iter().map(made).collect(), vec![]), |options| {
        options.alternatives = alternatives;
    });
    let compiled = Compiled::of(&model, &options);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.unicorn");
    std::fs::write(&path, compiled.artifact()).expect("the folder takes files");
    (folder, path)
}

/// The target of this name, made for subgroups of the device at hand.
fn made(name: &&str) -> Target {
    let preset = target::by_name(name).expect("a preset");
    let subgroup_size = if preset.subgroup_size > 0 { device().subgroup_size } else { 0 };
    preset.for_any_device(subgroup_size)
}

/// Embeddings are made of hidden rows, by programs of their own.
#[test]
fn a_kernel_of_hidden_rows_alone_is_found_too() {
    let (_folder, path) = artifact(&[OWN, "generic"], false);
    change_artifact(&path, |target| {
        let hidden = |program: &Program| program.rows == 8 && program.logits == LogitsRows::Hidden;
        change_alone(target, "changed norm", hidden, "norm")
    });
    let output = selftest(&path, &["--sequences", "1", "--seconds", "600"]);
    let page = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && page.contains("changed norm at hidden rows"), "{page}");
    let stderr = logits(&path).1;
    assert!(stderr.contains("changed norm is switched off on this device, kernels of target generic run"), "{stderr}");
}

/// What the sampler does beyond choosing the most likely token shows in no logits and in no greedy text.
#[test]
fn a_wrong_sampler_is_found_and_the_other_targets_programs_run() {
    let (_folder, path) = artifact(&[OWN, "generic"], false);
    let test = || {
        let output = selftest(&path, &["--sequences", "1", "--seconds", "600", "--json"]);
        let json: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
        let checks = json["checks"].as_array().expect("checks").clone();
        let verdict =
            |check: &Value| (check["name"].as_str().map(str::to_owned), check["verdict"].as_str().map(str::to_owned));
        (output.status.success(), checks.iter().map(verdict).collect::<BTreeMap<_, _>>())
    };
    let of = |verdicts: &BTreeMap<Option<String>, Option<String>>, name: &str| {
        verdicts
            .get(&Some(name.to_owned()))
            .unwrap_or_else(|| panic!("{name} in {verdicts:?}"))
            .clone()
            .expect("a verdict")
    };
    let (is_right, verdicts) = test();
    assert!(is_right, "{verdicts:?}");
    let samplers = ["sampler of decode", "sampler of decode with a mask"];
    assert_eq!(samplers.map(|name| of(&verdicts, name)), ["right", "right"]);

    // The random number times the sum of all probabilities becomes a sum.
    change_artifact(&path, |target| change(target, "sample"));
    let (is_right, verdicts) = test();
    assert!(!is_right);
    assert_eq!(samplers.map(|name| of(&verdicts, name)), ["wrong", "wrong"]);
    assert_eq!(["decode", "greedy text of 32 tokens"].map(|name| of(&verdicts, name)), ["right", "right"]);
    let stderr = logits(&path).1;
    for step in ["decode: ", "prefill of 8 tokens: "] {
        let line = stderr.lines().find(|line| line.contains(step)).unwrap_or_else(|| panic!("{step} in {stderr}"));
        assert!(line.contains("is switched off on this device, kernels of target generic run"), "{stderr}");
    }
}

#[test]
fn a_sampler_that_is_wrong_with_masks_alone_is_found() {
    let (_folder, path) = artifact(&[OWN, "generic"], false);
    // What a mask leaves out gets a logit above all others.
    let left_out = (-3.402e38f32).to_bits();
    change_artifact(&path, |target| {
        let decode = target.programs.iter().find(|program| program.rows == 1).expect("a program for decode");
        let pipeline = &target.pipelines[decode.dispatches.last().expect("its sampler").pipeline as usize];
        let (mut modules, name) = (modules(target), pipeline.name.clone());
        let words = &mut modules[pipeline.module as usize].words;
        let at = words.iter().position(|word| *word == left_out).expect("the logit of what is left out");
        words[at] = 3.402e38f32.to_bits();
        target.modules = ModuleSet::pack([&modules[..]]).expect("memory for zstd");
        name
    });
    let output = selftest(&path, &["--sequences", "1", "--seconds", "600", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    let checks = json["checks"].as_array().expect("checks");
    let wrong = checks.iter().filter(|check| check["verdict"] == "wrong").filter_map(|check| check["name"].as_str());
    assert_eq!(wrong.collect::<Vec<_>>(), ["sampler of decode with a mask"], "{json}");
}

/// The draft that is packed into an artifact has kernels of its own, and a file of its own for what is wrong.
#[test]
fn a_kernel_of_a_packed_draft_is_found_and_left_out() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (model, path) = (folder.path().join("model"), folder.path().join("model.unicorn"));
    TinyModel { layers: 1, max_position_embeddings: CONTEXT, ..Default::default() }.write(&model);
    let options = with(options([OWN, "generic"].iter().map(made).collect(), vec![]), |options| {
        options.draft = Some(model.clone());
        options.alternatives = false;
    });
    std::fs::write(&path, Compiled::of_folder(&model, &options).artifact()).expect("the folder takes files");
    let test = || {
        let output = selftest(&path, &["--sequences", "1", "--seconds", "600", "--json"]);
        let json: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
        let checks = json["checks"].as_array().expect("checks").clone();
        let name = |check: &Value| check["name"].as_str().expect("a name").to_owned();
        let wrong = checks.iter().filter(|check| check["verdict"] == "wrong").map(name).collect::<Vec<_>>();
        (wrong, checks.iter().map(name).collect::<Vec<_>>())
    };
    let (wrong, checks) = test();
    assert!(wrong.is_empty(), "{wrong:?}");
    let of_draft: Vec<&str> = checks.iter().filter_map(|name| name.strip_prefix("draft: ")).collect();
    let of_model: Vec<&String> = checks.iter().filter(|name| !name.starts_with("draft: ")).collect();
    assert_eq!(of_draft, of_model, "the model is its own draft here");

    let kernel = change_draft(&path, |target| change(target, "down_proj"));
    let (wrong, _) = test();
    assert!(
        wrong.contains(&"draft: decode".into()) && wrong.iter().all(|name| name.starts_with("draft: ")),
        "{wrong:?}"
    );
    assert!(!corrections_path(&path).exists() && path.with_file_name("model.unicorn.draft.selftest.json").exists());
    let mut generate = program("unicorn-run");
    generate.arg(&path).args(["--raw", "--temp", "0", "-n", "8", "-p", "The island was", "--device", &device().name]);
    let stderr = String::from_utf8_lossy(&run(&mut generate).stderr).into_owned();
    assert!(stderr.contains(&format!("draft: decode: {kernel} is switched off on this device")), "{stderr}");
}

/// A model's own head for drafts is a part of decode.
#[test]
fn a_kernel_of_the_head_for_drafts_is_found_too() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.unicorn");
    let options = with(options([OWN, "generic"].iter().map(made).collect(), vec![]), |options| {
        options.alternatives = false;
    });
    let compiled = Compiled::of_folder(&models().join("tiny/qwen35-mtp"), &options);
    std::fs::write(&path, compiled.artifact()).expect("the folder takes files");
    let arguments = ["--sequences", "1", "--seconds", "600"];
    let output = selftest(&path, &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    change_artifact(&path, |target| {
        let predicts = |program: &Program| program.logits == LogitsRows::Predicted;
        change_alone(target, "changed head", predicts, "down_proj")
    });
    let output = selftest(&path, &arguments);
    let page = String::from_utf8_lossy(&output.stdout);
    let is_left_out = |line: &str| line.contains("changed head") && line.contains("is switched off on this device");
    assert!(!output.status.success() && page.lines().any(is_left_out), "{page}");
}

/// Steps of several sequences, long prompts and long contexts are compared where the model and the device have room for them.
#[test]
fn a_kernel_of_batches_alone_is_found_too() {
    let (_folder, path) = artifact_of(640, &[OWN, "generic"], false);
    let verdicts = || {
        let output = selftest(&path, &["--sequences", "4", "--seconds", "600", "--json"]);
        let json: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
        let checks = json["checks"].as_array().expect("checks");
        let verdict = |check: &Value| Some((check["name"].as_str()?.to_owned(), check["verdict"].as_str()?.to_owned()));
        (output.status.success(), checks.iter().map(|check| verdict(check).expect("text")).collect::<BTreeMap<_, _>>())
    };
    let (is_right, right) = verdicts();
    for name in ["decode of 2 sequences", "decode of 4 sequences", "prefill of 64 tokens", "prefill of 512 tokens"] {
        assert_eq!(right.get(name).map(String::as_str), Some("right"), "{name} of {right:?}");
    }
    assert!(is_right, "{right:?}");

    change_artifact(&path, |target| {
        change_alone(target, "changed matmul", |program| program.batch && program.rows == 4, "down_proj")
    });
    let (is_right, found) = verdicts();
    assert!(!is_right);
    let wrong: Vec<&String> = found.iter().filter(|(_, verdict)| *verdict == "wrong").map(|(name, _)| name).collect();
    assert_eq!(wrong, ["decode of 4 sequences"], "{found:?}");
}

/// The tower of a model that takes images is compared, too, and the other target's tower takes its place.
#[test]
fn a_kernel_of_images_is_found_too() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = models().join("tiny/gemma3-vision");
    let path = folder.path().join("model.unicorn");
    let options = options([OWN, "generic"].iter().map(made).collect(), vec![]);
    std::fs::write(&path, Compiled::of_folder(&model, &options).artifact()).expect("the folder takes files");
    let arguments = ["--sequences", "1", "--seconds", "600", "--json"];
    let check = |output: &Output| {
        let json: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
        let checks = json["checks"].as_array().expect("checks").clone();
        checks
            .into_iter()
            .find(|check| check["name"] == "image of 4 rows")
            .unwrap_or_else(|| panic!("no image in {json}"))
    };
    let output = selftest(&path, &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(check(&output)["verdict"], "right");
    let right = rows_of_image(&path);

    change_artifact(&path, |target| {
        let name = "image attention";
        let changed = target.pipelines.iter().find(|pipeline| pipeline.name == name).expect("a kernel of images");
        let (module, mut modules) = (changed.module as usize, modules(target));
        spoil_last_product(&mut modules[module]);
        target.modules = ModuleSet::pack([&modules[..]]).expect("memory for zstd");
        name.to_owned()
    });
    let output = selftest(&path, &arguments);
    assert!(!output.status.success());
    let wrong = check(&output);
    assert_eq!(wrong["verdict"], "wrong");
    assert!(wrong["what"].as_str().is_some_and(|what| what.contains("image attention")), "{wrong}");

    let corrected = rows_of_image(&path);
    assert!(relative_error(&right, &corrected) <= SAME, "{}", relative_error(&right, &corrected));
    let stderr = logits(&path).1;
    assert!(stderr.contains("image attention") && stderr.contains("kernels of target generic run"), "{stderr}");
    std::fs::remove_file(corrections_path(&path)).expect("selftest wrote it");
    let wrong = rows_of_image(&path);
    assert!(relative_error(&right, &wrong) >= 5.0 * SAME, "{}", relative_error(&right, &wrong));
}

/// The rows of an image by the target under test, corrected as the file beside the artifact says.
fn rows_of_image(path: &Path) -> Vec<f32> {
    let corrections = std::fs::read(corrections_path(path)).ok().map(|json| {
        let json: Value = serde_json::from_slice(&json).expect("JSON");
        let hex = json["key"].as_str().expect("a key");
        let key = std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..][..2], 16).expect("hexadecimal digits"));
        assert_eq!(json["steps"], Value::Array(Vec::new()), "text is right");
        Corrections { key, steps: BTreeMap::new(), images: json["images"]["target"].as_str().map(str::to_owned) }
    });
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(device().name.clone());
        options.target = Some(OWN.into());
        options.context_tokens = Some(CONTEXT as u32);
        options.corrections = corrections;
    });
    let model = Model::load(path, &options).expect("it loads");
    assert_eq!(model.report().corrections.note, None);
    let section = model.image().expect("it takes images");
    let elements = 0..section.patches() * section.patch_width();
    let values = elements.map(|at| (at as f32 * 0.37).sin()).collect();
    let patches = ImagePatches { values, rows_across: section.rows_across() };
    let image = model.encode_image(&patches).expect("it is computed");
    (0..image.tokens().count()).flat_map(|row| image.row(row).to_vec()).collect()
}

fn corrections_path(artifact: &Path) -> PathBuf {
    artifact.with_file_name("model.unicorn.selftest.json")
}

/// Makes the kernel of decode for this matrix of the first layer add where it multiplied; returns its name.
fn change_kernel(path: &Path, matrix: &str) -> String {
    change_artifact(path, |target| change(target, matrix))
}

/// Changes the target under test; returns what `change` returns.
fn change_artifact(path: &Path, change: impl Fn(&mut TargetKernels) -> String) -> String {
    rewrite_kernels(path, |view, name| (changed_kernels(view, &change, name), None))
}

/// The same of the draft that is packed into the artifact.
fn change_draft(path: &Path, change: impl Fn(&mut TargetKernels) -> String) -> String {
    rewrite_kernels(path, |view, name| {
        let draft = view.draft.as_ref().expect("it has a draft");
        (view.kernels.clone(), Some(changed_kernels(draft, &change, name)))
    })
}

fn changed_kernels(
    view: &ArtifactView<'_>,
    change: &impl Fn(&mut TargetKernels) -> String,
    name: &mut String,
) -> Kernels {
    let mut kernels = view.kernels.clone();
    let target = kernels.targets.iter_mut().find(|target| target.name == OWN).expect("it was compiled for it");
    *name = change(target);
    kernels
}

/// Replaces the kernels of an artifact, and those of its draft where there are any; returns the name that `change` writes.
fn rewrite_kernels(
    path: &Path,
    change: impl Fn(&ArtifactView<'_>, &mut String) -> (Kernels, Option<Kernels>),
) -> String {
    let mut name = String::new();
    let file = MappedFile::open(path).expect("the artifact is there");
    let view = ArtifactView::parse(file.bytes()).expect("the artifact is sound");
    let (of_model, of_draft) = change(&view, &mut name);
    let changed = |view: &ArtifactView<'_>, kernels: &Kernels| {
        Change::from(NewKernels { meta: &view.meta, plan: &view.plan, kernels, npu: None })
    };
    let draft = of_draft.map(|kernels| changed(view.draft.as_ref().expect("it has kernels"), &kernels));
    let change = changed(&view, &of_model).with_draft(draft);
    rewrite(path, path, &change, |_| ()).expect("it is as sound as before");
    name
}

fn change(target: &mut TargetKernels, matrix: &str) -> String {
    let decode = target.programs.iter().find(|program| program.rows == 1).expect("a program for decode");
    let dispatch = decode.dispatches.iter().find(|dispatch| dispatch.label.contains(matrix)).expect("a matmul");
    let pipeline = &target.pipelines[dispatch.pipeline as usize];
    let (mut modules, name) = (modules(target), pipeline.name.clone());
    spoil_last_product(&mut modules[pipeline.module as usize]);
    target.modules = ModuleSet::pack([&modules[..]]).expect("memory for zstd");
    name
}

/// The last kernel with this label of a program, as one that nothing else uses and that has this name.
fn change_alone(target: &mut TargetKernels, name: &str, is_of: impl Fn(&Program) -> bool, label: &str) -> String {
    let program = target.programs.iter_mut().find(|program| is_of(program)).expect("a program");
    let labels: Vec<&str> = program.dispatches.iter().map(|dispatch| &*dispatch.label).collect();
    let at = labels.iter().rposition(|found| found.contains(label)).unwrap_or_else(|| panic!("{label} in {labels:?}"));
    let dispatch = &mut program.dispatches[at];
    let pipeline = &target.pipelines[dispatch.pipeline as usize];
    let (module, from) = (target.modules.records.len() as u32, pipeline.module as usize);
    let changed = Pipeline { name: name.into(), module, ..pipeline.clone() };
    dispatch.pipeline = target.pipelines.len() as u32;
    target.pipelines.push(changed);
    let mut modules = modules(target);
    let mut module = Module { words: modules[from].words.clone(), needs: modules[from].needs.clone() };
    spoil_last_product(&mut module);
    modules.push(module);
    target.modules = ModuleSet::pack([&modules[..]]).expect("memory for zstd");
    name.to_owned()
}

fn modules(target: &TargetKernels) -> Vec<Module> {
    let words = target.modules.unpack_all().expect("the compiler packed them");
    let records = target.modules.records.iter().zip(words);
    records.map(|(record, words)| Module { words, needs: record.needs.clone() }).collect()
}

/// Makes the last product, which scales a result, something else. Each instruction begins with its length and its number: OpFMul becomes
/// OpFAdd, and Fma of GLSL's set, the fifth word of OpExtInst, FMix.
fn spoil_last_product(module: &mut Module) {
    const MULTIPLY: u32 = 5 << 16 | 133;
    const ADD: u32 = 5 << 16 | 129;
    const EXTENDED: u32 = 8 << 16 | 12;
    let words = &mut module.words;
    let is_product = |at: usize| words[at] == MULTIPLY || (words[at] == EXTENDED && words.get(at + 4) == Some(&50));
    let at = (0..words.len()).rev().find(|&at| is_product(at)).expect("it multiplies");
    let (place, other) = if words[at] == MULTIPLY { (at, ADD) } else { (at + 4, 46) };
    words[place] = other;
}

/// Logits of 12 tokens, decoded one by one as the artifact would run, and the text on stderr.
fn logits(path: &Path) -> (Vec<f32>, String) {
    let (tokens, out) = (path.with_file_name("tokens.safetensors"), path.with_file_name("logits.safetensors"));
    let ids: Vec<u8> = (60u32..72).flat_map(u32::to_le_bytes).collect();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::U32, vec![12], &ids).expect("12 tokens");
    std::fs::write(&tokens, safetensors::serialize([("tokens", view)], None).expect("a tensor")).expect("room");
    let mut command = unicorn_run("logits", path);
    command.args(["--target", OWN, "--chunk", "1", "--tokens"]).arg(&tokens).arg("-o").arg(&out);
    let output = run(&mut command);
    let bytes = std::fs::read(&out).expect("logits were written");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let (words, _) = tensors.tensor("logits").expect("logits").data().as_chunks::<4>();
    let values = words.iter().map(|&word| f32::from_le_bytes(word)).collect();
    (values, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn selftest(path: &Path, arguments: &[&str]) -> Output {
    unicorn_run("selftest", path).args(["--target", OWN]).args(arguments).output().expect("the program starts")
}

fn unicorn_run(command: &str, path: &Path) -> Command {
    let mut run = program("unicorn-run");
    run.arg(command).arg(path).arg("--device").arg(device().name);
    // Its results are remembered in a cache of its own; kernels that the device has compiled are shared by all runs.
    run.env("XDG_CACHE_HOME", path.parent().expect("a folder"));
    run.env("MESA_SHADER_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    run
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}
