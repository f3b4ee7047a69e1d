//! `serve`.

use std::path::PathBuf;

use clap::value_parser;

use super::sampling::template_arguments;
use super::{ACCESS, COMMON, LoadArgs, MEMORY, SAMPLING, SamplingArgs, SpeculationArgs};
use unicorn_serve::Pooling;
use unicorn_text::TemplateArguments;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct ServeArgs {
    /// Artifact, GGUF file or Hugging Face folder; what is not compiled yet is compiled once and kept in the cache
    #[arg(value_name = "MODEL", help_heading = None::<&str>, required_unless_present_any = ["models", "models_dir"])]
    pub artifact: Option<PathBuf>,
    /// Serve several models instead, each under this name; one is loaded when a request names it, the first where none is named;
    /// repeatable
    #[arg(short, long = "model", value_name = "NAME=MODEL", value_parser = named_model, conflicts_with = "artifact")]
    pub models: Vec<(String, PathBuf)>,
    /// Serve all artifacts and GGUF files of this folder, under their names without the ending
    #[arg(long, value_name = "FOLDER", conflicts_with = "artifact")]
    pub models_dir: Option<PathBuf>,
    /// Of several models, those that are in memory at a time; the least recently used one makes place
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..), help_heading = MEMORY, hide_short_help = true)]
    pub models_max: u32,
    /// Of several models, unload one that had no request for so many seconds [default: only when its memory is needed]
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..), help_heading = MEMORY, hide_short_help = true)]
    pub sleep_idle_seconds: Option<u64>,
    /// Of several models, load this one at the start and never unload it; repeatable
    #[arg(long, value_name = "NAME", conflicts_with = "artifact", help_heading = MEMORY, hide_short_help = true)]
    pub pin: Vec<String>,
    /// Addresses to listen on, with commas between them; 0.0.0.0: all addresses of this machine; PATH.sock: a Unix domain socket.
    /// Sockets that systemd passes take their place
    #[arg(long, value_name = "ADDR", value_delimiter = ',', default_value = "127.0.0.1")]
    pub host: Vec<String>,
    /// Port to listen on; 0: any free one
    #[arg(long, value_name = "PORT", default_value_t = 8006)]
    pub port: u16,
    /// Number of sequences that are generated at a time; further requests wait
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=64))]
    pub parallel: u32,
    /// Context of each sequence in tokens [default: the model's maximum, or as much as fits the memory for all of them]
    #[arg(short, long = "ctx", value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    /// Tokens of all sequences together that the KV cache holds; requests wait where it is full [default: the context of each sequence]
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..), help_heading = MEMORY, hide_short_help = true)]
    pub kv_tokens: Option<u32>,
    /// Name of the model in responses and in lists of models [default: that of the artifact]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["models", "models_dir"])]
    pub alias: Option<String>,
    /// Key that requests need to name, as `Authorization: Bearer KEY` or `X-Api-Key: KEY`; repeatable, and a list with commas
    #[arg(long, value_name = "KEY", value_delimiter = ',', env = "UNICORN_API_KEY", hide_env_values = true, help_heading = ACCESS, hide_short_help = true)]
    pub api_key: Vec<String>,
    /// File with a key in each line
    #[arg(long, value_name = "FILE", help_heading = ACCESS, hide_short_help = true)]
    pub api_key_file: Option<PathBuf>,
    /// Speak TLS, with the certificate and its chain in this PEM file
    #[arg(long, value_name = "FILE", requires = "ssl_key_file", help_heading = ACCESS, hide_short_help = true)]
    pub ssl_cert_file: Option<PathBuf>,
    /// The certificate's private key, a PEM file
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file", help_heading = ACCESS, hide_short_help = true)]
    pub ssl_key_file: Option<PathBuf>,
    /// Write a line to stderr for each request: time, id, method, path, status, milliseconds until the response began
    #[arg(long, value_name = "FORMAT", value_enum, help_heading = ACCESS, hide_short_help = true)]
    pub log: Option<LogFormat>,
    /// Answer /metrics, for Prometheus
    #[arg(long, help_heading = ACCESS, hide_short_help = true)]
    pub metrics: bool,
    /// Answer /v1/embeddings, by the hidden states behind the final norm
    #[arg(long, visible_alias = "embedding", help_heading = ACCESS, hide_short_help = true)]
    pub embeddings: bool,
    /// How the hidden states of a text become its embedding: their mean, that of the last token or of the first (cls), or none: one a token
    #[arg(long, value_name = "HOW", value_enum, default_value = "last", requires = "embeddings", help_heading = ACCESS, hide_short_help = true)]
    pub pooling: PoolingOption,
    /// Answer /v1/rerank, by how likely the model says that a document answers the query
    #[arg(long, visible_alias = "rerank", help_heading = ACCESS, hide_short_help = true)]
    pub reranking: bool,
    /// Do not answer /slots
    #[arg(long, help_heading = ACCESS, hide_short_help = true)]
    pub no_slots: bool,
    /// No chat page at /
    #[arg(long, help_heading = ACCESS, hide_short_help = true)]
    pub no_webui: bool,
    /// Variables of the chat template for requests without `chat_template_kwargs` of that name, a JSON object
    #[arg(long, value_name = "JSON", value_parser = template_arguments, help_heading = SAMPLING, hide_short_help = true)]
    pub chat_template_kwargs: Option<TemplateArguments>,
    /// Choices of requests that may wait for a sequence; then requests are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = ACCESS, hide_short_help = true)]
    pub max_queue: u32,
    /// Open connections; further ones wait
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = value_parser!(u32).range(1..), help_heading = ACCESS, hide_short_help = true)]
    pub max_connections: u32,
    /// Seconds that a client may take to send the head of a request, then its body, or to read a part of the answer
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u64).range(1..), help_heading = ACCESS, hide_short_help = true)]
    pub timeout: u64,
    /// Seconds that answers may take to end after SIGTERM, during which new connections are refused
    #[arg(long, value_name = "SECONDS", default_value_t = 25, help_heading = ACCESS, hide_short_help = true)]
    pub drain: u64,
    /// Name or address that requests may have in their Host header, beside localhost and --host; *: any; repeatable
    #[arg(long, value_name = "NAME", help_heading = ACCESS, hide_short_help = true)]
    pub allowed_host: Vec<String>,
    /// Origin, such as https://chat.example, whose pages may use the server in a browser; *: any; repeatable
    #[arg(long, value_name = "ORIGIN", help_heading = ACCESS, hide_short_help = true)]
    pub cors: Vec<String>,
    /// Once the model is loaded, give up starting programs, connecting to others, and files (seccomp and Landlock)
    #[arg(long, help_heading = ACCESS, hide_short_help = true, conflicts_with_all = ["models", "models_dir"])]
    pub sandbox: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// How requests are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// How hidden states become an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PoolingOption {
    Mean,
    Last,
    Cls,
    None,
}

impl PoolingOption {
    /// The server's word for it.
    pub fn pooling(self) -> Pooling {
        match self {
            PoolingOption::Mean => Pooling::Mean,
            PoolingOption::Last => Pooling::Last,
            PoolingOption::Cls => Pooling::Cls,
            PoolingOption::None => Pooling::None,
        }
    }
}

/// `NAME=MODEL`.
fn named_model(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, model)) if !name.is_empty() && !model.is_empty() => Ok((name.to_owned(), model.into())),
        _ => Err("expected NAME=MODEL, such as small=smol.unicorn".to_owned()),
    }
}
