//! Checkpoints of 4 bits (INT4 of AWQ, GPTQ and compressed-tensors; MXFP4; GGUF's IQ4): every code, scale and zero point of theirs is in the artifact, and
//! nothing is quantised a second time; what cannot be kept so is refused by name.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use tests::compiled::{Compiled, Silent, options, with};
use tests::iq4_model::{Iq4Model, Scales};
use tests::models::models;
use tests::packed_int4::{PackedModel, Packing, PackingTool, Stored, write_tensors};
use tests::random_gguf::Encoding;
use tests::reference::{Reference, Weights, read_golden, relative_error};
use tests::tiny_model::{Family, TinyModel};
use unicorn_artifact::ArtifactView;
use unicorn_compiler::{CompileOptions, Source, WeightsOption, compile, export, target_by_name};
use unicorn_runtime::{DeviceChoice, LoadOptions, Model};

/// The same weights in f32 by the reference: what is left is the f16 KV cache, and INT8 of embedding and head.
const EXPORTED_TOLERANCE: f64 = 5e-3;

fn llvmpipe() -> CompileOptions {
    options(["llvmpipe", "generic"].map(|name| target_by_name(name).expect("a preset")).to_vec(), Vec::new())
}

fn logits(artifact: &Path, tokens: &[i32]) -> Vec<f32> {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let loading = LoadOptions::default().with(|options| options.device = DeviceChoice::Name(device));
    let model = Model::load(artifact, &loading).expect("it loads");
    let tokens: Vec<u32> = tokens.iter().map(|&token| token as u32).collect();
    let mut all = Vec::new();
    let mut session = model.session().expect("a free slot");
    session.feed_with_logits(&tokens, &mut |_, row| all.extend_from_slice(row)).expect("the steps run");
    all
}

/// The matrices of a folder's layers, by name.
fn layer_matrices(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let layers = tensors.iter().filter(|(name, _)| name.ends_with("_proj.weight"));
    layers.map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()
}

/// Packs a model, compiles it, and compares the exported weights with the same weights by the tool's formula. `format` is the
/// artifact's weight format.
fn check(model: &TinyModel, packing: &Packing, format: &str) {
    let folder = tempfile::tempdir().unwrap();
    let [packed, plain, exported] = ["packed", "plain", "exported"].map(|name| folder.path().join(name));
    PackedModel::of(model, packing).write(&packed, &plain);
    let compiled = Compiled::of_folder(&packed, &llvmpipe());
    let bytes = compiled.artifact();
    let view = ArtifactView::parse(&bytes).unwrap();
    let is_packed = |name: &str| name.ends_with("_proj.weight") && !name.contains(".experts.");
    let projections = view.meta.tensors.iter().filter(|tensor| is_packed(&tensor.name));
    for tensor in projections {
        assert_eq!((tensor.format.as_str(), tensor.relative_error), (format, 0.0), "{packing:?}: {}", tensor.name);
    }
    export(&packed, &compiled.artifact_path(), &llvmpipe(), &exported, &mut Silent).expect("it exports");
    // To the last bit.
    assert!(layer_matrices(&exported) == layer_matrices(&plain), "{packing:?}: exported weights");

    let tokens: Vec<i32> = (0..40).map(|index| (index * 7919 + 13) % model.vocab_size as i32).collect();
    let found = logits(&compiled.artifact_path(), &tokens);
    let error = relative_error(&Reference::open(&exported).logits(&tokens), &found);
    assert!(error <= EXPORTED_TOLERANCE, "{packing:?}: relative error {error}");
}

const AWQ: Packing =
    Packing { tool: PackingTool::Awq, group: Some(32), zero_points: true, bf16_scales: false, scattered: false };

fn small(family: Family) -> TinyModel {
    TinyModel { family, hidden: 128, intermediate: 192, layers: 1, heads: 4, head_dim: 32, ..TinyModel::default() }
}

#[test]
fn awq_is_kept_as_it_is() {
    check(&small(Family::Llama), &AWQ, "int4w/32");
    check(&small(Family::Phi3), &Packing { group: Some(64), ..AWQ }, "int4w/64");
}

#[test]
fn gptq_is_kept_as_it_is() {
    let gptq = Packing { tool: PackingTool::Gptq, group: Some(64), ..AWQ };
    check(&small(Family::Qwen2), &gptq, "int4w/64");
    check(&small(Family::Llama), &Packing { zero_points: false, group: None, ..gptq.clone() }, "int4w/128");
    check(&small(Family::Glm4), &Packing { tool: PackingTool::GptqV2, group: Some(128), ..gptq }, "int4w/128");
}

