//! The page of `selftest`, to paste into a report, and its JSON.

use std::time::Duration;

use serde::Serialize;
use unicorn_artifact::account::size;

use super::compare::Difference;
use crate::report::table::{Column, or_dash, table};
use crate::report::text::printable;
use unicorn_runtime::{DeviceFacts, Model, UploadReport, Verification, measure_transfers};

#[derive(Serialize)]
pub struct Report {
    pub version: &'static str,
    pub model: String,
    pub device: String,
    pub driver: String,
    pub vulkan: String,
    pub kind: String,
    pub target: String,
    pub against: String,
    pub tuned: bool,
    /// Whether weights in the device's memory are those of the file, and what driver and kernel report of the memory.
    pub memory: Vec<String>,
    pub transfers: String,
    pub read_gb_per_s: Option<f64>,
    pub checks: Vec<Check>,
    pub decode_tokens_per_s: Option<f64>,
    pub seconds: f64,
    /// Kernels that later starts leave out.
    pub switched_off: Vec<String>,
    /// Last line of the page.
    pub result: String,
    outcome: Outcome,
}

/// Result of all checks together.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    NothingChecked,
    Right,
    Wrong,
}

#[derive(Serialize)]
pub struct Check {
    pub name: String,
    #[serde(flatten)]
    pub verdict: Verdict,
    pub relative_error: Option<f64>,
    pub kl_divergence: Option<f64>,
    pub same_top_token: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "what")]
pub enum Verdict {
    Right,
    /// The check failed; names where.
    Wrong(String),
    /// The check was not made; names why.
    NotChecked(String),
}

impl Check {
    pub fn new(name: String, verdict: Verdict, difference: &Difference) -> Check {
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        Check {
            name,
            verdict,
            relative_error: finite(difference.relative),
            kl_divergence: finite(difference.kl),
            same_top_token: finite(difference.same_top),
            note: None,
        }
    }

    pub fn without_numbers(name: impl Into<String>, verdict: Verdict) -> Check {
        let (relative_error, kl_divergence, same_top_token) = (None, None, None);
        Check { name: name.into(), verdict, relative_error, kl_divergence, same_top_token, note: None }
    }

    fn row(&self) -> Vec<String> {
        let said = match &self.verdict {
            Verdict::Right => self.note.clone().unwrap_or_default(),
            Verdict::Wrong(what) | Verdict::NotChecked(what) => what.clone(),
        };
        let verdict = match self.verdict {
            Verdict::Right => "right",
            Verdict::Wrong(_) => "WRONG",
            Verdict::NotChecked(_) => "not checked",
        };
        let number = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.1e}"));
        let same = self.same_top_token.map(|part| 100.0 * part);
        let numbers = [number(self.relative_error), number(self.kl_divergence), or_dash(same, 0)];
        [self.name.clone(), verdict.into()].into_iter().chain(numbers).chain([said]).collect()
    }
}

impl Report {
    /// Begins the report of a loaded model, before its checks.
    pub fn new(model: &Model, against: &str) -> Report {
        let (facts, loaded) = (model.device(), model.report());
        let (major, minor, patch) = facts.api_version;
        Report {
            version: env!("CARGO_PKG_VERSION"),
            model: printable(&model.meta().model.name).into_owned(),
            device: facts.name.clone(),
            driver: facts.driver.clone(),
            vulkan: format!("{major}.{minor}.{patch}"),
            kind: facts.kind.to_string(),
            target: loaded.target.clone(),
            against: against.into(),
            tuned: loaded.tuning.tuned_steps > 0,
            memory: loaded.upload.as_ref().map(memory).unwrap_or_default(),
            transfers: transfers(facts),
            read_gb_per_s: model.measure_read_bandwidth().map(|rate| rate / 1e9),
            checks: Vec::new(),
            decode_tokens_per_s: None,
            seconds: 0.0,
            switched_off: Vec::new(),
            result: String::new(),
            outcome: Outcome::NothingChecked,
        }
    }

    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    pub fn finish(&mut self, elapsed: Duration) {
        self.seconds = elapsed.as_secs_f64();
        let wrong = self.checks.iter().filter_map(|check| match &check.verdict {
            Verdict::Wrong(what) => Some(format!("{}: {what}", check.name)),
            Verdict::Right | Verdict::NotChecked(_) => None,
        });
        let wrong: Vec<String> = wrong.collect();
        let right = self.checks.iter().filter(|check| matches!(check.verdict, Verdict::Right)).count();
        let missed = self.checks.len() - right - wrong.len();
        self.outcome = match (wrong.len(), right) {
            (0, 0) => Outcome::NothingChecked,
            (0, _) => Outcome::Right,
            _ => Outcome::Wrong,
        };
        let (target, against, device) = (&self.target, &self.against, &self.device);
        let missed = if missed > 0 { format!(", {missed} not made") } else { String::new() };
        self.result = match self.outcome {
            Outcome::NothingChecked => format!("not made: target {target} on {device}"),
            Outcome::Right => format!("right: {right} checks of target {target} against {against} on {device}{missed}"),
            Outcome::Wrong => format!("WRONG: target {target} on {device}: {}", wrong.join("; ")),
        };
    }

    pub fn page(&self) -> String {
        let tuned = if self.tuned { ", tuned" } else { "" };
        let Report { version, model, device, driver, vulkan, kind, target, against, .. } = self;
        let mut page = format!(
            "unicorn-run {version} selftest\n  model      {model}\n  device     {device}, {kind}\n  driver     {driver}, Vulkan {vulkan}\n  \
             target     {target}{tuned}, against {against}\n"
        );
        for line in &self.memory {
            page += &format!("  memory     {line}\n");
        }
        page += &format!("  transfers  {}\n", self.transfers);
        page += &format!("  bandwidth  {} GB/s of reads\n\n", or_dash(self.read_gb_per_s, 1));
        let columns = [
            Column::Left("check"),
            Column::Left("result"),
            Column::Right("error"),
            Column::Right("KL"),
            Column::Right("same top, %"),
            Column::Left(""),
        ];
        page += &table(&columns, &self.checks.iter().map(Check::row).collect::<Vec<_>>());
        let decode = or_dash(self.decode_tokens_per_s, 1);
        page += &format!("\n  decode {decode} tokens/s; the test took {:.0} s\n", self.seconds);
        for line in &self.switched_off {
            page += &format!("  {line}\n");
        }
        page + &format!("selftest {}\n", self.result)
    }
}

fn memory(upload: &UploadReport) -> Vec<String> {
    let verified = match upload.verification {
        Verification::OnDevice { seconds } => format!("weights verified on the device in {seconds:.2} s"),
        Verification::InFile => "weights verified in the file".into(),
        Verification::No => "weights not verified".into(),
    };
    vec![verified, upload.audit.to_string()]
}

fn transfers(facts: &DeviceFacts) -> String {
    match measure_transfers(facts) {
        Err(error) => format!("not measured: {error}"),
        Ok(transfers) => {
            let rate = |what: &str, rate: Option<f64>| rate.map(|rate| format!("{what} {}/s", size(rate as u64)));
            let all = [
                rate("copies", Some(transfers.copied)),
                rate("copies to host memory", transfers.copied_to_host),
                rate("writes to device memory", transfers.mapped_device),
                rate("writes to host memory", transfers.mapped_host),
            ];
            all.into_iter().flatten().collect::<Vec<_>>().join(", ")
        }
    }
}
