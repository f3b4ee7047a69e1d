//! OpenMetrics' text format: metadata of a family, then its samples, one a line, then an end.
//!
//! ```text
//! # TYPE unicorn_gpu_power_watts gauge
//! # UNIT unicorn_gpu_power_watts watts
//! # HELP unicorn_gpu_power_watts Power of the GPU
//! unicorn_gpu_power_watts{gpu="0",name="card1"} 21.5
//! # EOF
//! ```

use std::fmt::Write;

/// The text of a sample; each family is added once.
#[derive(Default)]
pub struct Exposition {
    text: String,
}

/// A family of samples that differ in their labels.
pub struct Family {
    /// Letters, digits and underscores. Ends with the unit, if there is one.
    pub name: &'static str,
    pub kind: Kind,
    /// Empty: none.
    pub unit: &'static str,
    /// One line without quotes or backslashes.
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    /// A value that grows until its process ends.
    Counter,
    /// 1 for the current states, 0 for the others.
    StateSet,
}

/// Labels as they are written between the braces, escaped.
pub struct Labels(String);

impl Exposition {
    /// Writes a family, unless it has no samples. A value that is not a number gives no sample.
    pub fn put(&mut self, family: &Family, samples: impl Iterator<Item = (Labels, f64)>) {
        let Family { name, kind, unit, help } = *family;
        assert!(unit.is_empty() || name.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')), "{name} in {unit}");
        let mut samples = samples.filter(|(_, value)| value.is_finite()).peekable();
        if samples.peek().is_none() {
            return;
        }
        let (kind, suffix) = match kind {
            Kind::Gauge => ("gauge", ""),
            Kind::Counter => ("counter", "_total"),
            Kind::StateSet => ("stateset", ""),
        };
        self.line(format_args!("# TYPE {name} {kind}"));
        if !unit.is_empty() {
            self.line(format_args!("# UNIT {name} {unit}"));
        }
        self.line(format_args!("# HELP {name} {help}"));
        for (Labels(labels), value) in samples {
            self.line(format_args!("{name}{suffix}{{{labels}}} {value}"));
        }
    }

    pub fn end(mut self) -> String {
        self.line(format_args!("# EOF"));
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes all text");
    }
}

impl Labels {
    pub fn of(labels: &[(&str, &str)]) -> Labels {
        labels.iter().fold(Labels(String::new()), |all, (name, value)| all.with(name, value))
    }

    pub fn with(mut self, name: &str, value: &str) -> Labels {
        let comma = if self.0.is_empty() { "" } else { "," };
        let escaped = value.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
        write!(self.0, "{comma}{name}=\"{escaped}\"").expect("a string takes all text");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POWER: Family = Family { name: "power_watts", kind: Kind::Gauge, unit: "watts", help: "Power" };

    #[test]
    fn what_is_no_number_is_no_sample() {
        let mut text = Exposition::default();
        let values = [f64::NAN, f64::INFINITY, 1e-7, 1e300];
        text.put(&POWER, values.into_iter().map(|value| (Labels::of(&[("at", "here")]), value)));
        text.put(&POWER, [(Labels::of(&[]), f64::NAN)].into_iter());
        let text = text.end();
        let found: Vec<f64> =
            text.lines().filter_map(|line| line.strip_prefix("power_watts{at=\"here\"} ")?.parse().ok()).collect();
        assert_eq!(found, [1e-7, 1e300]);
        assert_eq!(text.lines().count(), 6, "{text}");
    }

    #[test]
    fn a_quote_does_not_end_a_label() {
        let Labels(text) = Labels::of(&[("a", "\"}\n1 \\"), ("b", "")]);
        assert_eq!(text, r#"a="\"}\n1 \\",b="""#);
    }

    #[test]
    #[should_panic(expected = "power_watts in bytes")]
    fn a_metric_name_contains_its_unit() {
        Exposition::default().put(&Family { unit: "bytes", ..POWER }, std::iter::empty());
    }
}
