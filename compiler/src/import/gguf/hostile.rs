//! Malformed GGUF files: each is a valid file with one change.

use std::path::Path;

use super::test_file::{TestFile, TestTensor, TestValue};
use super::{ParsedGguf, parse};
use crate::error::Result;

fn parse_bytes(bytes: &[u8]) -> Result<ParsedGguf> {
    parse(Path::new("model.gguf"), bytes)
}

/// Changes a good file and checks that the error contains `expected`.
#[track_caller]
fn refused(expected: &str, change: impl FnOnce(&mut TestFile)) {
    let mut file = TestFile::model("llama");
    change(&mut file);
    refused_bytes(expected, &file.bytes());
}

#[track_caller]
fn refused_bytes(expected: &str, bytes: &[u8]) {
    let message = parse_bytes(bytes).err().expect("the file is refused").to_string();
    assert!(message.contains(expected), "{message:?} does not contain {expected:?}");
}

#[test]
fn the_file_that_the_others_are_made_from_is_fine() {
    assert_eq!(parse_bytes(&TestFile::model("llama").bytes()).unwrap().tensors.len(), 12);
}

#[test]
fn every_cut_is_an_error() {
    let bytes = TestFile::model("llama").bytes();
    for len in 0..bytes.len() {
        assert!(parse_bytes(&bytes[..len]).is_err(), "cut to {len} bytes");
    }
}

#[test]
fn no_changed_byte_makes_it_panic() {
    let mut bytes = file_with_tokenizer().bytes();
    let data_bytes: usize = TestFile::model("llama").tensors.iter().map(|tensor| tensor.data.len()).sum();
    for at in 0..bytes.len() - data_bytes {
        let kept = bytes[at];
        for changed in [0, 1, 0x7f, 0x80, 0xff, kept ^ 1, kept ^ 4] {
            bytes[at] = changed;
            drop(parse_bytes(&bytes));
        }
        bytes[at] = kept;
    }
}

fn file_with_tokenizer() -> TestFile {
    let tokens = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("a", 1), ("b", 1), ("ab", 1)];
    let mut file = TestFile::with_tokenizer("llama", &tokens);
    file.set("tokenizer.ggml.scores", TestValue::Floats(&[0.0, 0.0, 0.0, -1.0, -2.0, -3.0]));
    file
}

#[test]
fn other_formats_are_refused_by_name() {
    refused_bytes("magic is not GGUF", b"PK\x03\x04 and so on");
    refused_bytes("magic at byte 0 needs 4 bytes, the file has 0 left", b"");
    refused("GGUF version 1", |file| file.version = 1);
    refused("GGUF version 4", |file| file.version = 4);
    refused("GGUF big-endian file", |file| file.version = 3u32.swap_bytes());
    refused("architecture mamba is not supported; supported are:\n  llama, qwen2", |file| {
        file.set("general.architecture", TestValue::String("mamba"));
    });
}

#[test]
fn counts_and_lengths_are_not_believed() {
    // What follows the true entries is then read as entries.
    refused("tensor  has 0 dimensions", |file| file.tensor_count = Some(u64::MAX));
    refused("metadata key at byte", |file| file.metadata_count = Some(u64::MAX));
    let array_of = |element_type: u32, count: u64| {
        [9u32.to_le_bytes().as_slice(), &element_type.to_le_bytes(), &count.to_le_bytes()].concat()
    };
    for (element_type, count) in [(0, u64::MAX), (12, u64::MAX / 8 + 1), (8, u64::MAX), (8, 1 << 40)] {
        refused("value of lie", |file| file.metadata.push(("lie".to_string(), array_of(element_type, count))));
    }
    refused("value of lie is an array of arrays", |file| file.metadata.push(("lie".to_string(), array_of(9, 1))));
    refused("type of lie is 13, expected 0 to 12", |file| {
        file.metadata.push(("lie".to_string(), 13u32.to_le_bytes().to_vec()));
    });
    let long_string = [8u32.to_le_bytes().as_slice(), &u64::MAX.to_le_bytes()].concat();
    refused("value of lie at byte", |file| file.metadata.push(("lie".to_string(), long_string)));
    let not_text = [8u32.to_le_bytes().as_slice(), &1u64.to_le_bytes(), &[0xff]].concat();
    refused("is not UTF-8", |file| file.metadata.push(("lie".to_string(), not_text)));
}

#[test]
fn nothing_appears_twice() {
    refused("metadata key general.architecture appears twice", |file| {
        let first = file.metadata[0].clone();
        file.metadata.push(first);
    });
    refused("tensor output_norm.weight appears twice", |file| {
        let tensor = file.tensor("output_norm.weight").clone();
        file.tensors.push(tensor);
    });
    let mut file = file_with_tokenizer();
    file.set("tokenizer.ggml.tokens", TestValue::Strings(&["<unk>", "<s>", "</s>", "a", "a", "ab"]));
    refused_bytes("token 4 is \"a\", as token 3 is already", &file.bytes());
}

