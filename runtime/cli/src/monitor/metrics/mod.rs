//! A [`Sample`] as metrics, for Prometheus and other readers of OpenMetrics.
//!
//! ```text
//! Sample ──► render ──► text (exposition) ──► Endpoint: GET /metrics
//! ```
//!
//! Units are base units: bytes, seconds, hertz, ratios instead of percentages. A value that is not reported has no
//! sample; a family without samples is left out. Every series of a process carries its id, model and device.

mod endpoint;
mod exposition;

pub use endpoint::Endpoint;

use self::exposition::{Exposition, Family, Kind, Labels};
use crate::monitor::status::State;
use crate::monitor::system::{ProcessSample, Sample};
use unicorn_runtime::machine::GpuActivity;

/// The sample in OpenMetrics' text format, version 1.0.
pub fn render(sample: &Sample) -> String {
    let mut text = Exposition::default();
    for (family, value_of) in GPU_FAMILIES {
        // Two GPUs may have the same name; numbers are as in `--json`.
        let of = |(number, gpu): (usize, &GpuActivity)| {
            let labels = Labels::of(&[("gpu", &number.to_string()), ("name", &gpu.name)]);
            value_of(gpu).map(|value| (labels, value))
        };
        text.put(family, sample.gpus.iter().enumerate().filter_map(of));
    }
    for (family, value_of) in PROCESS_FAMILIES {
        let of = |process: &ProcessSample| value_of(process).map(|value| (labels(process), value));
        text.put(family, sample.processes.iter().filter_map(of));
    }
    text.put(&DOING, sample.processes.iter().flat_map(doing));
    text.end()
}

const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, unit, help }
}

type ValueOf<T> = fn(&T) -> Option<f64>;

const GPU_FAMILIES: &[(Family, ValueOf<GpuActivity>)] = &[
    (gauge("unicorn_gpu_busy_ratio", "ratio", "Share of the time in which the GPU was busy"), |gpu| {
        gpu.busy_percent.map(|percent| percent / 100.0)
    }),
    (gauge("unicorn_gpu_vram_used_bytes", "bytes", "Used video memory"), |gpu| whole(gpu.vram_used_bytes)),
    (gauge("unicorn_gpu_vram_bytes", "bytes", "Total video memory"), |gpu| whole(gpu.vram_bytes)),
    (gauge("unicorn_gpu_gtt_used_bytes", "bytes", "Host memory that is mapped by the GPU"), |gpu| {
        whole(gpu.gtt_used_bytes)
    }),
    (gauge("unicorn_gpu_gtt_bytes", "bytes", "Host memory that the GPU may map"), |gpu| whole(gpu.gtt_bytes)),
    (gauge("unicorn_gpu_core_clock_hertz", "hertz", "Clock of the shader cores"), |gpu| hertz(gpu.core_mhz)),
    (gauge("unicorn_gpu_memory_clock_hertz", "hertz", "Clock of the memory"), |gpu| hertz(gpu.memory_mhz)),
    (gauge("unicorn_gpu_power_watts", "watts", "Power of the GPU"), |gpu| gpu.power_w),
    (gauge("unicorn_gpu_temperature_celsius", "celsius", "Temperature of the GPU"), |gpu| gpu.temperature_c),
];

const PROCESS_FAMILIES: &[(Family, ValueOf<ProcessSample>)] = &[
    (
        gauge("unicorn_tokens_per_second", "", "Tokens decoded in a second, of the last half second or more"),
        |process| process.status.tokens_per_s,
    ),
    (
        Family {
            name: "unicorn_tokens",
            kind: Kind::Counter,
            unit: "",
            help: "Tokens generated since the process started",
        },
        |process| whole(Some(process.status.tokens)),
    ),
    (gauge("unicorn_kv_used_pages", "pages", "Used pages of the KV cache"), |process| {
        Some(process.status.kv_pages_used.into())
    }),
    (gauge("unicorn_kv_pages", "pages", "Pages of the KV cache in all"), |process| {
        Some(process.status.kv_pages.into())
    }),
    (gauge("unicorn_queue_requests", "requests", "Requests that wait for a sequence to end"), |process| {
        Some(process.status.queue.into())
    }),
    (
        gauge("unicorn_process_vram_bytes", "bytes", "Video memory of the process, as the kernel reports it"),
        |process| whole(process.vram_bytes),
    ),
    (gauge("unicorn_process_gtt_bytes", "bytes", "GTT of the process, as the kernel reports it"), |process| {
        whole(process.gtt_bytes)
    }),
    (
        gauge("unicorn_process_gpu_ratio", "ratio", "Time that engines of the GPU worked for the process, over time"),
        |process| process.gpu_percent.map(|percent| percent / 100.0),
    ),
];

const DOING: Family = Family {
    name: "unicorn_doing",
    kind: Kind::StateSet,
    unit: "",
    help: "What the process does: 1 for one of its states",
};

fn doing(process: &ProcessSample) -> [(Labels, f64); 3] {
    [("prefill", State::Prefill), ("decode", State::Decode), ("idle", State::Idle)].map(|(name, state)| {
        let value = if process.status.doing == state { 1.0 } else { 0.0 };
        // The format requires the family's name as the label of a state.
        (labels(process).with(DOING.name, name), value)
    })
}

fn labels(process: &ProcessSample) -> Labels {
    let status = &process.status;
    Labels::of(&[("pid", &status.pid.to_string()), ("model", &status.model), ("device", &status.device)])
}

/// Exact up to 2⁵³, as every number of the format.
fn whole(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

fn hertz(mhz: Option<f64>) -> Option<f64> {
    mhz.map(|mhz| mhz * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::status::tests::status;

    #[test]
    fn a_synthetic_state_is_written_in_the_formats_syntax() {
        let complete = GpuActivity {
            name: "card1".into(),
            busy_percent: Some(87.0),
            vram_used_bytes: Some(384 << 20),
            vram_bytes: Some(16 << 30),
            gtt_used_bytes: Some(0),
            gtt_bytes: Some(15 << 30),
            core_mhz: Some(2650.0),
            memory_mhz: Some(2800.0),
            power_w: Some(21.5),
            temperature_c: Some(-3.5),
        };
        let silent = GpuActivity { name: "card2".into(), ..GpuActivity::default() };
        let mut odd = status(7);
        (odd.model, odd.tokens_per_s, odd.doing) = ("a \"model\"\\\nof two lines".into(), None, State::Idle);
        let processes = vec![
            ProcessSample {
                status: status(41),
                vram_bytes: Some(1 << 20),
                gtt_bytes: Some(3 << 20),
                gpu_percent: Some(80.5),
            },
            ProcessSample { status: odd, vram_bytes: None, gtt_bytes: None, gpu_percent: None },
        ];
        let text = render(&Sample { gpus: vec![complete, silent], processes });
        assert_eq!(text, include_str!("golden.txt"), "\n{text}");
    }

    #[test]
    fn no_data_is_an_empty_exposition() {
        assert_eq!(render(&Sample { gpus: vec![], processes: vec![] }), "# EOF\n");
        let silent = GpuActivity { name: "card1".into(), ..GpuActivity::default() };
        assert_eq!(render(&Sample { gpus: vec![silent], processes: vec![] }), "# EOF\n");
    }
}
