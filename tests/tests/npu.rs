//! The NPU section of an artifact: its programs run from the bytes in the file, what the estimate decides, and what becomes of a
//! changed section.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tests::compiled::{Compiled, Silent, eight_layers, options, with};
use tests::generators::assemble;
use tests::mutated_plan::load_and_run_artifact;
use tests::programs::program;
use unicorn_artifact::header::{Section, SectionKind, decode_header};
use unicorn_artifact::npu::{Instruction, decode, encode_instructions};
use unicorn_artifact::{
    Account, ArtifactView, NpuProduct, NpuProgram, NpuSection, NpuShape, NpuSteps, Tier, codec, fit,
};
use unicorn_compiler::{
    CompileError, CompileOptions, Machine, NpuOptions, NpuPlan, NpuWork, ReplanOptions, Source, plan, replan, reproduce,
};
use unicorn_kernels::Activation;
use unicorn_kernels::npu::quantize::Activations;
use unicorn_kernels::npu::tile::{CoreTile, Epilogue, GemmShape};
use unicorn_npu::{gemm, interpret, lower, stream};
use unicorn_spirv::target;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny/llama3-rope")
}

fn npu_options(work: &[NpuWork]) -> CompileOptions {
    with(options(vec![target::by_name("generic").unwrap()], Vec::new()), |options| {
        options.npu = Some(with_work(work));
    })
}

fn with_work(work: &[NpuWork]) -> NpuOptions {
    NpuOptions::default().with(|npu| (npu.rows, npu.work) = (64, Some(work.to_vec())))
}

/// QKV and FFN of two layers on the NPU.
fn sound() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(|| Compiled::of_folder(&folder(), &npu_options(&[NpuWork::Qkv, NpuWork::Ffn])).artifact())
}

fn section_of(artifact: &[u8]) -> NpuSection {
    ArtifactView::parse(artifact).unwrap().npu.expect("an NPU section")
}

/// A program as `npu-gen` describes it, from its record alone.
fn shape_of(program: &NpuProgram) -> GemmShape {
    let epilogue = match program.activation.as_deref() {
        None => Epilogue::Scale,
        Some("silu") => Epilogue::ActMul(Activation::Silu),
        Some(other) => panic!("activation {other}"),
    };
    let NpuShape { rows, cols, depth, columns, core_rows, core_cols, core_depth } = program.shape;
    let [rows, cols, depth, columns] = [rows, cols, depth, columns].map(|size| size as usize);
    let [core_rows, core_cols, core_depth] = [core_rows, core_cols, core_depth].map(|size| size as usize);
    let core = CoreTile { groups: depth / core_depth, ..CoreTile::new(core_rows, core_cols, core_depth, epilogue) };
    GemmShape { rows, cols, depth, columns, core }
}

