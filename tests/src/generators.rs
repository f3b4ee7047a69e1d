//! Inputs made from a fuzzer's bytes, and the small sound files that hostile ones are made from.

use serde_json::{Value, json};
use unicorn_artifact::header::{
    ENTRY_BYTES, HEADER_BYTES, MAGIC, SECTION_ALIGN, Section, SectionKind, VERSION_MAJOR, VERSION_MINOR, encode_header,
};
use unicorn_artifact::kv_segment::{KvPages, KvStep};
use unicorn_artifact::{ImageSection, KvSegment, NpuArgument, NpuEstimate, NpuProgram, NpuSection, NpuShape};
use unicorn_kernels::npu::tile::{CoreTile, Epilogue, GemmShape};

/// The structured sections of an artifact, in the order of [`artifact_of_parts`]' lengths.
pub const STRUCTURED_SECTIONS: [SectionKind; 4] =
    [SectionKind::Metadata, SectionKind::Plan, SectionKind::Kernels, SectionKind::Tokenizer];

/// An artifact whose header, table and hashes are right, so that a fuzzer gets through to the sections.
///
/// ```text
/// bytes = length u32 of metadata · plan · kernels · tokenizer, each at most what is left, then their contents;
///         what remains is the only weight section
/// ```
pub fn artifact_of_parts(bytes: &[u8]) -> Vec<u8> {
    let (lengths, mut rest) = bytes.split_at(bytes.len().min(4 * STRUCTURED_SECTIONS.len()));
    let mut parts = Vec::new();
    for (kind, length) in STRUCTURED_SECTIONS.into_iter().zip(lengths.chunks(4)) {
        let length = length.iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte));
        let (part, after) = rest.split_at(length.min(rest.len()));
        parts.push((kind, part));
        rest = after;
    }
    parts.push((SectionKind::Weights, rest));
    assemble(&parts)
}

/// The inverse of [`artifact_of_parts`] for artifacts with one weight section.
pub fn parts_of_artifact(artifact: &[u8]) -> Vec<u8> {
    let sections = unicorn_artifact::header::decode_header(artifact).expect("the artifact is sound");
    let body = |kind: SectionKind| {
        let section = sections.iter().find(|section| section.kind == kind as u32).expect("every section is there");
        &artifact[section.offset_bytes as usize..][..section.len_bytes as usize]
    };
    let bodies: Vec<&[u8]> = STRUCTURED_SECTIONS.into_iter().map(body).collect();
    let lengths = bodies.iter().flat_map(|body| (body.len() as u32).to_le_bytes());
    lengths.chain(bodies.concat()).chain(body(SectionKind::Weights).iter().copied()).collect()
}

/// An artifact of these sections, in this order.
pub fn assemble(parts: &[(SectionKind, &[u8])]) -> Vec<u8> {
    let mut sections = Vec::new();
    let mut end = (HEADER_BYTES + parts.len() * ENTRY_BYTES) as u64;
    for (kind, part) in parts {
        let offset_bytes = end.next_multiple_of(SECTION_ALIGN);
        end = offset_bytes + part.len() as u64;
        let hash = *blake3::hash(part).as_bytes();
        sections.push(Section { kind: *kind as u32, index: 0, offset_bytes, len_bytes: part.len() as u64, hash });
    }
    let mut artifact = encode_header(&sections, end);
    for (section, (_, part)) in sections.iter().zip(parts) {
        artifact.resize(section.offset_bytes as usize, 0);
        artifact.extend_from_slice(part);
    }
    artifact
}

/// A segment of five tokens, of a model with one KV group of all tokens and one of a window.
pub fn smallest_kv_segment() -> KvSegment {
    let pages = |first_page| KvPages { first_page, n_pages: 2 };
    KvSegment {
        artifact: [7; 32],
        target: "generic".into(),
        parent: Some([1; 32]),
        first_token: 4,
        tokens: vec![1, 2, 3, 4, 5],
        steps: vec![KvStep { program: 1, n_tokens: 5, rope_variant: 0 }],
        groups: vec![pages(1), pages(1)],
        payload_hash: [0; 32],
    }
}

