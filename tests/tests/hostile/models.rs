//! Hugging Face folders that are sound but for one change.

use std::path::Path;

use half::bf16;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::tiny_model::{NamedTensor, TinyModel, write_folder};

use crate::refusal::{assert_refused, compile_command};

/// What a change is made to before it is written.
struct Parts {
    config: Value,
    tensors: Vec<NamedTensor>,
}

impl Parts {
    fn tensor(&mut self, name: &str) -> &mut NamedTensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("the model has this tensor")
    }
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Parts), expected: &[&str]) {
    let model = TinyModel::default();
    let mut parts = Parts { config: model.config(), tensors: model.tensors() };
    change(&mut parts);
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), &parts.config, &parts.tensors);
    refused_folder(folder.path(), expected);
}

/// For changes to a whole folder.
#[track_caller]
fn refused_after(change: impl FnOnce(&Path), expected: &[&str]) {
    let folder = sound_folder();
    change(folder.path());
    refused_folder(folder.path(), expected);
}

fn sound_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::default().write(folder.path());
    folder
}

#[track_caller]
fn refused_folder(model: &Path, expected: &[&str]) {
    let out = tempfile::tempdir().unwrap();
    assert_refused(&mut compile_command(model, &out.path().join("model.unicorn")), out.path(), expected);
}

#[test]
fn the_folder_that_the_others_are_made_from_compiles() {
    let (folder, out) = (sound_folder(), tempfile::tempdir().unwrap());
    let output = compile_command(folder.path(), &out.path().join("model.unicorn")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names: Vec<_> = std::fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["model.unicorn"]);
}

#[test]
fn a_missing_tensor_is_named() {
    let name = "model.layers.1.mlp.down_proj.weight";
    refused(
        |parts| parts.tensors.retain(|tensor| tensor.name != name),
        &["tensor layers.1.mlp.down_proj.weight is missing", "model.safetensors"],
    );
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    let transpose = |parts: &mut Parts| parts.tensor("model.layers.0.mlp.up_proj.weight").shape.reverse();
    refused(transpose, &["layers.0.mlp.up_proj.weight", "has shape [64, 128], expected [128, 64]"]);
}

#[test]
fn an_unused_tensor_is_named() {
    let rename = |parts: &mut Parts| {
        let stray =
            NamedTensor { name: "model.layers.0.mlp.experts.weight".into(), shape: vec![1], values: vec![bf16::ONE] };
        parts.tensors.push(stray);
    };
    refused(rename, &["model.layers.0.mlp.experts.weight", "no such weight"]);
}

#[test]
fn more_layers_in_the_config_than_in_the_weights() {
    refused(|parts| parts.config["num_hidden_layers"] = json!(3), &["tensor layers.2.", "is missing"]);
}

#[test]
fn a_weight_that_is_no_number_is_found_where_it_is() {
    let set_nan =
        |parts: &mut Parts| parts.tensor("model.layers.1.self_attn.k_proj.weight").values[3 * 64 + 5] = bf16::NAN;
    refused(set_nan, &["layers.1.self_attn.k_proj.weight", "row 3", "column 5", "NaN"]);
}

#[test]
fn an_infinite_weight_is_found_where_it_is() {
    let set = |parts: &mut Parts| parts.tensor("lm_head.weight").values[64] = bf16::INFINITY;
    refused(set, &["lm_head.weight", "row 1", "column 0", "inf"]);
}

#[test]
fn a_norm_weight_that_is_no_number_is_found_too() {
    let set_nan = |parts: &mut Parts| parts.tensor("model.norm.weight").values[7] = bf16::NAN;
    refused(set_nan, &["norm.weight", "NaN"]);
}

#[test]
fn an_unsupported_architecture_is_named_beside_the_supported_ones() {
    let set = |parts: &mut Parts| {
        parts.config["architectures"] = json!(["FalconForCausalLM"]);
        parts.config["model_type"] = json!("falcon");
    };
    let supported =
        ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM"];
    refused(set, &[&["architecture FalconForCausalLM is not supported"], &supported[..]].concat());
}

