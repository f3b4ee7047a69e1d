//! The files in `tests/hostile/`: each is the smallest sound file with the one change that its name describes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tests::generators::smallest_config;

use crate::refusal::{assert_refused, compile_command};

/// File and what its refusal must say.
const SAFETENSORS: &[(&str, &[&str])] = &[
    ("data-cut", &["tensor data is", "expected"]),
    ("data-too-long", &["tensor data is", "expected"]),
    ("dtype-integer", &["element type I16", "model.norm.weight"]),
    ("dtype-unknown", &["tensor model.norm.weight", "badly described"]),
    ("empty", &["0 bytes"]),
    ("gap-between-tensors", &["tensor model.norm.weight has data offsets 100..112, expected a start of 96"]),
    ("git-lfs-pointer", &["Git LFS pointer"]),
    ("header-a-list", &["not a safetensors header"]),
    ("header-deeply-nested", &["not a safetensors header"]),
    ("header-length-largest-number", &["header is 18446744073709551615 bytes long by its own length"]),
    ("header-longer-than-file", &["header is 10000000 bytes long by its own length"]),
    ("header-not-json", &["not a safetensors header"]),
    ("offsets-backwards", &["tensor model.norm.weight has data offsets 112..96"]),
    ("offsets-beyond-file", &["model.layers.0.mlp.down_proj.weight"]),
    ("shape-disagrees-with-bytes", &["tensor lm_head.weight has 96 bytes", "expected 108"]),
    ("shape-overflows", &["lm_head.weight", "more than fit any file"]),
    ("shape-transposed", &["lm_head.weight", "[6, 8]", "[8, 6]"]),
    ("shorter-than-its-length", &["3 bytes"]),
    ("tensor-missing", &["tensor layers.0.mlp.down_proj.weight is missing"]),
    ("tensors-overlap", &["tensor model.norm.weight has data offsets 90..106, expected a start of 96"]),
];

/// File and what its refusal must say.
const GGUF: &[(&str, &[&str])] = &[
    ("architecture-unknown", &["architecture falcon is not supported", "llama", "gemma3"]),
    ("array-length-huge", &["value of tokenizer.ggml.scores", "bytes, the file has"]),
    ("arrays-in-arrays", &["value of general.name is an array of arrays"]),
    ("big-endian", &["big-endian", "expected little-endian"]),
    ("cut-in-data", &["tensor blk.0.ffn_down.weight", "not inside the file"]),
    ("cut-in-header", &["metadata count", "the file has 4 left"]),
    ("cut-in-metadata", &["value of llama.attention.head_count_kv", "the file has 1 left"]),
    ("cut-in-tensor-list", &["tensor blk.0.ffn_down.weight", "the file has 3 left"]),
    ("empty", &["magic", "the file has 0 left"]),
    ("metadata-count-huge", &["metadata key", "bytes, the file has"]),
    ("string-length-huge", &["value of general.name", "4611686018427387904 bytes"]),
    ("tensor-count-huge", &["tensor"]),
    ("tensor-dimension-zero", &["tensor output.weight of shape [0, 8]"]),
    ("tensor-dimensions-many", &["tensor output.weight has 200 dimensions"]),
    ("tensor-dimensions-overflow", &["tensor output.weight of shape [1099511627776, 1099511627776]"]),
    ("tensor-named-twice", &["tensor output.weight appears twice"]),
    ("tensor-offset-outside", &["tensor output.weight", "not inside the file"]),
    ("tensor-offset-overflows", &["tensor output.weight", "not inside the file"]),
    ("tensor-offset-unaligned", &["tensor output.weight", "a multiple of 32"]),
    ("tensor-type-unknown", &["1234", "tensor output.weight", "Q4_K"]),
    ("value-type-unknown", &["type of general.name is 77"]),
    ("version-of-the-future", &["version 99", "expected 2 or 3"]),
    ("wrong-magic", &["magic is not GGUF"]),
];

#[test]
fn every_safetensors_file_is_refused() {
    for (name, expected) in SAFETENSORS {
        let model = tempfile::tempdir().unwrap();
        std::fs::write(model.path().join("config.json"), smallest_config().to_string()).unwrap();
        let file = folder("safetensors").join(format!("{name}.safetensors"));
        std::fs::copy(&file, model.path().join("model.safetensors")).unwrap();
        refused(model.path(), &[&["model.safetensors"], *expected].concat());
    }
    assert_listed("safetensors", SAFETENSORS);
}

#[test]
fn every_gguf_file_is_refused() {
    for (name, expected) in GGUF {
        refused(&folder("gguf").join(format!("{name}.gguf")), expected);
    }
    assert_listed("gguf", GGUF);
}

fn refused(model: &Path, expected: &[&str]) {
    let out = tempfile::tempdir().unwrap();
    assert_refused(&mut compile_command(model, &out.path().join("model.unicorn")), out.path(), expected);
}

/// A file that no table names is a test that does not run.
fn assert_listed(extension: &str, table: &[(&str, &[&str])]) {
    let entries = std::fs::read_dir(folder(extension)).unwrap().map(|entry| entry.unwrap().path());
    let found: BTreeSet<String> =
        entries.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(found, table.iter().map(|(name, _)| (*name).to_owned()).collect());
}

fn folder(extension: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hostile").join(extension)
}
