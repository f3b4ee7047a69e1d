//! `cargo run -p tests --bin fuzz-seeds`: writes the sound files that fuzzing starts from into `tests/fuzz/corpus`.

use std::path::Path;

use tests::control_image::control_image;
use tests::generators::{
    fullest_request, parts_of_artifact, smallest_config, smallest_gemm, smallest_gguf, smallest_kv_segment,
    smallest_npu_section, smallest_picture, smallest_safetensors,
};
use tests::mutated_plan::mutation;
use unicorn_artifact::codec;
use unicorn_artifact::header::VERSION_MAJOR;

fn main() {
    let golden = format!("../artifacts/golden/v{VERSION_MAJOR}-tiny.unicorn");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(golden);
    let artifact = std::fs::read(&golden).unwrap_or_else(|error| panic!("{}: {error}", golden.display()));
    write("artifact", &parts_of_artifact(&artifact));
    write("safetensors", &smallest_safetensors());
    write("gguf", &smallest_gguf());
    write("config_json", smallest_config().to_string().as_bytes());
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny/llama-tied/tokenizer.json");
    write(
        "tokenizer_json",
        &std::fs::read(&tokenizer).unwrap_or_else(|error| panic!("{}: {error}", tokenizer.display())),
    );
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-2m-draft/chat_template.jinja");
    write("chat_template", &std::fs::read(&template).unwrap_or_else(|error| panic!("{}: {error}", template.display())));
    write("plan", &mutation(0));
    write("module", &[0; 13]);
    let design = unicorn_npu::gemm::design(&smallest_gemm());
    write("npu_stream", &unicorn_npu::stream::encode(&design, &unicorn_npu::lower::lower(&design)));
    write("npu_control", &control_image());
    write("npu_section", &codec::encode(&smallest_npu_section()));
    write(
        "reply",
        b"\x01<think>Hm.</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call>",
    );
    write("structure", b"\0\0root ::= item (\",\" item)*\nitem ::= [a-z]{1,3} | \"(\" root \")\" # a list\n");
    write("picture", &smallest_picture());
    write("kv_segment", &codec::encode(&smallest_kv_segment()));
    write("request", fullest_request().to_string().as_bytes());
}

fn write(target: &str, seed: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let path = folder.join("sound");
    std::fs::write(&path, seed).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    println!("{}: {} bytes", path.display(), seed.len());
}
