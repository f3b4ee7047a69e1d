//! `serve`.

use std::io;
use std::path::PathBuf;

use clap::value_parser;

use super::sampling::template_arguments;
use super::{ACCESS, COMMON, LoadArgs, MAX_SEQUENCES, MEMORY, SAMPLING, SamplingArgs, SpeculationArgs};
use unicorn_artifact::amount;
use unicorn_runtime::KvCapacity;
use unicorn_serve::{HttpLimits, Pooling};
use unicorn_text::TemplateArguments;

/// Longest time limit of a request or a drain: clocks have no time that is much later.
const DAY_SECONDS: u64 = 24 * 60 * 60;

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
    /// Number of models that are in memory at a time, if several are served; another one takes the place of the least recently used
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..), help_heading = MEMORY, hide_short_help = true)]
    pub models_max: u32,
    /// Unload a model that had no request for this many seconds; its next request loads it again [default: never; several models: when memory is needed]
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..), help_heading = MEMORY, hide_short_help = true)]
    pub sleep_idle_seconds: Option<u64>,
    /// Name of a model that is loaded at the start and never unloaded, if several are served; repeatable
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
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=MAX_SEQUENCES))]
    pub parallel: u32,
    /// Longest sequence in tokens [default: the model's maximum, or as much as fits the memory]
    #[arg(short, long = "ctx", value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    /// Context of all sequences together, as llama-server counts it: each gets its --parallel-th part
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..), conflicts_with = "ctx", help_heading = MEMORY, hide_short_help = true)]
    pub ctx_size: Option<u32>,
    /// Most tokens of an answer; a request may set fewer; -1: as many as the context holds
    #[arg(short, long, visible_alias = "predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = answer_limit, help_heading = SAMPLING, hide_short_help = true)]
    pub n_predict: i32,
    /// Tokens of all sequences together that the KV cache holds; requests wait where it is full [default: the context of each sequence, or as many as fit the memory]
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..), help_heading = MEMORY, hide_short_help = true)]
    pub kv_tokens: Option<u32>,
    /// Each text is that which its request would get alone: sequences take steps of their own, which costs throughput
    #[arg(long, conflicts_with_all = ["kv_tokens", "kv_cache"], help_heading = SAMPLING, hide_short_help = true)]
    pub deterministic: bool,
    /// Folder where conversations are kept when others need their memory, and for the next start; a prompt that begins with one of them is
    /// read from there instead of computed
    #[arg(long, value_name = "DIR", help_heading = MEMORY, hide_short_help = true)]
    pub kv_cache: Option<PathBuf>,
    /// Most bytes in that folder; then conversations that were used longest ago are removed
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = amount::bytes, requires = "kv_cache", help_heading = MEMORY, hide_short_help = true)]
    pub kv_cache_size: u64,
    /// Name of the model in responses and in lists of models; of several with commas between them, the first in alphabetical order
    /// [default: that of the artifact]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',', conflicts_with_all = ["models", "models_dir"])]
    pub alias: Vec<String>,
    /// Tags of the model in lists of models, with commas between them
    #[arg(long, value_name = "TAG", value_delimiter = ',', conflicts_with_all = ["models", "models_dir"], hide_short_help = true)]
    pub tags: Vec<String>,
    /// Key that requests need to name, as `Authorization: Bearer KEY` or `X-Api-Key: KEY`; repeatable, and a list with commas
    #[arg(long, value_name = "KEY", value_delimiter = ',', env = "UNICORN_API_KEY", hide_env_values = true, help_heading = ACCESS, hide_short_help = true)]
    pub api_key: Vec<String>,
    /// File with a key in each line
    #[arg(long, value_name = "FILE", help_heading = ACCESS, hide_short_help = true)]
    pub api_key_file: Option<PathBuf>,
    /// Serve by TLS, with the certificate and its chain in this PEM file
    #[arg(long, value_name = "FILE", requires = "ssl_key_file", help_heading = ACCESS, hide_short_help = true)]
    pub ssl_cert_file: Option<PathBuf>,
    /// The certificate's private key, a PEM file
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file", help_heading = ACCESS, hide_short_help = true)]
    pub ssl_key_file: Option<PathBuf>,
    /// Write a line to stderr for each request: time, id, method, path, status, milliseconds until the response began
    #[arg(long, value_name = "FORMAT", value_enum, help_heading = ACCESS, hide_short_help = true)]
    pub log: Option<LogFormat>,
    /// Send a span for each request to this collector of OpenTelemetry, by OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", value_parser = collector, help_heading = ACCESS, hide_short_help = true)]
    pub otlp_traces_endpoint: Option<String>,
    /// Answer /metrics, for Prometheus
    #[arg(long, help_heading = ACCESS, hide_short_help = true)]
    pub metrics: bool,
    /// Answer /v1/embeddings, by the hidden states behind the final norm
    #[arg(long, visible_alias = "embedding", help_heading = ACCESS, hide_short_help = true)]
    pub embeddings: bool,
    /// How the hidden states of a text become its embedding: their mean, that of the last token or of the first (cls), or none: one a token
    #[arg(long, value_name = "HOW", value_enum, default_value = "last", requires = "embeddings", help_heading = ACCESS, hide_short_help = true)]
    pub pooling: PoolingOption,
    /// Answer /v1/rerank, by the probability that a document answers the query
    #[arg(long, visible_alias = "rerank", help_heading = ACCESS, hide_short_help = true)]
    pub reranking: bool,
    /// Answer /slots (the default)
    #[arg(long, overrides_with = "no_slots", help_heading = ACCESS, hide_short_help = true)]
    pub slots: bool,
    /// Do not answer /slots
    #[arg(long, overrides_with = "slots", help_heading = ACCESS, hide_short_help = true)]
    pub no_slots: bool,
    /// No chat page at /
    #[arg(long, visible_alias = "no-ui", help_heading = ACCESS, hide_short_help = true)]
    pub no_webui: bool,
    /// Chat template in the place of the model's: Jinja, or the name of a family: chatml, command-r, gemma, llama3, phi3, zephyr
    #[arg(long, value_name = "TEMPLATE", conflicts_with_all = ["chat_template_file", "models", "models_dir"], help_heading = SAMPLING, hide_short_help = true)]
    pub chat_template: Option<String>,
    /// File with a chat template in the place of the model's
    #[arg(long, value_name = "FILE", conflicts_with_all = ["models", "models_dir"], help_heading = SAMPLING, hide_short_help = true)]
    pub chat_template_file: Option<PathBuf>,
    /// Whether models reason whose chat template has a switch (`enable_thinking`), unless a request sets it; auto: as on
    #[arg(long, visible_alias = "rea", value_name = "WHETHER", value_enum, default_value = "auto", help_heading = SAMPLING, hide_short_help = true)]
    pub reasoning: ReasoningOption,
    /// Tokens of reasoning after which its end is forced, unless a request sets it; 0: no reasoning; -1: no limit
    #[arg(long, value_name = "TOKENS", default_value_t = -1, allow_negative_numbers = true, value_parser = value_parser!(i32).range(-1..), help_heading = SAMPLING, hide_short_help = true)]
    pub reasoning_budget: i32,
    /// Text that ends reasoning which has reached its budget, before its closing tag
    #[arg(long, value_name = "TEXT", help_heading = SAMPLING, hide_short_help = true)]
    pub reasoning_budget_message: Option<String>,
    /// Reasoning becomes `reasoning_content` (deepseek, auto) or stays in the text (none), unless a request sets it
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "auto", help_heading = SAMPLING, hide_short_help = true)]
    pub reasoning_format: ReasoningFormatOption,
    /// Most tokens of a prompt in one step; fewer let other answers wait less [default: 512]
    #[arg(short, long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..), help_heading = MEMORY, hide_short_help = true)]
    pub batch_size: Option<u32>,
    /// Copies of recurrent state kept for later prompts, of models that have it; each takes memory of the host [default: 8]
    #[arg(long, value_name = "N", visible_alias = "swa-checkpoints", help_heading = MEMORY, hide_short_help = true)]
    pub ctx_checkpoints: Option<u32>,
    /// Variables of the chat template for requests without `chat_template_kwargs` of that name, a JSON object
    #[arg(long, value_name = "JSON", value_parser = template_arguments, help_heading = SAMPLING, hide_short_help = true)]
    pub chat_template_kwargs: Option<TemplateArguments>,
    /// Choices of requests that may wait for a sequence; then requests are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = ACCESS, hide_short_help = true)]
    pub max_queue: u32,
    /// Open connections; further ones wait
    #[arg(long, value_name = "N", default_value_t = HttpLimits::default().max_connections, value_parser = value_parser!(u32).range(1..), help_heading = ACCESS, hide_short_help = true)]
    pub max_connections: u32,
    /// Seconds that a client may take to send the head of a request, then its body, or to read a part of the answer
    #[arg(long, value_name = "SECONDS", default_value_t = HttpLimits::default().timeout.as_secs(), value_parser = value_parser!(u64).range(1..=DAY_SECONDS), help_heading = ACCESS, hide_short_help = true)]
    pub timeout: u64,
    /// Seconds that answers may take to end after SIGTERM, during which new connections are refused
    #[arg(long, value_name = "SECONDS", default_value_t = 25, value_parser = value_parser!(u64).range(..=DAY_SECONDS), help_heading = ACCESS, hide_short_help = true)]
    pub drain: u64,
    /// Name or address that requests may have in their Host header, beside localhost and --host; *: any; repeatable
    #[arg(long, value_name = "NAME", help_heading = ACCESS, hide_short_help = true)]
    pub allowed_host: Vec<String>,
    /// Origin, such as https://chat.example, whose pages may use the server in a browser; localhost: any of this machine; *: any; repeatable, and a list with commas
    #[arg(long, visible_alias = "cors-origins", value_name = "ORIGIN", value_delimiter = ',', help_heading = ACCESS, hide_short_help = true)]
    pub cors: Vec<String>,
    /// After loading the model, deny this process new programs, outgoing connections and files (seccomp and Landlock); with several models: before loading
    #[arg(long, help_heading = ACCESS, hide_short_help = true)]
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

