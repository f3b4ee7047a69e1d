//! The reference model against transformers: every golden in `models/`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tests::models::models;
use tests::reference::{Reference, mean_kl_divergence, read_golden, read_logits, relative_error};
use unicorn_compiler::import::parse_gguf;

/// Both sides compute in f32 and differ only in the order of sums and in how exactly angles and exponentials are
/// rounded, which is some 1e-6 of the logits. One position more in a window, a forgotten cap or a wrong angle costs
/// 5e-2 and more; even another epsilon in the norms costs 1e-3.
const REORDERED_F32_SUMS: f64 = 1e-5;

#[test]
fn every_golden_is_met() {
    let folders = folders_with_golden();
    assert!(folders.len() >= 19, "only {} goldens were found", folders.len());
    let mut far_off = Vec::new();
    for folder in folders {
        let golden = read_golden(&folder);
        let reference = Reference::open(&folder);
        let logits = reference.logits(&golden.tokens);
        let error = relative_error(&golden.logits, &logits);
        let divergence = mean_kl_divergence(&golden.logits, &logits, reference.vocab_size());
        println!("{}: relative error {error:.1e}, divergence {divergence:.1e} nats", folder.display());
        // Written so that an error that is no number fails too.
        if !(error <= REORDERED_F32_SUMS && divergence.abs() <= REORDERED_F32_SUMS) {
            far_off.push(format!("{}: {error:.2e}", folder.display()));
        }
    }
    assert!(far_off.is_empty(), "relative error above {REORDERED_F32_SUMS:.0e}: {far_off:#?}");
}

#[test]
fn greedy_continuations_are_met() {
    for name in ["llama-tied", "gemma3-older-config", "phi3-longrope-long"] {
        let folder = models().join("tiny").join(name);
        let golden = read_golden(&folder);
        let count = golden.greedy.len().min(4);
        assert_eq!(Reference::open(&folder).greedy(&golden.tokens, count), golden.greedy[..count], "{name}");
    }
}

#[test]
fn logits_are_read_alone() {
    let folder = models().join("tiny/llama-tied");
    assert_eq!(read_logits(folder.join("golden.safetensors")), read_golden(&folder).logits);
}

fn folders_with_golden() -> Vec<PathBuf> {
    let tiny = std::fs::read_dir(models().join("tiny")).expect("models/tiny is a folder");
    let mut folders: Vec<PathBuf> = tiny.map(|entry| entry.expect("an entry of models/tiny").path()).collect();
    folders.push(models().join("gemma3-2m-draft"));
    folders.retain(|folder| folder.join("golden.safetensors").exists());
    folders.sort();
    folders
}

/// README's table of families is what the goldens, the compiler's list of GGUF architectures and the goldens of templates give; `BLESS=1` writes
/// it.
#[test]
fn the_table_of_families_is_that_of_the_tests() {
    const BEGIN: &str = "<!-- families: BLESS=1 cargo test -p tests --test reference families -->\n";
    const END: &str = "<!-- end of families -->\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(&path).expect("README.md");
    let (before, rest) = readme.split_once(BEGIN).expect("README has the table's beginning");
    let (table, behind) = rest.split_once(END).expect("README has the table's end");
    let expected = table_of_families();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{expected}{END}{behind}")).expect("README.md is written");
    } else {
        assert_eq!(table, expected, "README's families; BLESS=1 writes them");
    }
}

