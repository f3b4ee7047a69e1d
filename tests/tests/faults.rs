//! Whole models whose device is lost while they speak: the text goes on as if nothing had been. The kernels are those of real
//! families, whose sums come out otherwise in another order; `runtime/tests/faults.rs` fails every call, of a toy.
//!
//! `cargo test -p tests --features fault-injection --test faults`

use std::ops::ControlFlow;
use std::path::Path;

use compiler::{Source, compile};
use runtime::{DeviceChoice, Fault, FaultKind, LoadOptions, Model, RunError, Sampling, inject, injected};
use shaders_gen::target;
use tests::compiled::{Silent, options};

/// How many of the calls after loading are failed, one a run.
const FAULTS: u64 = 12;

/// A seeded text: a prompt of several steps, some of them long, then as many draws, and what a last look sees of it all.
fn text(model: &Model) -> Result<(Vec<u32>, Vec<u32>), RunError> {
    let vocab_size = model.meta().model.vocab_size;
    let prompt: Vec<u32> = (0..90).map(|index| (index * 7919 + 13) % vocab_size).collect();
    let sampling = Sampling { temperature: 1.0, repeat_penalty: 1.3, seed: 11, ..Sampling::default() };
    let mut session = model.session()?;
    session.feed(&prompt[..60])?;
    let first = session.feed_and_sample(&prompt[60..], &sampling)?;
    let mut drawn = vec![first.token];
    session.generate(first.token, &sampling, 24, &mut |sampled| {
        drawn.push(sampled.token);
        ControlFlow::Continue(())
    })?;
    let mut bits = Vec::new();
    session.feed_with_logits(&prompt[..3], &mut |_, row| bits.extend(row.iter().map(|logit| logit.to_bits())))?;
    Ok((drawn, bits))
}

#[test]
fn the_text_after_a_lost_device_is_the_text_without_it() {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let load_options = LoadOptions { device: DeviceChoice::Name(device), ..LoadOptions::default() };
    for name in ["gemma3-text", "phi3-longrope-long"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny").join(name);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.unicorn");
        let targets = ["llvmpipe", "generic"].into_iter().filter_map(target::by_name).collect();
        compile(Source::Model(&source), &path, &options(targets, Vec::new()), &mut Silent).expect("it compiles");
        let model = Model::load(&path, &load_options, &mut |_, _| {}).expect("it loads");

        inject(None);
        let expected = text(&model).expect("the steps run");
        let (calls, _) = injected();
        for number in 0..FAULTS {
            let fault = Fault { call: number * calls / FAULTS, kind: FaultKind::DeviceLost };
            inject(Some(fault));
            let found = text(&model).unwrap_or_else(|error| panic!("{name}, {fault:?}: {error}"));
            assert!(found == expected, "{name}, {fault:?}: another text");
        }
        assert!(!model.take_recoveries().is_empty(), "{name}: no fault was met");
    }
}
