//! What `unicorn-run` refuses once it looks for a device or reads weights. Damaged weights and bad tokens need a device
//! to be loaded on: llvmpipe, or the one that `UNICORN_DEVICE` names.

use std::path::Path;
use std::process::Command;

use safetensors::tensor::{Dtype, TensorView};
use tests::programs::program;
use tests::skip;
use unicorn_artifact::header::SectionKind;
use unicorn_runtime::DeviceKind;

use crate::artifact_files::{changed_artifact, section_of};
use crate::refusal::assert_refused;

/// `unicorn-run logits` on any device that is there, software included.
fn logits(artifact: &Path, tokens: &Path) -> Command {
    let mut command = program("unicorn-run");
    command.arg("logits").arg(artifact).arg("--tokens").arg(tokens).arg("-o").arg(tokens.with_extension("logits"));
    command.args(["--device", &device_name()]);
    command
}

pub fn device_name() -> String {
    std::env::var("UNICORN_DEVICE").unwrap_or_else(|_| "llvmpipe".into())
}

fn write_tokens(path: &Path, tokens: &[i32]) {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::I32, vec![tokens.len()], &bytes).unwrap();
    safetensors::serialize_to_file([("tokens", view)], None, path).unwrap();
}

#[test]
fn a_flipped_bit_in_the_weights_is_found() {
    let (offset, len) = section_of(crate::artifact_files::sound_artifact(), SectionKind::Weights);
    for at in [offset, offset + len / 2, offset + len - 1] {
        let (folder, path) = changed_artifact(|artifact| artifact[at] ^= 4);
        let tokens = folder.path().join("tokens.safetensors");
        write_tokens(&tokens, &[1, 70]);
        assert_refused(&mut logits(&path, &tokens), folder.path(), &["model.unicorn", "damaged", "weights"]);
    }
}

#[test]
fn tokens_that_are_none() {
    let (folder, path) = changed_artifact(|_| ());
    let tokens = folder.path().join("tokens.safetensors");
    assert_refused(&mut logits(&path, &tokens), folder.path(), &["tokens.safetensors"]);
    std::fs::write(&tokens, "no safetensors").unwrap();
    assert_refused(&mut logits(&path, &tokens), folder.path(), &["tokens.safetensors"]);
    write_tokens(&tokens, &[]);
    assert_refused(&mut logits(&path, &tokens), folder.path(), &["token"]);
    write_tokens(&tokens, &[1, 320]);
    assert_refused(&mut logits(&path, &tokens), folder.path(), &["320"]);
    write_tokens(&tokens, &[1, -1]);
    assert_refused(&mut logits(&path, &tokens), folder.path(), &["-1"]);
    write_tokens(&tokens, &[1; 129]);
    assert_refused(&mut logits(&path, &tokens), folder.path(), &["128", "129"]);
}

#[test]
fn a_prompt_file_that_is_not_there() {
    let (folder, path) = changed_artifact(|_| ());
    let mut command = program("unicorn-run");
    command.arg(&path).args(["--device", &device_name(), "--file", "no-such-prompt.txt"]);
    assert_refused(&mut command, folder.path(), &["no-such-prompt.txt"]);
}

#[test]
fn no_vulkan_device_at_all() {
    let (folder, path) = changed_artifact(|_| ());
    let mut command = program("unicorn-run");
    command.arg(&path).args(["-p", "text"]);
    for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        command.env(variable, folder.path().join("no-driver.json"));
    }
    command.env_remove("VK_ADD_DRIVER_FILES");
    assert_refused(&mut command, folder.path(), &["Vulkan"]);
}

#[test]
fn a_device_that_is_not_there_is_named_beside_those_that_are() {
    let first = &unicorn_runtime::devices().expect("a Vulkan loader")[0];
    let (folder, path) = changed_artifact(|_| ());
    for wrong in ["no such device", "4711"] {
        let mut command = program("unicorn-run");
        command.arg(&path).args(["-p", "text", "--device", wrong]);
        assert_refused(&mut command, folder.path(), &[wrong, &first.name]);
    }
}

#[test]
fn a_software_device_is_not_taken_unasked() {
    let devices = unicorn_runtime::devices().expect("a Vulkan loader");
    if let Some(gpu) = devices.iter().find(|device| device.kind != DeviceKind::Cpu) {
        return skip("software device unasked", format_args!("{} is here", gpu.name));
    }
    let (folder, path) = changed_artifact(|_| ());
    let mut command = program("unicorn-run");
    command.arg(&path).args(["-p", "text"]);
    assert_refused(&mut command, folder.path(), &[&devices[0].name, "--device"]);
}

#[test]
fn a_target_that_the_artifact_has_not_is_named_beside_those_it_has() {
    let (folder, path) = changed_artifact(|_| ());
    let mut command = program("unicorn-run");
    command.arg(&path).args(["-p", "text", "--device", &device_name(), "--target", "rdna3"]);
    assert_refused(&mut command, folder.path(), &["rdna3", "generic", "llvmpipe"]);
}