/// Deterministic values in -1..1.
fn values(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Relative to the root mean square of the f32 product: INT4 weights with one multiplier a group, INT8 rows, bf16 outputs; twice for a product of two.
const QUANTISATION_ERROR: f64 = 0.25;

/// The instruction stream and the weights of the file, run by the interpreter of the array, against the model's own numbers.
#[test]
fn every_product_runs_from_the_files_bytes_and_is_that_of_the_models_weights() {
    let view = ArtifactView::parse(sound()).unwrap();
    let section = view.npu.as_ref().unwrap();
    view.npu_weights().iter().for_each(|slice| slice.verify().unwrap());
    let planned = plan(Source::Model(&folder()), &npu_options(&[]), &mut Silent).unwrap();
    let names: Vec<&str> = section.products.iter().map(|product| product.name.as_str()).collect();
    assert_eq!(names.len(), 6, "{names:?}");
    for product in &section.products {
        let NpuProduct { cols, depth, .. } = *product;
        let (cols, depth) = (cols as usize, depth as usize);
        let program = &section.programs[product.program as usize];
        let shape = shape_of(program);
        // Rows in the order of the product's tensors, read from the checkpoint.
        let graph = planned.verified.graph();
        let matrix = graph.matrices.iter().find(|matrix| matrix.name == product.name).expect("a matrix of this name");
        let mut weights = Vec::new();
        for part in &matrix.parts {
            let mut rows = vec![0.0; part.rows * depth];
            planned.checkpoint.tensors[&part.tensor].read_rows(0..part.rows, &mut rows);
            weights.extend(rows);
        }
        assert_eq!(weights.len(), cols * depth, "{}", product.name);

        let rows = 40;
        let input = values(rows * depth);
        let found = run(program, product, &view, &Activations::quantize(&shape, &input, depth).pack(&shape));
        let (mut error, mut square) = (0.0, 0.0);
        let dot = |row: usize, col: usize| {
            let pairs = input[row * depth..][..depth].iter().zip(&weights[col * depth..][..depth]);
            pairs.map(|(a, w)| f64::from(*a) * f64::from(*w)).sum::<f64>()
        };
        for row in 0..rows {
            for out in 0..shape.core.epilogue.outputs(cols) {
                let expected = match shape.core.epilogue {
                    Epilogue::Scale => dot(row, out),
                    Epilogue::ActMul(_) => {
                        let gate = dot(row, out);
                        gate / (1.0 + (-gate).exp()) * dot(row, out + cols / 2)
                    }
                };
                let at = 2 * (row * shape.outputs() + out);
                let value = f64::from(f32::from_bits(u32::from(u16::from_le_bytes([found[at], found[at + 1]])) << 16));
                error += (value - expected).powi(2);
                square += expected * expected;
            }
        }
        let relative = (error / square).sqrt();
        assert!(relative < QUANTISATION_ERROR, "{}: {relative}", product.name);
    }
}

/// Outputs of one command, as bf16.
fn run(program: &NpuProgram, product: &NpuProduct, view: &ArtifactView, activations: &[u8]) -> Vec<u8> {
    let design = gemm::design(&shape_of(program));
    let lowered = lower::lower(&design);
    let commands = stream::commands(&stream::decode(&program.instructions).unwrap(), &lowered).unwrap();
    let slice = view.npu_weights()[product.slice as usize].bytes;
    let weights = &slice[product.offset_bytes as usize..][..product.len_bytes as usize];
    let [_, _, output] = &program.arguments[..] else { panic!("three arguments") };
    // NaN: what is not written shows.
    let mut arguments = [activations.to_vec(), weights.to_vec(), vec![0xff; output.bytes as usize]];
    interpret::run(&design, &lowered, &commands, &mut arguments).unwrap();
    let [_, _, output] = arguments;
    output
}

#[test]
fn two_compiles_are_the_same_bytes() {
    let again = Compiled::of_folder(&folder(), &npu_options(&[NpuWork::Qkv, NpuWork::Ffn])).artifact();
    assert!(sound() == again, "the second compile writes other bytes");
}

#[test]
fn without_the_option_there_is_no_section_and_the_rest_is_the_same() {
    let without = with(npu_options(&[]), |options| options.npu = None);
    let without = Compiled::of_folder(&folder(), &without).artifact();
    let (with, without) = (ArtifactView::parse(sound()).unwrap(), ArtifactView::parse(&without).unwrap());
    assert!(without.npu.is_none() && without.npu_weights().is_empty());
    // The NPU's memory is all that its plan has in addition, but for activations of the parts in which it takes a step's rows: they live longer.
    let mut plan = with.plan.clone();
    let arena = plan.arena_bytes.checked_sub(without.plan.arena_bytes).expect("at least as long");
    assert!(arena < without.plan.arena_bytes / 2, "{arena} bytes more of {}", without.plan.arena_bytes);
    (plan.arena_bytes, plan.activations) = (without.plan.arena_bytes, without.plan.activations.clone());
    let (of_npu, others): (Vec<_>, Vec<_>) = plan.buffers.into_iter().partition(fit::is_of_npu);
    plan.buffers = others;
    assert!(plan == without.plan && with.kernels == without.kernels);
    let slices: u64 = with.npu_weights().iter().map(|slice| slice.bytes.len() as u64).sum();
    let [weights, activations, outputs, heap] = &of_npu[..] else { panic!("{of_npu:?}") };
    assert_eq!((weights.name.as_str(), weights.bytes, heap.bytes), ("NPU weights", slices, 64 << 20));
    assert!(activations.bytes > 0 && outputs.bytes > 0 && of_npu.iter().all(|one| one.tier == Tier::Host));
    let bytes = |plan| Account::of(plan).bytes();
    assert_eq!(bytes(&with.plan) - arena - bytes(&without.plan), of_npu.iter().map(|one| one.bytes).sum::<u64>());
    assert_eq!(with.weights().len(), without.weights().len());
}

/// The sections of the sound artifact, with another NPU section and others of its weights, and hashes that are right.
fn changed(change: impl FnOnce(&mut NpuSection, &mut Vec<u8>)) -> Vec<u8> {
    let mut section = section_of(sound());
    let mut weights = body(SectionKind::NpuWeights).to_vec();
    change(&mut section, &mut weights);
    let encoded = codec::encode(&section);
    let kept = |kind| (kind, body(kind));
    assemble(&[
        kept(SectionKind::Weights),
        (SectionKind::NpuWeights, &weights),
        kept(SectionKind::Metadata),
        kept(SectionKind::Plan),
        kept(SectionKind::Kernels),
        kept(SectionKind::HiddenPrograms),
        kept(SectionKind::BesideTwoPrograms),
        kept(SectionKind::Tokenizer),
        (SectionKind::Npu, &encoded),
    ])
}

fn body(kind: SectionKind) -> &'static [u8] {
    let sections: Vec<Section> = decode_header(sound()).unwrap();
    let of_kind: Vec<&Section> = sections.iter().filter(|section| section.kind == kind as u32).collect();
    let [section] = of_kind[..] else { panic!("{} sections of {}", of_kind.len(), kind.name()) };
    &sound()[section.offset_bytes as usize..][..section.len_bytes as usize]
}