#[test]
fn compressed_tensors_are_kept_as_they_are() {
    let compressed = Packing { tool: PackingTool::CompressedTensors, group: Some(128), ..AWQ };
    let symmetric = Packing { zero_points: false, bf16_scales: true, ..compressed };
    // bf16's scales have no more bits than ours.
    check(&small(Family::Llama), &symmetric, "int4/128");
    check(&small(Family::Mixtral), &Packing { zero_points: true, group: Some(32), ..symmetric.clone() }, "int4/32");
    // A shared expert follows the others as it is, and one of the size of two is cut.
    let rows_of_groups = Packing { group: Some(64), ..symmetric.clone() };
    check(&small(Family::Qwen3Next), &rows_of_groups, "int4/64");
    check(&small(Family::Qwen2Moe), &rows_of_groups, "int4/64");
    // A row's one scale, and rows that end within a word.
    let odd = TinyModel { hidden: 76, intermediate: 52, heads: 3, kv_heads: 1, head_dim: 20, ..small(Family::Qwen3) };
    check(&odd, &Packing { group: None, bf16_scales: false, ..symmetric }, "int4w/128");
}

/// GPTQ's `desc_act`, and groups that are smaller than ours: the weights of the tool's formula are packed as others are.
#[test]
fn matrices_of_other_groups_are_quantized_again() {
    let model = small(Family::Llama);
    let scattered = Packing { tool: PackingTool::Gptq, scattered: true, ..AWQ };
    for packing in [scattered, Packing { group: Some(16), ..AWQ }] {
        let folder = tempfile::tempdir().unwrap();
        let [packed, plain] = ["packed", "plain"].map(|name| folder.path().join(name));
        PackedModel::of(&model, &packing).write(&packed, &plain);
        let tokens: Vec<i32> = (0..40).map(|index| (index * 7919 + 13) % model.vocab_size as i32).collect();
        let of_formula = Reference::open(&plain).logits(&tokens);
        for (weights, n_again, tolerance) in
            [(WeightsOption::F16, 0, EXPORTED_TOLERANCE), (WeightsOption::Int8, 0, 3e-2), (WeightsOption::Int4, 7, 0.3)]
        {
            let options = with(llvmpipe(), |options| options.policy.weights = weights);
            let artifact = folder.path().join("model.unicorn");
            let report = compile(Source::Model(&packed), &artifact, &options, &mut Silent).expect("it compiles");
            assert_eq!(report.requantized_tensors, n_again, "{packing:?}");
            let said = "7 matrices whose groups are not ours (desc_act, parts of heads) are quantised again";
            assert_eq!(report.to_string().contains(said), n_again == 7, "{report}");
            let error = relative_error(&of_formula, &logits(&artifact, &tokens));
            assert!(error <= tolerance, "{packing:?}, {weights:?}: relative error {error}");
        }
    }
}

/// Stacks of experts of a folder, by name.
/// Writes a packed model after a change, and compares its logits in f16 with those of the same weights by the tool's formula.
fn check_in_f16(family: Family, packing: &Packing, change: impl FnOnce(&mut PackedModel)) {
    let folder = tempfile::tempdir().unwrap();
    let [packed, plain] = ["packed", "plain"].map(|name| folder.path().join(name));
    let model = small(family);
    let mut of_model = PackedModel::of(&model, packing);
    change(&mut of_model);
    of_model.write(&packed, &plain);
    let tokens: Vec<i32> = (0..40).map(|index| (index * 7919 + 13) % model.vocab_size as i32).collect();
    let options = with(llvmpipe(), |options| options.policy.weights = WeightsOption::F16);
    let compiled = Compiled::of_folder(&packed, &options);
    let of_formula = Reference::open(&plain).logits(&tokens);
    let error = relative_error(&of_formula, &logits(&compiled.artifact_path(), &tokens));
    assert!(error <= EXPORTED_TOLERANCE, "{packing:?}: relative error {error}");
}

/// Each head has rows of the packed matrix, and those of its keys transposed.
#[test]
fn heads_of_latent_attention_are_read_from_a_packed_matrix() {
    let compressed = Packing { tool: PackingTool::CompressedTensors, ..AWQ };
    check_in_f16(Family::DeepSeekV2, &compressed, |_| {});
    check_in_f16(Family::DeepSeekV3, &Packing { zero_points: false, group: None, ..compressed }, |_| {});
}

