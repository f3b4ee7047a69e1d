//! How long a step would take on a device, worked out from bytes, multiply-adds, the instruction stream and occupancy: an estimate, not a
//! measurement.

use unicorn_artifact::{Dispatch, LogitsRows};
use unicorn_kernels::delta_chunks::DeltaChunksSpec;
use unicorn_kernels::dot_gemm::DotGemmSpec;
use unicorn_kernels::flash::FlashSpec;
use unicorn_kernels::float_gemm::FloatGemmSpec;
use unicorn_kernels::gemm::GemmSpec;
use unicorn_kernels::register_gemm::RegisterGemmSpec;
use unicorn_kernels::{CacheLayout, KernelSpec};

use super::family::Family;
use super::instructions::Class;
use super::stream::Stream;
use super::{CompiledModel, Kernel};

/// Cached tokens that the decode step attends to, itself included.
const DECODE_CONTEXT: u64 = 1024;
const PREFILL_ROWS: u64 = 512;

/// Description of how the estimate is computed.
pub fn method(family: &Family) -> String {
    let (bytes, simds) = (family.bytes_per_s / 1e9, family.simds());
    let peaks = [Class::Matrix, Class::PackedDot, Class::MultiplyAdd].map(|class| peak(family, class) / 1e12);
    let [matrix, dot, plain] = peaks;
    format!(
        "\
Estimates for {}, not measurements. A dispatch takes the longer of its bytes at {bytes:.1} GB/s (weights once, cached K
and V once) and its multiply-adds at the peak of their instruction ({matrix:.1} TFLOP/s v_wmma, {dot:.1} v_dot4, {plain:.1} multiply-adds of f32).
The sum over a step's dispatches is the bound: no code is faster. The estimate divides the peak by what the instruction stream
allows: the part of the vector instructions' cycles that is arithmetic, in the loop that has most of it. It is stretched where a
dispatch has fewer waves than the {simds} SIMDs, or a SIMD too few waves to hide ACO's latency behind ACO's inverse throughput.
Launches and cache misses are left out.
",
        family.device
    )
}

/// Operations a second where nothing but `class` is issued; a product and a sum are two.
fn peak(family: &Family, class: Class) -> f64 {
    let lanes = family.lanes_per_cycle();
    let per_cycle = match class {
        Class::Matrix => family.matrix_cycles.map_or(0.0, |cycles| 2.0 * 16f64.powi(3) / cycles),
        Class::PackedDot => 8.0 * lanes,
        Class::MultiplyAdd | Class::WideLoad => 2.0 * lanes,
    };
    per_cycle * family.simds() * family.hz
}

/// One line a step.
pub fn estimates(model: &CompiledModel, family: &Family) -> String {
    let decode = Cost::of_program(model, family, 1, DECODE_CONTEXT - 1);
    let prefill = Cost::of_program(model, family, PREFILL_ROWS, 0);
    let line = |step: String, cost: &Cost, tokens: u64| {
        let [rate, bound] = [cost.seconds, cost.bound_seconds].map(|seconds| tokens as f64 / seconds);
        format!("{:<14}{step:<24}{}, {rate:.1} tokens/s; bound {bound:.1}\n", model.name, cost.text())
    };
    line(format!("decode at {DECODE_CONTEXT} tokens"), &decode, 1)
        + &line(format!("prefill of {PREFILL_ROWS} tokens"), &prefill, PREFILL_ROWS)
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    bytes: f64,
    flops: f64,
    seconds: f64,
    /// Lower bound in seconds, by bytes and the arithmetic peak alone.
    bound_seconds: f64,
}

impl Cost {
    /// The program of `rows` rows that samples a token, all rows of one sequence in use, after `before` tokens.
    fn of_program(model: &CompiledModel, family: &Family, rows: u64, before: u64) -> Cost {
        let mut programs = model.set.targets[0].programs.iter();
        let program = programs
            .find(|program| u64::from(program.rows) == rows && program.logits == LogitsRows::One)
            .expect("every target has programs of 1 and 512 rows");
        let costs = program.dispatches.iter().map(|dispatch| {
            let kernel = &model.kernels[dispatch.pipeline as usize];
            Cost::of_dispatch(kernel, family, dispatch, rows, before)
        });
        costs.fold(Cost::default(), |sum, one| Cost {
            bytes: sum.bytes + one.bytes,
            flops: sum.flops + one.flops,
            seconds: sum.seconds + one.seconds,
            bound_seconds: sum.bound_seconds + one.bound_seconds,
        })
    }

    fn of_dispatch(kernel: &Kernel, family: &Family, dispatch: &Dispatch, rows: u64, before: u64) -> Cost {
        let (cached_bytes, flops) = work(&kernel.spec, rows, before);
        let bytes = (dispatch.weight_bytes + cached_bytes) as f64;
        let flops = flops as f64;
        let stream = Stream::of(kernel.assembly(), family).unwrap_or(Stream { class: Class::MultiplyAdd, share: 1.0 });
        let flops_per_s = peak(family, stream.class);
        let workgroups: u64 = dispatch.workgroups.iter().map(|&count| u64::from(count)).product();
        let waves = workgroups * u64::from(kernel.words.lanes.div_ceil(kernel.executable.subgroup_size));
        let busy = busy_share(kernel, family, waves as f64);
        let (memory, arithmetic) = (bytes / family.bytes_per_s, flops / flops_per_s);
        let seconds = memory.max(arithmetic / (busy * stream.share));
        Cost { bytes, flops, seconds, bound_seconds: memory.max(arithmetic) }
    }

