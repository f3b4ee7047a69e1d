//! `npu-selftest`: the NPU on a passthrough, and on an artifact's programs and a prompt against the definition of their products, as a report to paste.

mod definition;

use std::path::Path;
use std::time::Instant;

use unicorn_artifact::npu::ACTIVATIONS;
use unicorn_artifact::{ArtifactView, MappedFile, NpuProgram, NpuSection};
use unicorn_compiler::{NpuCheck, npu_passthrough};
use unicorn_runtime::npu::{COMMAND_LIMIT, NpuDevice, NpuOpener, NpuUse};
use unicorn_runtime::{LoadOptions, Model};

use crate::args::NpuSelftestArgs;
use crate::error::CliError;
use crate::report::table::Column::{Left, Right};
use crate::report::table::table;
use crate::simulated_npu;
use crate::terminal::output::print;
use definition::Definition;

/// Rows of each product that are compared: the definition takes a second for a few of a large one.
const ROWS: usize = 4;
/// Commands that are timed, one at a time and in one chain.
const COMMANDS: usize = 16;
/// Largest difference of the logits with the NPU and by the definition of its products, of which everything else is computed by the same kernels of the GPU: root of
/// the sum of squares, of that of the latter's. Products are equal bit for bit; what may differ is an activation that the NPU computes by tables, in bf16.
const LOGIT_ERROR: f64 = 3e-2;

/// One check: whether its results are right, and what was found.
struct Check {
    name: &'static str,
    is_right: bool,
    found: String,
}

impl Check {
    /// The check, or why it could not be made, which counts as wrong.
    fn of(name: &'static str, made: Result<(bool, String), CliError>) -> Check {
        match made {
            Ok((is_right, found)) => Check { name, is_right, found },
            Err(error) => Check { name, is_right: false, found: format!("not finished: {error}\n") },
        }
    }

    /// `passthrough: right, …`
    fn text(&self) -> String {
        let verdict = if self.is_right { "right" } else { "WRONG" };
        format!("{}: {verdict}, {}", self.name, self.found)
    }
}

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
    let facts = options.npu_opener.open().map_err(CliError::new)?.facts().clone();
    let clock = facts.clock_mhz.map_or("unknown clock".into(), |mhz| format!("{mhz} MHz"));
    let mut page = format!(
        "NPU by {}, firmware {}, {} columns and {} rows, {clock}\n",
        facts.driver, facts.firmware, facts.columns, facts.rows
    );
    let slices: Vec<&[u8]> = view.npu_weights().iter().map(|slice| slice.bytes).collect();
    // Each opens the driver anew: the next one needs the columns.
    let checks = [
        Check::of("passthrough", check_passthrough(&options)),
        Check::of("products", check_products(&options, section, &slices)),
        Check::of("prompt", check_prompt(&args.artifact, args, &options, section)),
    ];
    page.extend(checks.iter().map(Check::text));
    print(&page)?;
    let wrong: Vec<&str> = checks.iter().filter(|check| !check.is_right).map(|check| check.name).collect();
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(CliError::new(format!(
            "{} of {} checks of the NPU are wrong: {}; please report this page",
            wrong.len(),
            checks.len(),
            wrong.join(", ")
        ))),
    }
}

/// Why a program cannot be compared with its definition.
fn other_layout(program: &NpuProgram) -> String {
    format!(
        "NPU program {} has another activation or layout than those that this version makes; compile the model again",
        program.name
    )
}

/// Loads a section on a device of its own.
fn loaded(options: &LoadOptions, section: &NpuSection, slices: &[&[u8]]) -> Result<NpuDevice, CliError> {
    let driver = options.npu_opener.open().map_err(CliError::new)?;
    NpuDevice::load(driver, section, slices, COMMAND_LIMIT).map_err(CliError::new)
}

