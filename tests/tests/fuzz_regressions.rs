//! Every input that a fuzzer once tripped over (`tests/fuzz/regressions`), through the same oracles.

use std::path::Path;

use tests::oracles;

#[test]
fn every_regression_file_still_passes() {
    type Oracle = fn(&[u8]);
    let targets: [(&str, Oracle); 19] = [
        ("artifact", oracles::artifact),
        ("safetensors", oracles::safetensors),
        ("lora", oracles::lora),
        ("gguf", oracles::gguf),
        ("config_json", oracles::config_json),
        ("tokenizer_json", oracles::tokenizer_json),
        ("chat_template", oracles::chat_template),
        ("request", oracles::request),
        ("reply", oracles::reply),
        ("structure", oracles::structure),
        ("picture", oracles::picture),
        ("plan", oracles::plan),
        ("module", oracles::module),
        ("npu_stream", oracles::npu_stream),
        ("npu_control", oracles::npu_control),
        ("npu_section", oracles::npu_section),
        ("kv_segment", oracles::kv_segment),
        ("manifest", oracles::manifest),
        ("repository", oracles::repository),
    ];
    for (target, oracle) in targets {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/regressions").join(target);
        let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "{} holds no inputs", folder.display());
        for path in paths {
            println!("{}", path.display());
            oracle(&std::fs::read(&path).unwrap());
        }
    }
}