#[test]
fn what_no_compiler_writes_is_refused() {
    assert!(ArtifactView::parse(&changed(|_, _| ())).is_ok());
    let refused = |change: &dyn Fn(&mut NpuSection), part: &str| {
        let error = ArtifactView::parse(&changed(|section, _| change(section))).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(part)), "{part} is not in {error:?}");
    };
    refused(&|section| section.products[0].program = 9, "program of NPU product");
    refused(&|section| section.products[0].slice = 1, "slice of NPU product");
    refused(&|section| section.products[1].offset_bytes = 0, "offset of NPU product");
    refused(&|section| section.products[1].offset_bytes += 4, "offset of NPU product");
    refused(&|section| section.products[5].offset_bytes = u64::MAX - 255, "end of NPU product");
    refused(&|section| section.products[0].len_bytes -= 256, "bytes of NPU product");
    refused(&|section| section.products[0].cols = 1 << 20, "columns of NPU product");
    refused(&|section| section.slices[0] -= 1, "bytes of the sections of NPU weights");
    refused(&|section| section.slices.push(0), "bytes of the sections of NPU weights");
    refused(&|section| section.programs[0].shape.columns = 5, "shape of NPU program");
    refused(&|section| section.programs[0].shape.core_rows = 0, "shape of NPU program");
    refused(&|section| section.programs[0].shape.depth += 1, "depth of NPU program");
    refused(&|section| drop(section.programs[0].arguments.pop()), "number of arguments");
    refused(&|section| section.programs[0].arguments[0].bytes = 1 << 33, "bytes of argument activations");
    refused(&|section| section.programs[0].estimate.clock_hz = [0; 2], "clock rate");
    refused(&|section| section.programs[0].control = vec![0; 400], "control image of NPU program");
    // A buffer that is shorter than what the stream transfers.
    refused(&|section| section.programs[0].arguments[0].bytes -= 4, "expected a part of");
    refused(&|section| section.programs[0].arguments[2].bytes = 64, "expected a part of");
    refused(&|section| _ = section.programs[0].instructions.pop(), "instruction stream");
    // Fewer columns than the control image configures, and, without one, than the stream uses.
    let on_one_column = |section: &mut NpuSection| {
        section.programs[0].shape.columns = 1;
        section.programs[0].shape.cols = section.programs[0].shape.core_cols;
        section.products.retain(|product| product.program != 0);
    };
    refused(&on_one_column, "expected a tile of 1 columns");
    let without_control = |section: &mut NpuSection| {
        on_one_column(section);
        section.programs[0].control.clear();
    };
    refused(&without_control, "expected a shim tile of the design");
    let instruction = |change: &dyn Fn(&mut Vec<Instruction>), part: &str| {
        refused(
            &|section| {
                let mut all = decode(&section.programs[0].instructions).unwrap();
                change(&mut all);
                section.programs[0].instructions = encode_instructions(&all);
            },
            part,
        );
    };
    // A register of a core, a buffer that is not there, weights that are written, and bytes behind the end of a buffer.
    instruction(
        &|all| all.push(Instruction::Write { address: 2 << 20 | 0x32000, value: 1 }),
        "expected a descriptor or a queue",
    );
    let patch = |argument: u32, more: u32| {
        move |all: &mut Vec<Instruction>| {
            let [Instruction::BlockWrite { words, .. }, Instruction::Patch { argument: found, offset_bytes, .. }, ..] =
                &mut all[..]
            else {
                panic!("a transfer comes first")
            };
            (*found, *offset_bytes, words[1]) = (argument, *offset_bytes + more, words[1] + more);
        }
    };
    instruction(&patch(7, 0), "transfer of buffer 7");
    instruction(&patch(1, 0), "transfer of buffer 1, expected one of [2]");
    instruction(&patch(2, u32::MAX - 3), "expected a part of");
}

