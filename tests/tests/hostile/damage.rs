//! Random damage, in this process: whatever the bytes, parsing returns. `tests/fuzz` holds the same oracles for longer.

use std::path::Path;
use std::sync::OnceLock;

use proptest::prelude::*;
use tests::generators::{parts_of_artifact, smallest_config, smallest_gguf, smallest_safetensors};
use tests::oracles;

use crate::artifact_files::sound_artifact;

/// One byte set to another value, then perhaps a cut.
#[derive(Clone, Debug)]
struct Damage {
    at: prop::sample::Index,
    byte: u8,
    cut: Option<prop::sample::Index>,
}

impl Damage {
    fn any() -> impl Strategy<Value = Damage> {
        let cut = prop::option::weighted(0.25, any::<prop::sample::Index>());
        (any::<prop::sample::Index>(), any::<u8>(), cut).prop_map(|(at, byte, cut)| Damage { at, byte, cut })
    }

    fn apply(&self, bytes: &[u8]) -> Vec<u8> {
        let mut damaged = bytes.to_vec();
        damaged[self.at.index(bytes.len())] = self.byte;
        if let Some(cut) = self.cut {
            damaged.truncate(cut.index(bytes.len()));
        }
        damaged
    }
}

/// The sections of a sound artifact, to be assembled with right hashes after the damage.
fn parts() -> &'static [u8] {
    static PARTS: OnceLock<Vec<u8>> = OnceLock::new();
    PARTS.get_or_init(|| parts_of_artifact(sound_artifact()))
}

proptest! {
    #[test]
    fn artifacts(damage in Damage::any()) {
        drop(unicorn_artifact::ArtifactView::parse(&damage.apply(sound_artifact())));
    }

    #[test]
    fn sections_of_artifacts(damage in Damage::any()) {
        oracles::artifact(&damage.apply(parts()));
    }

    #[test]
    fn safetensors_files(damage in Damage::any()) {
        oracles::safetensors(&damage.apply(&smallest_safetensors()));
    }

    #[test]
    fn gguf_files(damage in Damage::any()) {
        oracles::gguf(&damage.apply(&smallest_gguf()));
    }

    #[test]
    fn configs(damage in Damage::any()) {
        oracles::config_json(&damage.apply(smallest_config().to_string().as_bytes()));
    }
}

#[test]
fn every_cut_of_a_gguf_file_is_an_error() {
    let whole = smallest_gguf();
    for len in 0..whole.len() {
        assert!(
            unicorn_compiler::import::parse_gguf(Path::new("cut.gguf"), &whole[..len]).is_err(),
            "cut to {len} bytes"
        );
    }
}

#[test]
fn every_cut_of_an_artifact_is_an_error() {
    let whole = sound_artifact();
    for len in (0..whole.len()).step_by(997).chain(0..1024) {
        assert!(unicorn_artifact::ArtifactView::parse(&whole[..len]).is_err(), "cut to {len} bytes");
    }
}
