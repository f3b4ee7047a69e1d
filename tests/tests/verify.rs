//! `verify`: an artifact's kernels, plan and weights are those that this compiler makes, whatever its hashes are.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tests::compiled::{Compiled, Silent, options, with};
use tests::programs::program;
use tests::tiny_model::{Family, TinyModel};
use unicorn_artifact::{
    ArtifactView, ArtifactWriter, Kernels, Meta, Module, ModuleRecord, ModuleSet, Plan, TokenizerSection,
};
use unicorn_compiler::import::ModelConfig;
use unicorn_compiler::{CompileError, ReplanOptions, Reproduced, Source, compile, replan, reproduce};
use unicorn_spirv::target;

/// A sound artifact of two targets, with the folder that it was compiled from.
fn sound() -> &'static Compiled {
    static SOUND: OnceLock<Compiled> = OnceLock::new();
    SOUND.get_or_init(|| {
        let targets = ["llvmpipe", "generic"].map(|name| target::by_name(name).unwrap());
        let model = TinyModel { family: Family::Gemma3, layers: 1, sliding_window: Some(32), ..Default::default() };
        let options = with(options(targets.into(), Vec::new()), |options| options.alternatives = true);
        Compiled::of(&model, &options)
    })
}

fn source() -> PathBuf {
    sound().artifact_path().with_file_name("model")
}

/// The parts of an artifact.
struct Parts {
    meta: Meta,
    plan: Plan,
    kernels: Kernels,
    tokenizer: TokenizerSection,
    weights: Vec<Vec<u8>>,
}

/// The sound artifact after `change`, with hashes that are right, and what `reproduce` reports.
fn changed(from: Option<&Path>, change: impl FnOnce(&mut Parts)) -> Result<Reproduced, CompileError> {
    let bytes = sound().artifact();
    let view = ArtifactView::parse(&bytes).unwrap();
    let weights = view.weights().iter().map(|section| section.bytes.to_vec()).collect();
    let ArtifactView { meta, plan, kernels, tokenizer, .. } = view;
    let mut parts = Parts { meta, plan, kernels, tokenizer, weights };
    change(&mut parts);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.unicorn");
    let mut writer = ArtifactWriter::create(&path, parts.weights.len()).unwrap();
    for section in &parts.weights {
        writer.begin_slice().unwrap();
        writer.weight_bytes(section).unwrap();
    }
    writer.finish(&parts.meta, &parts.plan, &parts.kernels, &parts.tokenizer).unwrap();
    ArtifactView::parse(&std::fs::read(&path).unwrap()).expect("its hashes are right");
    reproduce(&path, from, &mut Silent)
}

fn refusal(from: Option<&Path>, change: impl FnOnce(&mut Parts)) -> String {
    let refusal = changed(from, change).expect_err("the artifact was changed").to_string();
    let (_, what) = refusal.split_once("changed.unicorn: ").expect("the message leads with the artifact");
    what.to_owned()
}

/// Changes the last bit of a floating-point constant in the first target's kernels; returns its word.
fn alter_constant(kernels: &mut Kernels) -> usize {
    let target = &mut kernels.targets[0];
    let own = target.modules.frames[0].modules as usize;
    let words = target.modules.unpack_all().unwrap();
    let with_needs = |(words, record): (Vec<u32>, &ModuleRecord)| Module { words, needs: record.needs.clone() };
    let mut modules: Vec<Module> = words.into_iter().zip(&target.modules.records).map(with_needs).collect();
    let found = modules.iter().enumerate().find_map(|(module, one)| Some((module, constant(&one.words)?)));
    let (module, word) = found.expect("some kernel has such a constant");
    modules[module].words[word] ^= 1;
    let (own, others) = modules.split_at(own);
    target.modules = ModuleSet::pack([own, others]).unwrap();
    word
}

/// Index of the word with an `OpConstant`'s value, in a range that no length or index has.
fn constant(words: &[u32]) -> Option<usize> {
    const OP_CONSTANT: u32 = 43;
    const HEADER_WORDS: usize = 5;
    let mut at = HEADER_WORDS;
    while at < words.len() {
        if words[at] & 0xffff == OP_CONSTANT && (0x3000_0000..0x7000_0000).contains(&words[at + 3]) {
            return Some(at + 3);
        }
        at += (words[at] >> 16) as usize;
    }
    None
}

#[test]
fn what_the_compiler_made_is_reproduced() {
    let without = reproduce(&sound().artifact_path(), None, &mut Silent).unwrap();
    assert_eq!((without.targets.join(" ").as_str(), without.weights_bytes), ("llvmpipe generic", None));
    assert!(without.modules > 20 && !without.tokenizer, "{without}");
    let with = reproduce(&sound().artifact_path(), Some(&source()), &mut Silent).unwrap();
    assert!(with.weights_bytes.is_some_and(|bytes| bytes > 50_000) && with.tokenizer, "{with}");
    changed(Some(&source()), |_| {}).expect("nothing was changed");
}

#[test]
fn an_altered_kernel_is_named() {
    let mut word = 0;
    let what = refusal(None, |parts| word = alter_constant(&mut parts.kernels));
    assert!(what.starts_with(&format!("word {word} of the kernel `")), "{what}");
    assert!(what.contains(" of target llvmpipe is 0x") && what.contains(", expected 0x"), "{what}");
}

