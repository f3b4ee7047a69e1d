//! Hidden rows, which embeddings are made of, against the reference; and artifacts without programs for them.

use std::path::Path;

use tests::compiled::{Compiled, options, with};
use tests::models::models;
use tests::mutated_plan::with_parts_changed;
use tests::reference::{Reference, read_golden, relative_error};
use unicorn_artifact::header::{SectionKind, decode_header, encode_header};
use unicorn_artifact::{ArtifactView, LogitsRows};
use unicorn_compiler::WeightsOption;
use unicorn_runtime::{DeviceChoice, LoadOptions, Model, RunError};
use unicorn_spirv::target::by_name;

/// f16 weights and KV cache over a few layers, as in `e2e`.
const F16_TOLERANCE: f64 = 5e-3;

fn compiled(folder: &Path) -> Compiled {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(by_name).collect();
    Compiled::of_folder(folder, &with(options(targets, vec![]), |options| options.policy.weights = WeightsOption::F16))
}

fn load(artifact: &Path) -> Model {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let options = LoadOptions::default().with(|options| options.device = DeviceChoice::Name(device));
    Model::load(artifact, &options).expect("it loads")
}

fn hidden_rows(model: &Model, tokens: &[u32], part_tokens: usize) -> Vec<f32> {
    let mut session = model.session().expect("a free slot");
    let mut all = Vec::new();
    let mut rest = tokens;
    while !rest.is_empty() {
        let n_tokens = rest.len().min(part_tokens);
        let mut expected = session.len_tokens();
        let mut sink = |position: u32, row: &[f32]| {
            assert_eq!(position, expected);
            expected += 1;
            all.extend_from_slice(row);
        };
        session.feed_with_hidden_rows(rest, n_tokens, &mut sink).expect("the steps run");
        rest = &rest[n_tokens..];
    }
    all
}

#[test]
fn they_are_the_reference_s_after_the_final_norm() {
    for name in ["llama-tied", "gemma3-text", "qwen3-qknorm", "qwen2-bias"] {
        let folder = models().join("tiny").join(name);
        let golden = read_golden(&folder);
        let expected = Reference::open(&folder).hidden(&golden.tokens);
        let artifact = compiled(&folder);
        let model = load(&artifact.artifact_path());
        assert!(model.gives_hidden_rows(), "{name}");
        let tokens: Vec<u32> = golden.tokens.iter().map(|&token| token as u32).collect();
        // By the program of 8 rows, and by the largest that fits.
        for part_tokens in [5, tokens.len()] {
            let found = hidden_rows(&model, &tokens, part_tokens);
            assert_eq!(found.len(), tokens.len() * model.meta().model.hidden_size as usize, "{name}");
            let error = relative_error(&expected, &found);
            println!("{name}, {part_tokens} tokens at a time: relative error {error:.1e}");
            assert!(error <= F16_TOLERANCE, "{name}, {part_tokens} tokens at a time: {error:.2e}");
        }
    }
}

#[test]
fn rows_of_no_elements_are_refused() {
    let artifact = compiled(&models().join("tiny/llama-tied")).artifact();
    let sized = |hidden_size| with_parts_changed(&artifact, |meta, _| meta.model.hidden_size = hidden_size);
    ArtifactView::parse(&sized(1)).expect("a row may be wider than what is read of it");
    let error = ArtifactView::parse(&sized(0)).err().expect("it is refused").to_string();
    assert!(error.contains("hidden size: expected 1 to"), "{error}");
}

/// The artifact as a reader before format 8.3 reads it: the section of hidden programs is of an unknown kind.
fn without_hidden_programs(bytes: &[u8]) -> Vec<u8> {
    let mut sections = decode_header(bytes).expect("an artifact");
    let section = sections.iter_mut().find(|section| section.kind == SectionKind::HiddenPrograms as u32);
    section.expect("the compiler writes them").kind = u32::MAX;
    let head = encode_header(&sections, bytes.len() as u64);
    [&head[..], &bytes[head.len()..]].concat()
}

#[test]
fn an_artifact_without_programs_for_them_loads_and_returns_an_error() {
    let artifact = compiled(&models().join("tiny/llama-tied"));
    let old = without_hidden_programs(&artifact.artifact());
    let view = ArtifactView::parse(&old).expect("readers skip sections of an unknown kind");
    let mut programs = view.kernels.targets.iter().flat_map(|target| &target.programs);
    assert!(programs.all(|program| program.logits != LogitsRows::Hidden));
    let path = artifact.artifact_path().with_extension("old");
    std::fs::write(&path, &old).expect("beside the other");
    let model = load(&path);
    assert!(!model.gives_hidden_rows());
    let mut session = model.session().expect("a free slot");
    let error = session.feed_with_hidden_rows(&[1, 2], 2, &mut |_, _| ()).unwrap_err();
    assert!(matches!(error, RunError::NoProgram { wanted: "hidden rows" }), "{error}");
    session.feed(&[1, 2]).expect("everything else runs");
}