/// An NPU section whose only program is [`smallest_gemm`], and no product.
pub fn smallest_npu_section() -> NpuSection {
    let shape = smallest_gemm();
    let design = unicorn_npu::gemm::design(&shape);
    let argument = |argument: &unicorn_npu::design::Argument| NpuArgument {
        name: argument.name.into(),
        bytes: (argument.len * argument.element.bytes()) as u64,
    };
    let program = NpuProgram {
        name: "smallest".into(),
        shape: NpuShape { rows: 64, cols: 16, depth: 64, columns: 1, core_rows: 16, core_cols: 16, core_depth: 32 },
        activation: None,
        arguments: design.arguments.iter().map(argument).collect(),
        instructions: unicorn_npu::stream::encode(&design, &unicorn_npu::lower::lower(&design)),
        control: Vec::new(),
        uses: Vec::new(),
        estimate: NpuEstimate { cycles: 1, clock_hz: [1, 1], busy: 0.0, shim_bytes: 0 },
    };
    let (decisions, products, slices) = (Vec::new(), Vec::new(), Vec::new());
    NpuSection { device: "npu1".into(), decisions, programs: vec![program], products, slices, steps: Vec::new() }
}

/// The smallest product that the NPU's kernel computes: one tile of one column.
pub fn smallest_gemm() -> GemmShape {
    let core = CoreTile::new(16, 16, 32, Epilogue::Scale);
    GemmShape::padded(64, 16, 64, 1, core)
}

/// `bytes` behind the header of an NPU's instruction stream; the first of them is how many instructions it has.
pub fn with_stream_header(bytes: &[u8]) -> Vec<u8> {
    let (&count, body) = bytes.split_first().unwrap_or((&0, &[]));
    let mut stream = unicorn_npu::stream::encode_instructions(&[]);
    stream[8..12].copy_from_slice(&u32::from(count).to_le_bytes());
    stream[12..16].copy_from_slice(&(16 + body.len() as u32).to_le_bytes());
    stream.extend(body);
    stream
}

/// `bytes` with magic, version, file length and the table's hash as a reader expects them; the table's entries stay.
pub fn with_valid_preamble(bytes: &[u8]) -> Vec<u8> {
    let mut artifact = bytes.to_vec();
    artifact.resize(artifact.len().max(HEADER_BYTES), 0);
    let len_bytes = artifact.len() as u64;
    artifact[..8].copy_from_slice(&MAGIC);
    artifact[8..10].copy_from_slice(&VERSION_MAJOR.to_le_bytes());
    artifact[10..12].copy_from_slice(&VERSION_MINOR.to_le_bytes());
    // At most as many sections as fit: the count is that of the fuzzer, modulo one more than this maximum.
    let room = (artifact.len() - HEADER_BYTES) / ENTRY_BYTES;
    let count = usize::from(artifact[12]) % (room + 1);
    artifact[12..16].copy_from_slice(&(count as u32).to_le_bytes());
    artifact[16..24].copy_from_slice(&len_bytes.to_le_bytes());
    rehash_table(&mut artifact);
    artifact
}

/// Makes the header's hash fit the header and the table, after one of them was changed.
pub fn rehash_table(artifact: &mut [u8]) {
    let count = u32::from_le_bytes(artifact[12..16].try_into().expect("4 bytes")) as usize;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&artifact[..32]).update(&artifact[HEADER_BYTES..HEADER_BYTES + count * ENTRY_BYTES]);
    artifact[32..HEADER_BYTES].copy_from_slice(hasher.finalize().as_bytes());
}

/// The `config.json` that fuzzed weights come with: one layer of Llama, hidden size 8, six tokens.
pub fn smallest_config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16, "vocab_size": 6,
        "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1, "max_position_embeddings": 64,
    })
}