#[test]
fn auto_round_writes_the_tensors_of_gptq_or_awq() {
    let gptq = Packing { tool: PackingTool::Gptq, ..AWQ };
    for (packing, layout) in [(&gptq, "auto_round:auto_gptq"), (&AWQ, "auto_round:auto_awq")] {
        check_in_f16(Family::Llama, packing, |model| {
            let config = &mut model.config["quantization_config"];
            (config["quant_method"], config["packing_format"]) = (json!("auto-round"), json!(layout));
            config["extra_config"] = json!({ "lm_head": { "bits": 16, "data_type": "float" } });
        });
    }
    let message = refusal(&gptq, |model| {
        let config = &mut model.config["quantization_config"];
        (config["quant_method"], config["packing_format"]) = (json!("auto-round"), json!("auto_round:ark"));
    });
    assert!(message.contains("packing_format auto_round:ark of auto-round is not supported"), "{message}");
    let message = refusal(&gptq, |model| {
        model.config["quantization_config"]["quant_method"] = json!("auto-round");
        model.config["quantization_config"]["extra_config"] = json!({ "model.layers.0": { "bits": 8 } });
    });
    assert!(message.contains("bits 8 of model.layers.0 in quantization_config is not supported"), "{message}");
}

/// The name of the first versions of compressed-tensors.
#[test]
fn a_compression_config_is_read() {
    check_in_f16(Family::Llama, &Packing { tool: PackingTool::CompressedTensors, ..AWQ }, |model| {
        model.config["compression_config"] = model.config["quantization_config"].take();
    });
    let message = refusal(&AWQ, |model| model.config["quantization_config"] = json!(null));
    assert!(message.contains("it is packed, and config.json has no quantization_config that says how"), "{message}");
}

fn expert_stacks(folder: &Path) -> BTreeMap<String, Vec<f32>> {
    let weights = Weights::read(folder);
    let name = |layer: usize, part: &str| format!("layers.{layer}.mlp.experts.{part}");
    let names = (0..2).flat_map(|layer| ["gate_up_proj", "down_proj"].map(|part| name(layer, part)));
    names.map(|name| (name.clone(), weights.get(&name).values.clone())).collect()
}

/// A folder as OpenAI publishes gpt-oss, and the same model as llama.cpp's converter writes it.
#[test]
fn mxfp4_is_kept_as_it_is() {
    let folder = models().join("tiny/gpt-oss-mxfp4");
    let golden = read_golden(&folder);
    let theirs = expert_stacks(&folder);
    for source in [folder, models().join("gguf/gpt-oss-mxfp4.gguf")] {
        for weights in [WeightsOption::Int4, WeightsOption::Int8] {
            let options = with(llvmpipe(), |options| options.policy.weights = weights);
            let compiled = Compiled::of_folder(&source, &options);
            let bytes = compiled.artifact();
            let view = ArtifactView::parse(&bytes).unwrap();
            let experts: Vec<_> = view
                .meta
                .tensors
                .iter()
                .filter(|tensor| tensor.name.contains(".experts.") && tensor.format != "f32")
                .collect();
            assert_eq!(experts.len(), 6, "gate, up and down of two layers");
            for tensor in experts {
                let found = (tensor.format.as_str(), tensor.bits_per_weight, tensor.relative_error);
                assert_eq!(found, ("mxfp4", 4.5, 0.0), "{}: {}", source.display(), tensor.name);
            }
            let exported = tempfile::tempdir().unwrap();
            export(&source, &compiled.artifact_path(), &options, exported.path(), &mut Silent).expect("it exports");
            // To the last bit.
            assert!(expert_stacks(exported.path()) == theirs, "{}: exported experts", source.display());
            let found = logits(&compiled.artifact_path(), &golden.tokens);
            let error = relative_error(&Reference::open(exported.path()).logits(&golden.tokens), &found);
            assert!(error <= EXPORTED_TOLERANCE, "{}: relative error {error}", source.display());
        }
    }
}

/// Rounding of IQ4_XS's scales to f16: half a unit in the last of 11 bits.
const SCALE_ROUNDING: f32 = 1.0 / 2048.0;

/// Every tensor of a folder, by name.
fn all_tensors(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()
}

