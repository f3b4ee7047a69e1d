//! `--lora`: an adapter that is merged gives the artifact of the merged model; others are refused by name.

use std::path::Path;

use half::bf16;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tests::compiled::{Compiled, options, with};
use tests::models::models;
use tests::programs::program;
use tests::reference::{read_golden, relative_error};
use tests::tiny_model::{Family, NamedTensor, TinyModel, write_folder};
use unicorn_artifact::ArtifactView;
use unicorn_compiler::{Adapter, CompileOptions, Silent, Source, WeightsOption, compile, target_by_name};
use unicorn_runtime::{DeviceChoice, LoadOptions, Model};

const RANK: usize = 2;

/// An adapter of some modules, of numbers whose products are exact in bf16.
struct Lora {
    config: Value,
    /// (name, shape, values)
    tensors: Vec<(String, [usize; 2], Vec<f32>)>,
}

impl Lora {
    fn of(tensors: &[NamedTensor], wanted: &[&str], rng: &mut StdRng) -> Lora {
        let config = json!({
            "peft_type": "LORA", "r": RANK, "lora_alpha": 4, "bias": "none", "use_dora": false,
            "modules_to_save": null, "rank_pattern": {}, "alpha_pattern": { "o_proj": 2 },
        });
        let mut lora = Lora { config, tensors: Vec::new() };
        for tensor in tensors.iter().filter(|tensor| wanted.iter().any(|part| tensor.name.contains(part))) {
            let module = format!("base_model.model.{}", tensor.name.strip_suffix(".weight").unwrap());
            let mut push = |side: &str, shape: [usize; 2], unit: f32, most: i32| {
                let values = (0..shape[0] * shape[1]).map(|_| rng.random_range(-most..=most) as f32 * unit).collect();
                lora.tensors.push((format!("{module}.lora_{side}.weight"), shape, values));
            };
            push("A", [RANK, tensor.shape[1]], 1.0, 1);
            push("B", [tensor.shape[0], RANK], 1.0 / 16.0, 3);
        }
        assert!(!lora.tensors.is_empty(), "{wanted:?}");
        lora
    }

    /// An adapter of f32, with each A before its B.
    fn read(folder: &Path) -> Lora {
        let bytes = std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors: Vec<_> = tensors
            .iter()
            .map(|(name, view)| {
                let values = view.data().chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap()));
                (name.to_owned(), [view.shape()[0], view.shape()[1]], values.collect())
            })
            .collect();
        tensors.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        let config = std::fs::read(folder.join("adapter_config.json")).unwrap();
        Lora { config: serde_json::from_slice(&config).unwrap(), tensors }
    }

    fn write(&self, folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("adapter_config.json"), self.config.to_string()).unwrap();
        let bytes: Vec<Vec<u8>> = self
            .tensors
            .iter()
            .map(|(.., values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
            .collect();
        let views = self.tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
            (name.as_str(), TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &folder.join("adapter_model.safetensors")).unwrap();
    }

    /// The model's tensors with `by` times the adapter's products added: plain loops.
    fn merged(&self, tensors: &[NamedTensor], by: f32) -> Vec<NamedTensor> {
        let values_of = |name: &str| self.tensors.iter().find(|(found, ..)| found == name).map(|(.., values)| values);
        let merge = |tensor: &NamedTensor| {
            let module = format!("base_model.model.{}", tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name));
            let mut merged =
                NamedTensor { name: tensor.name.clone(), shape: tensor.shape.clone(), values: tensor.values.clone() };
            let Some(down) = values_of(&format!("{module}.lora_A.weight")) else { return merged };
            let up = values_of(&format!("{module}.lora_B.weight")).unwrap();
            let (cols, scale) = (tensor.shape[1], by * if module.ends_with("o_proj") { 1.0 } else { 2.0 });
            for (index, value) in merged.values.iter_mut().enumerate() {
                let (row, col) = (index / cols, index % cols);
                let product: f32 = (0..RANK).map(|r| up[row * RANK + r] * down[r * cols + col]).sum();
                let sum = value.to_f32() + scale * product;
                *value = bf16::from_f32(sum);
                assert_eq!(value.to_f32(), sum, "numbers of the test are exact");
            }
            merged
        };
        tensors.iter().map(merge).collect()
    }
}

