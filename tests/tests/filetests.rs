//! Text forms and words against the committed ones (`tests/filetests`), and every module of a compile against spirv-val.

use std::io::Write;
use std::process::Command;

use artifacts::ArtifactView;
use shaders_gen::target;
use tests::compiled::{Compiled, options};
use tests::filetest::{Mode, run};
use tests::tiny_model::{Family, TinyModel};

#[test]
fn filetests() {
    let mode = if std::env::var_os("BLESS").is_some() { Mode::Bless } else { Mode::Compare };
    let outcome = run("", mode);
    assert!(outcome.files >= 20, "only {} filetests were found", outcome.files);
    assert!(outcome.failures.is_empty(), "{}", outcome.failures.join("\n"));
}

/// Gemma 3 has every kind of step (norms after blocks, head norms, windows, two ropes), Qwen 2 biases, Gemma 2 soft caps.
#[test]
fn every_module_is_valid_for_vulkan_1_2() {
    for family in
        [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3, Family::Gemma2, Family::Gemma3, Family::Phi3]
    {
        let model = TinyModel { family, layers: 2, sliding_window: Some(64), ..Default::default() };
        let artifact = Compiled::of(&model, &options(target::presets(), Vec::new())).artifact();
        let view = ArtifactView::parse(&artifact).unwrap();
        assert_eq!(view.kernels.targets.len(), 4);
        for (index, module) in view.kernels.modules.iter().enumerate() {
            let used_by = || {
                let targets = view.kernels.targets.iter();
                let pipelines = targets.flat_map(|target| target.pipelines.iter().map(|one| (&target.name, one)));
                let names = pipelines.filter(|(_, one)| one.module as usize == index);
                names.map(|(target, one)| format!("{} for {target}", one.name)).collect::<Vec<_>>().join(", ")
            };
            validate(module).unwrap_or_else(|error| panic!("{family:?}, {}: {error}", used_by()));
        }
    }
}

fn validate(words: &[u32]) -> Result<(), String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all(&bytes).unwrap();
    let output = Command::new("spirv-val").args(["--target-env", "vulkan1.2"]).arg(file.path()).output();
    let output = output.unwrap_or_else(|error| panic!("spirv-val does not start ({error}): install spirv-tools"));
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
