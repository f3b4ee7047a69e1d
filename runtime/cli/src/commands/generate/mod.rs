//! `unicorn-run ARTIFACT`: one continuation of one prompt, or a chat when there is a terminal and no prompt.

mod answer;
mod chat;

use std::io::{self, IsTerminal, Read, Write};

use serde::Serialize;

use unicorn_text::{ChatTemplate, Continuation, EndReason, Message, StopConditions, TextError, Tokenizer};

use self::answer::{Generated, Runner};
use crate::args::RunArgs;
use crate::error::CliError;
use crate::load::load_to_generate;
use crate::monitor::status::StatusWriter;
use crate::report::statistics::RunStatistics;
use crate::terminal::interrupt;
use crate::terminal::output::{note, print_json};

pub fn run(args: &RunArgs) -> Result<(), CliError> {
    let artifact = args.artifact.as_deref().expect("clap requires it where there is no subcommand");
    let is_chat = args.prompt.is_none() && args.file.is_none() && !args.raw && io::stdin().is_terminal();
    if is_chat && args.json {
        return Err(CliError::new("--json needs a prompt: give one with -p, --file or on standard input"));
    }
    // Read before the model is loaded: a missing prompt should not cost a minute of loading.
    let prompt = if is_chat { String::new() } else { prompt_text(args)? };

    let model = load_to_generate(artifact, &args.load, args.ctx, args.lazy)?;
    let mut runner = Runner { model: &model, status: StatusWriter::new(&model) };
    interrupt::catch()?;
    if is_chat {
        return chat::run(runner, args);
    }

    let section = model.tokenizer_section();
    let tokenizer = Tokenizer::new(section)?;
    let prompt = match args.chat || args.system.is_some() {
        false => tokenizer.encode_prompt(&prompt)?,
        true => {
            let messages = first_messages(args.system.clone(), prompt);
            let arguments = args.chat_template_kwargs.clone().unwrap_or_default();
            let template = ChatTemplate::new(section, model.context_tokens())?;
            tokenizer.encode(&template.render(&messages, &arguments)?)?
        }
    };
    let mut conditions = StopConditions::default();
    (conditions.max_tokens, conditions.stop_tokens) = (args.n_predict, section.stop_ids.clone());
    let mut session = model.session().map_err(TextError::from)?;
    session.set_cancel(interrupt::token());
    let sampling = args.sampling.resolve();
    let mut stdout = io::stdout().lock();
    let mut emit = |piece: &str| match args.json {
        true => Ok(()),
        false => stdout.write_all(piece.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::output),
    };
    let start = || Continuation::new(&mut session, &tokenizer, &prompt, &sampling, conditions);
    let generated = runner.run(start, &mut emit)?;
    // With --lazy, the text may come from weights that turn out to be wrong.
    if generated.end_reason != EndReason::Cancelled {
        model.wait_for_weights()?;
    }
    let statistics = RunStatistics::new(&model, generated.prefill, generated.decode);
    let report = RunReport::new(statistics, sampling.seed, generated);
    if args.json {
        drop(stdout);
        return print_json(&report);
    }
    // On a terminal the statistics start on a line of their own; a pipe gets the text as it is.
    if stdout.is_terminal() {
        writeln!(stdout).map_err(CliError::output)?;
    }
    note(&report.statistics);
    if let Some(seconds) = report.first_token_s {
        note(format_args!("latency  {}", latency(seconds, report.statistics.load.load_resident_s)));
    }
    note(format_args!("seed     {}\nstopped  {}", report.seed, report.stop_reason));
    Ok(())
}

/// Everything about one run; what `--json` prints.
#[derive(Serialize)]
struct RunReport {
    #[serde(flatten)]
    statistics: RunStatistics,
    /// From the start of the load to the first token.
    first_token_s: Option<f64>,
    seed: u64,
    stop_reason: &'static str,
    /// Generated ids, without the stop token.
    tokens: Vec<u32>,
    text: String,
}

impl RunReport {
    fn new(statistics: RunStatistics, seed: u64, generated: Generated) -> RunReport {
        RunReport {
            statistics,
            first_token_s: generated.first_token.map(|age| age.as_secs_f64()),
            seed,
            stop_reason: generated.end_reason.name(),
            tokens: generated.tokens,
            text: generated.text,
        }
    }
}

/// Times of the first token and of the last weight, both from the start of the load.
fn latency(first_token_s: f64, resident_s: Option<f64>) -> String {
    let resident = resident_s.map(|seconds| format!("resident after {seconds:.2} s"));
    format!("first token after {first_token_s:.2} s, all weights {}", resident.as_deref().unwrap_or("not resident yet"))
}

/// From -p, the file, or standard input. A file's last line break is not part of the prompt, as in llama.cpp.
fn prompt_text(args: &RunArgs) -> Result<String, CliError> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    let mut text = match &args.file {
        Some(path) => std::fs::read_to_string(path).map_err(|error| CliError::at(path, error))?,
        None => {
            let mut text = String::new();
            io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| CliError::new(format!("prompt on standard input cannot be read: {error}")))?;
            text
        }
    };
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}

fn first_messages(system: Option<String>, prompt: String) -> Vec<Message> {
    let system = system.map(|content| Message::new("system", content));
    system.into_iter().chain([Message::new("user", prompt)]).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::statistics::{Throughput, tests::statistics};

    #[test]
    fn the_first_token_may_come_before_all_weights() {
        assert_eq!(latency(0.456, Some(2.0)), "first token after 0.46 s, all weights resident after 2.00 s");
        assert_eq!(latency(0.456, None), "first token after 0.46 s, all weights not resident yet");
    }

    #[test]
    fn the_report_is_one_flat_object() {
        let generated = Generated {
            prompt_tokens: 7,
            cached_tokens: 0,
            text: " hé".into(),
            tokens: vec![3, 4],
            end_reason: EndReason::StopToken,
            prefill: Throughput::default(),
            decode: Throughput::default(),
            first_token: Some(Duration::from_millis(750)),
        };
        let json = serde_json::to_value(RunReport::new(statistics(), 42, generated)).unwrap();
        assert_eq!(json["stop_reason"], "stop_token");
        assert_eq!(json["text"], " hé");
        assert_eq!(json["tokens"], serde_json::json!([3, 4]));
        assert_eq!((&json["seed"], &json["software"]), (&42.into(), &false.into()));
        assert_eq!(json["first_token_s"], 0.75);
        assert!(json.get("statistics").is_none() && json.get("decode_tokens_per_s").is_some());
    }
}