/// Whether models reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ReasoningOption {
    Auto,
    On,
    Off,
}

/// What becomes of reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ReasoningFormatOption {
    Auto,
    Deepseek,
    None,
}

/// How hidden states become an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PoolingOption {
    Mean,
    Last,
    Cls,
    None,
}

impl ServeArgs {
    /// Context of each sequence in tokens, by either option; `None`: neither was given.
    pub fn context_tokens(&self) -> Option<u32> {
        self.ctx.or(self.ctx_size.map(|all| (all / self.parallel).max(1)))
    }

    /// Tokens of all sequences together. A request that gives its memory to another one is computed again, which is not deterministic.
    pub fn kv_capacity(&self) -> KvCapacity {
        match self.kv_tokens {
            Some(tokens) => KvCapacity::Tokens(tokens),
            None if self.deterministic => KvCapacity::Each,
            None => KvCapacity::Fitting,
        }
    }

    /// Name of the model in responses: the first one in alphabetical order, as in llama-server. `None`: no option gave one.
    pub fn model_name(&self) -> Option<&String> {
        self.alias.iter().min()
    }

    /// Where spans of requests are sent.
    pub fn traces_endpoint(&self) -> Option<&str> {
        self.otlp_traces_endpoint.as_deref().filter(|url| !url.is_empty())
    }