#[test]
fn sections_that_do_not_belong_together_are_refused() {
    let parts = |kinds: &[SectionKind]| {
        let small = [
            SectionKind::Weights,
            SectionKind::Metadata,
            SectionKind::Plan,
            SectionKind::Kernels,
            SectionKind::Tokenizer,
        ];
        let all: Vec<(SectionKind, &[u8])> = small.iter().chain(kinds).map(|kind| (*kind, body(*kind))).collect();
        ArtifactView::parse(&assemble(&all)).err().map(|error| error.to_string())
    };
    assert_eq!(parts(&[SectionKind::NpuWeights, SectionKind::Npu]), None);
    let error = parts(&[SectionKind::NpuWeights]).unwrap();
    assert!(error.contains("number of npu sections beside npu weights: expected 1, found 0"), "{error}");
    let error = parts(&[SectionKind::Npu]).unwrap();
    assert!(error.contains("bytes of the sections of NPU weights"), "{error}");
    let all = [SectionKind::NpuWeights, SectionKind::Npu, SectionKind::NpuSteps];
    assert_eq!(parts(&all), None);
    let error = parts(&all[2..]).unwrap();
    assert!(error.contains("number of npu sections beside npu steps: expected 1, found 0"), "{error}");
    let schedules = [SectionKind::NpuWeights, SectionKind::Npu, SectionKind::NpuSteps, SectionKind::NpuSchedules];
    assert_eq!(parts(&schedules), None);
    let error = parts(&[SectionKind::NpuWeights, SectionKind::Npu, SectionKind::NpuSchedules]).unwrap();
    assert!(error.contains("lists of npu schedules: expected 0, found 1"), "{error}");
    let error = parts(&[SectionKind::NpuWeights, SectionKind::Npu, SectionKind::Npu]).unwrap();
    assert!(error.contains("number of npu sections: expected 1, found 2"), "{error}");
}

#[test]
fn steps_that_no_compiler_writes_are_refused() {
    let refused = |change: &dyn Fn(&mut NpuSteps), part: &str| {
        let mut section = section_of(sound());
        change(&mut section.steps[0]);
        let encoded = codec::encode(&section.steps);
        let kept = [
            SectionKind::Weights,
            SectionKind::NpuWeights,
            SectionKind::Metadata,
            SectionKind::Plan,
            SectionKind::Kernels,
            SectionKind::Tokenizer,
            SectionKind::Npu,
        ];
        let all: Vec<_> =
            kept.map(|kind| (kind, body(kind))).into_iter().chain([(SectionKind::NpuSteps, &encoded[..])]).collect();
        let error = ArtifactView::parse(&assemble(&all)).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(part)), "{part} is not in {error:?}");
    };
    refused(&|steps| drop(steps.commands.pop()), "lists of commands of the NPU's steps");
    refused(&|steps| steps.commands[0][0].before_dispatch = 0, "dispatch of the NPU's steps");
    refused(&|steps| steps.commands[0].swap(0, 1), "dispatch of the NPU's steps");
    refused(&|steps| steps.commands[0][5].before_dispatch = 1 << 20, "dispatch of the NPU's steps");
    refused(&|steps| steps.commands[0][0].product = 6, "product of the NPU's steps");
    refused(&|steps| steps.commands[0][0].outputs_offset_bytes += 4, "offset of the NPU's steps");
    refused(&|steps| steps.commands[0][0].activations_offset_bytes = u64::MAX - 255, "offset of the NPU's steps");
    refused(&|steps| steps.kernels.programs[0].rows = 100, "rows of the NPU's steps");
    refused(&|steps| steps.kernels.programs[0].dispatches[0].pipeline = 1 << 20, "pipeline of a dispatch");
}

