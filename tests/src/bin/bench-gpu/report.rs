//! The table: each test's floor, ours, llama.cpp's, as Markdown and as JSON.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use crate::checks::Check;
use crate::perplexity::Perplexity;

#[derive(Default, Serialize)]
pub struct Report {
    pub device: String,
    pub target: String,
    /// Bandwidth of reads in GB/s, as measured with the last shape.
    pub read_bandwidth_gb_per_s: Option<f64>,
    pub checks: Vec<Check>,
    /// Perplexity with real weights; `None`: it could not be measured.
    pub perplexity: Option<Perplexity>,
    pub lines: Vec<Line>,
    pub problems: Vec<Problem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "test", rename_all = "lowercase")]
pub enum Test {
    Prefill { tokens: u64 },
    Decode { depth: u64 },
    Batch { sequences: u64 },
}

/// Tokens per second of one test. Each figure may be missing.
#[derive(Serialize)]
pub struct Line {
    pub shape: String,
    #[serde(flatten)]
    pub test: Test,
    pub floor_tokens_per_s: Option<f64>,
    pub ours_tokens_per_s: Option<f64>,
    /// Our rate by the device's clock.
    pub ours_gpu_tokens_per_s: Option<f64>,
    pub llama_tokens_per_s: Option<f64>,
    /// Our rate divided by llama.cpp's.
    pub ratio: Option<f64>,
    pub percent_of_floor: Option<f64>,
}

#[derive(Serialize)]
pub struct Problem {
    pub shape: String,
    pub program: &'static str,
    pub what: String,
}

impl Report {
    /// The line of a test, created if it does not exist.
    pub fn line(&mut self, shape: &str, test: Test) -> &mut Line {
        let found = self.lines.iter().position(|line| line.shape == shape && line.test == test);
        let index = found.unwrap_or_else(|| {
            self.lines.push(Line {
                shape: shape.into(),
                test,
                floor_tokens_per_s: None,
                ours_tokens_per_s: None,
                ours_gpu_tokens_per_s: None,
                llama_tokens_per_s: None,
                ratio: None,
                percent_of_floor: None,
            });
            self.lines.len() - 1
        });
        &mut self.lines[index]
    }

    /// The largest depth at which a shape was measured: less than was requested if the model's context is shorter.
    pub fn deepest(&self, shape: &str) -> Option<u64> {
        let lines = self.lines.iter().filter(|line| line.shape == shape);
        lines.filter_map(|line| if let Test::Decode { depth } = line.test { Some(depth) } else { None }).max()
    }