/// A model whose matrices hold multiples of a sixteenth.
fn exact_tensors(model: &TinyModel, rng: &mut StdRng) -> Vec<NamedTensor> {
    let mut tensors = model.tensors();
    for tensor in tensors.iter_mut().filter(|tensor| tensor.shape.len() == 2) {
        tensor.values.fill_with(|| bf16::from_f32(rng.random_range(-31..=31) as f32 / 16.0));
    }
    tensors
}

fn generic() -> CompileOptions {
    options(vec![target_by_name("generic").unwrap()], Vec::new())
}

fn adapter(folder: &Path, scale: f32) -> Adapter {
    Adapter { folder: folder.to_owned(), scale }
}

#[test]
fn an_adapter_gives_the_weights_of_the_merged_model() {
    // Whole projections; those that Phi-3 has as one; an expert.
    let cases = [
        (Family::Llama, &["q_proj", "o_proj", "mlp.down_proj", "lm_head"][..], 1.0),
        (Family::Phi3, &["qkv_proj", "gate_up_proj"], -0.5),
        (Family::Qwen3Moe, &["k_proj", "experts.3.up_proj", "mlp.gate."], 1.0),
    ];
    for (family, modules, scale) in cases {
        let rng = &mut StdRng::seed_from_u64(11);
        let model = TinyModel { family, layers: 2, tied: false, ..TinyModel::default() };
        let tensors = exact_tensors(&model, rng);
        let lora = Lora::of(&tensors, modules, rng);
        let folder = tempfile::tempdir().unwrap();
        let [base, merged, adapted] = ["base", "merged", "adapter"].map(|name| folder.path().join(name));
        write_folder(&base, &model.config(), &tensors);
        write_folder(&merged, &model.config(), &lora.merged(&tensors, scale));
        lora.write(&adapted);
        let with_adapter = with(generic(), |options| options.adapters = vec![adapter(&adapted, scale)]);
        let [plain, expected, found] = [(&base, generic()), (&merged, generic()), (&base, with_adapter)]
            .map(|(source, options)| Compiled::of_folder(source, &options).artifact());
        let [plain, expected, found] = [&plain, &expected, &found].map(|bytes| ArtifactView::parse(bytes).unwrap());
        let hashes =
            |view: &ArtifactView| view.weights().iter().map(|section| section.bytes.to_vec()).collect::<Vec<_>>();
        assert_eq!(hashes(&found), hashes(&expected), "{family:?}");
        assert_ne!(hashes(&found), hashes(&plain), "{family:?}");
        assert_ne!(found.meta.provenance.source_hash, plain.meta.provenance.source_hash);
        assert!(found.meta.provenance.options.contains(&("adapters".into(), "1".into())));
    }
}

/// Goldens by PEFT's own merge: experts of a layer as one parameter, with one pair of matrices for all of them, latent attention, an
/// embedding and an output head with copies of their weights, and parts of a tower that is left out.
#[test]
fn adapters_of_peft_give_the_logits_of_the_merged_model() {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let loading = LoadOptions::default().with(|options| options.device = DeviceChoice::Name(device));
    for (name, base) in [
        ("qwen3-moe", "qwen3-moe"),
        ("gemma4-moe", "gemma4-moe"),
        ("gpt-oss", "gpt-oss"),
        ("gpt-oss-mxfp4", "gpt-oss-mxfp4"),
        ("qwen3-moe-modules", "qwen3-moe"),
        ("deepseek-v2", "deepseek-v2"),
        ("llama2-linear-rope", "llama2-linear-rope"),
        ("mistral3-multimodal", "mistral3-multimodal"),
    ] {
        let adapted = models().join("lora").join(name);
        let golden = read_golden(&adapted);
        let tokens: Vec<u32> = golden.tokens.iter().map(|&token| token as u32).collect();
        let error = |adapters: Vec<Adapter>| {
            let targets = ["llvmpipe", "generic"].map(|name| target_by_name(name).unwrap()).to_vec();
            let options = with(options(targets, Vec::new()), |options| {
                options.policy.weights = WeightsOption::F16;
                options.adapters = adapters;
            });
            let compiled = Compiled::of_folder(&models().join("tiny").join(base), &options);
            let model = Model::load(&compiled.artifact_path(), &loading).unwrap();
            let mut logits = Vec::new();
            let mut session = model.session().unwrap();
            session.feed_with_logits(&tokens, &mut |_, row| logits.extend_from_slice(row)).unwrap();
            relative_error(&golden.logits, &logits)
        };
        let found = error(vec![adapter(&adapted, 1.0)]);
        assert!(found < 5e-3, "{name}: {found}");
        let without = error(Vec::new());
        assert!(without > 0.1, "{name}: {without} without the adapter");
    }
}