#[test]
fn tensors_lie_inside_the_file() {
    let change = |expected: &str, change: &dyn Fn(&mut TestTensor)| {
        refused(expected, |file| change(file.tensor("output.weight")));
    };
    change("is not inside the file", &|tensor| tensor.offset = Some(1 << 40));
    change("is not inside the file", &|tensor| tensor.offset = Some(u64::MAX - 31));
    change("begins at offset 4, expected a multiple of 32", &|tensor| tensor.offset = Some(4));
    change("is not inside the file", &|tensor| tensor.dimensions = vec![8, 1 << 40]);
    change("is not inside the file", &|tensor| tensor.dimensions = vec![8, 1 << 62]);
    change("is not inside the file", &|tensor| tensor.dimensions = vec![8, 1 << 32, 1 << 32]);
    change("is not inside the file", &|tensor| tensor.dimensions = vec![8, 0]);
    change("has 8 columns, expected whole blocks of 32 for Q4_0", &|tensor| tensor.type_id = 2);
    change("has 0 dimensions, expected 1 to 4", &|tensor| tensor.dimensions = vec![]);
    change("has 5 dimensions, expected 1 to 4", &|tensor| tensor.dimensions = vec![8, 6, 1, 1, 1]);
    change("tensor output.weight has shape [6, 4], expected [6, 8]", &|tensor| tensor.dimensions = vec![4, 6]);
    change("tensor output.weight has GGUF type IQ2_XXS, supported are: F32", &|tensor| tensor.type_id = 16);
    change("tensor output.weight has GGUF type number 99, supported", &|tensor| tensor.type_id = 99);
    for alignment in [0, 48, u32::MAX] {
        refused("general.alignment is", |file| file.set("general.alignment", TestValue::U32(alignment)));
    }
}

#[test]
fn sizes_that_contradict_the_tensors_are_refused() {
    for (key, value, expected) in [
        ("block_count", u32::MAX, "llama.block_count is 4294967295, more than the file's 12 tensors"),
        ("block_count", 2, "tensor blk.1.attn_norm.weight is missing"),
        ("embedding_length", 16, "has shape"),
        ("attention.head_count", 4, "has shape"),
        ("attention.key_length", u32::MAX, "head_dim"),
        ("rope.dimension_count", u32::MAX, "rotary"),
        ("context_length", 0, "metadata has no llama.context_length"),
        ("expert_count", 8, "metadata has no llama.expert_used_count"),
    ] {
        refused(expected, |file| file.set(&format!("llama.{key}"), TestValue::U32(value)));
    }
    refused("llama.block_count is a string, expected an integer", |file| {
        file.set("llama.block_count", TestValue::String("1"));
    });
}

#[test]
fn a_tensor_without_a_known_use_is_refused() {
    refused("tensor blk.0.attn_sinks.weight is not supported", |file| {
        file.add_f32_tensor("blk.0.attn_sinks.weight", vec![8]);
    });
}

#[test]
fn a_fused_tensor_of_another_size_is_refused() {
    let mut file = TestFile::model("qwen2");
    for part in ["attn_q", "attn_k", "attn_v"] {
        file.remove_tensor(&format!("blk.0.{part}.weight"));
    }
    file.add_f32_tensor("blk.0.attn_qkv.weight", vec![8, 16]);
    file.add_f32_tensor("blk.0.attn_qkv.bias", vec![15]);
    refused_bytes("tensor blk.0.attn_qkv.bias has shape [15], expected [16]", &file.bytes());
}

/// A block of Q8_0 has 32 elements: queries are 16, keys and values 8 each.
#[test]
fn a_fused_bias_is_not_cut_within_a_block() {
    let mut file = TestFile::model("qwen2");
    for part in ["attn_q", "attn_k", "attn_v"] {
        file.remove_tensor(&format!("blk.0.{part}.weight"));
    }
    file.set("qwen2.attention.key_length", TestValue::U32(8));
    file.set("qwen2.attention.value_length", TestValue::U32(8));
    file.add_f32_tensor("blk.0.attn_qkv.weight", vec![8, 32]);
    file.add_f32_tensor("blk.0.attn_qkv.bias", vec![32]);
    let bias = file.tensor("blk.0.attn_qkv.bias");
    (bias.type_id, bias.data) = (8, vec![0; 34]);
    refused_bytes("tensor blk.0.attn_qkv.bias of Q8_0 is not supported: 8 elements from 16 on", &file.bytes());
}

#[test]
fn a_tokenizer_that_contradicts_itself_is_refused() {
    let refused = |expected: &str, key: &str, value: TestValue| {
        let mut file = file_with_tokenizer();
        file.set(&format!("tokenizer.ggml.{key}"), value);
        refused_bytes(expected, &file.bytes());
    };
    refused("tokenizer.ggml.model wordpiece is not supported", "model", TestValue::String("wordpiece"));
    refused("tokenizer.ggml.scores has 1 elements", "scores", TestValue::Floats(&[0.0]));
    refused("tokenizer.ggml.eos_token_id is 6, the vocabulary has 6 tokens", "eos_token_id", TestValue::U32(6));
    refused("holds a float, expected strings", "tokens", TestValue::Floats(&[0.0; 6]));
    let seven = ["<unk>", "<s>", "</s>", "a", "b", "ab", "abc"];
    let mut file = file_with_tokenizer();
    file.set("tokenizer.ggml.tokens", TestValue::Strings(&seven));
    file.set("tokenizer.ggml.scores", TestValue::Floats(&[0.0; 7]));
    file.set("tokenizer.ggml.token_type", TestValue::Integers(&[1; 7]));
    refused_bytes("vocabulary has 7 tokens, token_embd.weight has 6 rows", &file.bytes());
    let long = "a".repeat(1025);
    refused("token 0 has 1025 bytes", "tokens", TestValue::Strings(&[&long, "<s>", "</s>", "a", "b", "ab"]));
}