/// Labels of norms in the first step in which the NPU takes part.
fn norms(folder: &Path, options: &CompileOptions) -> Vec<String> {
    let section = section_of(&Compiled::of_folder(folder, options).artifact());
    let labels = section.steps[0].kernels.programs[0].dispatches.iter().map(|dispatch| dispatch.label.clone());
    labels.filter(|label| label.contains("norm")).collect()
}

/// The kernel that writes activations computes what a norm multiplies a row by, where nothing else reads the norm.
#[test]
fn norms_before_products_of_the_npu_alone_have_no_dispatch() {
    let llama = |work: &[NpuWork]| norms(&folder(), &npu_options(work));
    // Nothing is added before the first norm; that of the output head is its prologue.
    assert_eq!(llama(&[NpuWork::Qkv, NpuWork::Ffn]), ["0.norm sum", "1.norm sum", "1.norm sum"]);
    assert_eq!(llama(&[NpuWork::Ffn]), ["0.norm", "0.norm sum", "1.norm", "1.norm sum"]);
    assert_eq!(llama(&[NpuWork::Output]), ["0.norm", "0.norm", "1.norm", "1.norm"]);
    let plain = with(npu_options(&[NpuWork::Qkv, NpuWork::Ffn]), |options| options.fuse = false);
    assert!(norms(&folder(), &plain).iter().all(|label| !label.ends_with("sum")));
    // Products of delta nets read what their gates read, which the GPU computes.
    let of_delta_nets = folder().with_file_name("qwen35-delta");
    let labels = norms(&of_delta_nets, &npu_options(&[NpuWork::Qkv, NpuWork::Ffn]));
    assert_eq!(labels, ["0.norm", "0.gated norm", "0.norm sum", "1.norm sum", "1.norm sum"]);
}

#[test]
fn a_program_runs_once_for_each_of_its_rows_in_a_step() {
    let section = section_of(sound());
    let runs = |rows| section.programs[0].runs_of(rows);
    assert_eq!(section.programs[0].shape.rows, 64);
    assert_eq!([1, 40, 64, 128, 512].map(runs), [1, 1, 1, 2, 8].map(Some));
    // No multiple, and more than eight times.
    assert_eq!([65, 100, 576, 1024].map(runs), [None; 4]);
}

#[test]
fn verify_makes_programs_and_weights_again() {
    let written = |bytes: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.unicorn"), bytes).unwrap();
        folder
    };
    let verify = |bytes: &[u8], from: Option<&Path>| {
        let folder = written(bytes);
        reproduce(&folder.path().join("model.unicorn"), from, &mut Silent).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(verify(sound(), Some(&folder())), Ok(()));
    // Without the model, the programs.
    let other = changed(|section, _| section.programs[0].estimate.cycles += 1);
    let error = verify(&other, None).unwrap_err();
    assert!(error.contains("npu.programs[0].estimate.cycles is "), "{error}");
    let other = changed(|_, weights| weights[100] ^= 1);
    assert_eq!(verify(&other, None), Ok(()));
    let error = verify(&other, Some(&folder())).unwrap_err();
    assert!(error.contains("byte 100 of the NPU's weight layers.0.self_attn"), "{error}");
}