/// Chat templates that models of an architecture come with, as in `golden/templates`.
const TEMPLATES: [(&str, &[&str]); 31] = [
    ("deepseekv2", &["deepseek-v2"]),
    ("gemma2", &["gemma2"]),
    ("gemma3", &["gemma3"]),
    ("gemma4", &["gemma4"]),
    ("glm", &["glm"]),
    ("glm4", &["glm4"]),
    ("glm4moe", &["glm45", "glm47"]),
    ("glm4moelite", &["glm47"]),
    ("gptoss", &["gpt-oss"]),
    ("granite", &["granite3"]),
    ("granitemoehybrid", &["granite4"]),
    ("lfm2", &["lfm2", "lfm25"]),
    ("lfm2moe", &["lfm2", "lfm25"]),
    ("llama", &["llama3", "deepseek-r1"]),
    ("ministral", &["ministral"]),
    ("ministral3", &["ministral3"]),
    ("mistral", &["mistral", "mistral-small"]),
    ("mistral3", &["mistral-small", "ministral3"]),
    ("mixtral", &["mistral"]),
    ("olmo2", &["olmo2"]),
    ("olmo3", &["olmo3"]),
    ("olmoe", &["olmoe"]),
    ("phi3", &["phi4"]),
    ("qwen2", &["qwen25", "deepseek-r1"]),
    ("qwen2moe", &["qwen25"]),
    ("qwen3", &["qwen3"]),
    ("qwen3_5", &["qwen35"]),
    ("qwen3_5moe", &["qwen35"]),
    ("qwen3moe", &["qwen3"]),
    ("qwen3next", &["qwen3-next"]),
    ("smollm3", &["smollm3"]),
];

fn table_of_families() -> String {
    let mut goldens: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for folder in folders_with_golden() {
        let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let class = config["architectures"][0].as_str().expect("an architecture").to_owned();
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        goldens.entry(class).or_default().push(name);
    }
    let gguf = gguf_architectures();
    let mut table =
        "| architecture | safetensors: logits of transformers | GGUF | chat template |\n|---|---|---|---|\n".to_owned();
    for (class, names) in goldens {
        let short = class.to_lowercase().replace("forcausallm", "").replace("forconditionalgeneration", "");
        let of_golden = |name: &&String| models().join("gguf").join(format!("{name}.gguf")).exists();
        // llama.cpp's converter writes these two as its llama.
        let is_read = gguf.contains(&short) || ["mistral", "mixtral"].contains(&short.as_str());
        let gguf = match () {
            () if names.iter().any(|name| of_golden(&name)) => "the same logits",
            () if is_read => "read",
            () => "–",
        };
        let templates = TEMPLATES.iter().find(|(name, _)| *name == short).map_or(&[][..], |(_, templates)| templates);
        let count = if names.len() == 1 { "1 model".into() } else { format!("{} models", names.len()) };
        table += &format!("| {class} | {count} | {gguf} | {} |\n", of_templates(templates));
    }
    table
}

/// Texts around reasoning.
const REASONING: &[&str] = &["<think>", "[THINK]", "<|channel>thought", "<|channel|>analysis"];

/// What the templates have, each checked against Jinja's own rendering.
fn of_templates(names: &[&str]) -> String {
    let has = |parts: &[&str]| {
        names.iter().any(|name| {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/templates").join(format!("{name}.jinja"));
            let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            parts.iter().any(|part| text.contains(part))
        })
    };
    let kinds = [("turns", !names.is_empty()), ("tools", has(&["tools", "functions"])), ("reasoning", has(REASONING))];
    let found: Vec<&str> = kinds.into_iter().filter(|(_, has)| *has).map(|(kind, _)| kind).collect();
    if found.is_empty() { "–".into() } else { found.join(", ") }
}

/// What the compiler reports to have read.
fn gguf_architectures() -> Vec<String> {
    let mut file = Vec::new();
    let text = |file: &mut Vec<u8>, text: &str| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    };
    file.extend(b"GGUF");
    file.extend(3u32.to_le_bytes());
    file.extend([0u64, 1].iter().flat_map(|count| count.to_le_bytes()));
    text(&mut file, "general.architecture");
    file.extend(8u32.to_le_bytes());
    text(&mut file, "nobody-has-this");
    file.resize(file.len().next_multiple_of(32), 0);
    let error = parse_gguf(Path::new("none.gguf"), &file).err().expect("no such architecture").to_string();
    let (_, list) = error.split_once("supported are:").expect("the error lists what is supported");
    list.split(',').map(|name| name.trim().to_owned()).collect()
}