/// PEFT before 0.19 took the second size of each stack for the inputs, also where those are outputs.
#[test]
fn experts_matrices_of_either_orientation_change_the_same_weights() {
    let (base, adapted) = (models().join("tiny/qwen3-moe"), models().join("lora/qwen3-moe"));
    let lora = Lora::read(&adapted);
    let mut turned = Lora { config: lora.config.clone(), tensors: Vec::new() };
    for pair in lora.tensors.chunks_exact(2) {
        let [(down_name, down_shape, down), (up_name, up_shape, up)] = pair else { unreachable!("A and B") };
        if !down_name.contains(".experts.") {
            turned.tensors.extend_from_slice(pair);
            continue;
        }
        // Of expert e and rank i: row e · RANK + i of A, column i · 7 + e of B.
        let (inputs, outputs, products) = (down_shape[1], up_shape[0], down_shape[0]);
        let column = |row: usize| row % RANK * 7 + row / RANK;
        let mut other_down = vec![0.0; products * outputs];
        let mut other_up = vec![0.0; inputs * products];
        for row in 0..products {
            (0..outputs).for_each(|output| other_down[row * outputs + output] = up[output * products + column(row)]);
            (0..inputs).for_each(|input| other_up[input * products + column(row)] = down[row * inputs + input]);
        }
        turned.tensors.push((down_name.clone(), [products, outputs], other_down));
        turned.tensors.push((up_name.clone(), [inputs, products], other_up));
    }
    let folder = tempfile::tempdir().unwrap();
    turned.write(folder.path());
    assert!(merged_weights(&base, &adapted) == merged_weights(&base, folder.path()), "other weights");
}