/// The GPU runs everything, and a new placement of its bytes does not change the NPU's.
#[test]
fn an_artifact_with_npu_programs_loads_runs_and_is_planned_anew() {
    if let Err(error) = load_and_run_artifact(sound()) {
        panic!("{error:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.unicorn");
    std::fs::write(&path, sound()).unwrap();
    let mut options = ReplanOptions::default();
    options.machine = Some(Machine::named("phoenix-64gb").unwrap());
    replan(&path, &options, &mut Silent).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let view = ArtifactView::parse(&bytes).unwrap();
    assert_eq!(view.plan.machine.name, "phoenix-64gb");
    assert!(view.npu == ArtifactView::parse(sound()).unwrap().npu);
    view.npu_weights().iter().for_each(|slice| slice.verify().unwrap());
    reproduce(&path, Some(&self::folder()), &mut Silent).unwrap();
}

/// All that a compile without `--npu` writes, and nothing else.
#[test]
fn an_artifact_planned_without_an_npu_is_that_of_a_compile_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.unicorn");
    std::fs::write(&path, sound()).unwrap();
    let mut options = ReplanOptions::default();
    options.no_npu = true;
    replan(&path, &options, &mut Silent).unwrap();
    let without = with(npu_options(&[]), |options| options.npu = None);
    let (found, expected) = (std::fs::read(&path).unwrap(), Compiled::of_folder(&self::folder(), &without).artifact());
    let [found_view, expected_view] = [&found, &expected].map(|bytes| ArtifactView::parse(bytes).unwrap());
    assert!(found_view.npu.is_none() && found.len() < sound().len());
    assert_eq!(found_view.meta, expected_view.meta);
    assert!(found_view.plan == expected_view.plan && found_view.kernels == expected_view.kernels);
    let hashes =
        |bytes: &[u8]| decode_header(bytes).unwrap().iter().map(|one| (one.kind, one.hash)).collect::<Vec<_>>();
    assert_eq!(hashes(&found), hashes(&expected));
    reproduce(&path, Some(&self::folder()), &mut Silent).unwrap();
    load_and_run_artifact(&found).unwrap();
    // Nothing is left to be removed.
    replan(&path, &options, &mut Silent).unwrap();
    assert!(std::fs::read(&path).unwrap() == found);
}

fn decided(config: &str, change: impl FnOnce(&mut CompileOptions)) -> NpuPlan {
    try_decided(config, change).expect("it fits")
}

fn try_decided(config: &str, change: impl FnOnce(&mut CompileOptions)) -> Result<NpuPlan, CompileError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config).unwrap();
    let options = with(options(vec![target::by_name("generic").unwrap()], Vec::new()), |options| {
        options.npu = Some(NpuOptions::default());
        change(options);
    });
    Ok(plan(Source::Synthetic(&path), &options, &mut Silent)?.npu.expect("an NPU was requested"))
}

fn on_npu(plan: &NpuPlan) -> Vec<&str> {
    plan.section.decisions.iter().filter(|decision| decision.on_npu).map(|decision| decision.work.as_str()).collect()
}

#[test]
fn the_estimate_gives_large_products_to_the_npu_and_never_decode() {
    // In two parts of a step: while the NPU has the FFN of one, the GPU has QKV and output projection of the other.
    let large = decided(&eight_layers(512, 4096), |_| ());
    assert_eq!(on_npu(&large), ["ffn"], "{:?}", large.section.decisions);
    // In one, the devices wait for each other, and the NPU is faster at each.
    let in_one = decided(&eight_layers(512, 4096), |options| options.npu.as_mut().unwrap().rows = 512);
    assert_eq!(on_npu(&in_one), ["qkv", "output", "ffn"], "{:?}", in_one.section.decisions);
    let reason = |plan: &NpuPlan, work: &str| {
        plan.section.decisions.iter().find(|decision| decision.work == work).expect("each has one").reason.clone()
    };
    for part in [
        "estimate for 256 tokens",
        "ms on the GPU at 4.7 TOP/s",
        "ms on the NPU in 16 commands",
        "at once, a step of 512 tokens takes ",
    ] {
        assert!(reason(&large, "ffn").contains(part), "{}", reason(&large, "ffn"));
    }
    assert!(reason(&large, "decode").contains("at 73 GB/s, through the NPU's shim tiles in "));
    // Fewer rows than a tile: padding costs more than the GPU's whole product.
    let few = decided(&eight_layers(512, 4096), |options| options.npu.as_mut().unwrap().rows = 8);
    assert!(on_npu(&few).is_empty(), "{:?}", few.section.decisions);
    assert!(few.section.programs.is_empty() && few.section.slices.is_empty());
    // Of one row, the programs are those of GEMVs: requested only.
    let draft = |work| {
        decided(&eight_layers(512, 4096), |options| {
            options.npu = Some(NpuOptions::default().with(|npu| (npu.rows, npu.work) = (1, work)));
        })
    };
    assert!(on_npu(&draft(None)).is_empty());
    let draft = draft(Some(NpuWork::ALL.to_vec()));
    assert_eq!(on_npu(&draft), ["qkv", "output", "ffn"]);
    assert!(draft.section.programs.iter().all(|program| (program.shape.rows, program.shape.core_rows) == (8, 8)));
    assert!(draft.section.decisions.iter().all(|decision| decision.work != "decode"), "{:?}", draft.section.decisions);
    // A command takes longer than the GPU's whole product.
    let small = plan(
        Source::Model(&folder()),
        &with(npu_options(&[]), |one| one.npu = Some(NpuOptions::default())),
        &mut Silent,
    );
    assert!(on_npu(&small.unwrap().npu.unwrap()).is_empty());
}

