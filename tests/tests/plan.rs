//! Plans: that Gemma 3 27B fits where it must, that planning reads no weights, and what holds for any model on any machine.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use serde_json::Value;
use tests::compiled::{Silent, options, with};
use tests::programs::program;
use tests::tiny_model::{Family, TinyModel};
use unicorn_artifact::header::MAX_SLICE_BYTES;
use unicorn_artifact::plan::BUFFER_ALIGN;
use unicorn_artifact::{Account, MachinePlan, Plan, Reader, Tier, TierPlan};
use unicorn_compiler::Machine;
use unicorn_compiler::place::replace::replace;
use unicorn_compiler::select::{KernelDispatch, Operand, SelectOptions, Selection};
use unicorn_compiler::weights::{PackedWeight, Precedence};
use unicorn_compiler::{CompileError, CompileOptions, Planned, Source, plan};
use unicorn_kernels::KvFormat;
use unicorn_spirv::target;

const GIB: u64 = 1 << 30;

fn shape(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/shapes").join(name)
}

/// For all targets, as a user's compile.
fn options_for(machine: &str, budget: &str) -> CompileOptions {
    let machine = Machine::named(machine).unwrap().plan(&budget.parse().unwrap()).unwrap();
    with(options(target::defaults(), Vec::new()), |options| options.machine = machine)
}

fn plan_of(shape_name: &str, options: &CompileOptions) -> Result<Planned, CompileError> {
    plan(Source::Synthetic(&shape(shape_name)), options, &mut Silent)
}

#[test]
fn gemma_3_27b_fits_16_gb_of_vram_and_10_gb_of_gtt() {
    let planned = plan_of("gemma-3-27b.json", &options_for("phoenix-96gb", "vram=16GB,gtt=10GB")).unwrap();
    assert_sound(&planned);
    let plan = planned.plan();
    assert_eq!(plan.planned_context_tokens, 8192);
    assert!(plan.kv_groups.iter().all(|group| group.tier == Tier::Vram), "the cache comes before the FFN");
    let account = Account::of(plan);
    let [vram, gtt] = ["vram", "gtt"].map(|name| account.tiers.iter().find(|tier| tier.tier.name() == name).unwrap());
    assert!(vram.bytes() <= 16_000_000_000 && vram.bytes() > 15_500_000_000, "{vram}");
    assert!(gtt.bytes() < 2 * GIB, "{gtt}");
    // What had no room is the output head, which is the embedding table, too.
    let spilled = plan.weights.iter().filter(|weight| plan.slices[weight.slice as usize].tier == Tier::Gtt);
    assert!(spilled.clone().count() > 0);
    assert!(spilled.clone().all(|weight| weight.name.starts_with("embed_tokens")), "{:?}", spilled.collect::<Vec<_>>());
}

