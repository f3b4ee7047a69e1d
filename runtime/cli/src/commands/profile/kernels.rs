//! Times by kernel and role: a line for all layers' dispatches of one kind.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::table::{Column, or_dash, table};
use crate::report::text::role;
use unicorn_runtime::profile::{ProfiledDispatch, StepProfile};

/// All dispatches of one kernel in one role.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelTimes {
    pub kernel: String,
    /// What it is for, without the layer.
    pub role: String,
    pub calls: u64,
    pub seconds: f64,
    /// Part of the time of all dispatches, 0 to 1.
    pub share: f64,
    /// Bytes of weights of all calls; 0 for kernels without weights.
    pub weight_bytes: u64,
    /// Weights read, in 10⁹ bytes a second; `None` for kernels without weights.
    pub gb_per_s: Option<f64>,
    /// `gb_per_s` over the measured bandwidth of reads: 100 is the floor of a kernel that reads its weights once.
    pub percent_of_floor: Option<f64>,
    /// Multiply-adds of rows in use, two each; `None` where the artifact does not state it.
    pub tflop_per_s: Option<f64>,
}

/// The slowest first.
pub fn times(steps: &[StepProfile], read_bytes_per_s: Option<f64>) -> Vec<KernelTimes> {
    let mut sums: BTreeMap<(&str, &str), Sum> = BTreeMap::new();
    for step in steps {
        for (dispatch, seconds) in step.dispatches.iter().zip(&step.seconds) {
            sums.entry((&dispatch.kernel, role(&dispatch.label))).or_default().add(dispatch, step.rows, *seconds);
        }
    }
    let total_seconds: f64 = sums.values().map(|sum| sum.seconds).sum();
    let times = |((kernel, role), sum): ((&str, &str), Sum)| {
        let rate = |amount: f64| (amount > 0.0 && sum.seconds > 0.0).then(|| amount / sum.seconds);
        let bytes_per_s = rate(sum.weight_bytes as f64);
        KernelTimes {
            kernel: kernel.to_owned(),
            role: role.to_owned(),
            calls: sum.calls,
            seconds: sum.seconds,
            share: if total_seconds > 0.0 { sum.seconds / total_seconds } else { 0.0 },
            weight_bytes: sum.weight_bytes,
            gb_per_s: bytes_per_s.map(|rate| rate / 1e9),
            percent_of_floor: bytes_per_s.zip(read_bytes_per_s).map(|(rate, most)| 100.0 * rate / most),
            tflop_per_s: rate(sum.flops as f64).map(|rate| rate / 1e12),
        }
    };
    let mut all: Vec<KernelTimes> = sums.into_iter().map(times).collect();
    all.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
    all
}

/// The table for people.
pub fn page(times: &[KernelTimes]) -> String {
    let columns = [
        Column::Left("kernel"),
        Column::Left("role"),
        Column::Right("calls"),
        Column::Right("ms"),
        Column::Right("µs a call"),
        Column::Right("share %"),
        Column::Right("GB/s"),
        Column::Right("% of floor"),
        Column::Right("TFLOP/s"),
    ];
    let row = |one: &KernelTimes| {
        vec![
            one.kernel.clone(),
            one.role.clone(),
            one.calls.to_string(),
            format!("{:.3}", 1e3 * one.seconds),
            format!("{:.1}", 1e6 * one.seconds / one.calls as f64),
            format!("{:.1}", 100.0 * one.share),
            or_dash(one.gb_per_s, 1),
            or_dash(one.percent_of_floor, 1),
            or_dash(one.tflop_per_s, 3),
        ]
    };
    table(&columns, &times.iter().map(row).collect::<Vec<_>>())
}

#[derive(Default)]
struct Sum {
    calls: u64,
    seconds: f64,
    weight_bytes: u64,
    flops: u64,
}

impl Sum {
    fn add(&mut self, dispatch: &ProfiledDispatch, step_rows: u32, seconds: f64) {
        let rows = if dispatch.one_row { 1 } else { step_rows };
        self.calls += 1;
        self.seconds += seconds;
        self.weight_bytes += dispatch.weight_bytes;
        self.flops += dispatch.flops_per_row.unwrap_or_default() * u64::from(rows);
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Instant;

    use super::*;

    /// Two layers with one matmul each, and an output head of one row.
    pub fn step(rows: u32) -> StepProfile {
        let dispatch = |kernel: &str, label: &str, weight_bytes, flops_per_row, one_row| ProfiledDispatch {
            kernel: kernel.into(),
            label: label.into(),
            weight_bytes,
            flops_per_row,
            one_row,
        };
        let dispatches = vec![
            dispatch("attention ×1", "0.attention", 0, None, false),
            dispatch("matmul 10×20", "0.down_proj", 4_000_000, Some(400_000_000), false),
            dispatch("matmul 10×20", "1.down_proj", 4_000_000, Some(400_000_000), false),
            dispatch("matmul 30×20", "lm_head", 8_000_000, Some(800_000_000), true),
        ];
        let seconds = vec![0.001, 0.002, 0.002, 0.005];
        StepProfile { rows, begin: Instant::now(), wall_seconds: 0.011, dispatches: dispatches.into(), seconds }
    }

    #[test]
    fn layers_share_a_line_and_rates_are_of_what_was_read_and_done() {
        let times = times(&[step(10), step(10)], Some(8e9));
        let lines: Vec<(&str, u64, f64)> = times.iter().map(|one| (one.role.as_str(), one.calls, one.share)).collect();
        assert_eq!(lines, [("lm_head", 2, 0.5), ("down_proj", 4, 0.4), ("attention", 2, 0.1)]);
        let [head, down, attention] = &times[..] else { panic!("three lines") };
        let close = |found: Option<f64>, expected: f64| (found.expect("a rate") - expected).abs() < 1e-9;
        assert!(close(down.gb_per_s, 2.0) && close(down.percent_of_floor, 25.0));
        // Ten rows in the layers, one in the head.
        assert!(close(down.tflop_per_s, 2.0) && close(head.tflop_per_s, 0.16));
        assert_eq!((attention.gb_per_s, attention.percent_of_floor, attention.tflop_per_s), (None, None, None));
    }

    #[test]
    fn without_a_bandwidth_there_is_no_floor() {
        let times = times(&[step(1)], None);
        assert!(times.iter().all(|one| one.percent_of_floor.is_none()));
        assert!(page(&times).contains("–"));
    }
}