/// A config.json of a model with experts that may be MXFP4.
pub fn smallest_mxfp4_config() -> Value {
    json!({
        "architectures": ["GptOssForCausalLM"], "hidden_size": 32, "intermediate_size": 32, "vocab_size": 6,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "num_hidden_layers": 1,
        "max_position_embeddings": 64, "num_local_experts": 2, "num_experts_per_tok": 1,
        "quantization_config": { "quant_method": "mxfp4" },
    })
}

/// Every tensor of [`smallest_config`]: name, name in GGUF, shape (rows first).
const SMALLEST_TENSORS: [(&str, &str, &[usize]); 12] = [
    ("model.embed_tokens.weight", "token_embd.weight", &[6, 8]),
    ("model.norm.weight", "output_norm.weight", &[8]),
    ("lm_head.weight", "output.weight", &[6, 8]),
    ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight", &[8]),
    ("model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight", &[8, 8]),
    ("model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight", &[4, 8]),
    ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight", &[4, 8]),
    ("model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight", &[8, 8]),
    ("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight", &[8]),
    ("model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight", &[16, 8]),
    ("model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight", &[16, 8]),
    ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight", &[8, 16]),
];

/// A sound `model.safetensors` for [`smallest_config`]: BF16 zeros.
pub fn smallest_safetensors() -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, _, shape) in SMALLEST_TENSORS {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name.into(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}));
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + end, 0);
    file
}

/// How images of 8 × 8 pixels become four patches.
pub fn smallest_image_section() -> ImageSection {
    ImageSection {
        rows: 4,
        image_size: 8,
        patch_size: 4,
        patch_stride: 48,
        row_stride: 8,
        mean: [0.5; 3],
        deviation: [0.5; 3],
        around: String::new(),
        begin_token: 0,
        row_token: 1,
        end_token: 2,
        grid: None,
    }
}

/// A sound picture of 2 × 2 pixels: BMP, which has no checksums.
pub fn smallest_picture() -> Vec<u8> {
    const HEADERS_BYTES: u32 = 14 + 40;
    let pixels = [[1, 2, 3, 4, 5, 6, 0, 0], [7, 8, 9, 10, 11, 12, 0, 0]].concat();
    let mut file = b"BM".to_vec();
    for word in [HEADERS_BYTES + pixels.len() as u32, 0, HEADERS_BYTES, 40, 2, 2, 1 | 24 << 16, 0, 0, 0, 0, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(pixels);
    file
}

/// The same model as a sound GGUF file: F32 zeros, no tokenizer.
pub fn smallest_gguf() -> Vec<u8> {
    const ALIGNMENT: usize = 32;
    const SIZES: [(&str, u32); 6] = [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 16),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ];
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((SMALLEST_TENSORS.len() as u64).to_le_bytes());
    file.extend((SIZES.len() as u64 + 2).to_le_bytes());
    put_string(&mut file, "general.architecture");
    file.extend(GGUF_STRING.to_le_bytes());
    put_string(&mut file, "llama");
    put_string(&mut file, "llama.attention.layer_norm_rms_epsilon");
    file.extend(GGUF_F32.to_le_bytes());
    file.extend(1e-5f32.to_le_bytes());
    for (key, size) in SIZES {
        put_string(&mut file, &format!("llama.{key}"));
        file.extend(GGUF_U32.to_le_bytes());
        file.extend(size.to_le_bytes());
    }
    let mut data_bytes = 0usize;
    for (_, name, shape) in SMALLEST_TENSORS {
        put_string(&mut file, name);
        file.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|&size| file.extend((size as u64).to_le_bytes()));
        file.extend(GGUF_TENSOR_F32.to_le_bytes());
        file.extend((data_bytes as u64).to_le_bytes());
        data_bytes = (data_bytes + 4 * shape.iter().product::<usize>()).next_multiple_of(ALIGNMENT);
    }
    file.resize(file.len().next_multiple_of(ALIGNMENT) + data_bytes, 0);
    file
}

