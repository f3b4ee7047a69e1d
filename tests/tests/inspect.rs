//! `unicorn-run inspect`: what it reports of an artifact and of two, and that it reads no weights for that.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tests::compiled::{Compiled, Silent, options, with};
use tests::programs::program;
use tests::tiny_model::{Family, TinyModel};
use unicorn_artifact::codec::encode;
use unicorn_artifact::header::{ENTRY_BYTES, HEADER_BYTES, SECTION_ALIGN, Section, SectionKind, encode_header};
use unicorn_artifact::{ArtifactView, ArtifactWriter, MappedFile};
use unicorn_compiler::Machine;
use unicorn_compiler::{CompileOptions, Source, plan};
use unicorn_compiler::{FormatPolicy, WeightsOption};
use unicorn_spirv::target;

fn model() -> TinyModel {
    TinyModel { family: Family::Gemma3, layers: 2, sliding_window: Some(64), ..Default::default() }
}

fn generic_options() -> CompileOptions {
    options(vec![target::by_name("generic").unwrap()], Vec::new())
}

fn written(folder: &TempDir, name: &str, options: &CompileOptions) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, Compiled::of(&model(), options).artifact()).unwrap();
    path
}

fn inspect(path: &Path, arguments: &[&str]) -> String {
    let output = program("unicorn-run").arg("inspect").arg(path).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn text_and_json_have_the_same_figures() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::named("phoenix-64gb").unwrap().plan(&Default::default()).unwrap();
    let path = written(&folder, "model.unicorn", &with(generic_options(), |options| options.machine = machine));
    let page = inspect(&path, &["--section", "memory"]);
    assert!(page.starts_with("Memory of phoenix-64gb, with the KV cache of one sequence of 512 tokens"), "{page}");
    assert!(page.contains("  vram  ") && page.contains("░") && page.contains(" of 7.50 GiB: weights "), "{page}");

    let json: Value = serde_json::from_str(&inspect(&path, &["--json"])).unwrap();
    let rate = json["estimated_tokens_per_s"].as_f64().unwrap();
    assert!(page.contains(&format!("estimate: at most {rate:.2} tokens/s")), "{page}");
    let sum = |list: &str, key: &str| {
        json[list].as_array().unwrap().iter().map(|row| row[key].as_f64().unwrap()).sum::<f64>()
    };
    assert_eq!(sum("layers", "len_bytes"), sum("weights", "len_bytes"));
    let shares = sum("weights", "share_of_traffic") + sum("kv_groups", "share_of_traffic");
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    let read: f64 = json["account"]["tiers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tier| tier["bytes_read_per_token"].as_f64().unwrap())
        .sum();
    assert_eq!(read, sum("weights", "bytes_read_per_token") + sum("kv_groups", "bytes_read_per_token"));
    assert!((89.6e9 / read / rate - 1.0).abs() < 1e-9);
    assert_eq!(json["targets"][0]["decode"][0]["label"], "embed");
}

/// What a person types first: on a terminal of 24 lines, nothing scrolls away.
#[test]
fn the_summary_is_one_screen_and_names_the_machines_that_fit() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::named("phoenix-32gb").unwrap().plan(&Default::default()).unwrap();
    let path = written(&folder, "model.unicorn", &with(generic_options(), |options| options.machine = machine));
    let summary = inspect(&path, &[]);
    assert!(summary.lines().count() <= 24, "{summary}");
    assert!(summary.lines().all(|line| line.chars().count() <= 120), "{summary}");
    for part in ["parameters", "bits per weight", "relative error 0.", "made by    unicorn-compile ", "weights int4"] {
        assert!(summary.contains(part), "{part:?} is not in {summary}");
    }
    let json: Value = serde_json::from_str(&inspect(&path, &["--json"])).unwrap();
    let machines = json["machines"].as_array().unwrap();
    assert_eq!(machines.len(), Machine::presets().count());
    let planned = machines.iter().find(|machine| machine["name"] == "phoenix-32gb").unwrap();
    // For the machine that it was planned for, the figures are the plan's own.
    assert_eq!(planned["account"], json["account"]);
    assert_eq!(planned["estimated_tokens_per_s"], json["estimated_tokens_per_s"]);
    let rate = planned["estimated_tokens_per_s"].as_f64().unwrap();
    let line = summary.lines().find(|line| line.contains("phoenix-32gb (planned)")).unwrap();
    assert!(line.contains("  yes  ") && line.contains(&format!("{rate:.1}  vram at 89.6 GB/s")), "{line}");
    // Each section that it names is printed by its name.
    let names = summary.lines().find_map(|line| line.strip_prefix("sections: ")).unwrap().split(", ");
    let all = inspect(&path, &["--all"]);
    for name in names {
        let section = inspect(&path, &["--section", name]);
        assert!(section.lines().count() > 1 && all.contains(&section), "{name}: {section}");
    }
    assert!(all.starts_with(summary.lines().next().unwrap()));
}

