//! Sampling options, of the command line and of `/set` in a chat.

use std::hash::{BuildHasher, Hasher, RandomState};

use clap::{Parser, value_parser};

use unicorn_artifact::step::MAX_HISTORY;
use unicorn_runtime::Sampling;
use unicorn_text::{TemplateArguments, serde_json};

use super::{COMMON, SAMPLING};

/// How the next token is sampled.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = SAMPLING)]
pub struct SamplingArgs {
    /// 0: always the most likely token (greedy) [default: 0.8]
    #[arg(long, help_heading = COMMON, allow_negative_numbers = true, value_parser = not_negative)]
    pub temp: Option<f32>,
    /// Sample from the K most likely tokens; 0: all [default: 40]
    #[arg(long, value_name = "K", hide_short_help = true)]
    pub top_k: Option<u32>,
    /// Sample from the most likely tokens whose probabilities add up to P; 1: all [default: 0.95]
    #[arg(long, value_name = "P", value_parser = part_of_one, hide_short_help = true)]
    pub top_p: Option<f32>,
    /// Sample from tokens at least P times as likely as the most likely one; 0: all [default: 0.05]
    #[arg(long, value_name = "P", value_parser = probability, hide_short_help = true)]
    pub min_p: Option<f32>,
    /// Penalty on recent tokens; 1: none [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = positive, hide_short_help = true)]
    pub repeat_penalty: Option<f32>,
    /// Number of recent tokens that the repeat penalty applies to, at most 256 [default: 64]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(..=MAX_HISTORY as i64), hide_short_help = true)]
    pub repeat_last_n: Option<u32>,
    /// Seed of sampling [default: a random one, which is printed]
    #[arg(short, long, hide_short_help = true)]
    pub seed: Option<u64>,
}

impl SamplingArgs {
    /// The options as given, the defaults for the rest. Without a seed, each call gets a random one.
    pub fn resolve(&self) -> Sampling {
        Sampling::default().with(|sampling| {
            sampling.temperature = self.temp.unwrap_or(0.8);
            sampling.top_k = self.top_k.unwrap_or(40);
            sampling.top_p = self.top_p.unwrap_or(0.95);
            sampling.min_p = self.min_p.unwrap_or(0.05);
            sampling.repeat_penalty = self.repeat_penalty.unwrap_or(1.0);
            sampling.repeat_last_n = self.repeat_last_n.unwrap_or(64);
            sampling.seed = self.seed.unwrap_or_else(random_seed);
        })
    }

    /// The options that were given, by the names that they have on the command line, without the dashes.
    pub fn given(&self) -> Vec<(&'static str, String)> {
        let all = [
            ("temp", self.temp.map(|value| value.to_string())),
            ("top-k", self.top_k.map(|value| value.to_string())),
            ("top-p", self.top_p.map(|value| value.to_string())),
            ("min-p", self.min_p.map(|value| value.to_string())),
            ("repeat-penalty", self.repeat_penalty.map(|value| value.to_string())),
            ("repeat-last-n", self.repeat_last_n.map(|value| value.to_string())),
            ("seed", self.seed.map(|value| value.to_string())),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// Sets one option by the name that it has on the command line, without the dashes.
    ///
    /// # Errors
    /// The first line of clap's message, if there is no such option or the value is outside its range.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let mut line = SamplingLine { sampling: self.clone() };
        line.try_update_from(["set".to_owned(), format!("--{name}={value}")]).map_err(|error| {
            let message = error.to_string();
            let first = message.lines().next().unwrap_or_default();
            first.trim_start_matches("error: ").to_owned()
        })?;
        *self = line.sampling;
        Ok(())
    }
}

/// A command line of sampling options only, which are those of `/set` in a chat.
#[derive(Parser)]
#[command(disable_help_flag = true)]
struct SamplingLine {
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// A seed that differs at each call: the standard library's hash keys are random. 32 bits are easier to type again.
pub fn random_seed() -> u64 {
    u64::from(RandomState::new().build_hasher().finish() as u32)
}

/// A JSON object of variables of the chat template.
pub fn template_arguments(text: &str) -> Result<TemplateArguments, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("expected a JSON object, such as '{{\"enable_thinking\": false}}': {error}"))
}

fn probability(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |value| (0.0..=1.0).contains(&value))
}

fn part_of_one(text: &str) -> Result<f32, String> {
    number(text, "a number above 0 and at most 1", |value| value > 0.0 && value <= 1.0)
}

fn not_negative(text: &str) -> Result<f32, String> {
    number(text, "a number of at least 0", |value| value >= 0.0)
}

fn positive(text: &str) -> Result<f32, String> {
    number(text, "a number above 0", |value| value > 0.0)
}

fn number(text: &str, expected: &str, fits: impl Fn(f32) -> bool) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() && fits(value) => Ok(value),
        _ => Err(format!("expected {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Args;
    use super::*;

    #[test]
    fn options_can_be_set_one_by_one() {
        let mut sampling = Args::try_parse_from(["unicorn-run", "m", "--top-k", "3"]).unwrap().run.sampling;
        sampling.set("temp", "0.7").unwrap();
        assert_eq!((sampling.temp, sampling.top_k, sampling.top_p), (Some(0.7), Some(3), None));
        assert!(sampling.set("top-p", "7").unwrap_err().contains("expected a number above 0 and at most 1"));
        assert!(sampling.set("colour", "blue").unwrap_err().contains("--colour"));
        assert!(sampling.set("repeat-last-n", "257").is_err());
    }

    #[test]
    fn seeds_differ_unless_given() {
        let mut sampling = Args::try_parse_from(["unicorn-run", "m"]).unwrap().run.sampling;
        assert_ne!(sampling.resolve().seed, sampling.resolve().seed);
        sampling.set("seed", "42").unwrap();
        assert_eq!(sampling.resolve().seed, 42);
    }
}