/// Types of metadata values.
const GGUF_U32: u32 = 4;
const GGUF_F32: u32 = 6;
const GGUF_STRING: u32 = 8;
/// Type of a tensor's elements.
const GGUF_TENSOR_F32: u32 = 0;

fn put_string(file: &mut Vec<u8>, text: &str) {
    file.extend((text.len() as u64).to_le_bytes());
    file.extend(text.as_bytes());
}

/// A request to `unicorn-run serve`, for a chat as well as for plain text, with every parameter that it has.
pub fn fullest_request() -> Value {
    let mut request = json!({
        "model": "any",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "Bye"},
        ],
        "prompt": ["Hello", [1, 2, 3]],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": false,
        "add_generation_prompt": true,
        "continue_final_message": false,
        "stop_token_ids": [1],
        "min_tokens": 1,
        "ignore_eos": false,
        "echo": true,
        "skip_special_tokens": false,
        "return_tokens": true,
        "reasoning_effort": "low",
        "reasoning_budget": 0,
        "thinking_budget_tokens": 8,
        "reasoning_budget_message": " Enough.",
        "n_indent": 1,
        "t_max_predict_ms": 1000,
        "samplers": ["penalties", "top_k", "temperature"],
        "min_keep": 0,
        "chat_template_kwargs": {"enable_thinking": true},
        "n": 2,
        "max_tokens": 8,
        "max_completion_tokens": 9,
        "stop": ["END"],
        "stream": true,
        "stream_options": {"include_usage": true},
        "temperature": 0.5,
        "top_k": 10,
        "top_p": 0.9,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "repetition_penalty": 1.2,
        "repeat_last_n": 32,
        "seed": 7,
        "user": "somebody",
    });
    let sampling = json!({
        "logit_bias": [[1, -100], ["a", false]],
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "typical_p": 0.9,
        "top_n_sigma": 2.0,
        "n_probs": 0,
        "post_sampling_probs": true,
        "response_format": {"type": "text"},
        "grammar": "",
        "verbose": true,
    });
    let (Some(request_fields), Value::Object(sampling)) = (request.as_object_mut(), sampling) else {
        unreachable!("both are objects")
    };
    request_fields.extend(sampling);
    request
}

/// A GGUF file whose first tensor, the embeddings, has another type: it stands behind its name, its number of dimensions and these.
///
/// # Panics
/// If it has no such tensor.
pub fn with_tensor_type(gguf: &[u8], type_id: u32) -> Vec<u8> {
    let name = b"token_embd.weight";
    let at = gguf.windows(name.len()).position(|window| window == name).expect("a model has embeddings") + name.len();
    let dimensions = u32::from_le_bytes(gguf[at..at + 4].try_into().unwrap()) as usize;
    let mut changed = gguf.to_vec();
    changed[at + 4 + 8 * dimensions..][..4].copy_from_slice(&type_id.to_le_bytes());
    changed
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_smallest_models_are_sound() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), smallest_config().to_string()).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), smallest_safetensors()).unwrap();
        let from_folder = unicorn_compiler::import::open_model(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(from_folder.tensors.len(), SMALLEST_TENSORS.len());
        let parsed = unicorn_compiler::import::parse_gguf(Path::new("smallest.gguf"), &smallest_gguf());
        assert!(parsed.is_ok_and(|gguf| gguf.config.layers.len() == 1));
    }

    #[test]
    fn parts_of_an_artifact_come_together_again() {
        let parts = artifact_of_parts(b"\x01\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0MPPTweights");
        assert_eq!(parts_of_artifact(&parts), b"\x01\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0MPPTweights");
        assert!(unicorn_artifact::header::decode_header(&artifact_of_parts(b"")).is_ok());
        assert!(unicorn_artifact::header::decode_header(&with_valid_preamble(b"")).is_ok());
    }
}