/// A model whose experts are modules has them as matrices of (outputs, inputs), also where gpt-oss' folder stacks them transposed.
#[test]
fn adapters_of_single_experts_change_the_weights_that_those_of_stacks_change() {
    let (base, adapted) = (models().join("tiny/gpt-oss"), models().join("lora/gpt-oss"));
    let lora = Lora::read(&adapted);
    let mut single = Lora { config: lora.config.clone(), tensors: Vec::new() };
    for pair in lora.tensors.chunks_exact(2) {
        let [(name, down_shape, down), (_, up_shape, up)] = pair else { unreachable!("A and B") };
        let (block, _) = name.split_once(".experts.").unwrap();
        let (inputs, outputs, products) = (down_shape[1], up_shape[0], down_shape[0]);
        let experts = products / RANK;
        // Down has a hidden vector's outputs; those of gate and up alternate.
        let parts: &[(&str, usize, usize)] =
            if outputs == 72 { &[("down_proj", 0, 1)] } else { &[("gate_proj", 0, 2), ("up_proj", 1, 2)] };
        for (expert, &(part, first, step)) in
            (0..experts).flat_map(|expert| parts.iter().map(move |part| (expert, part)))
        {
            let rows: Vec<usize> = (first..outputs).step_by(step).collect();
            let own_up = rows.iter().flat_map(|row| (0..RANK).map(move |i| up[row * products + i * experts + expert]));
            let module = format!("{block}.experts.{expert}.{part}");
            let own_down = down[expert * RANK * inputs..][..RANK * inputs].to_vec();
            single.tensors.push((format!("{module}.lora_A.weight"), [RANK, inputs], own_down));
            single.tensors.push((format!("{module}.lora_B.weight"), [rows.len(), RANK], own_up.collect()));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    single.write(folder.path());
    assert!(merged_weights(&base, &adapted) == merged_weights(&base, folder.path()), "other weights");
}

/// Modules of a tower that is left out are counted, if the adapter has others.
#[test]
fn modules_of_a_tower_that_is_left_out_are_reported() {
    let (base, adapted) = (models().join("tiny/mistral3-multimodal"), models().join("lora/mistral3-multimodal"));
    let mut lora = Lora::read(&adapted);
    let is_of_tower = |name: &str| name.contains(".vision_tower.");
    let of_tower = lora.tensors.iter().filter(|(name, ..)| is_of_tower(name)).count() / 2;
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.unicorn");
    let compiled = |adapted: &Path| {
        let options = with(generic(), |options| options.adapters = vec![adapter(adapted, 1.0)]);
        compile(Source::Model(&base), &output, &options, &mut Silent)
    };
    let report = compiled(&adapted).unwrap();
    assert_eq!(report.skipped_adapter_modules, of_tower);
    let expected = format!("; {of_tower} modules of adapters that text does not need are left out");
    assert!(of_tower > 0 && report.to_string().contains(&expected), "{report}");
    lora.tensors.retain(|(name, ..)| is_of_tower(name));
    lora.write(&folder.path().join("tower"));
    let error = compiled(&folder.path().join("tower")).expect_err("refused").to_string();
    assert!(error.contains("modules of a tower for images or sound alone"), "{error}");
}

/// PEFT saves the embedding and the head beside an adapter, also where they are one matrix.
#[test]
fn copies_of_the_model_s_own_weights_change_nothing() {
    let rng = &mut StdRng::seed_from_u64(14);
    let model = TinyModel { layers: 1, tied: true, ..TinyModel::default() };
    let tensors = model.tensors();
    let folder = tempfile::tempdir().unwrap();
    let [base, plain, with_copies] = ["base", "plain", "copies"].map(|name| folder.path().join(name));
    write_folder(&base, &model.config(), &tensors);
    let mut lora = Lora::of(&tensors, &["q_proj"], rng);
    lora.write(&plain);
    push_copies(&mut lora, &tensors);
    lora.write(&with_copies);
    assert!(merged_weights(&base, &plain) == merged_weights(&base, &with_copies), "other weights");
}

fn push_copies(lora: &mut Lora, tensors: &[NamedTensor]) {
    let embedding = tensors.iter().find(|tensor| tensor.name == "model.embed_tokens.weight").unwrap();
    for name in ["model.embed_tokens.weight", "lm_head.base_layer.weight"] {
        let values = embedding.values.iter().map(|value| value.to_f32()).collect();
        lora.tensors.push((format!("base_model.model.{name}"), [embedding.shape[0], embedding.shape[1]], values));
    }
}

/// Packed weights of the model with an adapter.
fn merged_weights(base: &Path, adapted: &Path) -> Vec<Vec<u8>> {
    let options = with(generic(), |options| options.adapters = vec![adapter(adapted, 1.0)]);
    let bytes = Compiled::of_folder(base, &options).artifact();
    let view = ArtifactView::parse(&bytes).unwrap();
    view.weights().iter().map(|section| section.bytes.to_vec()).collect()
}

/// Of experts that the model does not have so, or has not at all.
#[test]
fn adapters_of_other_experts_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |base: &str, change: &dyn Fn(&mut Lora), expected: &str| {
        let mut lora = Lora::read(&models().join("lora/qwen3-moe"));
        lora.tensors.retain(|(name, ..)| name.contains(".experts."));
        change(&mut lora);
        lora.write(folder.path());
        let options = with(generic(), |options| options.adapters = vec![adapter(folder.path(), 1.0)]);
        let (source, output) = (models().join("tiny").join(base), folder.path().join("out.unicorn"));
        let error = compile(Source::Model(&source), &output, &options, &mut Silent).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}, expected {expected}");
        assert!(!output.exists());
    };
    refused("qwen3-moe", &|lora| renamed(lora, "layers.0", "layers.7"), "layers.7.mlp.experts");
    refused("qwen3-qknorm", &|_| {}, "the model has no experts");
    refused("gpt-oss", &|_| {}, "(rank × 6, 72)");
    refused("qwen3-moe", &|lora| lora.config["r"] = json!(3), "rank of model.layers.0.mlp.experts.down_proj is 3");
    let other_products = |lora: &mut Lora| {
        let (_, shape, values) = &mut lora.tensors[0];
        shape[0] += 1;
        values.extend(vec![0.0; shape[1]]);
    };
    refused("qwen3-moe", &other_products, "(rank × 7, 72)");
}