#[test]
fn absurd_sizes_are_named() {
    for (field, value) in [
        ("hidden_size", json!(1u64 << 60)),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-64)),
        ("hidden_size", json!(64.5)),
        ("hidden_size", json!("64")),
        ("num_hidden_layers", json!(u64::MAX)),
        ("num_attention_heads", json!(0)),
        ("num_key_value_heads", json!(1u64 << 30)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(15)),
        ("head_dim", json!(1u64 << 40)),
        ("intermediate_size", json!(1u64 << 62)),
        ("vocab_size", json!(1u64 << 40)),
        ("max_position_embeddings", json!(1u64 << 50)),
        ("rms_norm_eps", json!("small")),
        ("rope_parameters", json!([1, 2])),
    ] {
        refused(|parts| parts.config[field] = value.clone(), &[field]);
    }
}

#[test]
fn a_config_that_is_missing_or_no_json() {
    let write = |text: &'static str| move |folder: &Path| std::fs::write(folder.join("config.json"), text).unwrap();
    refused_after(|folder| std::fs::remove_file(folder.join("config.json")).unwrap(), &["config.json"]);
    refused_after(write(""), &["config.json", "not JSON"]);
    refused_after(write("{\"architectures\": ["), &["config.json", "not JSON"]);
    refused_after(write("[]"), &["config.json", "not a JSON object"]);
    refused_after(write("{}"), &["config.json"]);
}

#[test]
fn a_config_nested_beyond_any_reason() {
    let deep = "[".repeat(1 << 20);
    refused_after(|folder| std::fs::write(folder.join("config.json"), deep).unwrap(), &["config.json", "not JSON"]);
}

#[test]
fn a_tokenizer_that_is_none() {
    let write = |folder: &Path| std::fs::write(folder.join("tokenizer.json"), "{\"model\": 3}").unwrap();
    refused_after(write, &["tokenizer.json"]);
}

/// It takes five letters off the end of every token, also of those that have one.
#[test]
fn a_tokenizer_whose_decoder_panics() {
    let change = |folder: &Path| {
        let path = folder.join("tokenizer.json");
        let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        tokenizer["decoder"] = json!({ "type": "Strip", "content": "a", "start": 0, "stop": 5 });
        std::fs::write(path, tokenizer.to_string()).unwrap();
    };
    refused_after(change, &["tokenizer.json", "tokenizer panics while it encodes or decodes"]);
}

#[test]
fn an_index_that_names_a_missing_file() {
    let write = |folder: &Path| {
        std::fs::rename(folder.join("model.safetensors"), folder.join("model-00001-of-00002.safetensors")).unwrap();
        let weight_map = json!({
            "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
            "model.norm.weight": "model-00002-of-00002.safetensors",
        });
        write_index(folder, &json!({ "weight_map": weight_map }));
    };
    refused_after(write, &["model-00002-of-00002.safetensors", "model.norm.weight", "missing"]);
}

#[test]
fn an_index_that_points_out_of_the_folder() {
    for elsewhere in ["../model.safetensors", "/dev/zero", "weights/model.safetensors", ".."] {
        let write = |folder: &Path| {
            std::fs::remove_file(folder.join("model.safetensors")).unwrap();
            write_index(folder, &json!({ "weight_map": { "model.norm.weight": elsewhere } }));
        };
        refused_after(write, &["model.norm.weight", elsewhere]);
    }
}

#[test]
fn an_index_that_is_none() {
    for (index, expected) in
        [(json!([]), "not a JSON object"), (json!({}), "weight_map"), (json!({ "weight_map": {} }), "missing")]
    {
        let write = |folder: &Path| {
            std::fs::remove_file(folder.join("model.safetensors")).unwrap();
            write_index(folder, &index);
        };
        refused_after(write, &[expected]);
    }
}

#[test]
fn a_folder_without_weights() {
    refused_after(
        |folder| std::fs::remove_file(folder.join("model.safetensors")).unwrap(),
        &["no weights", "model.safetensors"],
    );
}

#[test]
fn weights_cut_short() {
    let cut = |folder: &Path| {
        let path = folder.join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    };
    refused_after(cut, &["model.safetensors", "expected"]);
}

#[test]
fn weights_that_are_a_folder() {
    let make = |folder: &Path| {
        std::fs::remove_file(folder.join("model.safetensors")).unwrap();
        std::fs::create_dir(folder.join("model.safetensors")).unwrap();
    };
    refused_after(make, &["model.safetensors"]);
}

#[test]
fn a_model_that_is_not_there() {
    refused_folder(Path::new("no-such-model"), &["no-such-model"]);
    let empty = tempfile::NamedTempFile::new().unwrap();
    refused_folder(empty.path(), &["neither a folder with config.json"]);
}

fn write_index(folder: &Path, index: &Value) {
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}
