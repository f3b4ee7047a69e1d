//! Whether a trained model predicts and writes text on this device as it does elsewhere. Random weights, which the shapes have,
//! cannot show it: no result is less plausible than another. Without this check there is no table.
//!
//! ```text
//! models/MODEL ─► unicorn-compile ─► artifact
//! prefill   a held-out text ─► perplexity, as in perplexity.json within its tolerance
//! decode    a prompt ─► greedy tokens ─► their perplexity by prefill: low, because each token was the likeliest
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::Clock;
use crate::options::Options;
use crate::scratch::Scratch;

/// `perplexity.json` of the bundle.
#[derive(Deserialize)]
struct Expected {
    /// Folder in `models`.
    model: String,
    /// File in `models`.
    text: String,
    /// Chunks of `text` that are evaluated, of 512 tokens each.
    chunks: u32,
    /// Perplexity on llvmpipe with INT4 weights, whose kernels are tested against an f32 reference.
    perplexity: f64,
    /// Tolerance of `perplexity`: integer activations and sums in another order change it by less, and a wrong kernel by more.
    tolerance: f64,
    prompt: String,
    generated_tokens: u32,
    /// Maximum perplexity of the generated text: it is 2.9 on llvmpipe, and 40 and more for text that the model does not expect.
    max_greedy_perplexity: f64,
}

/// What was found, for one device and the target that its kernels were made for.
#[derive(Serialize)]
pub struct Perplexity {
    pub device: String,
    pub target: String,
    pub expected: f64,
    pub found: f64,
    pub found_greedy: f64,
    pub passed: bool,
}

/// Tokens of a chunk of the generated text.
const GREEDY_CHUNK_TOKENS: &str = "64";

/// Measures both perplexities with real weights, on the device and the target that are timed.
///
/// # Errors
/// In words, when a command fails.
pub fn measure(options: &Options, clock: &Clock) -> Result<Perplexity, String> {
    let path = options.bundle.join("perplexity.json");
    let json = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let expected: Expected = serde_json::from_str(&json).map_err(|error| format!("{}: {error}", path.display()))?;
    let models = options.bundle.join("models");
    let artifact = Scratch { path: options.output.join("perplexity.unicorn") };
    let mut compile = Command::new(options.program("unicorn-compile"));
    clock.run(compile.arg(models.join(&expected.model)).arg("-o").arg(&artifact.path))?;

    let chunks = expected.chunks.to_string();
    let report = run(options, clock, &artifact.path, &models.join(&expected.text), &["--chunks", &chunks])?;
    let mut generate = Command::new(options.program("unicorn-run"));
    generate.arg(&artifact.path).args(["-p", &expected.prompt, "--temp", "0"]);
    generate.args(["-n", &expected.generated_tokens.to_string()]);
    let generated = clock.run(on_device(options, &mut generate))?;
    let text = Scratch { path: options.output.join("generated.txt") };
    write(&text.path, &generated)?;
    let greedy = run(options, clock, &artifact.path, &text.path, &["--ctx", GREEDY_CHUNK_TOKENS])?;

    let (found, found_greedy) = (number(&report)?, number(&greedy)?);
    let words = |key: &str| report[key].as_str().unwrap_or_default().to_owned();
    let off = (found / expected.perplexity - 1.0).abs();
    Ok(Perplexity {
        device: words("device"),
        target: words("target"),
        expected: expected.perplexity,
        found,
        found_greedy,
        // Written so that a NaN fails.
        passed: off <= expected.tolerance && found_greedy <= expected.max_greedy_perplexity,
    })
}

/// The report of `unicorn-run perplexity`.
fn run(options: &Options, clock: &Clock, artifact: &Path, text: &Path, more: &[&str]) -> Result<Value, String> {
    let mut perplexity = Command::new(options.program("unicorn-run"));
    perplexity.arg("perplexity").arg(artifact).arg("--file").arg(text).arg("--json").args(more);
    let printed = clock.run(on_device(options, &mut perplexity))?;
    serde_json::from_str(&printed).map_err(|error| format!("perplexity printed no JSON: {error}"))
}

fn on_device<'c>(options: &Options, command: &'c mut Command) -> &'c mut Command {
    match &options.device {
        Some(device) => command.args(["--device", device]),
        None => command,
    }
}

fn number(report: &Value) -> Result<f64, String> {
    report["perplexity"].as_f64().ok_or_else(|| format!("perplexity is missing in {report}"))
}

fn write(path: &PathBuf, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
