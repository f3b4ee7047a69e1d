//! `unicorn-run ARTIFACT`: one continuation of one prompt, or a chat when there is a terminal and no prompt.

mod answer;
mod chat;

use std::io::{self, IsTerminal, Read, Write};

use serde::Serialize;

use self::answer::{Answer, Answerer, StopReason};
use crate::args::RunArgs;
use crate::error::CliError;
use crate::load::load_to_generate;
use crate::monitor::status::{self, StatusWriter};
use crate::report::statistics::Figures;
use crate::terminal::interrupt;
use crate::terminal::output::{note, print_json};
use unicorn_text::Tokenizer;
use unicorn_text::{ChatTemplate, Message};

pub fn run(args: &RunArgs) -> Result<(), CliError> {
    let artifact = args.artifact.as_deref().expect("clap asks for it where there is no subcommand");
    let wants_chat = args.prompt.is_none() && args.file.is_none() && !args.raw && io::stdin().is_terminal();
    if wants_chat && args.json {
        return Err(CliError::new("--json needs a prompt: give one with -p, --file or on standard input"));
    }
    // Read before the model is loaded: a prompt that is missing should not cost a minute of loading.
    let prompt = if wants_chat { String::new() } else { prompt_text(args)? };

    let model = load_to_generate(artifact, &args.load, args.ctx, args.lazy)?;
    let section = model.tokenizer_section();
    let text = Tokenizer::new(section)?;
    let status = StatusWriter::new(status::folder(), &model);
    let mut answerer = Answerer { model: &model, text: &text, session: model.session()?, status };
    interrupt::catch()?;
    if wants_chat {
        return chat::run(answerer, ChatTemplate::new(section)?, args);
    }

    let prompt = match args.chat || args.system.is_some() {
        false => text.encode_prompt(&prompt)?,
        true => text.encode(&ChatTemplate::new(section)?.render(&first_messages(args.system.clone(), prompt))?)?,
    };
    if prompt.is_empty() {
        return Err(CliError::new("prompt is empty, and the model has no beginning-of-sequence token to start from"));
    }
    let sampling = args.sampling.resolve();
    let mut stdout = io::stdout().lock();
    let mut emit = |piece: &str| match args.json {
        true => Ok(()),
        false => stdout.write_all(piece.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::output),
    };
    let answer = answerer.answer(&prompt, &sampling, args.n_predict, &mut emit)?;
    // Text of weights that turn out to be wrong is no answer.
    if answer.stop_reason != StopReason::Interrupted {
        model.wait_for_weights()?;
    }
    let report = RunReport::new(Figures::new(&model, answer.prefill, answer.decode), sampling.seed, answer);
    if args.json {
        drop(stdout);
        return print_json(&report);
    }
    // On a terminal the figures begin on a line of their own; a pipe gets the text as it is.
    if stdout.is_terminal() {
        writeln!(stdout).map_err(CliError::output)?;
    }
    note(&report.figures);
    if let Some(seconds) = report.first_token_s {
        note(format_args!("begun    {}", begun(seconds, report.figures.load.load_resident_s)));
    }
    note(format_args!("seed     {}\nstopped  {}", report.seed, report.stop_reason));
    Ok(())
}

/// Everything about one run; what `--json` prints.
#[derive(Serialize)]
struct RunReport {
    #[serde(flatten)]
    figures: Figures,
    /// From the beginning of the load to the first token.
    first_token_s: Option<f64>,
    seed: u64,
    stop_reason: &'static str,
    /// Generated ids, without the stop token.
    tokens: Vec<u32>,
    text: String,
}

impl RunReport {
    fn new(figures: Figures, seed: u64, answer: Answer) -> RunReport {
        RunReport {
            figures,
            first_token_s: answer.first_token.map(|age| age.as_secs_f64()),
            seed,
            stop_reason: answer.stop_reason.name(),
            tokens: answer.tokens,
            text: answer.text,
        }
    }
}

/// When there was something to read, and when everything was loaded, both from the beginning of the load.
pub fn begun(first_token_s: f64, resident_s: Option<f64>) -> String {
    let resident = resident_s.map(|seconds| format!("resident after {seconds:.2} s"));
    format!("first token after {first_token_s:.2} s, everything {}", resident.as_deref().unwrap_or("not yet resident"))
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
    use crate::report::statistics::{Pace, tests::figures};

    #[test]
    fn a_text_may_begin_before_everything_is_loaded() {
        assert_eq!(begun(0.456, Some(2.0)), "first token after 0.46 s, everything resident after 2.00 s");
        assert_eq!(begun(0.456, None), "first token after 0.46 s, everything not yet resident");
    }

    #[test]
    fn the_report_is_one_flat_object() {
        let answer = Answer {
            text: " hé".into(),
            tokens: vec![3, 4],
            stop_reason: StopReason::StopToken,
            prefill: Pace::default(),
            decode: Pace::default(),
            first_token: Some(Duration::from_millis(750)),
        };
        let json = serde_json::to_value(RunReport::new(figures(), 42, answer)).unwrap();
        assert_eq!(json["stop_reason"], "stop_token");
        assert_eq!(json["text"], " hé");
        assert_eq!(json["tokens"], serde_json::json!([3, 4]));
        assert_eq!((&json["seed"], &json["software"]), (&42.into(), &false.into()));
        assert_eq!(json["first_token_s"], 0.75);
        assert!(json.get("figures").is_none() && json.get("decode_tokens_per_s").is_some());
    }
}
