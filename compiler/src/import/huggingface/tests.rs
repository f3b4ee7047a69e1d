//! Folders that open, and those that are refused.

use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use tempfile::TempDir;

use super::*;

/// A folder of one small model: tensors of zeros under their source names, F32 unless changed.
struct Folder {
    dir: TempDir,
    config: Value,
    tensors: BTreeMap<String, (Dtype, Vec<usize>)>,
}

impl Folder {
    /// `rename` makes a source name of a canonical one.
    fn new(config: Value, rename: impl Fn(&str) -> String) -> Folder {
        let shapes = config_json::model_config(Path::new("config.json"), &config).unwrap().tensor_shapes();
        let tensors = shapes.into_iter().map(|(name, shape)| (rename(&name), (Dtype::F32, shape))).collect();
        Folder { dir: tempfile::tempdir().unwrap(), config, tensors }
    }

    fn llama() -> Folder {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10,
            "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1,
        });
        Folder::new(config, |name| if name == "lm_head.weight" { name.into() } else { format!("model.{name}") })
    }

    fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize]) {
        self.tensors.insert(name.to_owned(), (dtype, shape.to_vec()));
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn write_json(&self, name: &str, value: &Value) {
        std::fs::write(self.path().join(name), value.to_string()).unwrap();
    }

    /// Writes the tensors whose index `takes` as one file.
    fn write_tensors(&self, file_name: &str, takes: impl Fn(usize) -> bool) -> Vec<&str> {
        let taken: Vec<_> = self.tensors.iter().enumerate().filter(|(at, _)| takes(*at)).map(|(_, t)| t).collect();
        let zeros = vec![0u8; 1 << 16];
        let views = taken.iter().map(|(name, (dtype, shape))| {
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            (name.as_str(), TensorView::new(*dtype, shape.clone(), &zeros[..bytes]).unwrap())
        });
        std::fs::write(self.path().join(file_name), safetensors::serialize(views, None).unwrap()).unwrap();
        taken.into_iter().map(|(name, _)| name.as_str()).collect()
    }

    fn open(&self) -> Result<Checkpoint> {
        self.write_json("config.json", &self.config);
        self.write_tensors("model.safetensors", |_| true);
        open(self.path())
    }

    /// Writes even tensors to one shard and odd ones to another, and the index changed by `change`.
    fn open_shards(&self, change: impl Fn(&mut serde_json::Map<String, Value>)) -> Result<Checkpoint> {
        self.write_json("config.json", &self.config);
        let mut weight_map = serde_json::Map::new();
        for (parity, file_name) in ["even.safetensors", "odd.safetensors"].into_iter().enumerate() {
            for name in self.write_tensors(file_name, |at| at % 2 == parity) {
                weight_map.insert(name.to_owned(), json!(file_name));
            }
        }
        change(&mut weight_map);
        self.write_json(INDEX_FILE, &json!({ "metadata": {}, "weight_map": weight_map }));
        open(self.path())
    }

    fn refusal(&self) -> String {
        self.open().err().expect("this folder is refused").to_string()
    }
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors.keys().map(String::as_str).collect()
}

#[test]
fn a_folder_gives_every_tensor_by_its_canonical_name() {
    let mut folder = Folder::llama();
    folder.add("model.layers.0.self_attn.rotary_emb.inv_freq", Dtype::F32, &[2]);
    let checkpoint = folder.open().unwrap();
    assert_eq!(names(&checkpoint), checkpoint.config.tensor_shapes().keys().collect::<Vec<_>>());
    assert_eq!(checkpoint.tensors["layers.0.mlp.up_proj.weight"].source_name, "model.layers.0.mlp.up_proj.weight");
    let elements: usize = checkpoint.tensors.values().map(|tensor| tensor.rows * tensor.cols).sum();
    assert_eq!(checkpoint.source_bytes, 4 * elements as u64);
    assert_eq!(checkpoint.skipped, Skipped::default());
}

#[test]
fn shards_are_those_of_the_index_and_no_other_file_counts() {
    let folder = Folder::llama();
    let one = folder.open_shards(|_| ()).unwrap();
    std::fs::write(folder.path().join("consolidated.safetensors"), b"junk").unwrap();
    std::fs::write(folder.path().join("pytorch_model.bin"), b"junk").unwrap();
    let other = folder.open_shards(|_| ()).unwrap();
    assert_eq!((one.source_hash(), one.tensors.len()), (other.source_hash(), other.tensors.len()));
}