/// A machine of one's own, or a shipped one with other sizes, stands before the shipped ones.
#[test]
fn the_machine_that_was_planned_for_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let budget = "vram=1GiB,gtt=2GiB".parse().unwrap();
    let machine = Machine::named("phoenix-32gb").unwrap().plan(&budget).unwrap();
    let path = written(&folder, "model.unicorn", &with(generic_options(), |options| options.machine = machine));
    let summary = inspect(&path, &[]);
    let planned: Vec<&str> = summary.lines().filter(|line| line.contains("(planned)")).collect();
    assert!(planned.len() == 1 && planned[0].contains("1.00 GiB + 2.00 GiB"), "{summary}");
    assert!(summary.contains("  phoenix-32gb            3.50 GiB + 14.00 GiB"), "{summary}");
}

/// Names of an artifact reach a terminal without their control characters.
#[test]
fn control_characters_of_names_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(&folder, "model.unicorn", &generic_options());
    let bytes = std::fs::read(&path).unwrap();
    let view = ArtifactView::parse(&bytes).unwrap();
    let mut meta = view.meta.clone();
    let hostile = |name: &str| format!("{name}\u{1b}[2J\n\u{7}");
    meta.model.name = hostile(&meta.model.name);
    meta.model.architecture = hostile(&meta.model.architecture);
    meta.tensors.iter_mut().for_each(|tensor| tensor.name = hostile(&tensor.name));
    meta.provenance.compiler_version = hostile(&meta.provenance.compiler_version);
    let mut plan = view.plan.clone();
    plan.machine.name = hostile("machine");
    plan.weights.iter_mut().for_each(|weight| weight.name = hostile(&weight.name));
    let changed = folder.path().join("hostile.unicorn");
    let mut writer = ArtifactWriter::create(&changed, view.weights().len()).unwrap();
    for section in view.weights() {
        writer.begin_slice().unwrap();
        writer.weight_bytes(section.bytes).unwrap();
    }
    writer.finish(&meta, &plan, &view.kernels, &view.tokenizer).unwrap();
    let diff = ["--diff", path.to_str().unwrap(), "--all"];
    for arguments in [&[][..], &["--all"], &diff] {
        let text = inspect(&changed, arguments);
        let raw: Vec<char> = text.chars().filter(|letter| letter.is_control() && *letter != '\n').collect();
        assert!(raw.is_empty() && text.contains("\\u{1b}[2J\\n\\u{7}"), "{raw:?} in {text}");
    }
    let page = folder.path().join("page.html");
    inspect(&changed, &["--html", page.to_str().unwrap()]);
    assert!(!std::fs::read_to_string(page).unwrap().contains('\u{1b}'));
}

#[test]
fn a_difference_is_reported_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let left = written(&folder, "left.unicorn", &generic_options());
    let policy = FormatPolicy { weights: WeightsOption::Int8, group: 32 };
    let right = written(&folder, "right.unicorn", &with(generic_options(), |options| options.policy = policy));
    let same = inspect(&left, &["--diff", left.to_str().unwrap()]);
    assert_eq!(same, "no difference between model and model\n");
    let summary = inspect(&left, &["--diff", right.to_str().unwrap()]);
    assert!(summary.lines().count() <= 24 && summary.contains("bits per weight → "), "{summary}");
    assert!(summary.contains(" differences: --section tensors\n"), "{summary}");
    let text = inspect(&left, &["--diff", right.to_str().unwrap(), "--all"]);
    for expected in [
        "options\n  weights: int4 → int8\n",
        "  layers.0.mlp.down_proj.weight: int4/32 4.500 bits a weight, relative error ",
        " → int8 8.500 bits a weight, relative error ",
        "weights\n",
        "kernels\n",
        "- generic matmul ",
        "+ generic matmul ",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
    assert!(!text.contains("architecture"), "{text}");
    let json: Value = serde_json::from_str(&inspect(&left, &["--diff", right.to_str().unwrap(), "--json"])).unwrap();
    let changes = json["changes"].as_array().unwrap();
    assert!(
        changes.contains(&serde_json::json!({ "part": "options", "what": "weights", "left": "int4", "right": "int8" }))
    );
}

