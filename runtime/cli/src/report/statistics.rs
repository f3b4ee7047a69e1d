//! Statistics of a run: measured, with their units in their names. `--json` of every command that runs a model uses
//! these keys.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::load::is_software;
use unicorn_artifact::account::size;
use unicorn_runtime::{Model, TierUpload, Verification};

/// What a run measured. A rate is `None` when nothing of its kind ran.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunStatistics {
    #[serde(flatten)]
    pub load: LoadStatistics,
    /// Prompt tokens that were computed, without those that were cached.
    pub prefill_tokens: u64,
    pub prefill_tokens_per_s: Option<f64>,
    /// Steps of one token each.
    pub decode_tokens: u64,
    pub decode_tokens_per_s: Option<f64>,
    /// `decode_tokens_per_s * weight_bytes_per_token`, in 10⁹ bytes a second.
    pub decode_gb_per_s: Option<f64>,
    /// Bandwidth of reads from the device's memory in 10⁹ bytes a second, measured after the run. `None`: not measured.
    pub read_bandwidth_gb_per_s: Option<f64>,
    /// `decode_gb_per_s` over `read_bandwidth_gb_per_s`: 100 is the floor of a step that reads every weight once.
    pub decode_percent_of_read_bandwidth: Option<f64>,
}

/// A model as it was loaded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadStatistics {
    pub device: String,
    /// Name of the artifact's target that was used.
    pub target: String,
    /// Whether the Vulkan device runs on the CPU.
    pub software: bool,
    /// Time until the first step could start; in a lazy load, before all weights are resident.
    pub load_s: f64,
    /// Time until all weights were resident. This and the following are `None` while a lazy load is running.
    pub load_resident_s: Option<f64>,
    /// Time to move the weights.
    pub load_weights_s: Option<f64>,
    /// Time to create the pipelines.
    pub load_pipelines_s: f64,
    pub load_pipelines: u32,
    /// Number of those pipelines that were found in the cache; `None`: there is no cache, or the driver does not report it.
    pub load_pipelines_from_cache: Option<u32>,
    pub load_weight_bytes: u64,
    /// `load_weight_bytes / load_weights_s`, in 10⁹ bytes a second; `None`: too fast to measure.
    pub load_gb_per_s: Option<f64>,
    /// Upload path of the weights.
    pub load_upload_path: String,
    /// Where weights were compared with their hashes: `device`, `file`, or `None` for nowhere.
    pub load_verified: Option<&'static str>,
    /// Time to compare them on the device.
    pub load_verify_s: Option<f64>,
    /// What is resident, by tier.
    pub memory_bytes: BTreeMap<&'static str, TierMemory>,
    /// Result of comparing that with what the driver and the kernel report, or why it could not be compared.
    pub memory_audit: Option<String>,
    /// Weight and scale bytes that one decode step reads.
    pub weight_bytes_per_token: u64,
}

/// Bytes in one tier, by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TierMemory {
    pub weights: u64,
    pub kv: u64,
    pub activations: u64,
    pub other: u64,
}

/// Tokens and the time that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Throughput {
    pub tokens: u64,
    pub elapsed: Duration,
}

impl TierMemory {
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.activations + self.other
    }
}

impl Throughput {
    /// `None` if there were no tokens.
    pub fn tokens_per_s(&self) -> Option<f64> {
        (self.tokens > 0 && !self.elapsed.is_zero()).then(|| self.tokens as f64 / self.elapsed.as_secs_f64())
    }
}

impl RunStatistics {
    /// Measures the read bandwidth, too, which takes as long as several tokens.
    pub fn new(model: &Model, prefill: Throughput, decode: Throughput) -> RunStatistics {
        RunStatistics::of(LoadStatistics::new(model), read_bandwidth_gb_per_s(model), prefill, decode)
    }

    pub fn without_bandwidth(model: &Model, prefill: Throughput, decode: Throughput) -> RunStatistics {
        RunStatistics::of(LoadStatistics::new(model), None, prefill, decode)
    }

    /// Statistics from what has been measured already.
    pub fn of(
        load: LoadStatistics,
        read_bandwidth_gb_per_s: Option<f64>,
        prefill: Throughput,
        decode: Throughput,
    ) -> RunStatistics {
        RunStatistics {
            load,
            prefill_tokens: 0,
            prefill_tokens_per_s: None,
            decode_tokens: 0,
            decode_tokens_per_s: None,
            decode_gb_per_s: None,
            read_bandwidth_gb_per_s,
            decode_percent_of_read_bandwidth: None,
        }
        .with_throughput(prefill, decode)
    }

