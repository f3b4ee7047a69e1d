//! A model with several streams of the residual (Gemma 3n), in every format and in steps of one row and of many.

use tests::models::models;
use tests::reference::read_golden;
use unicorn_artifact::{ArtifactView, MappedFile};
use unicorn_compiler::WeightsOption;

use crate::built::*;

#[test]
fn several_streams_are_those_of_transformers_in_every_format() {
    let folder = models().join("tiny/gemma3n");
    let golden = read_golden(&folder);
    for (what, case, rows_of_steps, tolerance) in [
        ("f16", F16, &[1, 7][..], F16_TOLERANCE),
        ("f16 unfused", Case { fuse: false, ..F16 }, &[0], F16_TOLERANCE),
        ("f16 on nvidia", Case { target: "nvidia", ..F16 }, &[1], F16_TOLERANCE),
        ("int8", Case { weights: WeightsOption::Int8, ..F16 }, &[0, 1], INT8_TOLERANCE),
    ] {
        let model = Built::of(&folder, case).load();
        for &rows_of_step in rows_of_steps {
            let found = logits(&model, &golden.tokens, rows_of_step);
            assert_close(&format!("{what} in steps of {rows_of_step}"), &found, &golden.logits, tolerance);
        }
    }
}

#[test]
fn several_streams_are_those_of_the_exported_weights() {
    let folder = models().join("tiny/gemma3n");
    let tokens = read_golden(&folder).tokens;
    let expected = Built::of(&folder, INT4).exported_logits(&tokens);
    for (what, case, rows_of_steps, tolerance) in [
        ("int4", INT4, &[0, 1][..], EXPORTED_TOLERANCE),
        ("integer activations", INTEGER, &[0, 1], INTEGER_TOLERANCE),
        (
            "integer activations by packed dot products",
            Case { target: "generic-dot", ..INTEGER },
            &[0],
            INTEGER_TOLERANCE,
        ),
        ("integer activations on nvidia", Case { target: "nvidia", ..INT4 }, &[1], INTEGER_TOLERANCE),
    ] {
        let model = Built::of(&folder, case).load();
        for &rows_of_step in rows_of_steps {
            let found = logits(&model, &tokens, rows_of_step);
            assert_close(&format!("{what} in steps of {rows_of_step}"), &found, &expected, tolerance);
        }
    }
}

/// What two prompts have in common is not computed again, also by layers that read the keys and values of others.
#[test]
fn a_prompt_continues_behind_what_it_has_in_common_with_another() {
    const COMMON: usize = 29;
    let golden = read_golden(models().join("tiny/gemma3n"));
    let tokens: Vec<u32> = golden.tokens.iter().map(|&token| token as u32).collect();
    let model = Built::of(&models().join("tiny/gemma3n"), F16).load();
    let mut session = model.session().expect("a free slot");
    let other: Vec<u32> = tokens[..COMMON].iter().copied().chain([9; 12]).collect();
    session.feed(&other).expect("the steps run");
    assert_eq!(session.keep_common_start(&tokens) as usize, COMMON);
    let mut rest = Vec::new();
    session.feed_with_logits(&tokens[COMMON..], &mut |_, row| rest.extend_from_slice(row)).expect("the steps run");
    let vocab = golden.logits.len() / tokens.len();
    assert_close("the rest of a prompt", &rest, &golden.logits[COMMON * vocab..], F16_TOLERANCE);
}

/// A layer takes at most twice the dispatches of a layer of Gemma 4 with inputs of its own.
#[test]
fn a_layer_of_streams_has_few_dispatches() {
    let per_layer = |name: &str, layers: usize| {
        let built = Built::of(&models().join("tiny").join(name), Case { target: "nvidia", ..F16 });
        let file = MappedFile::open(&built.artifact()).expect("it was written");
        let view = ArtifactView::parse(file.bytes()).expect("it was compiled");
        let decode = view.kernels.targets[0].programs.iter().find(|program| program.rows == 1 && program.samples);
        let labels = decode.expect("a program that decodes").dispatches.iter().map(|dispatch| &dispatch.label);
        labels.filter(|label| label.starts_with(|first: char| first.is_ascii_digit())).count().div_ceil(layers)
    };
    let (streams, one) = (per_layer("gemma3n", 5), per_layer("gemma4-layer-inputs", 3));
    assert!(streams <= 2 * one, "{streams} dispatches a layer, of Gemma 4 {one}");
}
