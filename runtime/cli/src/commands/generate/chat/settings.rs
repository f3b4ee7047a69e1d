//! What `/set` and `/think` change. Each change has an answer.

use unicorn_runtime::{Model, Sampling};
use unicorn_structure::Structure;
use unicorn_text::{ChatOptions, serde_json};

use super::line::{PARAMETERS, parameter_name};
use crate::args::{self, SamplingArgs};

/// Settings of a chat.
#[derive(Clone)]
pub struct Settings {
    pub sampling: SamplingArgs,
    /// Added to the seed: another answer to the same question.
    pub retries: u64,
    /// Whether figures follow each answer.
    pub verbose: bool,
    /// Whether answers are wrapped between words.
    pub wordwrap: bool,
    pub format: Format,
    /// Context of the loaded model, in tokens.
    pub context_tokens: u32,
}

/// What answers have to match.
#[derive(Clone)]
pub struct Format {
    /// The format as it was typed.
    shown: String,
    /// `None`: any answer will do.
    pub structure: Option<Structure>,
}

impl Format {
    /// `json`, a schema, or `none`.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Format, String> {
        let structure = match text {
            "none" => None,
            text => Some(args::format(text).map_err(|error| format!("format: {error}, or json, or none"))?),
        };
        Ok(Format { shown: text.to_owned(), structure })
    }
}

impl Settings {
    /// Settings with one seed for the whole conversation, unless `/set` changes it.
    pub fn new(mut sampling: SamplingArgs, structure: Option<Structure>, verbose: bool) -> Settings {
        sampling.seed.get_or_insert(sampling.resolve().seed);
        let shown = if structure.is_some() { "as on the command line" } else { "none" };
        let format = Format { shown: shown.to_owned(), structure };
        Settings { sampling, retries: 0, verbose, wordwrap: true, format, context_tokens: 0 }
    }

    /// How the next answer is sampled.
    pub fn sampling(&self) -> Sampling {
        let mut sampling = self.sampling.resolve();
        sampling.seed = sampling.seed.wrapping_add(self.retries);
        sampling
    }

    /// Sets a parameter by the name that it has on the command line or in Ollama.
    ///
    /// # Errors
    /// What was expected, if there is no such parameter or the value is outside its range.
    pub fn set(&mut self, options: &mut ChatOptions, name: &str, value: &str) -> Result<String, String> {
        let name = parameter_name(name);
        let name = name.as_str();
        match name {
            "n-predict" => match value.parse::<i64>() {
                Ok(-1) => options.max_tokens = None,
                Ok(tokens @ 1..) => options.max_tokens = Some(tokens.try_into().unwrap_or(u32::MAX)),
                _ => return Err(format!("n-predict: expected a number of tokens above 0, or -1, found {value:?}")),
            },
            "stop" => options.stop_strings = value.split_whitespace().map(str::to_owned).collect(),
            name if PARAMETERS.contains(&name) => {
                self.sampling.set(name, value)?;
                self.retries = 0;
            }
            name => return Err(format!("no parameter is called {name}: expected {}", PARAMETERS.join(", "))),
        }
        let shown = self.parameters(options).into_iter().find(|(shown, _)| *shown == name);
        Ok(shown.map(|(name, value)| format!("{name} is {value}")).unwrap_or_default())
    }

    /// Names and values of all parameters.
    pub fn parameters(&self, options: &ChatOptions) -> Vec<(&'static str, String)> {
        let sampling = self.sampling.resolve();
        let stop: Vec<String> = options.stop_strings.iter().map(|stop| format!("{stop:?}")).collect();
        vec![
            ("temp", sampling.temperature.to_string()),
            ("top-k", sampling.top_k.to_string()),
            ("top-p", sampling.top_p.to_string()),
            ("min-p", sampling.min_p.to_string()),
            ("repeat-penalty", sampling.repeat_penalty.to_string()),
            ("repeat-last-n", sampling.repeat_last_n.to_string()),
            ("seed", sampling.seed.to_string()),
            ("n-predict", options.max_tokens.map_or("without limit".to_owned(), |tokens| tokens.to_string())),
            ("stop", if stop.is_empty() { "none".to_owned() } else { stop.join(" ") }),
            ("format", self.format.shown.clone()),
            ("ctx", self.context_tokens.to_string()),
        ]
    }
}

/// A context that `model` can be loaded for.
///
/// # Errors
/// What was expected, when the value is not a number, or is more than the model has or the memory holds.
pub fn context(value: &str, model: &Model) -> Result<u32, String> {
    let (fitting, longest) = (model.max_context_tokens(), model.meta().model.max_positions);
    let bound = match fitting < longest {
        true => format!("{fitting}, the longest that fits the memory"),
        false => format!("{longest}, the model's longest"),
    };
    match value.parse::<u32>() {
        Ok(tokens) if (1..=fitting.min(longest)).contains(&tokens) => Ok(tokens),
        _ => Err(format!("ctx: expected 1 to {bound}, found {value:?}")),
    }
}

