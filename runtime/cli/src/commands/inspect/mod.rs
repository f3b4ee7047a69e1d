//! `inspect`: what an artifact holds, where its bytes will be placed, and on which machines. Needs no GPU.
//!
//! ```text
//! artifact ─► rows, kernels, machines ─► Inspection ─┬► summary, sections   text
//!                                                    ├► html               the page in page/
//!                                                    ├► --json             as it is
//!                                        another ────┴► diff
//! ```

mod kernels;
mod machines;
mod npu;
mod npu_queues;
mod rows;

mod sections;
mod summary;

mod html;

mod diff;

use std::path::Path;

use clap::ValueEnum;
use serde::Serialize;
use unicorn_artifact::header::{VERSION_MAJOR, VERSION_MINOR, decode_header};
use unicorn_artifact::{Account, ArtifactView, LicenseSection, MappedFile, ModelMeta, TensorReport};

use crate::args::{InspectArgs, Section};
use crate::error::CliError;
use crate::files::output_file::{check_output, write_whole};
use crate::report::text::printable;
use crate::terminal::output::{print, print_json};
use diff::Diff;
use machines::{MachineRow, PartRow};
use npu::NpuRows;
use rows::{
    ActivationRow, BufferRow, DraftRow, KvRow, LayerRow, PredictorRow, Provenance, Quantisation, SectionRow, TargetRow,
    WeightRow,
};

pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    let file = open(&args.artifact)?;
    let view = parse(&args.artifact, &file)?;
    let inspection = Inspection::new(&view, &file).map_err(|error| CliError::at(&args.artifact, error))?;
    if let Some(other) = &args.diff {
        let other_file = open(other)?;
        let other_view = parse(other, &other_file)?;
        let other = Inspection::new(&other_view, &other_file).map_err(|error| CliError::at(other, error))?;
        let diff = Diff::between(&inspection, &other);
        return if args.json { print_json(&diff) } else { print(&diff.text(&args.sections, args.all)) };
    }
    if let Some(page) = &args.html {
        return write_page(page, &inspection.html());
    }
    match () {
        () if args.json => print_json(&inspection),
        () if args.all => print(&(inspection.summary() + "\n" + &inspection.sections(Section::value_variants()))),
        () if !args.sections.is_empty() => print(&inspection.sections(&args.sections)),
        () => print(&(inspection.summary() + "\n" + &more_sections(&args.artifact))),
    }
}

/// What to type for more than the summary.
fn more_sections(artifact: &Path) -> String {
    let values = Section::value_variants().iter().filter_map(Section::to_possible_value);
    let names: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
    let artifact = printable(&artifact.to_string_lossy()).into_owned();
    format!(
        "sections: {}\n  unicorn-run inspect {artifact} --section {}    or --all, or --html PAGE\n",
        names.join(", "),
        names[1]
    )
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

/// Everything that `inspect` shows; `--json` prints it unchanged.
#[derive(Serialize)]
struct Inspection<'a> {
    file_bytes: u64,
    /// Version of the format that this program reads; the artifact's major version is the same.
    format_version: String,
    model: &'a ModelMeta,
    provenance: Provenance<'a>,
    /// `None`: the model names none.
    license: Option<&'a LicenseSection>,
    /// Machine that the plan was made for.
    machine: &'a str,
    /// Bytes and traffic by tier, with the KV cache of one sequence of the planned context.
    account: Account,
    /// A floor from the machine's bandwidths, not a measurement.
    estimated_tokens_per_s: Option<f64>,
    /// The shipped machines, and the artifact on each.
    machines: Vec<MachineRow>,
    /// Everything that needs memory, in the order in which it is placed.
    parts: Vec<PartRow>,
    /// Most tokens that a step of a long prompt appends.
    chunk_tokens: u32,
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
    /// `None`: no draft is packed into the artifact.
    draft: Option<DraftRow<'a>>,
    /// `None`: the model has no head for drafts of its own.
    predictor: Option<PredictorRow>,
    /// `None`: the artifact has no NPU programs.
    npu: Option<NpuRows<'a>>,
    /// Mean over all tensors, weighted by the number of their weights.
    mean_bits_per_weight: Option<f64>,
    quantisation: Option<Quantisation>,
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
            license: view.license.as_ref(),
            machine: &plan.machine.name,
            estimated_tokens_per_s: account.estimated_tokens_per_s(),
            machines: machines::machines(view),
            parts: machines::parts(plan),
            chunk_tokens: plan.planned_chunk_tokens,
            layers: rows::layers(&weights),
            weights,
            kv_groups: rows::kv_groups(plan, account.bytes_read_per_token()),
            account,
            arena_bytes: plan.arena_bytes,
            activations: rows::activations(plan),
            buffers: rows::buffers(plan),
            kernel_modules: view.kernels.targets.iter().map(|target| target.modules.records.len()).sum(),
            kernel_module_bytes: view.kernels.targets.iter().map(|target| target.modules.packed_bytes()).sum(),
            targets: view.kernels.targets.iter().map(|target| TargetRow::of(target, plan)).collect(),
            tensors: &view.meta.tensors,
            draft: view.draft.as_deref().map(DraftRow::of),
            predictor: PredictorRow::of(view),
            npu: view.npu.as_ref().map(NpuRows::of),
            mean_bits_per_weight: rows::mean_bits_per_weight(&view.meta.tensors),
            quantisation: rows::quantisation(&view.meta.tensors),
            sections: sections.iter().map(SectionRow::of).collect(),
        })
    }
}