    fn text(&self) -> String {
        let Cost { bytes, flops, seconds, .. } = self;
        format!("{:>6.2} GB, {:>8.1} GFLOP: {:>7.1} ms", bytes / 1e9, flops / 1e9, 1e3 * seconds)
    }
}

/// Share of the device's arithmetic that `waves` waves of a kernel can keep busy.
fn busy_share(kernel: &Kernel, family: &Family, waves: f64) -> f64 {
    let simds = family.simds();
    let waves_per_simd = (waves / simds).clamp(1.0, kernel.statistic("Subgroups per SIMD") as f64);
    let hidden =
        waves_per_simd * kernel.statistic("Inverse Throughput") as f64 / kernel.statistic("Latency").max(1) as f64;
    (waves / simds).min(1.0) * hidden.min(1.0)
}

/// Bytes of K and V that a dispatch reads, and its flops: a multiply and an add are two. What is small beside the matrices
/// is left out.
fn work(spec: &KernelSpec, rows: u64, before: u64) -> (u64, u64) {
    match spec {
        KernelSpec::MatMul(spec) => {
            let rows = if spec.row_from_step { 1 } else { rows };
            let rows = rows * spec.experts.map_or(spec.rows_per_token, |experts| experts.chosen) as u64;
            (0, 2 * rows * (spec.layout.rows * spec.layout.cols) as u64)
        }
        KernelSpec::DotGemm(DotGemmSpec { product, .. })
        | KernelSpec::FloatGemm(FloatGemmSpec { product, .. })
        | KernelSpec::Gemm(GemmSpec { product, .. })
        | KernelSpec::RegisterGemm(RegisterGemmSpec { product, .. }) => {
            let rows = rows * product.experts.map_or(product.rows_per_token, |experts| experts.chosen) as u64;
            (0, 2 * rows * (product.layout.rows * product.layout.cols) as u64)
        }
        KernelSpec::Attention(spec) => attention_work(&spec.cache, spec.gqa, spec.split.window, rows, before),
        KernelSpec::DecodeAttention(spec) => attention_work(&spec.cache, spec.gqa, spec.split.window, rows, before),
        KernelSpec::Flash(FlashSpec { patches: Some(patches), cache, .. }) => {
            patch_work(rows * patches.rows_per_token as u64, cache.n_kv_heads * patches.head_dim)
        }
        KernelSpec::Flash(spec) => attention_work(&spec.cache, spec.gqa, spec.window, rows, before),
        KernelSpec::ImageAttention(spec) => patch_work(rows * spec.rows_per_token as u64, spec.n_heads * spec.head_dim),
        KernelSpec::DeltaRule(spec) | KernelSpec::DeltaChunks(DeltaChunksSpec { rule: spec, .. }) => {
            // Read and written.
            let words = (spec.state.heads * spec.state.head_words()) as u64;
            (8 * words, 8 * words * rows)
        }
        KernelSpec::Embed(_)
        | KernelSpec::ShortConv(_)
        | KernelSpec::PreviousRow(_)
        | KernelSpec::GatedNorm(_)
        | KernelSpec::AltUp(_)
        | KernelSpec::Streams(_)
        | KernelSpec::Laurel(_)
        | KernelSpec::SparseActMul(_)
        | KernelSpec::LayerNorm(_)
        | KernelSpec::ImagePool(_)
        | KernelSpec::ImagePositions(_)
        | KernelSpec::ImageRope(_)
        | KernelSpec::Norm(_)
        | KernelSpec::Quantize(_)
        | KernelSpec::NpuInput(_)
        | KernelSpec::NpuOutput(_)
        | KernelSpec::Heads(_)
        | KernelSpec::Combine(_)
        | KernelSpec::Elementwise(_)
        | KernelSpec::Route(_)
        | KernelSpec::ExpertRows(_)
        | KernelSpec::ExpertSum(_)
        | KernelSpec::EveryMatrix(_)
        | KernelSpec::HeadColumns(_)
        | KernelSpec::Sample(_)
        | KernelSpec::Checksum(_)
        | KernelSpec::BandwidthProbe(_)
        | KernelSpec::Fragments(_) => (0, 0),
    }
}

/// Attention of each of an image's patches to all of them.
fn patch_work(patches: u64, width: usize) -> (u64, u64) {
    (0, 4 * patches * patches * width as u64)
}

fn attention_work(cache: &CacheLayout, gqa: usize, window: Option<usize>, rows: u64, before: u64) -> (u64, u64) {
    let window = window.map_or(u64::MAX, |window| window as u64);
    let attended: u64 = (before + 1..=before + rows).map(|len| len.min(window)).sum();
    let cached = (before + rows).min(window.saturating_add(rows - 1));
    let width = (cache.n_kv_heads * cache.head_dim) as u64;
    let token_bytes = (2 * cache.page_bytes() / cache.page_tokens) as u64;
    (token_bytes * cached, 4 * width * gqa as u64 * attended)
}