/// Lets the model reason or not, by the variable that its template reads: `switch`, and whether it reads [`EFFORT`]. Without a mode,
/// returns the current one.
///
/// # Errors
/// What the template has instead.
pub fn think(
    options: &mut ChatOptions,
    mode: Option<&str>,
    switch: Option<&str>,
    reads_effort: bool,
) -> Result<String, String> {
    let effort = reads_effort.then_some(EFFORT);
    if switch.is_none() && effort.is_none() {
        return Err("chat template of this model has no switch for reasoning".to_owned());
    }
    let arguments = &mut options.template_arguments;
    match (mode, switch, effort) {
        (None, ..) => {}
        (Some("on"), Some(name), _) => drop(arguments.insert(name.to_owned(), true.into())),
        (Some("off"), Some(name), _) => drop(arguments.insert(name.to_owned(), false.into())),
        // The template's own default.
        (Some("on"), None, Some(name)) => drop(arguments.remove(name)),
        (Some(level @ ("low" | "medium" | "high")), _, Some(name)) => {
            arguments.insert(name.to_owned(), level.into());
        }
        (Some(_), None, Some(_)) => {
            return Err("this model always reasons: expected /think low, medium or high".to_owned());
        }
        (Some(_), _, None) => return Err("expected /think on or /think off".to_owned()),
        (Some(_), _, Some(_)) => return Err("expected /think on, off, low, medium or high".to_owned()),
    }
    let value = |name: &str| match arguments.get(name) {
        None => format!("{name} is left to the template"),
        Some(serde_json::Value::String(text)) => format!("{name} is {text}"),
        Some(value) => format!("{name} is {value}"),
    };
    Ok(switch.into_iter().chain(effort).map(value).collect::<Vec<_>>().join(", "))
}

/// The variable that says how much the model reasons.
pub const EFFORT: &str = "reasoning_effort";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_answered_with_its_value() {
        let mut options = ChatOptions::default();
        let mut settings = Settings::new(SamplingArgs { seed: Some(7), ..SamplingArgs::default() }, None, false);
        let mut set = |name: &str, value: &str| settings.set(&mut options, name, value);
        assert_eq!(set("temperature", "0.5").unwrap(), "temp is 0.5");
        assert_eq!(set("top_k", "3").unwrap(), "top-k is 3");
        assert_eq!(set("--seed", "42").unwrap(), "seed is 42");
        assert_eq!(set("num_predict", "9").unwrap(), "n-predict is 9");
        assert_eq!(set("n-predict", "-1").unwrap(), "n-predict is without limit");
        assert_eq!(set("stop", "</s> User:").unwrap(), r#"stop is "</s>" "User:""#);
        assert!(set("n-predict", "0").unwrap_err().contains("found \"0\""));
        assert!(set("top_p", "7").unwrap_err().contains("expected a number above 0 and at most 1"));
        assert!(set("colour", "blue").unwrap_err().starts_with("no parameter is called colour: expected temp, top-k"));
        assert_eq!(options.stop_strings, ["</s>", "User:"]);
    }

    #[test]
    fn a_format_is_json_a_schema_or_none() {
        let structure = |text| Format::parse(text).map(|format| format.structure);
        assert_eq!(structure("none"), Ok(None));
        assert_eq!(structure("json"), Ok(Some(Structure::any_object())));
        assert_eq!(structure("{\"type\": \"object\"}"), structure("json"));
        assert!(structure("xml").unwrap_err().contains("expected a JSON schema"));
    }

    #[test]
    fn every_parameter_that_is_listed_can_be_set() {
        let settings = Settings::new(SamplingArgs::default(), None, false);
        let names: Vec<&str> = settings.parameters(&ChatOptions::default()).iter().map(|(name, _)| *name).collect();
        assert_eq!(names, PARAMETERS);
    }

    #[test]
    fn reasoning_is_switched_by_what_the_template_reads() {
        let mut options = ChatOptions::default();
        let mut qwen = |mode| think(&mut options, mode, Some("enable_thinking"), false);
        assert_eq!(qwen(None).unwrap(), "enable_thinking is left to the template");
        assert_eq!(qwen(Some("off")).unwrap(), "enable_thinking is false");
        assert_eq!(qwen(Some("low")).unwrap_err(), "expected /think on or /think off");
        assert_eq!(options.template_arguments["enable_thinking"], false);

        let mut options = ChatOptions::default();
        let mut gpt_oss = |mode| think(&mut options, mode, None, true);
        assert_eq!(gpt_oss(Some("high")).unwrap(), "reasoning_effort is high");
        assert!(gpt_oss(Some("off")).unwrap_err().contains("always reasons"));
        assert_eq!(gpt_oss(Some("on")).unwrap(), "reasoning_effort is left to the template");
        assert!(think(&mut options, Some("on"), None, false).unwrap_err().contains("no switch"));
    }
}