#[test]
fn an_index_that_does_not_hold_is_refused() {
    let folder = Folder::llama();
    for (file_name, expected) in [
        (json!("lost.safetensors"), "file lost.safetensors, named for tensor lm_head.weight, is missing"),
        (
            json!("odd.safetensors"),
            "tensor lm_head.weight is missing from odd.safetensors, where model.safetensors.index",
        ),
        (json!("../even.safetensors"), "weight_map.lm_head.weight is in \"../even.safetensors\", expected the name"),
        (json!(7), "weight_map.lm_head.weight is 7, expected a string"),
    ] {
        let result = folder.open_shards(|map| _ = map.insert("lm_head.weight".into(), file_name.clone()));
        let message = result.err().unwrap().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let message = folder.open_shards(|map| _ = map.remove("lm_head.weight")).err().unwrap().to_string();
    let searched = "looked for it in the 2 files even.safetensors to odd.safetensors";
    assert_eq!(message, format!("tensor lm_head.weight is missing: {searched}"));
}

#[test]
fn a_folder_without_weights_is_an_error_with_the_missing_files() {
    let folder = Folder::llama();
    folder.write_json("config.json", &folder.config);
    std::fs::write(folder.path().join("pytorch_model.bin"), b"").unwrap();
    let message = open(folder.path()).err().unwrap().to_string();
    assert!(message.contains("expected model.safetensors or model.safetensors.index.json"), "{message}");
}

#[test]
fn wrong_missing_and_unknown_tensors_are_refused_by_name() {
    let mut folder = Folder::llama();
    folder.add("model.norm.weight", Dtype::BF16, &[7]);
    let shape = "tensor norm.weight (model.norm.weight in model.safetensors) has shape [7], expected [8]";
    assert_eq!(folder.refusal(), shape);
    folder.add("model.norm.weight", Dtype::I8, &[8]);
    assert!(folder.refusal().contains("element type I8 of tensor model.norm.weight"));
    folder.tensors.remove("model.norm.weight");
    assert_eq!(folder.refusal(), "tensor norm.weight is missing: looked for it in model.safetensors");
    folder.add("model.norm.weight", Dtype::F16, &[8]);
    folder.add("model.layers.0.self_attn.q_proj.bias", Dtype::F16, &[8]);
    assert!(folder.refusal().contains("tensor model.layers.0.self_attn.q_proj.bias of model.safetensors is not"));
    folder.tensors.remove("model.layers.0.self_attn.q_proj.bias");
    folder.add("norm.weight", Dtype::F16, &[8]);
    assert!(folder.refusal().contains("tensor norm.weight gives norm.weight a second time"));
}

#[test]
fn tied_embeddings_leave_a_stored_head_alone_and_untied_ones_need_it() {
    let mut folder = Folder::llama();
    folder.config["tie_word_embeddings"] = json!(true);
    assert!(!folder.open().unwrap().tensors.contains_key("lm_head.weight"));
    folder.config["tie_word_embeddings"] = json!(false);
    folder.tensors.remove("lm_head.weight");
    assert!(folder.refusal().starts_with("tensor lm_head.weight is missing"));
}

#[test]
fn phi3_projections_are_split_by_rows() {
    let config = json!({
        "architectures": ["Phi3ForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10,
        "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1,
    });
    let mut folder = Folder::new(config, |name| format!("model.{name}"));
    folder.tensors.retain(|name, _| !["q_proj", "k_proj", "v_proj", "gate", "up_"].iter().any(|p| name.contains(p)));
    folder.add("model.layers.0.self_attn.qkv_proj.weight", Dtype::BF16, &[16, 8]);
    folder.add("model.layers.0.mlp.gate_up_proj.weight", Dtype::BF16, &[24, 8]);
    let checkpoint = folder.open().unwrap();
    let rows = |name: &str| {
        let tensor = &checkpoint.tensors[&format!("layers.0.{name}.weight")];
        (tensor.first_row, tensor.rows, tensor.cols)
    };
    assert_eq!(rows("self_attn.q_proj"), (0, 8, 8));
    assert_eq!(rows("self_attn.k_proj"), (8, 4, 8));
    assert_eq!(rows("self_attn.v_proj"), (12, 4, 8));
    assert_eq!(rows("mlp.gate_proj"), (0, 12, 8));
    assert_eq!(rows("mlp.up_proj"), (12, 12, 8));
    folder.add("model.layers.0.mlp.gate_up_proj.weight", Dtype::BF16, &[23, 8]);
    assert!(folder.refusal().contains("has shape [23, 8], expected [24, 8]"));
}

#[test]
fn vision_tensors_are_skipped_and_counted_under_both_prefixes() {
    let config = json!({
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": { "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4 },
    });
    for (text, vision) in [("language_model.model.", ""), ("model.language_model.", "model.")] {
        let mut folder = Folder::new(config.clone(), |name| format!("{text}{name}"));
        folder.add(&format!("{vision}vision_tower.patch.weight"), Dtype::U8, &[3, 5]);
        folder.add(&format!("{vision}multi_modal_projector.norm.weight"), Dtype::F32, &[4]);
        let checkpoint = folder.open().unwrap();
        assert_eq!(checkpoint.skipped, Skipped { tensors: 2, bytes: 31 });
        assert!(checkpoint.tensors.contains_key("layers.0.self_attn.q_norm.weight"));
    }
}

#[test]
fn mistral_3_has_a_head_of_its_own_where_the_folder_has_one() {
    let config = json!({
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": { "model_type": "mistral", "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4 },
    });
    for (text, head) in [("model.language_model.", "lm_head."), ("language_model.model.", "language_model.lm_head.")] {
        let rename = |name: &str| match name.strip_prefix("lm_head.") {
            Some(rest) => format!("{head}{rest}"),
            None => format!("{text}{name}"),
        };
        let mut folder = Folder::new(config.clone(), rename);
        assert!(!folder.open().unwrap().config.tied_embeddings);
        folder.tensors.remove(&format!("{head}weight"));
        assert!(folder.open().unwrap().config.tied_embeddings);
        folder.config["tie_word_embeddings"] = json!(false);
        assert!(folder.refusal().starts_with("tensor lm_head.weight is missing"));
    }
}

