//! `inspect`: what an artifact holds and where its bytes will live. Needs no GPU.

mod rows;

mod page;

mod html;

mod diff;

use std::path::Path;

use serde::Serialize;
use unicorn_artifact::header::{VERSION_MAJOR, VERSION_MINOR, decode_header};
use unicorn_artifact::{Account, ArtifactView, MappedFile, ModelMeta, TensorReport};

use crate::args::InspectArgs;
use crate::error::CliError;
use crate::files::output_file::{check_output, write_whole};
use crate::terminal::output::{print, print_json};
use diff::Diff;
use rows::{ActivationRow, BufferRow, KvRow, LayerRow, Provenance, SectionRow, TargetRow, WeightRow};

pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    let file = open(&args.artifact)?;
    let view = parse(&args.artifact, &file)?;
    let inspection = Inspection::new(&view, &file).map_err(|error| CliError::at(&args.artifact, error))?;
    if let Some(other) = &args.diff {
        let other_file = open(other)?;
        let other_view = parse(other, &other_file)?;
        let other = Inspection::new(&other_view, &other_file).map_err(|error| CliError::at(other, error))?;
        let diff = Diff::between(&inspection, &other);
        return if args.json { print_json(&diff) } else { print(&diff.to_string()) };
    }
    if let Some(page) = &args.html {
        return write_page(page, &inspection.html());
    }
    match args.json {
        true => print_json(&inspection),
        false => print(&inspection.page()),
    }
}

fn write_page(path: &Path, page: &str) -> Result<(), CliError> {
    check_output(path, "the page", &[])?;
    write_whole(path, page)
}

fn open(path: &Path) -> Result<MappedFile, CliError> {
    MappedFile::open(path).map_err(|error| CliError::at(path, error))
}

fn parse<'a>(path: &Path, file: &'a MappedFile) -> Result<ArtifactView<'a>, CliError> {
    ArtifactView::parse(file.bytes()).map_err(|error| CliError::at(path, error))
}

/// Everything that `inspect` shows; `--json` prints it as it stands.
#[derive(Serialize)]
struct Inspection<'a> {
    file_bytes: u64,
    /// That this program reads; the artifact's major version is the same.
    format_version: String,
    model: &'a ModelMeta,
    provenance: Provenance<'a>,
    /// Machine that the plan was made for.
    machine: &'a str,
    /// Bytes and traffic by tier, with the KV cache of one sequence of the planned context.
    account: Account,
    /// A floor from the machine's bandwidths, not a measurement.
    estimated_tokens_per_s: Option<f64>,
    layers: Vec<LayerRow>,
    weights: Vec<WeightRow<'a>>,
    kv_groups: Vec<KvRow<'a>>,
    arena_bytes: u64,
    activations: Vec<ActivationRow<'a>>,
    buffers: Vec<BufferRow<'a>>,
    kernel_modules: usize,
    kernel_module_bytes: u64,
    targets: Vec<TargetRow<'a>>,
    tensors: &'a [TensorReport],
    /// Over all tensors, by the number of their weights.
    mean_bits_per_weight: Option<f64>,
    sections: Vec<SectionRow>,
}

impl<'a> Inspection<'a> {
    fn new(view: &'a ArtifactView<'_>, file: &MappedFile) -> Result<Inspection<'a>, unicorn_artifact::ParseError> {
        let sections = decode_header(file.bytes())?;
        let plan = &view.plan;
        let account = Account::of(plan);
        let weights = rows::weights(plan, account.bytes_read_per_token());
        Ok(Inspection {
            file_bytes: file.bytes().len() as u64,
            format_version: format!("{VERSION_MAJOR}.{VERSION_MINOR}"),
            model: &view.meta.model,
            provenance: Provenance::of(&view.meta.provenance),
            machine: &plan.machine.name,
            estimated_tokens_per_s: account.estimated_tokens_per_s(),
            layers: rows::layers(&weights),
            weights,
            kv_groups: rows::kv_groups(plan, account.bytes_read_per_token()),
            account,
            arena_bytes: plan.arena_bytes,
            activations: rows::activations(plan),
            buffers: rows::buffers(plan),
            kernel_modules: view.kernels.targets.iter().map(|target| target.modules.records.len()).sum(),
            kernel_module_bytes: view.kernels.targets.iter().map(|target| target.modules.packed_bytes()).sum(),
            targets: view.kernels.targets.iter().map(TargetRow::of).collect(),
            tensors: &view.meta.tensors,
            mean_bits_per_weight: rows::mean_bits_per_weight(&view.meta.tensors),
            sections: sections.iter().map(SectionRow::of).collect(),
        })
    }
}