/// Compiles a GGUF file of random matrices, compares the exported weights with those of the file by its formats' definition, and the logits with
/// those of the reference for the file's exact weights. `format` is what the artifact has a tensor in.
fn check_gguf(
    model: &TinyModel,
    encoding: &dyn Fn(&str) -> Encoding,
    weights: WeightsOption,
    format: &dyn Fn(&str) -> &'static str,
) {
    let folder = tempfile::tempdir().unwrap();
    let [file, exact, rounded, exported] =
        ["m.gguf", "exact", "rounded", "exported"].map(|name| folder.path().join(name));
    let whole = Iq4Model::of(model, encoding);
    whole.write(&file);
    whole.write_plain(&exact, Scales::Exact);
    whole.write_plain(&rounded, Scales::Rounded);
    let options = with(llvmpipe(), |options| options.policy.weights = weights);
    let compiled = Compiled::of_folder(&file, &options);
    let bytes = compiled.artifact();
    let view = ArtifactView::parse(&bytes).unwrap();
    let mut kept_all = true;
    for tensor in view.meta.tensors.iter().filter(|tensor| tensor.format != "f32") {
        assert_eq!(tensor.format, format(&tensor.name), "{}", tensor.name);
        match &*tensor.format {
            "iq4" => {
                assert_eq!(tensor.bits_per_weight, 4.5, "{}", tensor.name);
                assert!(tensor.relative_error <= SCALE_ROUNDING, "{}: {}", tensor.name, tensor.relative_error);
            }
            "f16" => {}
            _ => kept_all = false,
        }
    }
    export(&file, &compiled.artifact_path(), &options, &exported, &mut Silent).expect("it exports");
    let tokens: Vec<i32> = (0..40).map(|index| (index * 7919 + 13) % model.vocab_size as i32).collect();
    let found = logits(&compiled.artifact_path(), &tokens);
    if kept_all {
        // To the last bit.
        assert!(all_tensors(&exported) == all_tensors(&rounded), "exported weights");
        let error = relative_error(&Reference::open(&exact).logits(&tokens), &found);
        assert!(error <= EXPORTED_TOLERANCE, "{:?}: relative error {error}", model.family);
    }
    let error = relative_error(&Reference::open(&exported).logits(&tokens), &found);
    assert!(error <= EXPORTED_TOLERANCE, "{:?}: relative error of exported weights {error}", model.family);
}

fn gguf_model(family: Family) -> TinyModel {
    TinyModel { hidden: 256, intermediate: 256, heads: 4, head_dim: 64, layers: 1, ..small(family) }
}

#[test]
fn iq4_nl_is_kept_as_it_is() {
    let odd = TinyModel { hidden: 96, intermediate: 160, heads: 3, kv_heads: 1, ..small(Family::Llama) };
    check_gguf(&odd, &|_| Encoding::Iq4Nl, WeightsOption::Int4, &|_| "iq4");
    check_gguf(&gguf_model(Family::Qwen3), &|_| Encoding::Iq4Nl, WeightsOption::Int8, &|_| "iq4");
}

/// Matrices of a dense model, and stacks of experts, whose router is not packed to 4 bits.
#[test]
fn iq4_xs_is_kept_up_to_the_rounding_of_scales() {
    check_gguf(&gguf_model(Family::Llama), &|_| Encoding::Iq4Xs, WeightsOption::Int4, &|_| "iq4");
    let encoding = |name: &str| if name.contains("ffn_gate_inp") { Encoding::F32 } else { Encoding::Iq4Xs };
    let format = |name: &str| if name.ends_with("mlp.gate.weight") { "f16" } else { "iq4" };
    check_gguf(&gguf_model(Family::Qwen3Moe), &encoding, WeightsOption::Int4, &format);
}

/// Both types have the same table. A matrix with other parts is INT4, as a whole.
#[test]
fn parts_of_one_table_are_kept_together() {
    let encoding = |name: &str| match name {
        name if name.contains("attn_v") => Encoding::Q4_0,
        name if name.contains("ffn_up") => Encoding::Iq4Xs,
        _ => Encoding::Iq4Nl,
    };
    let is_quantised_again = |name: &str| ["q_proj", "k_proj", "v_proj"].iter().any(|part| name.contains(part));
    let format = |name: &str| if is_quantised_again(name) { "int4/32" } else { "iq4" };
    check_gguf(&gguf_model(Family::Llama), &encoding, WeightsOption::Int4, &format);
}

