//! What was measured, and the lower bound that memory bandwidth sets.

use serde::Serialize;

use super::cases::Case;
use super::measure::Measured;
use crate::report::statistics::{LoadStatistics, RunStatistics, Throughput, read_bandwidth_gb_per_s};
use crate::report::table::{Column, or_dash, table};
use unicorn_runtime::Model;

/// What `--json` prints.
#[derive(Serialize)]
pub struct BenchReport {
    pub model: String,
    /// Whether the weights are random.
    pub synthetic: bool,
    /// Runs of each case; every value is that of the median.
    pub repetitions: u32,
    /// The keys of a run: of the first load, the first case of prefill and the first of decode. The bandwidth of reads is measured
    /// once, so that all cases are compared with the same.
    #[serde(flatten)]
    pub first: Option<RunStatistics>,
    pub loads: Vec<LoadedFor>,
    pub cases: Vec<CaseStatistics>,
}

/// A model as it was loaded for some of the cases.
#[derive(Serialize)]
pub struct LoadedFor {
    pub sequences: u32,
    pub context_tokens: u32,
    #[serde(flatten)]
    pub load: LoadStatistics,
}

/// One case. Every case has every key.
#[derive(Debug, PartialEq, Serialize)]
pub struct CaseStatistics {
    /// `prefill`, `decode` (steps follow one another on the device), `batch` (one step for all sequences) or `image` (the rows that one becomes).
    pub test: &'static str,
    /// Tokens in the cache before the first run.
    pub depth_tokens: u32,
    pub sequences: u32,
    /// Tokens of all sequences in one run.
    pub tokens: u64,
    /// Rate by the host's clock.
    pub tokens_per_s: f64,
    /// Rate by the device's clock, of its steps alone; `None`: it measures no time.
    pub gpu_tokens_per_s: Option<f64>,
    /// What a step must read, weights once and every sequence's cache, over the tokens that it makes; `None` for prefill and images,
    /// which are bound by arithmetic.
    pub bytes_per_token: Option<f64>,
    /// `tokens_per_s * bytes_per_token`, in 10⁹ bytes a second.
    pub gb_per_s: Option<f64>,
    /// The bandwidth of reads over `bytes_per_token`.
    pub floor_tokens_per_s: Option<f64>,
    /// `tokens_per_s` over `floor_tokens_per_s`.
    pub percent_of_floor: Option<f64>,
}

impl CaseStatistics {
    pub fn new(case: Case, measured: &Measured, model: &Model, read_bandwidth_gb_per_s: Option<f64>) -> CaseStatistics {
        let weights = model.meta().model.weight_bytes_per_token;
        let groups = &model.plan().kv_groups;
        let cache = groups.iter().map(|group| group.bytes_read_per_token(measured.cached_tokens)).sum();
        CaseStatistics::of_bytes(case, measured, weights, cache, read_bandwidth_gb_per_s)
    }

    /// `weights` are read once a step, `cache` bytes once a sequence.
    pub(super) fn of_bytes(
        case: Case,
        measured: &Measured,
        weights: u64,
        cache: u64,
        read_bandwidth_gb_per_s: Option<f64>,
    ) -> CaseStatistics {
        let (test, depth_tokens, sequences) = match case {
            Case::Prefill { .. } => ("prefill", 0, 1),
            Case::Decode { depth } => ("decode", depth, 1),
            Case::Batch { sequences } => ("batch", 0, sequences),
            Case::Image => ("image", 0, 1),
        };
        let bytes_per_token = match case {
            Case::Prefill { .. } | Case::Image => None,
            Case::Decode { .. } | Case::Batch { .. } => Some(weights as f64 / f64::from(sequences) + cache as f64),
        };
        let tokens_per_s = measured.tokens as f64 / measured.wall.as_secs_f64();
        let floor = read_bandwidth_gb_per_s.zip(bytes_per_token).map(|(bandwidth, bytes)| 1e9 * bandwidth / bytes);
        CaseStatistics {
            test,
            depth_tokens,
            sequences,
            tokens: measured.tokens,
            tokens_per_s,
            gpu_tokens_per_s: measured.gpu_seconds.map(|seconds| measured.tokens as f64 / seconds),
            bytes_per_token,
            gb_per_s: bytes_per_token.map(|bytes| tokens_per_s * bytes / 1e9),
            floor_tokens_per_s: floor,
            percent_of_floor: floor.map(|floor| 100.0 * tokens_per_s / floor),
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.test.into(),
            self.depth_tokens.to_string(),
            self.sequences.to_string(),
            self.tokens.to_string(),
            format!("{:.2}", self.tokens_per_s),
            or_dash(self.gpu_tokens_per_s, 2),
            or_dash(self.bytes_per_token.map(|bytes| bytes / 1e6), 1),
            or_dash(self.gb_per_s, 1),
            or_dash(self.floor_tokens_per_s, 1),
            or_dash(self.percent_of_floor, 1),
        ]
    }
}

