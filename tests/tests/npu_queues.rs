//! Steps in two queues: GPU and NPU work at the same time on different rows, each waits for what it reads, and the results stay bit for bit those of work in turns.

use std::path::{Path, PathBuf};

use tests::compiled::{Compiled, options, with};
use tests::launch::{device_matrices, skip_matrix_units};
use tests::models::models;
use tests::reference::read_golden;
use unicorn_artifact::rewrite::{Change, NewKernels, rewrite};
use unicorn_artifact::{ArtifactView, LogitsRows, NpuSection};
use unicorn_compiler::{NpuOptions, NpuWork};
use unicorn_npu_simulator::{Event, Simulator};
use unicorn_runtime::npu::{NpuOpener, NpuUse};
use unicorn_runtime::{DeviceChoice, LoadOptions, Model, NpuMemory};
use unicorn_spirv::target;

fn folder(name: &str) -> PathBuf {
    models().join("tiny").join(name)
}

/// A model whose NPU programs have `rows` rows, for a target.
fn compiled(name: &str, target: &str, rows: usize) -> Compiled {
    let options = with(options(vec![target::by_name(target).unwrap()], Vec::new()), |options| {
        let work = Some(vec![NpuWork::Qkv, NpuWork::Ffn]);
        options.npu = Some(NpuOptions::default().with(|npu| (npu.rows, npu.work) = (rows, work)));
    });
    Compiled::of_folder(&folder(name), &options)
}

/// The artifact with other schedules.
fn with_schedules(compiled: &Compiled, output: &Path, change: impl FnOnce(&mut NpuSection)) -> std::io::Result<u64> {
    let bytes = compiled.artifact();
    let view = ArtifactView::parse(&bytes).unwrap();
    let mut section = view.npu.clone().unwrap();
    change(&mut section);
    let new = NewKernels { meta: &view.meta, plan: &view.plan, kernels: &view.kernels, npu: Some(&section) };
    rewrite(&compiled.artifact_path(), output, &Change::from(new), |_| {})
}

/// Logits of all rows of a prompt in steps of 64 rows, or of the token behind it, which reads the keys and values that longer steps wrote.
fn logits(artifact: &Path, tokens: &[u32], simulator: &Simulator) -> Vec<f32> {
    let mut session = load(artifact, simulator).session().unwrap();
    let mut all = Vec::new();
    let (before, read) = tokens.split_at(if tokens.len() > 64 { tokens.len() - 1 } else { 0 });
    session.feed(before).unwrap();
    session.feed_with_logits(read, &mut |_, row| all.extend_from_slice(row)).unwrap();
    assert_eq!(simulator.errors(), Vec::<String>::new());
    all
}

fn load(artifact: &Path, simulator: &Simulator) -> Model {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let opened = simulator.clone();
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(device);
        options.npu = NpuUse::Required;
        options.npu_opener = NpuOpener::new(move || opened.open());
    });
    Model::load(artifact, &options).unwrap()
}

fn late() -> Simulator {
    let simulator = Simulator::default();
    simulator.run_late();
    simulator
}

fn prompt(name: &str, count: usize) -> Vec<u32> {
    let tokens = read_golden(folder(name)).tokens.into_iter().map(|token| token as u32);
    tokens.collect::<Vec<_>>().into_iter().cycle().take(count).collect()
}

/// Whether the NPU is given the first part of a product that needs the results of the product before it, while it has other parts of that one: by then the GPU
/// has done all of its work between both, beside those other parts.
fn has_overlap(events: &[Event], parts: u64) -> bool {
    let at = |event: Event| events.iter().position(|one| *one == event);
    let products = events.len() as u64 / 2 / parts;
    (1..products).any(|product| at(Event::Submitted(parts * product)) < at(Event::Ended(parts * product - 1)))
}

#[test]
fn both_devices_work_at_once_and_logits_stay_the_same() {
    // Steps of 64 rows in parts of 8, and of 512 rows in parts of 64.
    for (name, target, rows, n_tokens) in [
        ("llama3-rope", "generic", 8, 64),
        ("gemma3-text", "generic", 8, 64),
        ("qwen3-qknorm", "llvmpipe", 8, 64),
        ("llama3-rope", "generic", 64, 193),
    ] {
        assert_overlap(name, target, rows, n_tokens);
    }
}

