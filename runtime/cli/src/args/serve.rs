//! `serve`.

use std::path::PathBuf;

use clap::value_parser;

use super::sampling::template_arguments;
use super::{COMMON, LoadArgs, SAMPLING, SamplingArgs};
use unicorn_text::TemplateArguments;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct ServeArgs {
    /// Artifact made by unicorn-compile
    #[arg(help_heading = None::<&str>)]
    pub artifact: PathBuf,
    /// Address to listen on; 0.0.0.0: all addresses of this machine, without access control
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0: any free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// Number of sequences that are generated at a time; further requests wait
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=64))]
    pub parallel: u32,
    /// Context of each sequence in tokens [default: the model's maximum, or as much as fits the memory for all of them]
    #[arg(short, long = "ctx", value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    /// Variables of the chat template for requests without `chat_template_kwargs` of that name, a JSON object
    #[arg(long, value_name = "JSON", value_parser = template_arguments, help_heading = SAMPLING, hide_short_help = true)]
    pub chat_template_kwargs: Option<TemplateArguments>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub load: LoadArgs,
}
