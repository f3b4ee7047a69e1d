//! Compilers that read broken files or are killed: no incomplete output, no crash, no endless wait.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use unicorn_artifact::{ArtifactView, MappedFile};

use super::Row;
use crate::generators::smallest_gguf;

/// Longer than any compile of the smallest model.
const MAX_TIME: Duration = Duration::from_secs(60);
/// For a model of 2,000 layers, by a release build.
const MAX_PLANNING: Duration = Duration::from_secs(10);
/// Bytes of metadata and tensor list, where a change is read as something else; behind them are numbers.
const HEAD_BYTES: usize = 2 << 10;

/// Compiles the smallest GGUF file, cut or with some bytes changed, `count` times.
pub fn mutated_ggufs(compiler: &Path, count: u64) -> Row {
    Row::of("mutated GGUF files compiled", |row| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (model, artifact) = (folder.path().join("mutated.gguf"), folder.path().join("mutated.unicorn"));
        let sound = smallest_gguf();
        for number in 0..count {
            let mut random = StdRng::seed_from_u64(number);
            let mut bytes = sound.clone();
            for _ in 0..random.random_range(1..8) {
                let at = random.random_range(0..bytes.len().min(HEAD_BYTES));
                bytes[at] = random.random();
            }
            if number.is_multiple_of(8) {
                bytes.truncate(random.random_range(0..bytes.len()));
            }
            std::fs::write(&model, bytes).expect("a temporary file");
            row.inputs += 1;
            let finding = match ended(compile(compiler, &model, &artifact)) {
                None => Some("it did not end".to_owned()),
                Some((status, text)) if !matches!(status.code(), Some(0 | 1)) || text.contains("panicked") => {
                    Some(format!("{status}: {text}"))
                }
                Some((status, _)) => wrong_output(&artifact, status.success()),
            };
            row.findings.extend(finding.map(|finding| format!("mutation {number}: {finding}")));
            let _ = std::fs::remove_file(&artifact);
        }
    })
}

/// Kills `count` compiles at different moments. Each leaves no artifact or a whole one, and the next compile writes it.
pub fn compiler_kills(compiler: &Path, model: &Path, count: u64) -> Row {
    Row::of("kills while compiling", |row| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let artifact = folder.path().join("model.unicorn");
        let begun = Instant::now();
        if !ended(compile(compiler, model, &artifact)).is_some_and(|(status, _)| status.success()) {
            return row.findings.push(format!("{} does not compile", model.display()));
        }
        let whole_time = begun.elapsed();
        let expected = std::fs::read(&artifact).expect("the artifact");
        for number in 0..count {
            std::fs::remove_file(&artifact).expect("the artifact");
            let mut killed = compile(compiler, model, &artifact);
            std::thread::sleep(whole_time * (number as u32 + 1) / (count as u32 + 1));
            killed.kill().expect("it was started");
            killed.wait().expect("it was started");
            row.inputs += 1;
            row.findings.extend(wrong_output(&artifact, artifact.exists()));
            let again = ended(compile(compiler, model, &artifact));
            if !again.is_some_and(|(status, _)| status.success())
                || std::fs::read(&artifact).ok() != Some(expected.clone())
            {
                return row.findings.push(format!("kill {number}: the next compile gives another artifact"));
            }
        }
    })
}

/// Plans models of 2,000 layers, for which planning has 10 seconds, and of more layers than are allowed.
pub fn deep_models(compiler: &Path) -> Row {
    Row::of("models of 2,000 and 10,001 layers", |row| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = folder.path().join("config.json");
        for (layers, expected_code, expected) in [(2000, 0, ""), (10_001, 1, "from 1 to 10000")] {
            std::fs::write(&config, deep_config(layers).to_string()).expect("a temporary file");
            let mut command = Command::new(compiler);
            command.arg("--synthetic").arg(&config).args(["--plan-only", "--quiet", "--target", "nvidia"]);
            let begun = Instant::now();
            let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the compiler starts");
            let ended = ended(child);
            row.inputs += 1;
            let is_right = ended.as_ref().is_some_and(|(status, text)| {
                status.code() == Some(expected_code) && text.contains(expected) && !text.contains("panicked")
            });
            if !is_right || begun.elapsed() > MAX_PLANNING {
                row.findings.push(format!("{layers} layers after {:.1?}: {ended:?}", begun.elapsed()));
            }
        }
    })
}

fn deep_config(layers: u32) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
        "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": layers,
        "vocab_size": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 512,
        "tie_word_embeddings": true
    })
}

/// Starts a compile for every target, which replaces an existing artifact.
fn compile(compiler: &Path, model: &Path, artifact: &Path) -> Child {
    let mut command = Command::new(compiler);
    command.arg(model).arg("--output").arg(artifact).args(["--target", "llvmpipe", "--force"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the compiler starts")
}

/// Status and messages; `None`: it did not end, and was killed.
fn ended(mut child: Child) -> Option<(ExitStatus, String)> {
    let begun = Instant::now();
    while begun.elapsed() < MAX_TIME {
        if child.try_wait().expect("it was started").is_some() {
            let output = child.wait_with_output().expect("it has ended");
            return Some((output.status, String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = (child.kill(), child.wait());
    None
}

/// What is wrong with a file that is there, or not there.
fn wrong_output(artifact: &Path, is_expected: bool) -> Option<String> {
    match (artifact.exists(), is_expected) {
        (true, true) => {
            let file = MappedFile::open(artifact).map_err(|error| error.to_string());
            let error =
                file.and_then(|file| ArtifactView::parse(file.bytes()).map(drop).map_err(|error| error.to_string()));
            error.err()
        }
        (false, false) => None,
        (is_there, _) => Some(format!("an artifact is {}there", if is_there { "" } else { "not " })),
    }
}
