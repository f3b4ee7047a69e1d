//! `npu-selftest`: the NPU on an artifact's programs, against their definition and against the GPU, as a report to paste.

use std::path::Path;
use std::time::Instant;

use unicorn_artifact::{ArtifactView, MappedFile, NpuSection};
use unicorn_compiler::NpuCheck;
use unicorn_runtime::npu::{COMMAND_LIMIT, NpuDevice, NpuUse};
use unicorn_runtime::{LoadOptions, Model, RunError, Sampling};

use crate::args::NpuSelftestArgs;
use crate::error::CliError;
use crate::report::table::Column::{Left, Right};
use crate::report::table::table;
use crate::simulated_npu;
use crate::terminal::output::print;

/// Rows of each product that are compared: the definition takes a second for a few of a large one.
const ROWS: usize = 4;
/// Commands that are timed, one at a time and in one chain.
const COMMANDS: usize = 16;

pub fn run(args: &NpuSelftestArgs) -> Result<(), CliError> {
    let file = MappedFile::open(&args.artifact).map_err(|error| CliError::at(&args.artifact, error))?;
    let view = ArtifactView::parse(file.bytes()).map_err(|error| CliError::at(&args.artifact, error))?;
    let section = view.npu.as_ref().filter(|section| !section.products.is_empty()).ok_or_else(|| {
        CliError::at(&args.artifact, "no product is the NPU's; compile with --npu phoenix --npu-for qkv,ffn")
    })?;
    let mut options = LoadOptions::default();
    if let Some(opener) = &args.npu_driver {
        options.npu_opener = opener.clone();
    }
    simulated_npu::choose(&mut options);
    let slices: Vec<&[u8]> = view.npu_weights().iter().map(|slice| slice.bytes).collect();
    let driver = options.npu_opener.open().map_err(CliError::new)?;
    let mut device = NpuDevice::load(driver, section, &slices, COMMAND_LIMIT).map_err(CliError::new)?;
    let facts = device.facts();
    let clock = facts.clock_mhz.map_or("unknown clock".into(), |mhz| format!("{mhz} MHz"));
    let mut page = format!(
        "NPU by {}, firmware {}, {} columns and {} rows, {clock}\n",
        facts.driver, facts.firmware, facts.columns, facts.rows
    );
    let products = check_products(&mut device, section, &slices)?;
    page += &products.page;
    // The model needs its columns.
    drop(device);
    page += &compare_with_gpu(&args.artifact, args, &options, section)?;
    print(&page)?;
    match products.wrong {
        0 => Ok(()),
        wrong => Err(CliError::new(format!(
            "{wrong} values of NPU products are wrong, expected none; please report this page"
        ))),
    }
}

struct Products {
    page: String,
    wrong: usize,
}

/// Checks the values of each program once, and times its commands.
fn check_products(device: &mut NpuDevice, section: &NpuSection, slices: &[&[u8]]) -> Result<Products, CliError> {
    let (mut rows, mut wrong) = (Vec::new(), 0);
    for (number, program) in section.programs.iter().enumerate() {
        let Some(index) = section.products.iter().position(|product| product.program as usize == number) else {
            continue;
        };
        let product = &section.products[index];
        let weights = &slices[product.slice as usize][product.offset_bytes as usize..][..product.len_bytes as usize];
        let check = NpuCheck::of(program, product, weights);
        let check =
            check.ok_or_else(|| CliError::new(format!("activation of NPU program {} is unknown", program.name)))?;
        let activations = check.activations();
        let write = |bytes: &mut [u8]| bytes.copy_from_slice(&activations);
        let outputs = device.run(index, write).map_err(CliError::new)?.to_vec();
        let (differ, all) = check.wrong(&outputs, ROWS);
        wrong += differ;
        let alone = seconds(|| (0..COMMANDS).try_for_each(|_| device.run(index, write).map(drop)))?;
        let chained = seconds(|| device.run_chain(index, COMMANDS))?;
        let each = chained / COMMANDS as f64;
        let [fast, slow] = program.estimate.seconds();
        rows.push(vec![
            program.name.clone(),
            format!("{differ} of {all}"),
            format!("{:.3}", 1e3 * alone / COMMANDS as f64),
            format!("{:.3}", 1e3 * each),
            format!("{:.3} to {:.3}", 1e3 * fast, 1e3 * slow),
            format!("{:.1}", program.estimate.shim_bytes as f64 / each / 1e9),
        ]);
    }
    let columns = [
        Left("program"),
        Right("wrong values"),
        Right("ms a command"),
        Right("ms in a chain"),
        Right("estimated ms"),
        Right("GB/s"),
    ];
    Ok(Products { page: table(&columns, &rows), wrong })
}

/// Compares one prompt of the model with the NPU and without.
fn compare_with_gpu(
    artifact: &Path,
    args: &NpuSelftestArgs,
    options: &LoadOptions,
    section: &NpuSection,
) -> Result<String, CliError> {
    let rows = section.programs.iter().map(|program| program.shape.rows).min().unwrap_or(1);
    let mut page = String::new();
    for npu in [NpuUse::Required, NpuUse::Off] {
        let Ok(device) = args.device.as_deref().unwrap_or_default().parse();
        let options = options.clone().with(|options| {
            (options.npu, options.device, options.context_tokens) = (npu, device, None);
        });
        let model = Model::load(artifact, &options)?;
        let n_tokens = rows.min(model.context_tokens() - 1);
        let tokens: Vec<u32> = (0..n_tokens).map(|index| index * 7 % model.meta().model.vocab_size).collect();
        let feed = || -> Result<_, RunError> { model.session()?.feed_and_sample(&tokens, &Sampling::default()) };
        feed()?;
        let begin = Instant::now();
        let sampled = feed()?;
        let by = if npu == NpuUse::Off { "GPU alone" } else { "with the NPU" };
        page += &format!(
            "prefill of {n_tokens} tokens {by}: {:.3} s, then token {} of logit {:.4}\n",
            begin.elapsed().as_secs_f64(),
            sampled.token,
            sampled.logit
        );
    }
    Ok(page)
}

fn seconds<E: std::fmt::Display>(work: impl FnOnce() -> Result<(), E>) -> Result<f64, CliError> {
    let begin = Instant::now();
    work().map_err(CliError::new)?;
    Ok(begin.elapsed().as_secs_f64())
}
