//! The command line: the model, memory, and Dynamo's own options.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Parser, value_parser};
use dynamo_backend_common::{CommonArgs, DisaggregationMode, DynamoError, WorkerConfig};

use crate::engine::UnicornEngine;
use crate::error::invalid;

/// What an engine loads.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineOptions {
    /// Compiled model, made by unicorn-compile
    pub artifact: PathBuf,
    /// Context of each sequence in tokens [default: the model's maximum, or as much as fits the memory for all of them]
    #[arg(short, long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    /// Number of sequences that are generated at a time; further requests wait
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=64))]
    pub parallel: u32,
    /// Tokens of all sequences together that the KV cache holds; requests wait where it is full [default: the context of each sequence, or as many as fit the memory]
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub kv_tokens: Option<u32>,
    /// Device: a number, or a part of its name [default: the best GPU]
    #[arg(long, env = "UNICORN_DEVICE", default_value = "", hide_default_value = true)]
    pub device: String,
}

/// Serves a compiled model as a worker of NVIDIA Dynamo.
///
/// Dynamo's frontend reads tokenizer and chat template from MODEL_PATH and sends token ids to this worker.
#[derive(Debug, Parser)]
#[command(name = "unicorn-dynamo", version)]
struct Args {
    #[command(flatten)]
    engine: EngineOptions,
    /// Folder of the checkpoint that the artifact was compiled from, or its name on the Hugging Face Hub: config.json, tokenizer.json and chat
    /// template of it reach the frontend
    #[arg(long)]
    model_path: String,
    /// Name of the model in requests [default: MODEL_PATH]
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    #[command(flatten)]
    common: CommonArgs,
}

/// An engine that is not started, and what Dynamo's worker is to do with it. Help, the version and an error of the command line end the process.
///
/// # Errors
/// For an artifact that is no file, and for a role in which this worker has nothing to offer.
pub fn from_args(line: impl IntoIterator<Item = OsString>) -> Result<(UnicornEngine, WorkerConfig), DynamoError> {
    let args = Args::try_parse_from(line).unwrap_or_else(|error| error.exit());
    check(&args)?;
    let Args { engine, model_path, served_model_name, common } = args;
    let config = WorkerConfig {
        namespace: common.namespace,
        component: common.component,
        endpoint: common.endpoint,
        model_name: model_path.clone(),
        served_model_name: served_model_name.clone(),
        endpoint_types: common.endpoint_types,
        custom_jinja_template: common.custom_jinja_template,
        tool_call_parser: common.dyn_tool_call_parser,
        reasoning_parser: common.dyn_reasoning_parser,
        exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
        enable_rl: common.enable_rl,
        // No events of the KV cache are published.
        enable_local_indexer: false,
        metrics_labels: vec![("model".into(), served_model_name.unwrap_or_else(|| model_path.clone()))],
        runtime: common.runtime,
        ..WorkerConfig::default()
    };
    Ok((UnicornEngine::new(engine, model_path), config))
}

fn check(args: &Args) -> Result<(), DynamoError> {
    let Args { engine, model_path, common, .. } = args;
    if !engine.artifact.is_file() {
        let path = engine.artifact.display();
        return Err(invalid(format!("{path} is no artifact; unicorn-compile CHECKPOINT -o {path}")));
    }
    if Path::new(model_path).is_file() {
        return Err(invalid(format!(
            "--model-path: expected the folder of a checkpoint or a name on the Hugging Face Hub, found the file {model_path}"
        )));
    }
    if common.disaggregation_mode != DisaggregationMode::Aggregated {
        let found = common.disaggregation_mode;
        return Err(invalid(format!("--disaggregation-mode: expected agg, found {found:?}: KV caches are not moved")));
    }
    match common.route_to_encoder {
        true => Err(invalid("--route-to-encoder: images are not taken")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rest: &[&str]) -> Vec<OsString> {
        // Any file does: it is opened when the engine starts.
        ["unicorn-dynamo", "Cargo.toml"].iter().chain(rest).map(OsString::from).collect()
    }

    fn refused(rest: &[&str]) -> String {
        from_args(line(rest)).err().expect("a line that is refused").to_string()
    }

    #[test]
    fn options_reach_engine_and_worker() {
        let all = ["--model-path", "owner/name", "--served-model-name", "tiny", "--parallel", "2", "--ctx", "64"];
        let (engine, config) = from_args(line(&all)).unwrap();
        assert_eq!((config.model_name.as_str(), config.served_model_name.as_deref()), ("owner/name", Some("tiny")));
        assert_eq!((engine.options().parallel, engine.options().ctx), (2, Some(64)));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let prefill = refused(&["--model-path", "owner/name", "--disaggregation-mode", "prefill"]);
        assert!(prefill.contains("expected agg, found Prefill"), "{prefill}");
        let file = refused(&["--model-path", "Cargo.toml"]);
        assert!(file.contains("found the file Cargo.toml"), "{file}");
        let mut line = line(&["--model-path", "owner/name"]);
        line[1] = "absent.unicorn".into();
        let absent = from_args(line).err().unwrap().to_string();
        assert!(absent.contains("unicorn-compile CHECKPOINT -o absent.unicorn"), "{absent}");
    }
}
