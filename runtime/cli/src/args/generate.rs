//! `unicorn-run MODEL`, `run` and `chat`.

use std::path::PathBuf;
use std::time::Duration;

use clap::value_parser;

use super::sampling::template_arguments;
use super::{COMMON, LoadArgs, MEMORY, SAMPLING, SamplingArgs, SpeculationArgs, StructureArgs};
use unicorn_text::TemplateArguments;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct RunArgs {
    /// Artifact, GGUF file, Hugging Face folder, or hf:OWNER/NAME
    ///
    /// Or oci://REGISTRY/NAME:TAG. What is not compiled or fetched yet is, once, and kept.
    #[arg(required = true, value_name = "MODEL", help_heading = None::<&str>)]
    pub artifact: Option<PathBuf>,
    /// Prompt, in words or in quotes; without one, a chat begins
    ///
    /// Where standard input is no terminal, it is read as the prompt instead.
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "file"], help_heading = None::<&str>)]
    pub words: Vec<String>,
    /// Prompt as an option; it may begin with a dash
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// File that holds the prompt
    #[arg(short, long, hide_short_help = true)]
    pub file: Option<PathBuf>,
    /// Picture that the prompt is about; repeat it for several
    ///
    /// In a chat, the first message is about it.
    #[arg(long = "image", value_name = "FILE")]
    pub images: Vec<PathBuf>,
    /// Continue the prompt as it is, without the model's chat template; read it from standard input even on a terminal
    #[arg(long, hide_short_help = true)]
    pub raw: bool,
    /// System message of a chat
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", allow_hyphen_values = true, hide_short_help = true)]
    pub system: Option<String>,
    /// Further variables of the chat template, a JSON object, such as {"enable_thinking": false}
    #[arg(long, value_name = "JSON", conflicts_with = "raw", value_parser = template_arguments, help_heading = SAMPLING, hide_short_help = true)]
    pub chat_template_kwargs: Option<TemplateArguments>,
    /// Maximum number of tokens to generate
    ///
    /// [default: until a stop token or a full context]
    #[arg(short, long = "n-predict", value_name = "N")]
    pub n_predict: Option<u32>,
    /// Context in tokens
    ///
    /// [default: the model's maximum, or as much as fits the memory]
    #[arg(short, long = "ctx", value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    /// Print text and statistics as one JSON object on stdout
    #[arg(long, hide_short_help = true)]
    pub json: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub structure: StructureArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Keep the model loaded after the answer, such as 5m, for later starts with the same options; 0 ends that [default: 0]
    ///
    /// A process without a terminal keeps it, which `top` shows.
    #[arg(long, visible_alias = "keepalive", value_name = "TIME", env = "UNICORN_KEEP_ALIVE", hide_env_values = true, value_parser = duration, help_heading = MEMORY, hide_short_help = true)]
    pub keep_alive: Option<Duration>,
    /// Start generating when the first layers are loaded, and load the rest during the first steps
    #[arg(long, conflicts_with = "load_alone", help_heading = MEMORY, hide_short_help = true)]
    pub lazy: bool,
}

/// The process that keeps a model.
#[derive(Debug, clap::Args)]
pub struct KeepArgs {
    /// Where it waits for the next start
    pub socket: PathBuf,
}

/// Seconds, or a number with a unit of s, m or h.
fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a number of seconds, or one with a unit, such as 30s, 5m or 1h".to_owned();
    let (number, scale) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => (text, 1),
    };
    let number: u32 = number.parse().map_err(|_| expected())?;
    Ok(Duration::from_secs(u64::from(number) * scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let seconds = |text| duration(text).map(|time| time.as_secs());
        assert_eq!(["0", "90", "30s", "5m", "2h"].map(|text| seconds(text).unwrap()), [0, 90, 30, 300, 7200]);
        for text in ["", "m", "-1", "5 m", "1.5h", "5d", "é"] {
            assert!(seconds(text).is_err_and(|error| error.contains("such as 30s")), "{text}");
        }
    }
}
