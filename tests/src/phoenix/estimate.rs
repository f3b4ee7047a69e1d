//! How long a step would take on a 780M, worked out from bytes, multiply-adds and occupancy: an estimate, not a measurement.

use unicorn_artifact::{Dispatch, LogitsRows};
use unicorn_kernels::gemm::GemmSpec;
use unicorn_kernels::register_gemm::RegisterGemmSpec;
use unicorn_kernels::{CacheLayout, KernelSpec};

use super::instructions::Class;
use super::{CompiledModel, Kernel};

/// DDR5-5600 on 128 bits.
const BYTES_PER_S: f64 = 89.6e9;
/// 12 compute units, each 512 multiply-adds of f16 matrices or of packed bytes a cycle, at 2.7 GHz.
const FAST_FLOPS_PER_S: f64 = 16.6e12;
/// A plain f32 multiply-add does a quarter of that.
const PLAIN_FLOPS_PER_S: f64 = FAST_FLOPS_PER_S / 4.0;
/// Two a compute unit.
const SIMDS: f64 = 24.0;

/// Cached tokens that the decode step attends to, itself included.
const DECODE_CONTEXT: u64 = 1024;
const PREFILL_ROWS: u64 = 512;

/// What the estimate is made from.
pub const METHOD: &str = "\
Estimates, not measurements. A dispatch takes the longer of its bytes at 89.6 GB/s (weights once, cached K and V once) and
its multiply-adds at 16.6 TFLOP/s where the machine code has v_wmma or v_dot4, a quarter of that elsewhere. The second is
stretched where a dispatch has fewer waves than the 24 SIMDs, or a SIMD too few waves to hide ACO's latency behind ACO's
inverse throughput. A step is the sum of its dispatches; unpacking, launches and cache misses are left out.
";

/// One line a step.
pub fn estimates(model: &CompiledModel) -> String {
    let decode = Cost::of_program(model, 1, DECODE_CONTEXT - 1);
    let prefill = Cost::of_program(model, PREFILL_ROWS, 0);
    let line = |step: String, cost: &Cost, tokens: u64| {
        let rate = tokens as f64 / cost.seconds;
        format!("{:<14}{step:<24}{}, {rate:.1} tokens/s\n", model.name, cost.text())
    };
    line(format!("decode at {DECODE_CONTEXT} tokens"), &decode, 1)
        + &line(format!("prefill of {PREFILL_ROWS} tokens"), &prefill, PREFILL_ROWS)
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    bytes: f64,
    flops: f64,
    seconds: f64,
}

impl Cost {
    /// The program of `rows` rows that samples a token, all rows of one sequence in use, after `before` tokens.
    fn of_program(model: &CompiledModel, rows: u64, before: u64) -> Cost {
        let mut programs = model.set.targets[0].programs.iter();
        let program = programs
            .find(|program| u64::from(program.rows) == rows && program.logits == LogitsRows::One)
            .expect("every target has programs of 1 and 512 rows");
        let costs = program.dispatches.iter().map(|dispatch| {
            let kernel = &model.kernels[dispatch.pipeline as usize];
            Cost::of_dispatch(kernel, dispatch, rows, before)
        });
        costs.fold(Cost::default(), |sum, one| Cost {
            bytes: sum.bytes + one.bytes,
            flops: sum.flops + one.flops,
            seconds: sum.seconds + one.seconds,
        })
    }

    fn of_dispatch(kernel: &Kernel, dispatch: &Dispatch, rows: u64, before: u64) -> Cost {
        let (cached_bytes, flops) = work(&kernel.spec, rows, before);
        let bytes = (dispatch.weight_bytes + cached_bytes) as f64;
        let flops = flops as f64;
        let fast = kernel.count(Class::PackedDot) + kernel.count(Class::Matrix) > 0;
        let flops_per_s = if fast { FAST_FLOPS_PER_S } else { PLAIN_FLOPS_PER_S };
        let workgroups: u64 = dispatch.workgroups.iter().map(|&count| u64::from(count)).product();
        let waves = workgroups * u64::from(kernel.words.lanes.div_ceil(kernel.executable.subgroup_size));
        let compute_seconds = flops / (flops_per_s * busy_share(kernel, waves as f64));
        Cost { bytes, flops, seconds: compute_seconds.max(bytes / BYTES_PER_S) }
    }

    fn text(&self) -> String {
        let Cost { bytes, flops, seconds } = self;
        format!("{:>6.2} GB, {:>8.1} GFLOP: {:>7.1} ms", bytes / 1e9, flops / 1e9, 1e3 * seconds)
    }
}

/// Share of the device's arithmetic that so many waves of a kernel can keep busy.
fn busy_share(kernel: &Kernel, waves: f64) -> f64 {
    let waves_per_simd = (waves / SIMDS).clamp(1.0, kernel.statistic("Subgroups per SIMD") as f64);
    let hidden =
        waves_per_simd * kernel.statistic("Inverse Throughput") as f64 / kernel.statistic("Latency").max(1) as f64;
    (waves / SIMDS).min(1.0) * hidden.min(1.0)
}

/// Bytes of K and V that a dispatch reads, and its flops: a multiply and an add are two. What is small beside the matrices
/// is left out.
fn work(spec: &KernelSpec, rows: u64, before: u64) -> (u64, u64) {
    match spec {
        KernelSpec::MatMul(spec) => {
            let rows = if spec.row_from_step { 1 } else { rows };
            (0, 2 * rows * (spec.layout.rows * spec.layout.cols) as u64)
        }
        KernelSpec::Gemm(GemmSpec { product, .. }) | KernelSpec::RegisterGemm(RegisterGemmSpec { product, .. }) => {
            (0, 2 * rows * (product.layout.rows * product.layout.cols) as u64)
        }
        KernelSpec::Attention(spec) => attention_work(&spec.cache, spec.gqa, spec.split.window, rows, before),
        KernelSpec::DecodeAttention(spec) => attention_work(&spec.cache, spec.gqa, spec.split.window, rows, before),
        KernelSpec::Flash(spec) => attention_work(&spec.cache, spec.gqa, spec.window, rows, before),
        KernelSpec::Embed(_)
        | KernelSpec::Norm(_)
        | KernelSpec::Quantize(_)
        | KernelSpec::Heads(_)
        | KernelSpec::Combine(_)
        | KernelSpec::Elementwise(_)
        | KernelSpec::Sample(_)
        | KernelSpec::Checksum(_)
        | KernelSpec::BandwidthProbe(_)
        | KernelSpec::Fragments(_) => (0, 0),
    }
}

fn attention_work(cache: &CacheLayout, gqa: usize, window: Option<usize>, rows: u64, before: u64) -> (u64, u64) {
    let window = window.map_or(u64::MAX, |window| window as u64);
    let attended: u64 = (before + 1..=before + rows).map(|len| len.min(window)).sum();
    let cached = (before + rows).min(window.saturating_add(rows - 1));
    let width = (cache.n_kv_heads * cache.head_dim) as u64;
    let token_bytes = (2 * cache.page_bytes() / cache.page_tokens) as u64;
    (token_bytes * cached, 4 * width * gqa as u64 * attended)
}