/// The result of `compile` for a folder of MXFP4 after `change`.
fn mxfp4_refusal(change: impl FnOnce(&mut BTreeMap<String, Stored>)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let whole = models().join("tiny/gpt-oss-mxfp4");
    std::fs::copy(whole.join("config.json"), folder.path().join("config.json")).unwrap();
    let bytes = std::fs::read(whole.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let stored =
        |view: TensorView| Stored { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
    let mut tensors = tensors.iter().map(|(name, view)| (name.to_owned(), stored(view))).collect();
    change(&mut tensors);
    write_tensors(&tensors, folder.path());
    let artifact = folder.path().join("model.unicorn");
    let result = compile(Source::Model(folder.path()), &artifact, &llvmpipe(), &mut Silent);
    result.expect_err("this folder is refused").to_string()
}

#[test]
fn broken_mxfp4_is_refused_by_name() {
    const UP: &str = "model.layers.0.mlp.experts.gate_up_proj";
    let scales = |tensors: &mut BTreeMap<String, Stored>, at: usize, exponent: u8| {
        tensors.get_mut(&format!("{UP}_scales")).expect("scales").bytes[at] = exponent;
    };
    // Five experts of 192 outputs of two blocks.
    let message = mxfp4_refusal(|tensors| scales(tensors, 2 * (192 + 7) + 1, 255));
    let expected = "gate_up_proj_scales: scale of expert 1, output 7, block 1 is 255, which stands for no number";
    assert!(message.contains(expected), "{message}");
    // 12 * 2^(254 - 128) is no f16, nor any f32.
    let message = mxfp4_refusal(|tensors| scales(tensors, 0, 254));
    assert!(message.contains("is not a finite number of the format") && message.contains("row 0"), "{message}");
    let message = mxfp4_refusal(|tensors| _ = tensors.remove(&format!("{UP}_scales")));
    assert!(message.contains("gate_up_proj_scales is missing"), "{message}");
    let message = mxfp4_refusal(|tensors| _ = tensors.remove(&format!("{UP}_blocks")));
    assert!(message.contains("gate_up_proj_scales"), "{message}");
    let message = mxfp4_refusal(|tensors| tensors.get_mut(&format!("{UP}_blocks")).unwrap().dtype = Dtype::I8);
    assert!(message.contains("gate_up_proj_blocks: elements are I8, expected U8"), "{message}");
    let message = mxfp4_refusal(|tensors| tensors.get_mut(&format!("{UP}_scales")).unwrap().shape = vec![5, 2, 192]);
    assert!(message.contains("gate_up_proj_scales has shape [5, 2, 192], expected [5, 192, 2]"), "{message}");
}

/// The result of `compile` for `model` after `change`.
fn refusal(packing: &Packing, change: impl FnOnce(&mut PackedModel)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut model = PackedModel::of(&small(Family::Llama), packing);
    change(&mut model);
    let packed = folder.path().join("packed");
    model.write(&packed, &folder.path().join("plain"));
    let artifact = folder.path().join("model.unicorn");
    let result = compile(Source::Model(&packed), &artifact, &llvmpipe(), &mut Silent);
    result.expect_err("this folder is refused").to_string()
}

const QUERY: &str = "model.layers.0.self_attn.q_proj";

fn tensor<'m>(model: &'m mut PackedModel, name: &str) -> &'m mut Stored {
    model.tensors.get_mut(&format!("{QUERY}.{name}")).expect("the module has it")
}

