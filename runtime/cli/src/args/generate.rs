//! `unicorn-run MODEL`, `run` and `chat`.

use std::path::PathBuf;

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
    /// Start generating when the first layers are loaded, and load the rest during the first steps
    #[arg(long, conflicts_with = "load_alone", help_heading = MEMORY, hide_short_help = true)]
    pub lazy: bool,
}
