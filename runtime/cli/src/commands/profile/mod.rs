//! `profile`: where the time of prefill and decode goes, kernel by kernel, by the device's own clock.

mod kernels;
mod statistics;
mod trace;

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use crate::args::ProfileArgs;
use crate::commands::bench::{check_sequences, plain_image, random_tokens};
use crate::error::CliError;
use crate::files::output_file::{check_output, write_whole};
use crate::load::{is_software, load_profiled, read};
use crate::terminal::output::{print, print_json};
use kernels::KernelTimes;
use statistics::KernelStatistics;
use unicorn_runtime::profile::StepProfile;
use unicorn_runtime::{BatchRow, Model, PromptPart, RunError, Sampling, Session};

pub fn run(args: &ProfileArgs) -> Result<(), CliError> {
    if let Some(path) = &args.trace {
        check_output(path, "the trace", &[])?;
    }
    // Decode steps are repeated beside a prompt, one token of which is left.
    let steps_tokens = if args.beside.is_some() { 2 * args.n_gen } else { args.n_gen };
    let context_tokens = (args.n_prompt + steps_tokens).max(args.beside.map_or(0, |tokens| tokens + 1));
    let slots = args.sequences + u32::from(args.beside.is_some());
    let model = load_profiled(&args.artifact, &args.load, context_tokens, slots)?;
    check_sequences(&model, args.sequences)?;
    let images = match args.image {
        true => Some([plain_image(&model, 0.0)?, plain_image(&model, 1.0)?]),
        false => None,
    };
    let statistics = match args.kernel_statistics {
        true => Some(read(&args.artifact, |view| statistics::of_kernels(&model, view))??),
        false => None,
    };
    let tokens = random_tokens(context_tokens as usize, model.meta().model.vocab_size);
    let (prompt, steps) = (&tokens[..args.n_prompt as usize], &tokens[args.n_prompt as usize..][..args.n_gen as usize]);
    let mut sessions = (0..args.sequences).map(|_| model.session()).collect::<Result<Vec<_>, _>>()?;
    // Run once without measuring: the first steps fill caches that later ones find warm.
    sessions.iter_mut().try_for_each(|session| prefill(session, prompt))?;
    decode(&model, &mut sessions, &steps[..1])?;
    sessions.iter_mut().try_for_each(|session| prefill(session, prompt))?;
    model.take_profiles();

    let begin = Instant::now();
    prefill(&mut sessions[0], prompt)?;
    let prefill_steps = model.take_profiles();
    decode(&model, &mut sessions, steps)?;
    let decode_steps = model.take_profiles();
    let mixed_steps = match args.beside {
        Some(n_tokens) => {
            let rest = &tokens[..=n_tokens as usize];
            decode_beside(&model, &mut sessions, steps, rest)?;
            model.take_profiles()
        }
        None => Vec::new(),
    };

    let image_steps = match &images {
        Some([first, second]) => {
            // Once without measuring; an image that is known would not be computed.
            model.encode_image(first)?;
            model.take_profiles();
            model.encode_image(second)?;
            model.take_profiles()
        }
        None => Vec::new(),
    };

    let bandwidth = model.measure_read_bandwidth();
    let [prefill, decode] = [&prefill_steps, &decode_steps].map(|steps| Phase::new(steps, bandwidth));
    let beside_a_prompt = args.beside.map(|_| Phase::new(&mixed_steps, bandwidth));
    let image = args.image.then(|| Phase::new(&image_steps, bandwidth));
    let ran = |one: &KernelStatistics| {
        let phases = [&prefill, &decode].into_iter().chain(&beside_a_prompt).chain(&image);
        phases.flat_map(|phase| &phase.kernels).any(|kernel| kernel.kernel == one.kernel)
    };
    let kernel_statistics = statistics.map(|all| all.into_iter().filter(ran).collect());
    let report = ProfileReport {
        device: model.device().name.clone(),
        target: model.report().target.clone(),
        software: is_software(&model),
        read_bandwidth_gb_per_s: bandwidth.map(|bytes_per_s| bytes_per_s / 1e9),
        prefill,
        decode,
        beside_a_prompt,
        image,
        kernel_statistics,
    };
    if let Some(path) = &args.trace {
        let phases = [
            ("prefill", &prefill_steps),
            ("decode", &decode_steps),
            ("decode beside a prompt", &mixed_steps),
            ("image", &image_steps),
        ];
        let phases = phases.map(|(name, steps)| (name, &steps[..]));
        write_trace(path, &trace::events(begin, &phases))?;
    }
    if args.json {
        return print_json(&report);
    }
    print(&report.page(args))
}