    fn with_throughput(mut self, prefill: Throughput, decode: Throughput) -> RunStatistics {
        self.prefill_tokens = prefill.tokens;
        self.prefill_tokens_per_s = prefill.tokens_per_s();
        self.decode_tokens = decode.tokens;
        self.decode_tokens_per_s = decode.tokens_per_s();
        self.decode_gb_per_s =
            self.decode_tokens_per_s.map(|rate| rate * self.load.weight_bytes_per_token as f64 / 1e9);
        let share = |rate: f64| self.read_bandwidth_gb_per_s.map(|bandwidth| 100.0 * rate / bandwidth);
        self.decode_percent_of_read_bandwidth = self.decode_gb_per_s.and_then(share);
        self
    }
}

impl LoadStatistics {
    pub fn new(model: &Model) -> LoadStatistics {
        let report = model.report();
        let tiers = report.memory.iter().map(|tier| {
            let memory =
                TierMemory { weights: tier.weights, kv: tier.kv, activations: tier.activations, other: tier.other };
            (tier.tier.name(), memory)
        });
        let upload = report.upload.as_ref();
        let (load_verified, load_verify_s) = match upload.map(|upload| upload.verification) {
            None | Some(Verification::No) => (None, None),
            Some(Verification::InFile) => (Some("file"), None),
            Some(Verification::OnDevice { seconds }) => (Some("device"), Some(seconds)),
        };
        let load_weights_s = upload.map(|upload| upload.seconds_weights);
        let measured_s = load_weights_s.filter(|&seconds| seconds > 0.0);
        LoadStatistics {
            device: model.device().name.clone(),
            target: report.target,
            software: is_software(model),
            load_s: report.seconds_total,
            load_resident_s: upload.map(|upload| upload.seconds_resident),
            load_weights_s,
            load_pipelines_s: report.seconds_pipelines,
            load_pipelines: report.pipelines.pipelines,
            load_pipelines_from_cache: report.pipelines.from_cache,
            load_weight_bytes: report.weight_bytes,
            load_gb_per_s: measured_s.map(|seconds| report.weight_bytes as f64 / seconds / 1e9),
            load_upload_path: upload_paths(&report.upload_paths),
            load_verified,
            load_verify_s,
            memory_bytes: tiers.collect(),
            memory_audit: report.upload.map(|upload| upload.audit.to_string()),
            weight_bytes_per_token: model.meta().model.weight_bytes_per_token,
        }
    }
}

/// The upload path of each tier; the tier is named where there are several.
fn upload_paths(tiers: &[TierUpload]) -> String {
    match tiers {
        [] => "nothing to load".into(),
        [only] => only.to_string(),
        several => several.iter().map(|one| format!("{}: {one}", one.tier.name())).collect::<Vec<_>>().join("; "),
    }
}

/// Read bandwidth, measured now; `None` where the device has no memory left for the buffer that is read.
pub fn read_bandwidth_gb_per_s(model: &Model) -> Option<f64> {
    model.measure_read_bandwidth().map(|bytes_per_s| bytes_per_s / 1e9)
}

/// A line a subject, for stderr.
impl fmt::Display for LoadStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device   {}, target {}", self.device, self.target)?;
        match self.load_weights_s {
            Some(seconds) => write!(f, "loaded   {} in {seconds:.2} s, ", size(self.load_weight_bytes))?,
            None => write!(f, "loading  {}, not done yet, ", size(self.load_weight_bytes))?,
        }
        if let Some(rate) = self.load_gb_per_s {
            write!(f, "{rate:.1} GB/s, ")?;
        }
        writeln!(f, "{}", self.load_upload_path)?;
        write!(
            f,
            "started  in {:.2} s, {} pipelines {:.2} s",
            self.load_s, self.load_pipelines, self.load_pipelines_s
        )?;
        if let Some(cached) = self.load_pipelines_from_cache {
            write!(f, ", {cached} of them from the cache")?;
        }
        if let (Some(place), Some(seconds)) = (self.load_verified, self.load_verify_s) {
            write!(f, ", weights verified on the {place} {seconds:.2} s")?;
        }
        writeln!(f)?;
        for (tier, memory) in &self.memory_bytes {
            let TierMemory { weights, kv, activations, other } = *memory;
            writeln!(
                f,
                "memory   {tier} {}: weights {}, KV {}, activations {}, other {}",
                size(memory.total()),
                size(weights),
                size(kv),
                size(activations),
                size(other)
            )?;
        }
        self.memory_audit.iter().try_for_each(|audit| writeln!(f, "audit    {audit}"))
    }
}