impl BenchReport {
    /// A report without cases.
    pub fn new(repetitions: u32) -> BenchReport {
        BenchReport {
            model: String::new(),
            synthetic: false,
            repetitions,
            first: None,
            loads: Vec::new(),
            cases: Vec::new(),
        }
    }

    /// Adds the cases of one load.
    pub fn add(&mut self, model: &Model, load: LoadedFor, measured: &[(Case, Measured)]) {
        let bandwidth = match &self.first {
            Some(first) => first.read_bandwidth_gb_per_s,
            None => read_bandwidth_gb_per_s(model),
        };
        let rate_of = |is_meant: fn(&Case) -> bool| {
            let first = measured.iter().find(|(case, _)| is_meant(case));
            first.map_or(Throughput::default(), |(_, it)| Throughput { tokens: it.tokens, elapsed: it.wall })
        };
        let prefill = rate_of(|case| matches!(case, Case::Prefill { .. }));
        let decode = rate_of(|case| matches!(case, Case::Decode { .. }));
        self.first.get_or_insert_with(|| RunStatistics::of(load.load.clone(), bandwidth, prefill, decode));
        self.cases
            .extend(measured.iter().map(|(case, measured)| CaseStatistics::new(*case, measured, model, bandwidth)));
        self.model = model.meta().model.name.clone();
        self.synthetic = model.meta().model.synthetic;
        self.loads.push(load);
    }

    pub fn page(&self) -> String {
        let mut page = String::new();
        for LoadedFor { sequences, context_tokens, load } in &self.loads {
            page += &format!("{load}         for {sequences} sequences of {context_tokens} tokens\n");
        }
        page += &match self.first.as_ref().and_then(|first| first.read_bandwidth_gb_per_s) {
            Some(bandwidth) => {
                format!("floor    from a bandwidth of {bandwidth:.1} GB/s, measured by reading\n")
            }
            None => "floor    none: the bandwidth was not measured\n".into(),
        };
        let columns = [
            Column::Left("test"),
            Column::Right("depth"),
            Column::Right("sequences"),
            Column::Right("tokens"),
            Column::Right("tokens/s"),
            Column::Right("on device"),
            Column::Right("MB/token"),
            Column::Right("GB/s"),
            Column::Right("floor"),
            Column::Right("% of floor"),
        ];
        let rows: Vec<Vec<String>> = self.cases.iter().map(CaseStatistics::row).collect();
        page + &format!("\n{}\nmedian of {} runs\n", table(&columns, &rows), self.repetitions)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::statistics::tests::load_statistics;

    fn case(case: Case, tokens: u64) -> CaseStatistics {
        let measured = Measured { tokens, wall: Duration::from_secs(2), gpu_seconds: Some(1.0), cached_tokens: 0 };
        CaseStatistics::of_bytes(case, &measured, 8_000_000_000, 2_000_000_000, Some(100.0))
    }

    #[test]
    fn the_floor_reads_weights_once_a_step_and_a_cache_for_each_sequence() {
        let alone = case(Case::Decode { depth: 100 }, 10);
        assert_eq!((alone.bytes_per_token, alone.tokens_per_s, alone.gpu_tokens_per_s), (Some(1e10), 5.0, Some(10.0)));
        assert_eq!((alone.floor_tokens_per_s, alone.percent_of_floor), (Some(10.0), Some(50.0)));
        let four = case(Case::Batch { sequences: 4 }, 40);
        assert_eq!((four.bytes_per_token, four.floor_tokens_per_s), (Some(4e9), Some(25.0)));
        assert_eq!(case(Case::Prefill { tokens: 10 }, 10).floor_tokens_per_s, None);
    }

    #[test]
    fn every_case_has_every_key() {
        let mut report = BenchReport::new(3);
        report.loads.push(LoadedFor { sequences: 1, context_tokens: 9, load: load_statistics() });
        report.cases = vec![case(Case::Prefill { tokens: 10 }, 10), case(Case::Decode { depth: 0 }, 10)];
        let throughput = Throughput { tokens: 10, elapsed: Duration::from_secs(2) };
        report.first = Some(RunStatistics::of(load_statistics(), None, Throughput::default(), throughput));
        let json = serde_json::to_value(&report).unwrap();
        let keys = |index: usize| json["cases"][index].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(0), keys(1));
        assert_eq!((&json["loads"][0]["device"], &json["repetitions"]), (&"Some GPU".into(), &3.into()));
        // As `--json` of a run has them.
        assert_eq!((&json["device"], &json["decode_tokens_per_s"]), (&"Some GPU".into(), &5.0.into()));
        assert!(json["prefill_tokens_per_s"].is_null() && json.get("load_s").is_some());
        let page = report.page();
        assert!(
            page.contains("floor    none: the bandwidth") && page.contains("for 1 sequences of 9 tokens"),
            "{page}"
        );
    }
}