/// What `--json` prints.
#[derive(Serialize)]
struct ProfileReport {
    device: String,
    target: String,
    software: bool,
    /// Read bandwidth of the device's memory, measured after the run; `None`: no memory left to measure it.
    read_bandwidth_gb_per_s: Option<f64>,
    prefill: Phase,
    /// Steps from the end of the prompt on.
    decode: Phase,
    /// Steps after these, which also process a part of another prompt; only with `--beside`.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside_a_prompt: Option<Phase>,
    /// The vision tower, for one image of the most rows; only with `--image`.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<Phase>,
    /// Statistics as the driver reports them; only with `--kernel-statistics`.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel_statistics: Option<Vec<KernelStatistics>>,
}

/// All steps of one kind.
#[derive(Serialize)]
struct Phase {
    steps: usize,
    tokens: u64,
    /// Seconds by the host's clock, from each step's start to its end.
    wall_s: f64,
    /// Seconds by the device's clock, the sum of all dispatches.
    gpu_s: f64,
    dispatches: usize,
    kernels: Vec<KernelTimes>,
}

impl Phase {
    fn new(steps: &[StepProfile], read_bytes_per_s: Option<f64>) -> Phase {
        Phase {
            steps: steps.len(),
            tokens: steps.iter().map(|step| u64::from(step.rows)).sum(),
            wall_s: steps.iter().map(|step| step.wall_seconds).sum(),
            gpu_s: steps.iter().flat_map(|step| &step.seconds).sum(),
            dispatches: steps.iter().map(|step| step.dispatches.len()).sum(),
            kernels: kernels::times(steps, read_bytes_per_s),
        }
    }

    fn page(&self, name: &str) -> String {
        let Phase { steps, tokens, dispatches, .. } = self;
        let (gpu_ms, wall_ms) = (1e3 * self.gpu_s, 1e3 * self.wall_s);
        format!(
            "{name}: {tokens} tokens in {steps} steps of {dispatches} dispatches, {gpu_ms:.3} ms on the device, {wall_ms:.3} ms in all\n{}",
            kernels::page(&self.kernels)
        )
    }
}

impl ProfileReport {
    fn page(&self, args: &ProfileArgs) -> String {
        let ProfileReport { device, target, .. } = self;
        let bandwidth = match self.read_bandwidth_gb_per_s {
            Some(bandwidth) => format!("bandwidth of reads {bandwidth:.1} GB/s"),
            None => "bandwidth of reads not measured".into(),
        };
        let of = if args.sequences > 1 { format!(" of {} sequences", args.sequences) } else { String::new() };
        let decode = self.decode.page(&format!("decode{of} after {} tokens", args.n_prompt));
        let prefill = self.prefill.page("prefill");
        let beside_a_prompt = self
            .beside_a_prompt
            .as_ref()
            .map(|phase| format!("\n{}", phase.page(&format!("decode{of} beside a prompt"))))
            .unwrap_or_default();
        let image = self.image.as_ref().map(|phase| format!("\n{}", phase.page("image"))).unwrap_or_default();
        let statistics = self
            .kernel_statistics
            .as_ref()
            .map(|all| format!("\nkernels\n{}", statistics::page(all)))
            .unwrap_or_default();
        format!(
            "device {device}, target {target}: {bandwidth}\n\n{prefill}\n{decode}{beside_a_prompt}{image}{statistics}"
        )
    }
}

/// Feeds all tokens into an empty cache, up to the first sampled token.
fn prefill(session: &mut Session, tokens: &[u32]) -> Result<(), RunError> {
    session.clear();
    session.feed_and_sample(tokens, &Sampling::default()).map(|_| ())
}

/// Decodes one token after another in all sequences.
fn decode(model: &Model, sessions: &mut [Session], tokens: &[u32]) -> Result<(), RunError> {
    let sampling = Sampling::default();
    tokens.iter().try_for_each(|&token| {
        let rows = sessions.iter_mut().map(|session| BatchRow { session, token, sampling: &sampling });
        model.decode_batch(rows).map(|_| ())
    })
}

/// Decodes as [`decode`]; each step also feeds all tokens but the last of `rest` to an empty sequence.
fn decode_beside(model: &Model, sessions: &mut [Session], tokens: &[u32], rest: &[u32]) -> Result<(), RunError> {
    let (sampling, mut other) = (Sampling::default(), model.session()?);
    tokens.iter().try_for_each(|&token| {
        other.clear();
        let rows = sessions.iter_mut().map(|session| BatchRow { session, token, sampling: &sampling });
        let part = PromptPart { session: &mut other, rest, n_tokens: rest.len() - 1, sampling: &sampling };
        model.decode_beside_prompts(rows, [part]).map(|_| ())
    })
}

fn write_trace(path: &Path, events: &serde_json::Value) -> Result<(), CliError> {
    let text = serde_json::to_string(events).expect("events are plain data");
    write_whole(path, &text)
}