/// Gate and up of 2 · 98304 × 16384 have 1.5 GiB, and a section at most 1 GiB: they stay on the GPU by name, and down has a program.
#[test]
fn a_product_without_a_program_stays_on_the_gpu_and_is_named() {
    let wide = eight_layers(512, 16384).replace("\"intermediate_size\": 8192", "\"intermediate_size\": 98304");
    let wide = wide.replace("\"num_hidden_layers\": 8", "\"num_hidden_layers\": 4");
    let wide = wide.replace("_heads\": 16", "_heads\": 128");
    let planned = decided(&wide, |options| {
        options.npu = Some(NpuOptions::default().with(|npu| npu.work = Some(vec![NpuWork::Ffn])));
    });
    assert_eq!(on_npu(&planned), ["ffn"]);
    let names: Vec<&str> = planned.section.products.iter().map(|product| product.name.as_str()).collect();
    assert!(names.len() == 4 && names.iter().all(|name| name.contains("down_proj")), "{names:?}");
    let ffn = planned.section.decisions.iter().find(|decision| decision.work == "ffn").unwrap();
    for part in [
        "; without an NPU program, on the GPU: layers.0.mlp",
        " (product of 256 × 196608 × 16384 has 1.50 GiB of weights, expected at most 1.00 GiB)",
        " and 1 more",
    ] {
        assert!(ffn.reason.contains(part), "{part} is not in {}", ffn.reason);
    }
}

#[test]
fn memory_that_the_gpu_leaves_bounds_what_the_npu_is_given() {
    let on_machine = |mib: u64| {
        let budget = format!("gtt={mib}MiB,host={mib}MiB").parse().unwrap();
        let machine = Machine::named("phoenix-16gb").unwrap().plan(&budget).unwrap();
        // In one part, where all three are the NPU's.
        let npu = NpuOptions::default().with(|npu| npu.rows = 512);
        try_decided(&eight_layers(512, 4096), |options| (options.machine, options.npu) = (machine, Some(npu)))
    };
    assert_eq!(on_npu(&on_machine(8192).unwrap()).len(), 3);
    // The least in which the GPU's part finds room, within 200 MiB.
    let tight = (600..8192).step_by(200).find_map(|mib| on_machine(mib).ok()).unwrap();
    let without: Vec<_> = tight.section.decisions.iter().filter(|one| one.reason.contains("memory has ")).collect();
    assert!(!without.is_empty() && without.iter().all(|one| !one.on_npu), "{:?}", tight.section.decisions);
}

#[test]
fn a_user_overrules_the_estimate() {
    let section = section_of(sound());
    let ffn = section.decisions.iter().find(|decision| decision.work == "ffn").unwrap();
    assert!(ffn.on_npu && ffn.overruled && ffn.reason.starts_with("requested; estimate for 64 tokens"), "{ffn:?}");
    let output = section.decisions.iter().find(|decision| decision.work == "output").unwrap();
    assert!(!output.on_npu && output.overruled && output.reason.starts_with("not requested"), "{output:?}");
    // Biases are added by no program, and experts multiply other rows each.
    for (model, work, part) in
        [("qwen2-bias", "qkv", "products with biases"), ("qwen3-moe", "ffn", "experts multiply other rows")]
    {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny").join(model);
        let planned = plan(Source::Model(&folder), &npu_options(&NpuWork::ALL), &mut Silent).unwrap().npu.unwrap();
        let decision = planned.section.decisions.iter().find(|decision| decision.work == work).unwrap();
        assert!(!decision.on_npu && decision.reason.contains(part), "{model}: {decision:?}");
    }
}