/// Rows of an embedding may come from slow memory; an output head is read whole.
#[test]
fn an_embedding_leaves_fast_memory_to_others() {
    let planned = plan_of("llama-3-8b.json", &options_for("nvidia", "gtt=4GiB")).unwrap();
    let plan = planned.plan();
    let tiers = |name: &str| {
        let of = plan.weights.iter().filter(|weight| weight.name.starts_with(name));
        of.map(|weight| plan.slices[weight.slice as usize].tier).collect::<BTreeSet<Tier>>()
    };
    assert_eq!(tiers("embed_tokens"), BTreeSet::from([Tier::Gtt]));
    assert_eq!((tiers("lm_head"), tiers("layers.")), (BTreeSet::from([Tier::Vram]), BTreeSet::from([Tier::Vram])));
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_remedies() {
    let refusal =
        |budget: &str| plan_of("gemma-3-27b.json", &options_for("phoenix-32gb", budget)).err().unwrap().to_string();
    let little_short = refusal("vram=12GiB,gtt=4GiB");
    let lines: Vec<&str> = little_short.lines().collect();
    assert!(
        lines[0].starts_with("model does not fit phoenix-32gb: weights 14.81 GiB, KV cache of 8192 tokens 1.25 GiB")
    );
    assert!(lines[0].contains("expected at most 12.00 GiB of vram and 4.00 GiB of gtt; "), "{}", lines[0]);
    assert!(lines[1].starts_with("  a shorter context: "), "{}", lines[1]);
    assert!(lines[2].starts_with("  a smaller KV cache: int8 fits and saves "), "{}", lines[2]);
    assert!(lines[3].starts_with("  smaller weights: int4 in groups of 128 fits and saves 1.12 GiB"), "{}", lines[3]);

    // Each way out leads out.
    let number = |line: &str, flag: &str| {
        let rest = line.split_once(flag).unwrap().1;
        rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse::<u32>().unwrap()
    };
    let options = || options_for("phoenix-32gb", "vram=12GiB,gtt=4GiB");
    let context = number(lines[1], "a shorter context: ");
    let with_context = |context| with(options(), |options| options.context_tokens = Some(context));
    assert!(plan_of("gemma-3-27b.json", &with_context(context)).is_ok());
    assert!(plan_of("gemma-3-27b.json", &with(options(), |options| options.kv = KvFormat::Int8)).is_ok());
    assert!(plan_of("gemma-3-27b.json", &with_context(context + 32)).is_err());
    let (gtt, _) = lines[4].strip_prefix("  more memory: ").unwrap().split_once(" of gtt are enough").unwrap();
    assert!(plan_of("gemma-3-27b.json", &options_for("phoenix-32gb", &format!("vram=12GiB,gtt={gtt}"))).is_ok());

    let hopeless = refusal("vram=1GiB,gtt=2GiB");
    assert!(hopeless.contains("a shorter context is not enough: even 1 token saves only 1.2"), "{hopeless}");
    assert!(hopeless.contains("int4 in groups of 128 is not enough"), "{hopeless}");
}

#[test]
fn a_context_beyond_the_models_is_refused() {
    let options = with(options_for("generic", "vram=99GiB"), |options| options.context_tokens = Some(131_073));
    let message = plan_of("gemma-3-27b.json", &options).err().unwrap().to_string();
    assert_eq!(message, "context is 131073 tokens, expected 1 to 131072, as many as the model was made for");
}

/// Where time grew with the square of the layers this took minutes; a hundredth of that is no matter of a slow machine.
#[test]
fn two_thousand_layers_are_planned_in_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    let mut deep: Value = serde_json::from_slice(&std::fs::read(shape("tiny.json")).unwrap()).unwrap();
    let mut with_layers = |layers: u32| {
        deep["num_hidden_layers"] = layers.into();
        std::fs::write(&config, deep.to_string()).unwrap();
        // The one with the most passes over the dispatches: fused tails and counter synchronisation.
        let options = tests::compiled::options(vec![unicorn_compiler::target_by_name("nvidia").unwrap()], Vec::new());
        let begun = std::time::Instant::now();
        let dispatches = plan(Source::Synthetic(&config), &options, &mut Silent).map(|planned| {
            let programs = planned.placement.programs.iter().flatten();
            programs.map(|program| program.dispatches.len()).sum::<usize>()
        });
        (dispatches, begun.elapsed())
    };
    let (dispatches, taken) = with_layers(2000);
    assert!(dispatches.unwrap() > 2000 * 3 * 17, "every program goes through every layer");
    assert!(taken.as_secs() < 120, "{taken:?}");
    let message = with_layers(10_001).0.unwrap_err().to_string();
    assert!(message.contains("num_hidden_layers is 10001, expected an integer from 1 to 10000"), "{message}");
}