    /// The chat template: Jinja, or the name of a family; `None`: the model's own.
    ///
    /// # Errors
    /// For a file that cannot be read.
    pub fn template(&self) -> io::Result<Option<String>> {
        match &self.chat_template_file {
            Some(path) => std::fs::read_to_string(path).map(Some),
            None => Ok(self.chat_template.clone()),
        }
    }

    /// Most tokens of an answer; `None`: as many as the context holds.
    pub fn max_tokens(&self) -> Option<u32> {
        u32::try_from(self.n_predict).ok()
    }
}

impl PoolingOption {
    /// The server's value of the option.
    pub fn pooling(self) -> Pooling {
        match self {
            PoolingOption::Mean => Pooling::Mean,
            PoolingOption::Last => Pooling::Last,
            PoolingOption::Cls => Pooling::Cls,
            PoolingOption::None => Pooling::None,
        }
    }
}

/// Tokens of an answer, or -1.
fn answer_limit(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(limit) if limit == -1 || limit > 0 => Ok(limit),
        _ => Err("expected 1 token or more, or -1 for as many as the context holds".to_owned()),
    }
}

/// URL of a collector. An empty one, which the environment may have, is none.
fn collector(text: &str) -> Result<String, String> {
    let host = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    match host {
        Some(host) if !host.is_empty() && !host.starts_with('/') => Ok(text.to_owned()),
        None if text.is_empty() => Ok(String::new()),
        _ => {
            Err("expected the URL where OTLP is received over HTTP, such as http://127.0.0.1:4318/v1/traces".to_owned())
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Args, Command};
    use super::*;

    fn serve(options: &[&str]) -> Result<ServeArgs, String> {
        let parsed = Args::try_parse_from([&["unicorn-run", "serve", "m"], options].concat());
        match parsed.map_err(|error| error.to_string())?.command {
            Some(Command::Serve(args)) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_of_llama_server_mean_what_they_mean_there() {
        let args = serve(&["--parallel", "2", "--ctx-size", "513", "--n-predict", "8", "--no-ui"]).unwrap();
        assert_eq!((args.context_tokens(), args.max_tokens(), args.no_webui), (Some(256), Some(8), true));
        assert_eq!(serve(&["-c", "512", "--n-predict", "-1"]).unwrap().max_tokens(), None);
        assert_eq!(serve(&["--cors-origins", "http://a,http://b"]).unwrap().cors, ["http://a", "http://b"]);
        let args = serve(&["--alias", "small,fim,code", "--tags", "chat", "--reasoning", "off", "-b", "32"]).unwrap();
        assert_eq!(
            (args.model_name().map(String::as_str), args.alias.len(), &*args.tags[0]),
            (Some("code"), 3, "chat")
        );
        assert_eq!((args.reasoning, args.batch_size), (ReasoningOption::Off, Some(32)));
        let budget = |options: &[&str]| serve(options).map(|args| args.reasoning_budget);
        assert_eq!(budget(&["--reasoning-budget", "-1"]), Ok(-1));
        assert_eq!((budget(&[]), budget(&["--reasoning-budget", "64"])), (Ok(-1), Ok(64)));
        assert!(budget(&["--reasoning-budget", "-2"]).is_err());
        assert_eq!(serve(&["--reasoning-format", "none"]).unwrap().reasoning_format, ReasoningFormatOption::None);
        assert_eq!(serve(&["--chat-template", "llama3"]).unwrap().template().unwrap().as_deref(), Some("llama3"));
        let slots = |options: &[&str]| serve(options).map(|args| (args.slots, args.no_slots)).unwrap();
        assert_eq!(slots(&["--no-slots", "--slots"]), (true, false));
        assert_eq!(slots(&["--slots", "--no-slots"]), (false, true));
    }

    /// Later times than a clock has would end the thread that waits for them.
    #[test]
    fn times_end_within_a_day() {
        let args = serve(&["--drain", "0", "--timeout", "86400"]).unwrap();
        assert_eq!((args.drain, args.timeout), (0, 86_400));
        for option in ["--drain", "--timeout"] {
            for wrong in ["86401", "18446744073709551615"] {
                assert!(serve(&[option, wrong]).unwrap_err().contains("is not in"), "{option} {wrong}");
            }
        }
    }

    #[test]
    fn spans_are_sent_over_http_alone() {
        let url = "https://otel.example:4318/v1/traces";
        let args = serve(&["--otlp-traces-endpoint", url]).unwrap();
        assert_eq!(args.traces_endpoint(), Some(url));
        assert_eq!(serve(&["--otlp-traces-endpoint", ""]).unwrap().traces_endpoint(), None);
        for wrong in ["grpc://localhost:4317", "localhost:4318", "http://", "http:///v1/traces"] {
            assert!(serve(&["--otlp-traces-endpoint", wrong]).unwrap_err().contains("received over HTTP"), "{wrong}");
        }
    }

    #[test]
    fn a_context_is_given_in_one_way_and_an_answer_has_a_token() {
        assert!(serve(&["--ctx", "8", "--ctx-size", "8"]).unwrap_err().contains("cannot be used with"));
        for wrong in ["0", "-2", "many"] {
            assert!(serve(&["--n-predict", wrong]).unwrap_err().contains("expected 1 token or more, or -1"), "{wrong}");
        }
    }
}