#[test]
fn altered_weights_are_named_if_the_model_is_given() {
    let alter = |parts: &mut Parts| {
        let weight = parts.plan.weights.last().unwrap();
        let at = (weight.offset_bytes + weight.len_bytes) as usize - 5;
        parts.weights[weight.slice as usize][at] ^= 0x10;
    };
    let bytes = sound().artifact();
    let name = ArtifactView::parse(&bytes).unwrap().plan.weights.last().unwrap().name.clone();
    let what = refusal(Some(&source()), alter);
    assert!(what.contains(&format!(" of weight {name} is ")) && what.contains(", expected "), "{what}");
    assert_eq!(changed(None, alter).expect("no model to compare with").weights_bytes, None);
}

#[test]
fn every_other_alteration_is_named_by_its_section() {
    let source = source();
    type Change = Box<dyn Fn(&mut Parts)>;
    let cases: [(Option<&Path>, Change, &str); 7] = [
        (None, Box::new(|parts| parts.meta.model.max_positions += 1), "metadata.model.max_positions is "),
        (None, Box::new(|parts| parts.plan.weights[0].reason.push('!')), "plan.weights[0].reason is "),
        (
            None,
            Box::new(|parts| parts.kernels.targets[1].programs[0].dispatches[0].label.push('!')),
            "target generic.programs[0].dispatches[0].label is ",
        ),
        (
            None,
            Box::new(|parts| parts.kernels.targets[0].matches.workgroup_invocations += 1),
            "target llvmpipe.matches.workgroup_invocations is ",
        ),
        (Some(&source), Box::new(|parts| parts.tokenizer.stop_ids.push(7)), "tokenizer.stop_ids has "),
        (
            Some(&source),
            Box::new(|parts| parts.meta.tensors[0].relative_error += 0.5),
            "metadata.tensors[0].relative_error is ",
        ),
        (
            Some(&source),
            Box::new(|parts| parts.meta.provenance.source_hash[0] ^= 1),
            "metadata.provenance.source_hash[0] is ",
        ),
    ];
    for (from, change, expected) in cases {
        let what = refusal(from, change);
        assert!(what.starts_with(expected), "{what}, expected {expected}");
    }
}

#[test]
fn an_artifact_of_another_model_is_refused() {
    let described = |change: &dyn Fn(&mut ModelConfig)| {
        refusal(None, |parts| {
            let config = &mut parts.meta.provenance.config;
            let mut model = ModelConfig::decode(config).unwrap();
            change(&mut model);
            *config = model.encode();
        })
    };
    let short = refusal(None, |parts| parts.meta.provenance.config.truncate(9));
    assert!(short.starts_with("description of the model: "), "{short}");
    let size = described(&|model| model.hidden_size = 0);
    assert_eq!(size, "description of the model: hidden size is 0, expected 1 to 1048576");
    assert!(described(&|model| model.layers[0].rope = Some(9)).contains("rotary embedding 9, expected one of "));
    let wider = described(&|model| model.intermediate_size = 160);
    assert!(wider.starts_with("plan.") && wider.contains(", expected "), "{wider}");
    let eps = described(&|model| model.rms_norm_eps = 0.5);
    assert!(eps.contains(" of the kernel `"), "{eps}");
    let format = refusal(None, |parts| parts.meta.provenance.options[3].1 = "int9".into());
    assert_eq!(format, "it was compiled with kv int9, which this version does not have");
}

/// Another model of the same shape, another shape, and no model.
#[test]
fn another_model_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let shape = TinyModel { family: Family::Gemma3, layers: 1, sliding_window: Some(32), ..Default::default() };
    TinyModel { seed: 2, ..shape.clone() }.write(folder.path().join("other"));
    let what = refusal(Some(&folder.path().join("other")), |_| {});
    assert!(what.contains(" of weight "), "{what}");
    TinyModel { hidden: 128, ..shape }.write(folder.path().join("wider"));
    let what = refusal(Some(&folder.path().join("wider")), |_| {});
    assert_eq!(what, "model.hidden_size is 64, expected 128");
}

/// A plan for another machine, fewer targets, and random weights.
#[test]
fn artifacts_with_other_options_are_reproduced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.unicorn");
    std::fs::copy(sound().artifact_path(), &path).unwrap();
    let mut other = ReplanOptions::default();
    other.budget = "vram=1MiB,gtt=2GiB".parse().unwrap();
    other.context_tokens = Some(64);
    replan(&path, &other, &mut Silent).unwrap();
    reproduce(&path, Some(&source()), &mut Silent).expect("a plan for another machine");

    let fewer = changed(None, |parts| drop(parts.kernels.targets.remove(0))).expect("one of its targets");
    assert_eq!(fewer.targets, ["generic"]);

    let config = source().join("config.json");
    let generic = options(vec![target::by_name("generic").unwrap()], Vec::new());
    compile(Source::Synthetic(&config), &path, &generic, &mut Silent).unwrap();
    assert!(reproduce(&path, None, &mut Silent).unwrap().weights_bytes.is_some());
    let refused = reproduce(&path, Some(&source()), &mut Silent).unwrap_err().to_string();
    assert!(
        refused.ends_with("weights of the artifact are random, expected no model to compare them with"),
        "{refused}"
    );
}

#[test]
fn the_command_prints_what_it_compared() {
    let verify = |arguments: &[&str]| {
        program("unicorn-compile").arg("verify").args(arguments).output().expect("the program runs")
    };
    let (artifact, model) = (sound().artifact_path(), source());
    let output = verify(&[artifact.to_str().unwrap(), "--from", model.to_str().unwrap()]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains(" modules of llvmpipe, generic: as this compiler makes them"), "{stdout}");

    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut.unicorn");
    let bytes = sound().artifact();
    std::fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let output = verify(&[cut.to_str().unwrap()]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && stderr.contains("cut.unicorn: "), "{stderr}");
}