#[test]
fn a_head_that_predicts_is_read_or_left_out_for_a_reason() {
    let config = json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": { "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10, "num_hidden_layers": 4,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "linear_num_key_heads": 1,
            "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4 },
    });
    let source = |name: &str| match name.strip_suffix("gate_proj.weight") {
        _ if name == "lm_head.weight" => name.to_owned(),
        Some(block) if name.contains("self_attn") => format!("unused.{block}"),
        _ => format!("model.language_model.{name}"),
    };
    let mut folder = Folder::new(config, source);
    folder.tensors.retain(|name, _| !name.starts_with("unused."));
    folder.add("model.language_model.layers.3.self_attn.q_proj.weight", Dtype::F32, &[32, 8]);
    folder.add("model.visual.blocks.0.norm1.weight", Dtype::F32, &[4]);
    assert!(!folder.open().unwrap().config.predictor);
    let of_last: Vec<_> = folder.tensors.iter().filter(|(name, _)| name.contains("layers.3.")).collect();
    let of_layer = of_last
        .iter()
        .map(|(name, (_, shape))| (name.replace("model.language_model.layers.3.", "layers.0."), shape.clone()));
    let norms = ["norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"].map(|norm| (format!("{norm}.weight"), vec![8]));
    let head: Vec<_> = of_layer.chain(norms).chain([("fc.weight".to_owned(), vec![8, 16])]).collect();
    for (name, shape) in &head {
        folder.add(&format!("mtp.{name}"), Dtype::F32, shape);
    }
    let checkpoint = folder.open().unwrap();
    assert_eq!(checkpoint.skipped, Skipped { tensors: 1, bytes: 16 });
    assert_eq!((checkpoint.config.layers.len(), checkpoint.config.n_decoder_layers()), (5, 4));
    assert_eq!(checkpoint.tensors["layers.3.self_attn.gate_proj.weight"].rows, 16);
    assert_eq!(
        checkpoint.tensors["layers.4.self_attn.gate_proj.weight"].source_name,
        "mtp.layers.0.self_attn.q_proj.weight"
    );
    assert_eq!(checkpoint.tensors["layers.4.fc.weight"].cols, 16);
    let mut without = checkpoint;
    without.leave_out_predictor();
    let of_norm: usize = head.iter().map(|(_, shape)| 4 * shape.iter().product::<usize>()).sum();
    // A query and its gate are two of ours.
    assert_eq!(without.skipped, Skipped { tensors: head.len() + 2, bytes: 16 + of_norm as u64 });
    assert_eq!((without.config.layers.len(), without.config.predictor), (4, false));
    folder.add("mtp.layers.1.input_layernorm.weight", Dtype::F32, &[8]);
    let two_layers = folder.open().unwrap();
    assert_eq!((two_layers.config.predictor, two_layers.skipped.tensors), (false, head.len() + 2));
    let reason = "mtp_num_hidden_layers is 2, heads of 1 layer are compiled";
    assert_eq!(two_layers.predictor_left_out.as_deref(), Some(reason));
    folder.tensors.remove("mtp.layers.1.input_layernorm.weight");
    folder.tensors.remove("mtp.fc.weight");
    assert_eq!(folder.refusal(), "tensor layers.4.fc.weight is missing: looked for it in model.safetensors");
}

