//! The reference model against transformers: every golden in `models/`.

use std::path::PathBuf;

use tests::models::models;
use tests::reference::{Reference, mean_kl_divergence, read_golden, read_logits, relative_error};

/// Both sides compute in f32 and differ only in the order of sums and in how exactly angles and exponentials are
/// rounded, which is some 1e-6 of the logits. One position more in a window, a forgotten cap or a wrong angle costs
/// 5e-2 and more; even another epsilon in the norms costs 1e-3.
const REORDERED_F32_SUMS: f64 = 1e-5;

#[test]
fn every_golden_is_met() {
    let folders = folders_with_golden();
    assert!(folders.len() >= 19, "only {} goldens were found", folders.len());
    let mut far_off = Vec::new();
    for folder in folders {
        let golden = read_golden(&folder);
        let reference = Reference::open(&folder);
        let logits = reference.logits(&golden.tokens);
        let error = relative_error(&golden.logits, &logits);
        let divergence = mean_kl_divergence(&golden.logits, &logits, reference.vocab_size());
        println!("{}: relative error {error:.1e}, divergence {divergence:.1e} nats", folder.display());
        // Written so that an error that is no number fails too.
        if !(error <= REORDERED_F32_SUMS && divergence.abs() <= REORDERED_F32_SUMS) {
            far_off.push(format!("{}: {error:.2e}", folder.display()));
        }
    }
    assert!(far_off.is_empty(), "relative error above {REORDERED_F32_SUMS:.0e}: {far_off:#?}");
}

#[test]
fn greedy_continuations_are_met() {
    for name in ["llama-tied", "gemma3-older-config", "phi3-longrope-long"] {
        let folder = models().join("tiny").join(name);
        let golden = read_golden(&folder);
        let count = golden.greedy.len().min(4);
        assert_eq!(Reference::open(&folder).greedy(&golden.tokens, count), golden.greedy[..count], "{name}");
    }
}

#[test]
fn logits_are_read_alone() {
    let folder = models().join("tiny/llama-tied");
    assert_eq!(read_logits(folder.join("golden.safetensors")), read_golden(&folder).logits);
}

fn folders_with_golden() -> Vec<PathBuf> {
    let tiny = std::fs::read_dir(models().join("tiny")).expect("models/tiny is a folder");
    let mut folders: Vec<PathBuf> = tiny.map(|entry| entry.expect("an entry of models/tiny").path()).collect();
    folders.push(models().join("gemma3-2m-draft"));
    folders.retain(|folder| folder.join("golden.safetensors").exists());
    folders.sort();
    folders
}