/// The same with products of the GPU and attention on matrix units, whose workgroups take tiles of rows.
#[test]
fn kernels_on_matrix_units_take_parts_of_the_rows() {
    if device_matrices().is_none() {
        return skip_matrix_units();
    }
    assert_overlap("llama3-rope", "llvmpipe-mesa26", 64, 193);
}

/// Logits with schedules are those in turns, and both devices work at once.
fn assert_overlap(name: &str, target: &str, rows: usize, n_tokens: usize) {
    let compiled = compiled(name, target, rows);
    let tokens = prompt(name, n_tokens);
    let folder = tempfile::tempdir().unwrap();
    let in_turns = folder.path().join("in-turns.unicorn");
    // As a file without schedules.
    with_schedules(&compiled, &in_turns, |section| {
        section.steps.iter_mut().for_each(|steps| steps.schedules.clear());
    })
    .unwrap();
    let alone = Simulator::default();
    let expected = logits(&in_turns, &tokens, &alone);
    let found = late();
    assert!(logits(&compiled.artifact_path(), &tokens, &found) == expected, "{name} of {rows} rows, late");
    let early = Simulator::default();
    assert!(logits(&compiled.artifact_path(), &tokens, &early) == expected, "{name} of {rows} rows, early");
    assert_eq!((found.runs(), early.runs()), (alone.runs(), alone.runs()));
    let parts = n_tokens as u64 / rows as u64;
    println!("{name} on {target}: {} runs in parts of {rows} rows", alone.runs());
    assert!(has_overlap(&found.events(), parts), "{name}: {:?}", found.events());
    assert!(!has_overlap(&alone.events(), parts), "{name}: {:?}", alone.events());
}

/// Activations and outputs lie in pages that the GPU's and the NPU's driver have imported, or pass through the host where the NPU's driver imports none.
#[test]
fn memory_of_both_devices_is_shared_or_copied_between() {
    let name = "qwen3-qknorm";
    let compiled = compiled(name, "generic", 8);
    let tokens = prompt(name, 64);
    let (shares, copies) = (late(), late());
    copies.refuse_sharing();
    let memory = |simulator: &Simulator| load(&compiled.artifact_path(), simulator).report().npu.memory;
    // A software device exports dma-bufs from Mesa 26 on, and where Linux has /dev/udmabuf.
    assert!(matches!(memory(&shares), Some(NpuMemory::Pages | NpuMemory::DmaBuf)));
    assert_eq!(memory(&copies), Some(NpuMemory::Copied));
    assert!(logits(&compiled.artifact_path(), &tokens, &shares) == logits(&compiled.artifact_path(), &tokens, &copies));
}

/// A wait that is left out, or for an earlier entry than the one that writes what is read: other logits, or an error of the reader.
#[test]
fn a_missing_wait_is_noticed() {
    let name = "llama3-rope";
    let compiled = compiled(name, "generic", 8);
    let tokens = prompt(name, 64);
    let expected = logits(&compiled.artifact_path(), &tokens, &late());
    let folder = tempfile::tempdir().unwrap();
    let bytes = compiled.artifact();
    let section = ArtifactView::parse(&bytes).unwrap().npu.unwrap();
    let is_of_prompt = |program: &unicorn_artifact::Program| program.rows == 64 && program.logits == LogitsRows::All;
    let program = section.steps[0].kernels.programs.iter().position(is_of_prompt).unwrap();
    let schedule = &section.steps[0].schedules[program];
    let (mut refused, mut other) = (0, 0);
    // Every third: of all stages, of all parts, of both queues.
    for (index, entry) in schedule.entries.iter().enumerate().step_by(3) {
        let Some(waits_for) = entry.waits_for else { continue };
        let earlier =
            (0..waits_for).rev().find(|one| schedule.entries[*one as usize].work.is_run() != entry.work.is_run());
        for wait in [None, earlier] {
            let mutant = folder.path().join("mutant.unicorn");
            let written = with_schedules(&compiled, &mutant, |section| {
                section.steps[0].schedules[program].entries[index].waits_for = wait;
            });
            match written {
                Err(error) => {
                    assert!(error.to_string().contains("of an NPU schedule"), "{error}");
                    refused += 1;
                }
                Ok(_) => {
                    assert!(logits(&mutant, &tokens, &late()) != expected, "entry {index} waits for {wait:?}");
                    other += 1;
                }
            }
        }
    }
    println!("mutants: {refused} refused by the reader, {other} with other logits");
    assert!(refused > 0 && other > 0);
}
