//! The writer of random models: what it writes is a model, and the same each time.

use tests::reference::Reference;
use tests::tiny_model::{Family, Slides, TinyModel};

#[test]
fn every_family_is_read_and_answers() {
    for family in Family::all() {
        let model = TinyModel { family, sliding_window: Some(4), layers: 3, ..Default::default() };
        let folder = tempfile::tempdir().unwrap();
        model.write(folder.path());
        let logits = Reference::open(folder.path()).logits(&[1, 70, 80, 90, 100, 110, 120, 130]);
        assert_eq!(logits.len(), 8 * model.vocab_size, "{family:?}");
        let mean_square = logits.iter().map(|logit| logit * logit).sum::<f32>() / logits.len() as f32;
        // Neither all alike nor so far apart that one token has all the probability.
        assert!((0.1..10.0).contains(&mean_square), "{family:?}: mean square of the logits is {mean_square}");
    }
}

#[test]
fn a_window_changes_the_logits() {
    for family in Family::all() {
        let logits = |sliding_window| {
            let folder = tempfile::tempdir().unwrap();
            TinyModel { family, sliding_window, ..Default::default() }.write(folder.path());
            Reference::open(folder.path()).logits(&[1, 70, 80, 90])
        };
        let is_seen = logits(Some(2)) != logits(Some(100));
        assert_eq!(is_seen, family.facts().slides != Slides::Never, "{family:?}");
    }
}

#[test]
fn the_same_model_is_the_same_bytes() {
    let bytes = |seed| {
        let folder = tempfile::tempdir().unwrap();
        TinyModel { seed, ..Default::default() }.write(folder.path());
        ["config.json", "model.safetensors", "tokenizer.json"]
            .map(|file| std::fs::read(folder.path().join(file)).unwrap())
    };
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
}