    pub fn problem(&mut self, shape: &str, program: &'static str, what: String) {
        eprintln!("{shape}, {program}: {what}");
        self.problems.push(Problem { shape: shape.into(), program, what });
    }

    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.text_is_right() && self.checks.iter().all(|check| check.passed)
    }

    /// Whether real weights gave the text that they give elsewhere, for every target that was timed.
    pub fn text_is_right(&self) -> bool {
        let of_target = |found: &Perplexity| self.target.is_empty() || found.target == self.target;
        self.perplexity.as_ref().is_some_and(|found| found.passed && of_target(found))
    }

    /// Writes `bench-gpu.md` and `bench-gpu.json`.
    ///
    /// # Errors
    /// In words, which file could not be written.
    pub fn write(&mut self, folder: &Path) -> Result<(), String> {
        for line in &mut self.lines {
            line.ratio = line.ours_tokens_per_s.zip(line.llama_tokens_per_s).map(|(ours, llama)| ours / llama);
        }
        let json = serde_json::to_string_pretty(self).expect("reports are plain data with text keys");
        for (name, text) in [("bench-gpu.md", self.markdown()), ("bench-gpu.json", json)] {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }

    pub fn markdown(&self) -> String {
        let mut text = format!("device {}, target {}", self.device, self.target);
        if let Some(bandwidth) = self.read_bandwidth_gb_per_s {
            // Writing to a String does not fail, here and below.
            let _ = write!(text, ", bandwidth of reads {bandwidth:.1} GB/s");
        }
        text += "\n\n";
        for Check { name, passed, seconds, words } in &self.checks {
            let verdict = if *passed { "passed" } else { "FAILED" };
            let _ = writeln!(text, "{name}: {verdict} in {seconds:.1} s: {words}");
        }
        match &self.perplexity {
            Some(Perplexity { device, target, expected, found, found_greedy, passed }) => {
                let verdict = if *passed { "passed" } else { "FAILED" };
                let _ = writeln!(
                    text,
                    "real weights on {device}, target {target}: {verdict}: perplexity {found:.3}, expected {expected:.3}; \
                     of its own greedy text {found_greedy:.3}"
                );
            }
            None => text += "real weights: not measured\n",
        }
        if self.text_is_right() {
            text += &self.table();
        } else {
            text += "\nno table: rates of a device that computes other text mean nothing\n";
        }
        for Problem { shape, program, what } in &self.problems {
            let _ = writeln!(text, "\n{shape}, {program}: {what}");
        }
        text
    }

    fn table(&self) -> String {
        let mut text = String::from(
            "\n| shape | test | floor, tokens/s | ours | by the device's clock | llama.cpp | ratio | % of floor |\n",
        );
        text += "|---|---|---|---|---|---|---|---|\n";
        let cell = |value: Option<f64>, digits: usize| value.map_or("–".into(), |value| format!("{value:.digits$}"));
        for line in &self.lines {
            let test = match line.test {
                Test::Prefill { tokens } => format!("prefill {tokens}"),
                Test::Decode { depth } => format!("decode at {depth}"),
                Test::Batch { sequences } => format!("{sequences} sequences"),
            };
            let _ = writeln!(
                text,
                "| {} | {test} | {} | {} | {} | {} | {} | {} |",
                line.shape,
                cell(line.floor_tokens_per_s, 0),
                cell(line.ours_tokens_per_s, 1),
                cell(line.ours_gpu_tokens_per_s, 1),
                cell(line.llama_tokens_per_s, 1),
                cell(line.ratio, 2),
                cell(line.percent_of_floor, 1)
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_a_test_meet_in_one_line() {
        let mut report = Report { perplexity: Some(right()), ..Report::default() };
        report.line("a", Test::Decode { depth: 0 }).ours_tokens_per_s = Some(300.0);
        report.line("b", Test::Decode { depth: 0 }).ours_tokens_per_s = Some(1.0);
        report.line("a", Test::Decode { depth: 0 }).llama_tokens_per_s = Some(100.0);
        let folder = tempfile::tempdir().unwrap();
        report.write(folder.path()).unwrap();
        assert_eq!((report.lines.len(), report.lines[0].ratio), (2, Some(3.0)));
        assert!(report.markdown().contains("| a | decode at 0 | – | 300.0 | – | 100.0 | 3.00 | – |"));
        assert!(report.is_sound());
        assert_eq!((report.deepest("b"), report.deepest("c")), (Some(0), None));
        report.problem("a", "ours", "broke".into());
        assert!(!report.is_sound());
    }

    fn right() -> Perplexity {
        let (device, target) = ("a GPU".into(), "generic".into());
        Perplexity { device, target, expected: 48.0, found: 48.1, found_greedy: 2.0, passed: true }
    }

    #[test]
    fn wrong_text_gives_no_table() {
        let no_table = |report: &Report| !report.is_sound() && !report.markdown().contains("| shape |");
        let wrong = Some(Perplexity { passed: false, ..right() });
        assert!(no_table(&Report::default()));
        assert!(no_table(&Report { perplexity: wrong, ..Report::default() }));
        // Checked for one target, timed for another.
        let other = Report { perplexity: Some(right()), target: "nvidia".into(), ..Report::default() };
        assert!(no_table(&other));
        let same = Report { perplexity: Some(right()), target: "generic".into(), ..Report::default() };
        assert!(same.is_sound() && same.markdown().contains("| shape |"));
    }
}