#[test]
fn a_layer_behind_the_last_is_skipped() {
    let config = json!({
        "architectures": ["Glm4MoeForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "vocab_size": 10,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
    });
    let mut folder = Folder::new(config, |name| format!("model.{name}"));
    folder.add("model.layers.1.eh_proj.weight", Dtype::F32, &[8, 16]);
    folder.add("model.layers.1.self_attn.q_proj.weight", Dtype::F32, &[8, 8]);
    assert_eq!(folder.open().unwrap().skipped, Skipped { tensors: 2, bytes: 768 });
    folder.config["architectures"] = json!(["LlamaForCausalLM"]);
    assert!(folder.refusal().contains("tensor model.layers.1.eh_proj.weight"));
}

#[test]
fn the_hash_follows_every_file_that_was_read() {
    let folder = Folder::llama();
    let hash = || folder.open().unwrap().source_hash();
    let first = hash();
    assert_eq!(first, hash());
    folder.write_json("generation_config.json", &json!({ "eos_token_id": [3, 4] }));
    assert_ne!(first, hash());
}

/// Every model of the tests' folder opens, and its tensors can be read.
#[test]
fn the_tiny_models_open() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny");
    for entry in std::fs::read_dir(models).unwrap() {
        let path = entry.unwrap().path();
        let checkpoint = open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for tensor in checkpoint.tensors.values() {
            let mut last_row = vec![f32::NAN; tensor.cols];
            tensor.read_rows(tensor.rows - 1..tensor.rows, &mut last_row);
            assert!(last_row.iter().all(|value| value.is_finite()), "{}", tensor.source_name);
        }
        let vision = match path.file_name().and_then(|name| name.to_str()) {
            Some("gemma3-multimodal") => Skipped { tensors: 11, bytes: 17_024 },
            Some("gemma3-vision") => Skipped { tensors: 11, bytes: 25_104 },
            Some("mistral3-multimodal") => Skipped { tensors: 15, bytes: 37_248 },
            _ => Skipped::default(),
        };
        assert_eq!(checkpoint.skipped, vision, "{}", path.display());
        assert_eq!(checkpoint.tokenizer.bos_token.as_deref(), Some("<bos>"), "{}", path.display());
    }
}

#[test]
fn fp8_numbers_need_their_factors() {
    const NAME: &str = "model.layers.0.mlp.up_proj.weight";
    let mut folder = Folder::llama();
    folder.config["quantization_config"] = json!({ "quant_method": "fp8", "weight_block_size": [8, 4] });
    folder.add(NAME, Dtype::F8_E4M3, &[12, 8]);
    let missing = format!("tensor {NAME}_scale_inv is missing, which holds the factors of the FP8 numbers of {NAME}");
    assert_eq!(folder.refusal(), missing);
    // Blocks of the config, the last of which is smaller; rows; one for all.
    for shape in [&[2, 2][..], &[12, 1], &[1, 1], &[1], &[]] {
        folder.add(&format!("{NAME}_scale_inv"), Dtype::F32, shape);
        folder.add("model.layers.0.mlp.up_proj.activation_scale", Dtype::F32, &[]);
        let checkpoint = folder.open().unwrap_or_else(|error| panic!("{shape:?}: {error}"));
        assert_eq!(checkpoint.tensors["layers.0.mlp.up_proj.weight"].dtype, SourceDType::F8E4M3);
        assert_eq!(checkpoint.skipped, Skipped::default());
    }
    for (dtype, shape, expected) in [
        (Dtype::F32, &[2, 3][..], "has shape [2, 3], expected [2, 2]"),
        (Dtype::F32, &[0, 2], "has shape [0, 2], expected [2, 2]"),
        (Dtype::F32, &[1, 2], "has shape [1, 2], expected [2, 2]"),
        (Dtype::I32, &[2, 2], "elements are I32, expected F32, F16, BF16 or U8"),
    ] {
        folder.add(&format!("{NAME}_scale_inv"), dtype, shape);
        let message = folder.refusal();
        assert!(message.contains(expected), "{message}");
    }
    folder.config["quantization_config"]["weight_block_size"] = json!([0, 4]);
    let message = folder.refusal();
    assert!(message.contains("weight_block_size is [0,4], expected rows and columns, each above 0"), "{message}");
    folder.config["quantization_config"] = json!({ "quant_method": "fp8", "fmt": "e5m2" });
    assert!(folder.refusal().contains("quantization_config.fmt e5m2"));
}