/// A square stack does not tell what an adapter from before PEFT 0.19 takes for its inputs.
#[test]
fn square_experts_need_a_version_that_knows_their_inputs() {
    let model = TinyModel { family: Family::Qwen3Moe, layers: 1, hidden: 64, intermediate: 64, ..TinyModel::default() };
    let folder = tempfile::tempdir().unwrap();
    let [base, adapted] = ["base", "adapter"].map(|name| folder.path().join(name));
    model.write(&base);
    let compiled = |version: Value| {
        let config = json!({ "peft_type": "LORA", "r": RANK, "lora_alpha": 4, "peft_version": version });
        let products = 7 * RANK;
        let tensors = [("A", [products, 64]), ("B", [64, products])].map(|(side, shape)| {
            let name = format!("base_model.model.model.layers.0.mlp.experts.lora_{side}.weight");
            (name, shape, vec![0.5; 64 * products])
        });
        Lora { config, tensors: tensors.to_vec() }.write(&adapted);
        let options = with(generic(), |options| options.adapters = vec![adapter(&adapted, 1.0)]);
        compile(Source::Model(&base), &folder.path().join("out.unicorn"), &options, &mut Silent).map(drop)
    };
    compiled(json!("0.19.0")).unwrap();
    for version in [json!("0.18.1"), json!("0.2"), json!("new"), Value::Null] {
        let error = compiled(version.clone()).expect_err("refused").to_string();
        assert!(error.contains("square matrices, by PEFT before 0.19"), "{version}: {error}");
    }
}

