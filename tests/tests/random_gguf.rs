//! The files that `bench-gpu` times llama.cpp on: the compiler finds in each the model that the shape's config.json describes.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tests::compiled::{Silent, options};
use tests::random_gguf::Shape;
use unicorn_compiler::{Source, plan};
use unicorn_spirv::target;

/// Every shape that `bench-gpu --shapes` takes, in its full size.
#[test]
fn a_file_of_each_shape_is_that_model() {
    let mut shapes: Vec<PathBuf> = std::fs::read_dir(shapes()).unwrap().map(|entry| entry.unwrap().path()).collect();
    shapes.sort();
    assert!(shapes.len() > 10, "{shapes:?}");
    for path in shapes {
        let config = config(&path);
        let (mut found, mut expected) = (model_of_file(&config), model_of(Source::Synthetic(&path)));
        let not_compared = [
            // The names of the source's format, the order of its rows, and its types.
            ("architecture", true),
            ("folder", true),
            ("kept_codes", true),
            // Llama 3's divisors are left out.
            ("ropes", config["rope_scaling"]["rope_type"] == "llama3"),
            // No layer has an MLP; this is the width that one would have.
            ("intermediate_size", config["intermediate_size"].is_null()),
        ];
        for (field, _) in not_compared.iter().filter(|(_, is_left_out)| *is_left_out) {
            for model in [&mut found, &mut expected] {
                model.as_object_mut().unwrap().remove(*field).unwrap();
            }
        }
        let (found, expected) = (found.as_object().unwrap(), expected.as_object().unwrap());
        assert_eq!(found.len(), expected.len(), "{}", path.display());
        for (field, expected) in expected {
            assert_eq!(&found[field], expected, "{field} of {}", path.display());
        }
    }
}

/// As they are published; everything else is quantised again.
#[test]
fn experts_of_gpt_oss_are_mxfp4() {
    let model = model_of_file(&config(&shapes().join("gpt-oss-20b.json")));
    let kept = model["kept_codes"].as_object().unwrap();
    assert_eq!(kept.len(), 24 * 32 * 3);
    assert!(kept.keys().all(|name| name.contains(".mlp.experts.")), "{kept:?}");
}

#[test]
fn a_model_that_would_be_another_is_refused() {
    let other = |shape: &str, field: &str, value: Value| {
        let mut config = config(&shapes().join(shape));
        config[field] = value;
        Shape::of_config(&config).unwrap_err()
    };
    for (shape, field, value, expected) in [
        ("gemma-4-26b-a4b.json", "enable_moe_block", false.into(), "enable_moe_block must be true, found false"),
        ("gemma-4-26b-a4b.json", "num_kv_shared_layers", 4.into(), "num_kv_shared_layers must be 0, found 4"),
        ("gemma-4-26b-a4b.json", "moe_intermediate_size", 40.into(), "must have a multiple of 32 columns, found 40"),
        ("gemma-3n-e2b.json", "activation_sparsity_pattern", [0.5; 30].into(), "must hold 0 and 0.95, found 0.5"),
        ("gemma-3n-e2b.json", "activation_sparsity_pattern", [0.0; 3].into(), "is no list of 30 numbers"),
        ("gpt-oss-20b.json", "rope_scaling", Value::Null, "rope_scaling must be of yarn, found null"),
        ("gpt-oss-20b.json", "num_local_experts", 0.into(), "num_local_experts is missing or no size"),
        ("qwen3.6-35b-a3b.json", "linear_value_head_dim", 64.into(), "must be linear_key_head_dim, 128, found 64"),
        ("qwen3.6-35b-a3b.json", "layer_types", [""; 3].into(), "layer_types must have 40 elements, found 3"),
        ("qwen3.6-35b-a3b.json", "model_type", "qwen3_5_text".into(), "found qwen3_5_text"),
    ] {
        let message = other(shape, field, value);
        assert!(message.contains(expected), "{message}\nhas not: {expected}");
    }
}

fn shapes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/shapes")
}

fn config(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// As the compiler finds it in a file of the shape.
fn model_of_file(config: &Value) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = Sparse(File::create(&path).unwrap());
    Shape::of_config(config).unwrap().write(&mut file).unwrap();
    let end = file.0.stream_position().unwrap();
    file.0.set_len(end).unwrap();
    model_of(Source::Model(&path))
}

fn model_of(source: Source) -> Value {
    let options = options(vec![target::by_name("generic").unwrap()], Vec::new());
    let planned = plan(source, &options, &mut Silent).unwrap_or_else(|error| panic!("{error}"));
    serde_json::to_value(&planned.checkpoint.config).unwrap()
}

/// A file in which long writes leave holes, so that gigabytes of weights take no space and no time.
struct Sparse(File);

impl Write for Sparse {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        /// More than metadata and vectors have.
        const LONG_BYTES: usize = 1 << 17;
        if bytes.len() < LONG_BYTES {
            return self.0.write(bytes);
        }
        self.0.seek(SeekFrom::Current(bytes.len() as i64))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
