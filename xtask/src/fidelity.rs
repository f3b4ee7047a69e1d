//! `cargo xtask fidelity`: what INT4 costs a model. Compiles it at f16 and at int4 and lets both predict the same text.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::binaries::Binaries;
use crate::run::read;

#[derive(clap::Args)]
pub struct FidelityArgs {
    /// Hugging Face folder or GGUF file
    #[arg(long)]
    model: PathBuf,
    /// Text to predict
    #[arg(long)]
    text: PathBuf,
    /// Most chunks of 512 tokens to measure
    #[arg(long, default_value_t = 40)]
    chunks: u32,
    /// Device number or part of its name [default: the best GPU]
    #[arg(short, long, env = "UNICORN_DEVICE")]
    device: Option<String>,
}

const FORMATS: [&str; 2] = ["f16", "int4"];

/// What llama.cpp's Q4_0 weighs on a Gemma 3 of 22 million parameters.
const TARGET_BITS_PER_WEIGHT: f64 = 5.1;
/// What llama.cpp's Q4_K_M adds to that model's perplexity, at 6.0 bits per weight.
const TARGET_PERPLEXITY_INCREASE: f64 = 0.009;

/// Prints one line a format: size, distance from the source's weights, perplexity.
///
/// # Errors
/// When a compile or a measurement fails.
pub fn run(args: &FidelityArgs) -> Result<()> {
    let binaries = Binaries::build()?;
    let folder = binaries.folder("fidelity")?;
    let measured = FORMATS.into_iter().map(|format| measure(args, &binaries, &folder, format));
    println!("{}", table(&measured.collect::<Result<Vec<_>>>()?));
    Ok(())
}

struct Fidelity {
    format: &'static str,
    bits_per_weight: f64,
    /// Root of squared error over squared weights.
    relative_error: f64,
    perplexity: f64,
    /// One standard error.
    perplexity_error: f64,
}

fn measure(args: &FidelityArgs, binaries: &Binaries, folder: &Path, format: &'static str) -> Result<Fidelity> {
    let artifact = folder.join(format!("{format}.unicorn"));
    let compiled = json(&read(binaries.compile(&args.model, &artifact).args(["--weights", format, "--json"]))?)?;
    let mut perplexity = binaries.runtime();
    perplexity.arg("perplexity").arg(&artifact).arg("--file").arg(&args.text);
    perplexity.args(["--chunks", &args.chunks.to_string(), "--json"]);
    if let Some(device) = &args.device {
        perplexity.args(["--device", device]);
    }
    let predicted = json(&read(&mut perplexity)?)?;
    Ok(Fidelity {
        format,
        bits_per_weight: number(&compiled, "bits_per_weight")?,
        relative_error: number(&compiled, "relative_error")?,
        perplexity: number(&predicted, "perplexity")?,
        perplexity_error: number(&predicted, "perplexity_error")?,
    })
}

/// A line a format, each with its perplexity relative to the first, and the targets below.
fn table(measured: &[Fidelity]) -> String {
    let mut lines = vec!["weights  bits/weight  relative error      perplexity       against f16".to_owned()];
    for one in measured {
        let Fidelity { format, bits_per_weight, relative_error, perplexity, perplexity_error } = one;
        let increase = 100.0 * (perplexity / measured[0].perplexity - 1.0);
        lines.push(format!(
            "{format:<7}  {bits_per_weight:>11.3}  {relative_error:>14.5}  {perplexity:>9.4} ± {perplexity_error:<7.4} {increase:>+9.2} %"
        ));
    }
    let increase = 100.0 * TARGET_PERPLEXITY_INCREASE;
    lines.push(format!("target for int4: {TARGET_BITS_PER_WEIGHT} bits/weight, {increase:+.1} %"));
    lines.join("\n")
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text).context("report is not JSON")
}

fn number(report: &Value, key: &str) -> Result<f64> {
    report[key].as_f64().with_context(|| format!("report has no number {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_compares_with_the_first_line() {
        let line = |format, bits_per_weight, perplexity| Fidelity {
            format,
            bits_per_weight,
            relative_error: 0.0,
            perplexity,
            perplexity_error: 0.5,
        };
        let text = table(&[line("f16", 16.0, 20.0), line("int4", 5.0, 21.0)]);
        assert!(
            text.contains("20.0000 ± 0.5000      +0.00 %") && text.contains("21.0000 ± 0.5000      +5.00 %"),
            "{text}"
        );
    }
}