/// As compressed-tensors writes FP8: a factor for each row, and one of activations.
#[test]
fn fp8_of_compressed_tensors_is_read() {
    let mut folder = Folder::llama();
    folder.config["quantization_config"] = json!({ "quant_method": "compressed-tensors", "format": "float-quantized" });
    folder.add("model.layers.0.mlp.up_proj.weight", Dtype::F8_E4M3, &[12, 8]);
    folder.add("model.layers.0.mlp.up_proj.weight_scale", Dtype::BF16, &[12, 1]);
    folder.add("model.layers.0.mlp.up_proj.input_scale", Dtype::BF16, &[1]);
    // Of keys and values, in their projections or in the attention.
    folder.add("model.layers.0.self_attn.k_proj.weight", Dtype::F8_E4M3, &[4, 8]);
    folder.add("model.layers.0.self_attn.k_proj.weight_scale", Dtype::F32, &[1]);
    for name in ["k_proj.k_scale", "k_proj.output_scale", "k_scale", "v_scale"] {
        folder.add(&format!("model.layers.0.self_attn.{name}"), Dtype::F32, &[1]);
    }
    assert_eq!(names(&folder.open().unwrap()), names(&Folder::llama().open().unwrap()));
    // Without factors by row, the blocks of the first group.
    let weights = json!({ "num_bits": 8, "type": "float", "strategy": "block", "block_structure": [8, 4] });
    folder.config["quantization_config"]["config_groups"] = json!({ "group_0": { "weights": weights } });
    folder.add("model.layers.0.mlp.up_proj.weight_scale", Dtype::BF16, &[2, 2]);
    assert_eq!(names(&folder.open().unwrap()), names(&Folder::llama().open().unwrap()));
    folder.config["quantization_config"] = json!({ "quant_method": "modelopt", "quant_algo": "NVFP4" });
    assert!(folder.refusal().contains("quantization_config.quant_algo NVFP4 is not supported"));
}

/// The file that transformers 5 writes is read before that of earlier versions, and its older fields before the newer ones.
#[test]
fn an_image_processor_is_read_as_transformers_reads_it() {
    let qwen = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny/qwen3-vl");
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(qwen).unwrap().map(|file| file.unwrap().path()) {
        std::fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    let write = |name: &str, value: Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    let vision = || open(folder.path()).map(|checkpoint| checkpoint.config.vision.expect("a tower"));
    let pixels = |vision: &VisionConfig| vision.grid.as_ref().map(|grid| [grid.min_pixels, grid.max_pixels]);
    write("preprocessor_config.json", json!({ "size": { "shortest_edge": 300, "longest_edge": 10_000 } }));
    assert_eq!(pixels(&vision().unwrap()), Some([300, 10_000]));
    write("preprocessor_config.json", json!({ "size": { "longest_edge": 10_000 }, "max_pixels": 20_000 }));
    assert_eq!(pixels(&vision().unwrap()).map(|[_, most]| most), Some(20_000));
    let of_images = json!({ "min_pixels": 500, "max_pixels": 5000, "image_mean": [0.5, 0.25, 0.125], "resample": 3 });
    write("processor_config.json", json!({ "image_processor": of_images }));
    let found = vision().unwrap();
    assert_eq!((pixels(&found), found.mean), (Some([500, 5000]), [0.5, 0.25, 0.125]));
    for (field, value, expected) in [
        ("do_normalize", json!(false), "image_processor.do_normalize is false, and pictures are read with true alone"),
        ("resample", json!(2), "image_processor.resample is 2, and pictures are read with 3 alone"),
        ("rescale_factor", json!(0.5), "image_processor.rescale_factor is 0.5"),
    ] {
        let mut of_images = json!({});
        of_images[field] = value;
        write("processor_config.json", json!({ "image_processor": of_images }));
        let message = vision().expect_err("it is refused").to_string();
        assert!(message.contains(expected), "{message}");
    }
}