/// A file of 20 GB of which only the header has ever been written: a program that read the weights would reach the
/// limit on its time, because hashing that many zeros takes several seconds on any processor.
#[test]
fn planning_a_sparse_file_reads_no_weights() {
    let folder = tempfile::tempdir().unwrap();
    write_sparse_model(folder.path());
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -t 1; exec \"$@\"", "sh"]).arg(program("unicorn-compile").get_program());
    command.arg(folder.path()).args(["--plan-only", "--json", "--machine", "nvidia", "--target", "generic"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["machine"], "nvidia");
    assert!(report["parameters"].as_u64().unwrap() > 10_000_000_000);
    assert!(report["plan"]["slices"].as_array().unwrap().len() > 4);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn a_plan_is_written_where_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("plan.txt");
    let run = |arguments: &[&str]| {
        let mut command = program("unicorn-compile");
        command.arg("--synthetic").arg(shape("smollm2-135m.json")).arg("--plan-only").args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let printed = run(&["--emit", "plan", "--machine", "phoenix-16gb"]);
    assert!(printed.contains("tokens, on phoenix-16gb\n") && printed.contains("\nslice vram slice0+0 "), "{printed}");
    assert!(printed.contains("estimate: at most ") && printed.contains(" of vram at 89.6 GB/s"), "{printed}");
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
    // A user's own machine: a shipped one, written to another file.
    let mine = folder.path().join("my-laptop.json");
    let preset = Path::new(env!("CARGO_MANIFEST_DIR")).join("../artifacts/machines/phoenix-16gb.json");
    std::fs::copy(preset, &mine).unwrap();
    assert_eq!(
        run(&["--machine", mine.to_str().unwrap()]).lines().next().unwrap(),
        "LlamaForCausalLM: 134515008 parameters, 8192 tokens, on my-laptop"
    );
    std::fs::remove_file(mine).unwrap();
    run(&["-o", output.to_str().unwrap()]);
    let text = std::fs::read_to_string(&output).unwrap();
    for thing in [
        "machine generic, ",
        "pool vram kv0+0 ",
        "activation vram arena+",
        "buffer vram logits+0 ",
        "buffer gtt step+0 ",
    ] {
        assert!(text.contains(thing), "{thing} is not in {text}");
    }
    let json = folder.path().join("plan.json");
    run(&["-o", json.to_str().unwrap(), "--json"]);
    let plan: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(plan["plan"]["machine"]["name"], "generic");
}

/// Qwen3-30B-A3B: a token reads 8 of 128 experts, so that what is read lies in fast memory before them. A laptop of 16 GB has no room for
/// it, and the refusal states the difference.
#[test]
fn a_mixture_of_30b_is_planned_on_a_laptop_of_32_gb() {
    let run = |machine: &str| planned_for_rdna3("qwen3-30b-a3b.json", machine, &[]);
    let output = run("phoenix-32gb");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["parameters"], 30_532_122_624u64);
    let bytes = |field: &str| {
        let weights = report["plan"]["weights"].as_array().unwrap().iter();
        weights.map(|weight| weight[field].as_u64().unwrap()).sum::<u64>()
    };
    let (stored, read) = (bytes("len_bytes"), bytes("bytes_read_per_token"));
    // 4.5 bits each, and of 128 experts a token reads 8: attention, head and routers beside them.
    assert!((16_000_000_000..18_500_000_000).contains(&stored), "{stored}");
    assert!((1_700_000_000..2_200_000_000).contains(&read), "{read}");
    let tier_of = |name: &str| {
        let slices = &report["plan"]["slices"];
        let weights = report["plan"]["weights"].as_array().unwrap().iter();
        let mut of_name = weights.filter(|weight| weight["name"].as_str().unwrap().contains(name));
        let tier =
            |weight: &Value| slices[weight["slice"].as_u64().unwrap() as usize]["tier"].as_str().unwrap().to_owned();
        let tiers: std::collections::BTreeSet<String> = of_name.by_ref().map(tier).collect();
        tiers.into_iter().collect::<Vec<_>>().join("+").to_lowercase()
    };
    assert_eq!(tier_of("self_attn.o_proj"), "vram");
    assert_eq!(tier_of("mlp.experts."), "gtt+vram");
    let output = run("phoenix-16gb");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    for part in [
        "model does not fit phoenix-16gb: weights 16.30 GiB",
        "expected at most 256.00 MiB of vram and 7.75 GiB of",
        "try --budget",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

/// gpt-oss-20b as it is published: experts are MXFP4, of which a token reads 4 of 32, and the rest is INT4 and INT8.
#[test]
fn gpt_oss_20b_is_planned_on_a_laptop_of_32_gb() {
    let run = |machine: &str| planned_for_rdna3("gpt-oss-20b.json", machine, &[]);
    let output = run("phoenix-32gb");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["parameters"], 20_914_757_184u64);
    let weights = report["plan"]["weights"].as_array().unwrap();
    let of_experts = |field: &str| -> u64 {
        let experts = weights.iter().filter(|weight| {
            let name = weight["name"].as_str().unwrap();
            name.contains("mlp.experts.") && !name.contains("bias")
        });
        experts.map(|weight| weight[field].as_u64().unwrap()).sum()
    };
    // 24 layers of 32 experts of three matrices, 2880 by 2880, 4.5 bits a weight.
    assert_eq!(of_experts("len_bytes"), 24 * 32 * 3 * 2880 * 2880 * 9 / 16);
    assert_eq!(of_experts("bytes_read_per_token"), 24 * 4 * 3 * 2880 * 2880 * 9 / 16);
    let output = run("phoenix-16gb");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    for part in ["model does not fit phoenix-16gb: weights 1", "of vram and 7.75 GiB of", "try --budget"] {
        assert!(error.contains(part), "{error}");
    }
}

/// Gemma 3n E2B: nearly half of its numbers are rows of a second embedding, of which a token reads one.
#[test]
fn gemma_3n_e2b_is_planned_on_a_laptop_of_16_gb() {
    let output = planned_for_rdna3("gemma-3n-e2b.json", "phoenix-16gb", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // As transformers counts them.
    assert_eq!(report["parameters"], 4_435_182_688u64);
    let weights = report["plan"]["weights"].as_array().unwrap();
    let sum = |of: &str, field: &str| -> u64 {
        let chosen = weights.iter().filter(|weight| weight["name"].as_str().unwrap().contains(of));
        chosen.map(|weight| weight[field].as_u64().unwrap()).sum()
    };
    // 30 layers of 256 elements, 8.5 bits each.
    assert_eq!(sum("embed_tokens_per_layer", "bytes_read_per_token"), 30 * 256 * 17 / 16);
    assert_eq!(sum("embed_tokens_per_layer", "len_bytes"), 262_144 * 30 * 256 * 17 / 16);
    for projections in ["altup_projections", "altup_unembed_projections"] {
        assert_eq!(sum(projections, "bytes_read_per_token"), 3 * 2048 * 2048 * 17 / 16);
    }
    let read = sum("", "bytes_read_per_token");
    assert!((1_400_000_000..1_800_000_000).contains(&read), "{read}");
}

/// Gemma 4 26B-A4B: a token reads 8 of 128 experts, and the MLP beside them.
#[test]
fn gemma_4_26b_a4b_is_planned_on_a_laptop_of_32_gb() {
    let output = planned_for_rdna3("gemma-4-26b-a4b.json", "phoenix-32gb", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // As transformers counts them, with each layer's scalar.
    assert_eq!(report["parameters"], 25_233_141_790u64);
    let weights = report["plan"]["weights"].as_array().unwrap();
    let sum = |of: &str, field: &str| -> u64 {
        let chosen = weights.iter().filter(|weight| weight["name"].as_str().unwrap().contains(of));
        chosen.map(|weight| weight[field].as_u64().unwrap()).sum()
    };
    // 30 layers of three matrices, 2816 by 704, 4.5 bits a weight.
    assert_eq!(sum("mlp.experts.", "bytes_read_per_token"), 30 * 8 * 3 * 2816 * 704 * 9 / 16);
    assert_eq!(sum("mlp.experts.", "len_bytes"), 30 * 128 * 3 * 2816 * 704 * 9 / 16);
    assert_eq!(sum("mlp.gate_proj", "bytes_read_per_token"), 30 * 2 * 2816 * 2112 * 9 / 16);
    let read = sum("", "bytes_read_per_token");
    assert!((2_000_000_000..3_500_000_000).contains(&read), "{read}");
    let output = planned_for_rdna3("gemma-4-26b-a4b.json", "phoenix-16gb", &[]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    for part in ["model does not fit phoenix-16gb: weights 1", "of vram and 7.75 GiB of", "try --budget"] {
        assert!(error.contains(part), "{error}");
    }
}

/// Qwen3.6-35B-A3B: a token reads 8 of 256 experts and the shared one, and 30 of 40 layers have a delta net. Its 4.5 bits a weight are more
/// than a laptop of 32 GB gives, and the budget that the refusal names is enough.
#[test]
fn qwen_3_6_35b_a3b_is_refused_by_laptops_of_32_and_16_gb() {
    for (machine, parts) in [
        ("phoenix-32gb", ["3.50 GiB of vram and 14.00 GiB of gtt; 1.69 GiB are missing", "try --budget gtt=15.7GiB"]),
        ("phoenix-16gb", ["256.00 MiB of vram and 7.75 GiB of gtt; 11.18 GiB are missing", "try --budget gtt=19GiB"]),
    ] {
        let output = planned_for_rdna3("qwen3.6-35b-a3b.json", machine, &[]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        let begin = format!("model does not fit {machine}: weights 18.67 GiB");
        for part in [begin.as_str()].into_iter().chain(parts) {
            assert!(error.contains(part), "{error}");
        }
    }
    let output = planned_for_rdna3("qwen3.6-35b-a3b.json", "phoenix-32gb", &["--budget", "gtt=15.7GiB"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["parameters"], 34_660_610_688u64);
    let weights = report["plan"]["weights"].as_array().unwrap();
    let sum = |of: &str, field: &str| -> u64 {
        let chosen = weights.iter().filter(|weight| weight["name"].as_str().unwrap().contains(of));
        chosen.map(|weight| weight[field].as_u64().unwrap()).sum()
    };
    // 40 layers of three matrices, 2048 by 512, 4.5 bits a weight; the shared expert is in the others' stacks.
    assert_eq!(sum("mlp.experts.", "bytes_read_per_token"), 40 * (8 + 1) * 3 * 2048 * 512 * 9 / 16);
    assert_eq!(sum("mlp.experts.", "len_bytes"), 40 * (256 + 1) * 3 * 2048 * 512 * 9 / 16);
    assert_eq!(sum("mlp.shared_expert.", "len_bytes"), sum("mlp.experts.", "len_bytes"));
    let read = sum("", "bytes_read_per_token");
    assert!((1_700_000_000..2_200_000_000).contains(&read), "{read}");
}

/// `--plan-only --json` of a shape with a context of 8192 tokens, with `more` options.
fn planned_for_rdna3(shape_name: &str, machine: &str, more: &[&str]) -> std::process::Output {
    let mut command = program("unicorn-compile");
    command.arg("--synthetic").arg(shape(shape_name));
    command.args(["--plan-only", "--json", "--target", "rdna3", "--context", "8192", "--machine", machine]).args(more);
    command.output().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever the model and the machine: the plan is consistent, or the memory is really too small.
    #[test]
    fn any_plan_is_sound(model in any_model(), shares in (0.0f64..1.5, 0.0f64..1.5), sparse_rows: [bool; 2], context in 1u32..4096) {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.json");
        std::fs::write(&config, model.config().to_string()).unwrap();
        let planned_on = |machine| {
            let generic = target::by_name("generic").unwrap();
            let options = with(options(vec![generic], Vec::new()), |options| { options.machine = machine; options.context_tokens = Some(context); });
            plan(Source::Synthetic(&config), &options, &mut Silent)
        };
        let unlimited = planned_on(machine([None, None], sparse_rows)).unwrap();
        assert_sound(&unlimited);
        let bytes = Account::of(&unlimited.placement.plan).bytes();
        let [vram, gtt] = [shares.0, shares.1].map(|share| (bytes as f64 * share) as u64);
        let small = machine([Some(vram), Some(gtt)], sparse_rows);
        assert_replaced(&unlimited.placement.plan, &small, context);
        match planned_on(small) {
            Ok(planned) => assert_sound(&planned),
            Err(error) => {
                prop_assert!(error.to_string().starts_with("model does not fit any: weights "), "{error}");
                // Gaps between weights are the only room that a plan may leave.
                prop_assert!(gtt < bytes + 256 * 1024, "{gtt} bytes of GTT would be enough for {bytes}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whichever kernels a target takes for matrices of these sizes: what one reads, an earlier one has written.
    #[test]
    fn nothing_is_read_that_the_step_did_not_write(
        model in any_model(), wider in (1usize..4, 1usize..4), fold: bool, kv in prop::sample::select(vec![KvFormat::F16, KvFormat::Int8]),
    ) {
        let model = TinyModel { hidden: wider.0 * model.hidden, intermediate: wider.1 * model.intermediate, ..model };
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.json");
        std::fs::write(&config, model.config().to_string()).unwrap();
        let planned = plan(Source::Synthetic(&config), &options_for("generic", "vram=99GiB"), &mut Silent).unwrap();
        let Planned { checkpoint, verified, weights, .. } = &planned;
        let mut options = SelectOptions::default();
        (options.fold, options.kv, options.alternatives) = (fold, kv, false);
        let selection = Selection::of(verified, &checkpoint.config, weights, &target::defaults(), options);
        for selected in &selection.targets {
            for program in &selected.programs {
                assert_written_first(&program.dispatches, &format!("{:?} for {}", program.kind, selected.target.name));
            }
        }
    }
}

fn assert_written_first(dispatches: &[KernelDispatch], what: &str) {
    let mut written: Vec<Operand> = Vec::new();
    for dispatch in dispatches {
        let operands = dispatch.spec.bindings().into_iter().zip(&dispatch.operands);
        let activations = operands.filter(|(_, operand)| operand.is_activation()).collect::<Vec<_>>();
        let read = activations.iter().filter(|(binding, _)| !binding.writes);
        for (_, operand) in read {
            assert!(
                written.contains(operand),
                "{what}: {} reads {operand:?}, which no dispatch has written",
                dispatch.label
            );
        }
        written.extend(activations.iter().filter(|(binding, _)| binding.writes).map(|(_, operand)| **operand));
    }
}

fn any_model() -> impl Strategy<Value = TinyModel> {
    let families: Vec<Family> = Family::all().collect();
    let sizes = (1usize..60, 1usize..80, 1usize..6, 1usize..5, 1usize..4, 300usize..70_000);
    (prop::sample::select(families), sizes, any::<bool>(), prop::option::of(1usize..3000)).prop_map(
        |(family, (hidden, intermediate, layers, kv_heads, gqa, vocab_size), tied, sliding_window)| TinyModel {
            family,
            vocab_size,
            hidden: 32 * hidden,
            intermediate: 32 * intermediate,
            layers,
            heads: kv_heads * gqa,
            kv_heads,
            head_dim: 32,
            tied,
            sliding_window,
            max_position_embeddings: 4096,
            ..TinyModel::default()
        },
    )
}

fn machine(budgets: [Option<u64>; 2], sparse_rows: [bool; 2]) -> MachinePlan {
    let tier = |index: usize, tier, readers: &[Reader]| TierPlan {
        tier,
        budget_bytes: budgets[index],
        bytes_per_s: None,
        readers: readers.to_vec(),
        sparse_rows: sparse_rows[index],
        source: String::new(),
    };
    let gtt = tier(1, Tier::Gtt, &[Reader::Gpu, Reader::Cpu]);
    MachinePlan { name: "any".into(), tiers: vec![tier(0, Tier::Vram, &[Reader::Gpu]), gtt] }
}

/// What holds for every plan.
#[track_caller]
fn assert_sound(planned: &Planned) {
    let plan = planned.plan();
    let mut ids: Vec<usize> = planned.placement.weights.ids.iter().map(|id| id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, Vec::from_iter(0..planned.weights.list.len()), "every weight is placed once");
    assert_eq!(ids.len(), plan.weights.len());
    for (weight, id) in plan.weights.iter().zip(&planned.placement.weights.ids) {
        let packed = planned.weights.get(*id);
        assert_eq!((&weight.name, weight.len_bytes), (&packed.name, packed.len_bytes));
    }

    let mut ends = vec![0; plan.slices.len()];
    for weight in &plan.weights {
        let end = &mut ends[weight.slice as usize];
        assert!(weight.offset_bytes >= *end && weight.offset_bytes.is_multiple_of(BUFFER_ALIGN), "{weight:?}");
        *end = weight.offset_bytes + weight.len_bytes;
    }
    for (slice, end) in plan.slices.iter().zip(ends) {
        assert!(slice.bytes == end && end > 0 && end <= MAX_SLICE_BYTES, "{slice:?} ends at {end}");
    }

    for (index, one) in plan.activations.iter().enumerate() {
        assert!(one.offset_bytes.is_multiple_of(BUFFER_ALIGN) && one.offset_bytes + one.len_bytes <= plan.arena_bytes);
        for other in &plan.activations[..index] {
            let together = one.first_use <= other.last_use && other.first_use <= one.last_use;
            let apart = one.offset_bytes >= other.offset_bytes + other.len_bytes
                || other.offset_bytes >= one.offset_bytes + one.len_bytes;
            assert!(!together || apart, "{one:?} and {other:?}");
        }
    }

    for tier in Account::of(plan).tiers {
        assert!(tier.budget_bytes.is_none_or(|budget| tier.bytes() <= budget), "{tier}");
        let of_gpu = plan.machine.gpu_tiers().any(|one| one.tier == tier.tier);
        assert!(of_gpu || tier.bytes() == 0, "{tier}");
    }
    assert_first_in_line_first(planned, plan);
}

/// The plan for another machine keeps every address and every budget.
#[track_caller]
fn assert_replaced(old: &Plan, machine: &MachinePlan, context_tokens: u32) {
    let Ok(new) = replace(old, machine, context_tokens) else { return };
    for tier in Account::of(&new).tiers {
        assert!(tier.budget_bytes.is_none_or(|budget| tier.bytes() <= budget), "{tier}");
    }
    assert_eq!(Account::of(&new).bytes(), Account::of(old).bytes());
    let places = |plan: &Plan| -> Vec<(String, u32, u64)> {
        plan.weights.iter().map(|weight| (weight.name.clone(), weight.slice, weight.offset_bytes)).collect()
    };
    assert_eq!(places(&new), places(old));
    assert_eq!((&new.activations, new.arena_bytes), (&old.activations, old.arena_bytes));
    assert_eq!(&replace(&new, &old.machine, context_tokens).unwrap(), old, "going back undoes it");
}

/// No weight is in fast memory in place of one that comes before it: only in a gap that the other does not fit.
#[track_caller]
fn assert_first_in_line_first(planned: &Planned, plan: &Plan) {
    let in_tier = |wanted: Tier| {
        let both = plan.weights.iter().zip(&planned.placement.weights.ids);
        let whole = both.filter(|(weight, _)| weight.bytes_read_per_token >= weight.len_bytes);
        whole
            .filter(|(weight, _)| plan.slices[weight.slice as usize].tier == wanted)
            .map(|(_, id)| planned.weights.get(*id))
            .collect::<Vec<&PackedWeight>>()
    };
    let (fast, slow) = (in_tier(Tier::Vram), in_tier(Tier::Gtt));
    use Precedence::{Attention, Experts, FeedForward, Head, Rows, SharedExperts};
    let rank = |precedence| {
        [Attention, FeedForward, Head, SharedExperts, Experts, Rows].iter().position(|one| *one == precedence)
    };
    for behind in fast {
        for ahead in slow.iter().filter(|ahead| rank(ahead.precedence) < rank(behind.precedence)) {
            assert!(
                behind.len_bytes.next_multiple_of(BUFFER_ALIGN) < ahead.len_bytes.next_multiple_of(BUFFER_ALIGN),
                "{} lies in VRAM and {} does not",
                behind.name,
                ahead.name
            );
        }
    }
}

/// A Llama of 10 thousand million weights in bf16, in a sparse file that takes no space on disk.
fn write_sparse_model(folder: &Path) {
    let model = TinyModel::of_ten_thousand_million();
    let config = folder.join("config.json");
    std::fs::write(&config, model.config().to_string()).unwrap();
    let shapes = plan(Source::Synthetic(&config), &options_for("generic", "vram=99GiB"), &mut Silent).unwrap();
    let mut header = serde_json::Map::new();
    let mut end = 0usize;
    for (name, shape) in shapes.checkpoint.config.tensor_shapes() {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        let source = if name == "lm_head.weight" { name } else { format!("model.{name}") };
        let entry = serde_json::json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, end] });
        header.insert(source, entry);
    }
    assert!(end > 20_000_000_000);
    let header = Value::Object(header).to_string();
    let path = folder.join("model.safetensors");
    let mut start = (header.len() as u64).to_le_bytes().to_vec();
    start.extend(header.as_bytes());
    std::fs::write(&path, &start).unwrap();
    File::options().write(true).open(&path).unwrap().set_len((start.len() + end) as u64).unwrap();
}