impl fmt::Display for RunStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load.fmt(f)?;
        write!(f, "prefill  {} tokens", self.prefill_tokens)?;
        if let Some(rate) = self.prefill_tokens_per_s {
            write!(f, ", {rate:.2} tokens/s")?;
        }
        write!(f, "\ndecode   {} tokens", self.decode_tokens)?;
        if let (Some(rate), Some(gb_per_s)) = (self.decode_tokens_per_s, self.decode_gb_per_s) {
            write!(f, ", {rate:.2} tokens/s, {gb_per_s:.2} GB/s of weights")?;
        }
        if let (Some(percent), Some(bandwidth)) = (self.decode_percent_of_read_bandwidth, self.read_bandwidth_gb_per_s)
        {
            write!(f, ", {percent:.1} % of the {bandwidth:.1} GB/s read bandwidth")?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn load_statistics() -> LoadStatistics {
        let memory = TierMemory { weights: 2_000_000_000, kv: 3, activations: 2, other: 1 };
        LoadStatistics {
            device: "Some GPU".into(),
            target: "generic".into(),
            software: false,
            load_s: 1.5,
            load_resident_s: Some(1.25),
            load_weights_s: Some(1.0),
            load_pipelines_s: 0.25,
            load_pipelines: 60,
            load_pipelines_from_cache: Some(60),
            load_weight_bytes: 2_000_000_000,
            load_gb_per_s: Some(2.0),
            load_upload_path: "staging copies into device-local memory, page cache released".into(),
            load_verified: Some("device"),
            load_verify_s: Some(0.125),
            memory_bytes: BTreeMap::from([("vram", memory)]),
            memory_audit: Some("not compared".into()),
            weight_bytes_per_token: 2_000_000_000,
        }
    }

    pub fn statistics() -> RunStatistics {
        RunStatistics {
            load: load_statistics(),
            prefill_tokens: 0,
            prefill_tokens_per_s: None,
            decode_tokens: 0,
            decode_tokens_per_s: None,
            decode_gb_per_s: None,
            read_bandwidth_gb_per_s: Some(80.0),
            decode_percent_of_read_bandwidth: None,
        }
        .with_throughput(
            Throughput { tokens: 7, elapsed: Duration::from_millis(500) },
            Throughput { tokens: 10, elapsed: Duration::from_secs(1) },
        )
    }

    #[test]
    fn keys_carry_units() {
        let json = serde_json::to_value(statistics()).unwrap();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "device",
                "target",
                "software",
                "load_s",
                "load_resident_s",
                "load_weights_s",
                "load_pipelines_s",
                "load_pipelines",
                "load_pipelines_from_cache",
                "load_weight_bytes",
                "load_gb_per_s",
                "load_upload_path",
                "load_verified",
                "load_verify_s",
                "memory_bytes",
                "memory_audit",
                "weight_bytes_per_token",
                "prefill_tokens",
                "prefill_tokens_per_s",
                "decode_tokens",
                "decode_tokens_per_s",
                "decode_gb_per_s",
                "read_bandwidth_gb_per_s",
                "decode_percent_of_read_bandwidth"
            ]
        );
        assert_eq!(json["prefill_tokens_per_s"], 14.0);
        assert_eq!(json["decode_gb_per_s"], 20.0);
        assert_eq!(json["decode_percent_of_read_bandwidth"], 25.0);
        assert_eq!(json["memory_bytes"]["vram"]["weights"], 2_000_000_000_u64);
    }

    #[test]
    fn what_did_not_run_has_no_rate() {
        let statistics = statistics().with_throughput(Throughput::default(), Throughput::default());
        assert_eq!((statistics.prefill_tokens_per_s, statistics.decode_gb_per_s), (None, None));
        assert!(statistics.to_string().ends_with("prefill  0 tokens\ndecode   0 tokens"));
    }
}