#[test]
fn the_commands_report_the_use_of_the_npu() {
    let folder = tempfile::tempdir().unwrap();
    let artifact = folder.path().join("model.unicorn");
    let compile = |arguments: &[&str]| {
        let mut command = program("unicorn-compile");
        command.arg(self::folder()).args(["--target", "generic", "--npu", "phoenix"]);
        let output = command.args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.success(), text.concat())
    };
    let path = artifact.to_str().unwrap();
    let (done, text) = compile(&["--npu-rows", "64", "--npu-for", "ffn", "-o", path]);
    assert!(
        done && text.contains("ffn on the NPU: requested; estimate") && text.contains("qkv on the GPU: "),
        "{text}"
    );
    let output = program("unicorn-run").arg("inspect").arg(&artifact).args(["--section", "npu"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "NPU (npu1), 2 programs",
        "ffn on the NPU: requested",
        "decode on the GPU: estimate",
        "% busy",
        "-silu",
        "of system memory: NPU weights ",
        "Two queues in a step of 512 rows on generic: ",
        " commands, at once in ",
        ", rows 448 to 511",
        "─► for 0, ",
        "◄─ for ",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let (done, text) = compile(&["--npu-for", "none", "--plan-only"]);
    assert!(done && text.contains("ffn on the GPU: not requested; estimate for 256 tokens"), "{text}");
    for (arguments, part) in [
        (&["--npu-for", "attention", "-o", path][..], "invalid value 'attention'"),
        (
            &["--npu-for", "draft,ffn", "-o", path],
            "draft is given together with work, expected draft alone (--npu-for)",
        ),
        (
            &["--npu-for", "none,ffn", "-o", path][..],
            "none is given together with work, expected none alone (--npu-for)",
        ),
        (&["--npu-for", "lm_head", "-o", path][..], "invalid value 'lm_head'"),
    ] {
        let (done, text) = compile(arguments);
        assert!(!done && text.contains(part), "{part} is not in: {text}");
    }
}

/// The limit that decides a tile, and the times that decide the place, with what each is limited by: for products that the NPU computes and
/// that it does not.
#[test]
fn explain_names_what_decides_tiles_and_places() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    std::fs::write(&config, eight_layers(512, 4096)).unwrap();
    let explained = |arguments: &[&str]| {
        let mut command = program("unicorn-compile");
        command.arg("--synthetic").arg(&config).args(["--target", "generic", "--npu", "phoenix", "--plan-only"]);
        let output = command.args(arguments).output().unwrap();
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    for (rows, parts) in [
        (
            "512",
            [
                "4096x8192 on the NPU\n512 × 4096 × 8192 on 4 × 4 cores",
                "\n  decided by         memory: ",
                " bytes of memory, expected at most 65536\n",
                "\n  times of one       GPU 7.31 ms, limited by products; NPU 5.40 ms: 5.08 ms limited by the published rate, ",
                "\nffn on the NPU: estimate for 512 tokens",
            ],
        ),
        (
            "8",
            [
                "4096x8192 on the GPU\n8 × 4096 × 8192 on 4 × 4 cores",
                "\n  decided by         stream of weights: no size is better, whether it fits or not\n",
                "computes           layers.0.mlp.down_proj.weight, layers.1.mlp.down_proj.weight and 6 more\n",
                "GPU 0.26 ms, limited by reading weights; NPU 0.63 ms: 0.43 ms limited by the model of the array, ",
                "\nffn on the GPU: estimate for 8 tokens",
            ],
        ),
    ] {
        let (done, text) = explained(&["--explain", "--npu-rows", rows]);
        for part in parts {
            assert!(done && text.contains(part), "{part} is not in: {text}");
        }
        let (done, text) = explained(&["--npu-rows", rows]);
        assert!(done && !text.contains("decided by"), "only where it is requested: {text}");
    }
    let (done, text) = explained(&["--explain", "--json"]);
    assert!(!done && text.contains("cannot be used with"), "{text}");
}

#[test]
fn a_build_without_mlir_names_the_feature_to_build() {
    let output =
        program("unicorn-compile").arg(folder()).args(["--npu", "phoenix", "--emit", "mlir"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for part in ["built without MLIR", "docs/npu.md", "cargo build --release -p unicorn-compiler --features npu"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn the_form_of_npu_programs_needs_the_option() {
    let output = program("unicorn-compile").arg(folder()).args(["--plan-only", "--emit", "mlir"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("form mlir is of NPU programs, expected --npu phoenix with it"), "{error}");
}