/// Sends bytes through the memory tiles and compares what comes back: it needs no machine code of cores.
fn check_passthrough(options: &LoadOptions) -> Result<(bool, String), CliError> {
    let section = npu_passthrough();
    let mut device = loaded(options, &section, &[&[0; 4]])?;
    let program = &section.programs[0];
    let bytes = program.arguments[ACTIVATIONS].bytes as usize;
    let sent: Vec<u8> = (0..bytes as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let write = |memory: &mut [u8]| memory.copy_from_slice(&sent);
    let wrong = device.run(0, write).map_err(CliError::new)?.iter().zip(&sent).filter(|(found, sent)| found != sent);
    let wrong = wrong.count();
    let alone = seconds(|| (0..COMMANDS).try_for_each(|_| device.run(0, write).map(drop)))? / COMMANDS as f64;
    let chained = seconds(|| device.run_chain(0, COMMANDS))? / COMMANDS as f64;
    let found = format!(
        "{wrong} of {bytes} bytes differ after {} columns; {:.3} ms a command, {:.3} ms in a chain, {:.1} GB/s\n",
        program.shape.columns,
        1e3 * alone,
        1e3 * chained,
        program.estimate.shim_bytes as f64 / chained / 1e9
    );
    Ok((wrong == 0, found))
}

/// Checks the values of each program once, and times its commands.
fn check_products(options: &LoadOptions, section: &NpuSection, slices: &[&[u8]]) -> Result<(bool, String), CliError> {
    let mut device = loaded(options, section, slices)?;
    let (mut rows, mut wrong, mut compared) = (Vec::new(), 0, 0);
    for (number, program) in section.programs.iter().enumerate() {
        let Some(index) = section.products.iter().position(|product| product.program as usize == number) else {
            continue;
        };
        let product = &section.products[index];
        let weights = &slices[product.slice as usize][product.offset_bytes as usize..][..product.len_bytes as usize];
        let check = NpuCheck::of(program, product, weights);
        let check = check.ok_or_else(|| CliError::new(other_layout(program)))?;
        let activations = check.activations();
        let write = |bytes: &mut [u8]| bytes.copy_from_slice(&activations);
        let outputs = device.run(index, write).map_err(CliError::new)?.to_vec();
        let (differ, all) = check.wrong(&outputs, ROWS);
        (wrong, compared) = (wrong + differ, compared + all);
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
    Ok((wrong == 0, format!("{wrong} of {compared} values differ\n{}", table(&columns, &rows))))
}

/// Compares the logits of a token that the GPU computes behind a prompt, whose keys and values come of a step with the NPU, with those of the same step whose
/// products are computed from their definition. How far both are from the GPU's own weights is reported, too.
fn check_prompt(
    artifact: &Path,
    args: &NpuSelftestArgs,
    options: &LoadOptions,
    section: &NpuSection,
) -> Result<(bool, String), CliError> {
    let rows = section.programs.iter().map(|program| program.shape.rows).min().unwrap_or(1);
    let answer = |npu: NpuUse, opener: NpuOpener, by: &str, warm_up: bool| -> Result<(String, Vec<f32>), CliError> {
        let Ok(device) = args.device.as_deref().unwrap_or_default().parse();
        let options = options.clone().with(|options| {
            (options.npu, options.npu_opener, options.device, options.context_tokens) = (npu, opener, device, None);
        });
        let model = Model::load(artifact, &options)?;
        let n_tokens = rows.min(model.context_tokens() - 1);
        let tokens: Vec<u32> = (0..n_tokens).map(|index| index * 7 % model.meta().model.vocab_size).collect();
        if warm_up {
            model.session()?.feed(&tokens)?;
        }
        let mut session = model.session()?;
        let begin = Instant::now();
        session.feed(&tokens)?;
        let seconds = begin.elapsed().as_secs_f64();
        let mut logits = Vec::new();
        session.feed_with_logits(&tokens[..1], &mut |_, row| logits.extend_from_slice(row))?;
        Ok((format!("  prefill of {n_tokens} tokens {by}: {seconds:.3} s\n"), logits))
    };
    let (with_npu, found) = answer(NpuUse::Required, options.npu_opener.clone(), "with the NPU", true)?;
    let definition = NpuOpener::new(Definition::open);
    let (by_definition, expected) = answer(NpuUse::Required, definition, "by the products' definition", false)?;
    let (alone, of_gpu) = answer(NpuUse::Off, options.npu_opener.clone(), "GPU alone", true)?;
    let error = apart(&found, &expected);
    let found = format!(
        "logits are {:.1} % from those of the products' definition, expected at most {:.0} %; {:.0} % from those of the GPU's own weights\n\
         {with_npu}{by_definition}{alone}",
        100.0 * error,
        100.0 * LOGIT_ERROR,
        100.0 * apart(&found, &of_gpu),
    );
    // NaN is no number that is at most this.
    Ok((error <= LOGIT_ERROR, found))
}

/// Root of the sum of squared differences, of that of the squares of `expected`.
fn apart(found: &[f32], expected: &[f32]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let difference = square(&mut found.iter().zip(expected).map(|(found, expected)| f64::from(found - expected)));
    (difference / square(&mut expected.iter().map(|value| f64::from(*value)))).sqrt()
}

fn seconds<E: std::fmt::Display>(work: impl FnOnce() -> Result<(), E>) -> Result<f64, CliError> {
    let begin = Instant::now();
    work().map_err(CliError::new)?;
    Ok(begin.elapsed().as_secs_f64())
}