#[test]
fn nothing_is_written_over_an_artifact() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(&folder, "model.unicorn", &generic_options());
    let before = std::fs::read(&path).unwrap();
    let config = folder.path().join("config.json");
    std::fs::write(&config, model().config().to_string()).unwrap();
    let mut page = program("unicorn-run");
    page.arg("inspect").arg(&path).arg("--html").arg(&path);
    let mut plan = program("unicorn-compile");
    plan.arg("--synthetic").arg(&config).args(["--plan-only", "--quiet", "-o"]).arg(&path);
    for mut command in [page, plan] {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains("model.unicorn: file is an artifact, expected a name for the p"), "{stderr}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// 20 GB of weights that were never written. What reading them would cost shows in the map's resident pages.
#[test]
fn a_large_artifact_opens_without_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.unicorn");
    write_sparse_artifact(folder.path(), &path);
    let file = MappedFile::open(&path).unwrap();
    assert!(file.bytes().len() > 20_000_000_000);
    let begin = Instant::now();
    let view = ArtifactView::parse(file.bytes()).unwrap();
    let taken = begin.elapsed();
    // Milliseconds; the bound leaves room for a busy machine, and hashing so much takes seconds on any.
    assert!(taken < Duration::from_millis(250), "{taken:?}");
    assert!(view.plan.slices.len() >= 19);
    // The structured sections and what the system reads ahead around them.
    let resident = resident_kib(&path);
    assert!(resident < 8 << 10, "{resident} KiB of the map are resident");

    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -t 1; exec \"$@\"", "sh"]).arg(program("unicorn-run").get_program()).arg("inspect");
    let output = limited.arg(&path).output().unwrap();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// An artifact as the compiler would plan it, whose weight sections are holes.
fn write_sparse_artifact(folder: &Path, path: &Path) {
    let model = TinyModel::of_ten_thousand_million();
    let config = folder.join("config.json");
    std::fs::write(&config, model.config().to_string()).unwrap();
    let policy = FormatPolicy { weights: WeightsOption::F16, group: 32 };
    let options = with(generic_options(), |options| options.policy = policy);
    let planned = plan(Source::Synthetic(&config), &options, &mut Silent).unwrap();
    let kernels = planned.kernels(&mut Silent).unwrap();
    // The metadata of a small compile fits: it does not describe the plan.
    let small = Compiled::of(&TinyModel { vocab_size: 32_000, ..TinyModel::default() }, &generic_options()).artifact();
    let small = ArtifactView::parse(&small).unwrap();

    let file = File::create(path).unwrap();
    let slices = &planned.plan().slices;
    let mut end = (HEADER_BYTES + (slices.len() + 4) * ENTRY_BYTES) as u64;
    let mut sections = Vec::new();
    for (index, slice) in slices.iter().enumerate() {
        let offset_bytes = end.next_multiple_of(SECTION_ALIGN);
        end = offset_bytes + slice.bytes;
        let (kind, index, hash) = (SectionKind::Weights as u32, index as u32, [0; 32]);
        sections.push(Section { kind, index, offset_bytes, len_bytes: slice.bytes, hash });
    }
    let bodies = [
        (SectionKind::Metadata, encode(&small.meta)),
        (SectionKind::Plan, encode(planned.plan())),
        (SectionKind::Kernels, encode(&kernels)),
        (SectionKind::Tokenizer, encode(&small.tokenizer)),
    ];
    for (kind, body) in bodies {
        let offset_bytes = end.next_multiple_of(SECTION_ALIGN);
        end = offset_bytes + body.len() as u64;
        file.write_all_at(&body, offset_bytes).unwrap();
        let (len_bytes, hash) = (body.len() as u64, *blake3::hash(&body).as_bytes());
        sections.push(Section { kind: kind as u32, index: 0, offset_bytes, len_bytes, hash });
    }
    file.write_all_at(&encode_header(&sections, end), 0).unwrap();
}

/// Resident memory of this process's map of `path`, as the kernel counts it.
fn resident_kib(path: &Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let name = path.to_str().unwrap();
    let lines: Vec<&str> = maps.lines().skip_while(|line| !line.ends_with(name)).collect();
    let resident = lines.iter().find_map(|line| line.strip_prefix("Rss:")).expect("the file is mapped");
    resident.trim().trim_end_matches(" kB").parse().unwrap()
}