#[test]
fn a_folder_without_an_adapter_is_named() {
    let base = models().join("tiny/llama-tied");
    let folder = tempfile::tempdir().unwrap();
    let options = with(generic(), |options| options.adapters = vec![adapter(folder.path(), 1.0)]);
    let output = folder.path().join("out.unicorn");
    let error = compile(Source::Model(&base), &output, &options, &mut Silent).expect_err("refused").to_string();
    let expected =
        format!("{}: has no adapter_config.json, expected an adapter as PEFT saves it", folder.path().display());
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn adapters_that_cannot_be_merged_are_refused_by_name() {
    let rng = &mut StdRng::seed_from_u64(12);
    let model = TinyModel { layers: 1, tied: true, ..TinyModel::default() };
    let tensors = model.tensors();
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    write_folder(&base, &model.config(), &tensors);
    let mut number = 0;
    let mut refused = |change: &dyn Fn(&mut Lora), expected: &[&str]| {
        let mut lora = Lora::of(&tensors, &["q_proj", "down_proj"], rng);
        change(&mut lora);
        number += 1;
        let adapted = folder.path().join(format!("adapter{number}"));
        lora.write(&adapted);
        let output = folder.path().join("out.unicorn");
        let options = with(generic(), |options| options.adapters = vec![adapter(&adapted, 1.0)]);
        let error = compile(Source::Model(&base), &output, &options, &mut Silent).expect_err("refused").to_string();
        assert!(expected.iter().all(|part| error.contains(part)), "{error}, expected {expected:?}");
        assert!(!output.exists());
    };
    let field = |name: &'static str, value: Value| move |lora: &mut Lora| lora.config[name] = value.clone();
    refused(&field("peft_type", json!("IA3")), &["peft_type IA3", "merge_and_unload"]);
    refused(&field("use_dora", json!(true)), &["use_dora"]);
    refused(&field("init_lora_weights", json!("pissa")), &["init_lora_weights pissa"]);
    refused(&field("bias", json!("all")), &["bias all"]);
    refused(&field("layer_replication", json!([[0, 1], [0, 1]])), &["layer_replication", "merge_and_unload"]);
    refused(&field("kasa_config", json!({ "beta": 1e-4 })), &["kasa_config"]);
    refused(&field("monteclora_config", json!({})), &["monteclora_config"]);
    refused(&field("use_bdlora", json!({ "nblocks": 2 })), &["use_bdlora"]);
    refused(&field("modules_to_save", json!(["lm_head"])), &["modules_to_save"]);
    refused(&field("r", json!(0)), &["r is 0", "from 1 to"]);
    refused(&field("r", json!(3)), &["rank of", "is 3", "has 2"]);
    refused(&field("lora_alpha", json!("much")), &["lora_alpha"]);
    refused(&field("alpha_pattern", json!({ "^q.*": 2 })), &["^q.*", "regular expression"]);
    refused(&|lora| lora.tensors.clear(), &["no tensors"]);
    refused(&|lora| drop(lora.tensors.pop()), &["lora_B.weight"]);
    refused(&|lora| drop(lora.tensors.remove(0)), &["lora_A.weight"]);
    refused(&|lora| lora.tensors[0].0 += ".more", &[".more", "lora_A.weight and lora_B.weight alone"]);
    refused(&|lora| renamed(lora, "layers.0", "layers.7"), &["layers.7", "trained on this model"]);
    refused(&|lora| renamed(lora, "model.layers.0.mlp.down_proj", "lm_head"), &["lm_head", "is its embedding"]);
    refused(&|lora| renamed(lora, "self_attn.q_proj", "input_layernorm"), &["input_layernorm", "no such matrix"]);
    let trained_copy = |lora: &mut Lora| {
        push_copies(lora, &tensors);
        lora.tensors.last_mut().unwrap().2[5] += 1.0;
    };
    refused(&trained_copy, &["lm_head.base_layer.weight", "not equal", "merge_and_unload"]);
    let longer_copy = |lora: &mut Lora| {
        push_copies(lora, &tensors);
        let (_, shape, values) = lora.tensors.last_mut().unwrap();
        values.extend(vec![0.0; shape[1]]);
        shape[0] += 1;
    };
    refused(&longer_copy, &["lm_head.base_layer.weight", "not equal"]);
    let of_embedding = |lora: &mut Lora| {
        renamed(lora, "layers.0.mlp.down_proj.lora_A.weight", "embed_tokens.lora_embedding_A");
        renamed(lora, "layers.0.mlp.down_proj.lora_B.weight", "embed_tokens.lora_embedding_B");
    };
    refused(&of_embedding, &["embed_tokens", "is its embedding"]);
    refused(&|lora| renamed(lora, "lora_B.weight", "lora_embedding_B"), &["lora_B.weight is missing"]);
    let wider = |lora: &mut Lora| {
        let (_, shape, values) = &mut lora.tensors[0];
        values.extend(vec![0.0; shape[0]]);
        shape[1] += 1;
    };
    refused(&wider, &["lora_A.weight", "expected"]);
    refused(&|lora| lora.tensors[0].2[0] = f32::NAN, &["finite"]);
}

fn renamed(lora: &mut Lora, from: &str, to: &str) {
    lora.tensors.iter_mut().for_each(|(name, ..)| *name = name.replace(from, to));
}

/// As it is typed, and what `verify` reports of the result.
#[test]
fn the_command_line_takes_folders_with_scales() {
    let rng = &mut StdRng::seed_from_u64(13);
    let model = TinyModel { layers: 1, ..TinyModel::default() };
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path().join("base"));
    Lora::of(&model.tensors(), &["v_proj"], rng).write(&folder.path().join("adapter"));
    let run = |arguments: &[&str]| {
        let output = program("unicorn-compile").current_dir(folder.path()).args(arguments).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let compiled =
        ["base", "-q", "--target", "generic", "--lora", "adapter:0.5", "--lora", "adapter", "-o", "out.unicorn"];
    assert_eq!(run(&compiled), (true, String::new()));
    let (_, error) = run(&["verify", "out.unicorn", "--from", "base"]);
    assert!(error.contains("2 LoRA adapters are merged into the artifact"), "{error}");
    let (_, error) = run(&["base", "--lora", "nowhere", "-o", "other.unicorn"]);
    assert!(error.contains("nowhere: has no adapter_config.json"), "{error}");
    let (_, error) = run(&["base", "--lora", "adapter:inf", "-o", "other.unicorn"]);
    assert!(error.contains("expected a finite number"), "{error}");
}