#[test]
fn broken_packings_are_refused_by_name() {
    let gptq = Packing { tool: PackingTool::Gptq, ..AWQ };
    let compressed = Packing { tool: PackingTool::CompressedTensors, ..AWQ };
    let set_group = |model: &mut PackedModel, column: usize, group: i32| {
        tensor(model, "g_idx").bytes[4 * column..][..4].copy_from_slice(&group.to_le_bytes());
    };
    let message = refusal(&gptq, |model| set_group(model, 5, 4));
    assert!(message.contains("q_proj.g_idx: group of column 5 is 4, expected one below 4"), "{message}");
    let message = refusal(&gptq, |model| set_group(model, 5, -1));
    assert!(message.contains("group of column 5 is -1, expected one below 4"), "{message}");

    let message = refusal(&AWQ, |model| _ = model.tensors.remove(&format!("{QUERY}.scales")));
    assert!(message.contains("tensor model.layers.0.self_attn.q_proj.scales is missing"), "{message}");
    let message = refusal(&AWQ, |model| _ = model.tensors.remove(&format!("{QUERY}.qzeros")));
    assert!(message.contains("q_proj.qzeros is missing"), "{message}");
    let message = refusal(&AWQ, |model| _ = model.tensors.remove(&format!("{QUERY}.qweight")));
    assert!(message.contains("q_proj.qzeros of model.safetensors is not supported"), "{message}");
    let message = refusal(&compressed, |model| tensor(model, "weight_shape").bytes[0] = 7);
    assert!(message.contains("q_proj.weight_shape: holds [7, 128], expected [128, 128]"), "{message}");
    let message = refusal(&AWQ, |model| tensor(model, "scales").dtype = Dtype::I16);
    assert!(message.contains("q_proj.scales: elements are I16, expected F16 or BF16 or F32"), "{message}");
    let message = refusal(&AWQ, |model| tensor(model, "scales").shape = vec![128, 4]);
    assert!(message.contains("q_proj.scales has shape [128, 4], expected [4, 128]"), "{message}");
    let message = refusal(&AWQ, |model| tensor(model, "scales").bytes[..2].copy_from_slice(&0x7c00u16.to_le_bytes()));
    assert!(message.contains("scale of row 0, group 0 is inf, expected one that f16 holds exactly"), "{message}");
    // A tenth of an ulp of f16.
    let message = refusal(&AWQ, |model| {
        let scales = tensor(model, "scales");
        (scales.dtype, scales.bytes) = (Dtype::F32, [0.1f32.to_le_bytes(); 4 * 128].concat());
    });
    assert!(message.contains("is 0.1, expected one that f16 holds exactly; compile the weights that"), "{message}");
}

#[test]
fn other_packings_are_refused_by_name() {
    let gptq = Packing { tool: PackingTool::Gptq, ..AWQ };
    let compressed = Packing { tool: PackingTool::CompressedTensors, ..AWQ };
    for (packing, field, value, expected) in [
        (&AWQ, "bits", json!(3), "quantization_config.bits 3 is not supported: INT4 alone"),
        (&AWQ, "version", json!("gemv"), "quantization_config.version gemv is not supported: supported is gemm"),
        (&AWQ, "group_size", json!(0), "quantization_config.group_size is 0, expected an integer from 1"),
        (&AWQ, "group_size", json!(null), "quantization_config.group_size is missing"),
        (&AWQ, "zero_point", json!(false), "zero_point false of awq is not supported"),
        (&gptq, "bits", json!(8), "quantization_config.bits 8 is not supported"),
        (&gptq, "bits", json!(null), "quantization_config.bits is missing, expected a number"),
        (&gptq, "checkpoint_format", json!("marlin"), "checkpoint_format marlin is not supported"),
        (&gptq, "dynamic", json!({ "-:.*norm": {}, "+:.*up": { "group_size": 64 } }), "group_size 64 of +:.*up in"),
        (&gptq, "quant_method", json!("bitsandbytes"), "quantization_config (method bitsandbytes) is not supported"),
        (&compressed, "format", json!("int-quantized"), "quantization_config.format int-quantized is not supported"),
        (&compressed, "config_groups", json!({}), "quantization_config.config_groups is empty"),
        (&compressed, "kv_cache_scheme", json!({ "num_bits": 8 }), "kv_cache_scheme is not supported"),
    ] {
        let message = refusal(packing, |model| model.config["quantization_config"][field] = value.clone());
        assert!(message.contains(expected), "{field} {value}: {message}");
    }
    let weights = |field: &str, value: serde_json::Value| {
        refusal(&compressed, |model| {
            model.config["quantization_config"]["config_groups"]["group_0"]["weights"][field] = value;
        })
    };
    assert!(weights("num_bits", json!(8)).contains("quantization_config.num_bits 8 is not supported"));
    assert!(weights("type", json!("float")).contains("quantization_config.type float is not supported"));
    assert!(weights("strategy", json!("tensor")).contains("quantization_config.strategy tensor is not supported"));
    let symmetric = weights("symmetric", json!(true));
    assert!(symmetric.contains("weight_zero_point: expected none of a symmetric quantisation"), "{symmetric}");
    let message = refusal(&compressed, |model| {
        model.config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = json!({ "num_bits": 8 });
    });
    assert!(message.contains("input_activations of quantization_config is not supported"), "{message}");
}
