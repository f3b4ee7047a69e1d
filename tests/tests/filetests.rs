//! Text forms and words against the committed ones (`tests/filetests`), and every module of a compile against spirv-val.

use std::collections::HashSet;
use std::io::Write;
use std::process::Command;

use rspirv::spirv::Capability;
use tests::compiled::{Compiled, options};
use tests::filetest::{Mode, run};
use tests::skip;
use tests::tiny_model::{Family, TinyModel};
use unicorn_artifact::ArtifactView;
use unicorn_compiler::alternatives::alternatives;
use unicorn_kernels::Number;
use unicorn_kernels::delta_chunks::DeltaChunksSpec;
use unicorn_kernels::delta_rule::DeltaRuleSpec;
use unicorn_kernels::flash::FlashSpec;
use unicorn_kernels::fragments::FragmentsSpec;
use unicorn_kernels::gemm::{GemmSpec, Product};
use unicorn_kernels::register_gemm::RegisterGemmSpec;
use unicorn_kernels::split::StepRows;
use unicorn_kernels::{
    Activation, ActivationFormat, CacheLayout, KernelSpec, KvFormat, Precision, StateLayout, WeightFormat, WeightLayout,
};
use unicorn_spirv::target::{self, GemmTuning};

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
    // Families and targets have many modules in common.
    let mut valid = HashSet::new();
    for family in Family::all() {
        let model = TinyModel { family, layers: 2, sliding_window: Some(64), ..Default::default() };
        let targets = if family == Family::Gemma3 { target::presets() } else { target::defaults() };
        let count = targets.len();
        let artifact = Compiled::of(&model, &options(targets, Vec::new())).artifact();
        let view = ArtifactView::parse(&artifact).unwrap();
        assert_eq!(view.kernels.targets.len(), count);
        let modules = view.kernels.targets.iter().flat_map(|target| {
            let modules = target.modules.unpack_all().unwrap();
            modules.into_iter().zip(0u32..).map(move |(module, number)| (target, number, module))
        });
        for (target, number, module) in modules {
            let used_by = || {
                let pipelines = target.pipelines.iter().filter(|one| one.module == number);
                let names = pipelines.map(|one| format!("{} for {}", one.name, target.name));
                names.collect::<Vec<_>>().join(", ")
            };
            let module = &module[..];
            if valid.contains(module) {
                continue;
            }
            if uses_matrices(module) && !validates_matrices() {
                skip("matrix validation", format_args!("{family:?}, {}", used_by()));
            } else {
                validate(module).unwrap_or_else(|error| panic!("{family:?}, {}: {error}", used_by()));
            }
            valid.insert(module.to_vec());
        }
    }
}

#[test]
fn every_gemm_module_is_valid_for_vulkan_1_2() {
    if !validates_matrices() {
        return skip("matrix validation", "GEMM modules");
    }
    let formats = [WeightFormat::Int4 { group: 64 }, WeightFormat::Int8, WeightFormat::F16];
    for target in target::presets() {
        let tiles = target.matrix.iter().flat_map(|tuning| tuning.gemm_tiles());
        for (tile, format) in tiles.flat_map(|tile| formats.map(|format| (tile, format))) {
            let spec = GemmSpec { product: product(format), tile, subgroup_size: target.subgroup_size };
            let binary = unicorn_spirv::emit(&KernelSpec::Gemm(spec.clone()), &target).unwrap();
            assert!(uses_matrices(&binary.words));
            validate(&binary.words).unwrap_or_else(|error| panic!("{spec:?} for {}: {error}", target.name));
        }
    }
}

#[test]
fn every_fragments_module_is_valid_for_vulkan_1_2() {
    if !validates_matrices() {
        return skip("matrix validation", "modules of fragments");
    }
    let with_lanes = target::presets().into_iter().filter_map(|target| Some((target.fragments()?, target)));
    for (fragment, target) in with_lanes {
        let binary = unicorn_spirv::emit(&KernelSpec::Fragments(FragmentsSpec { fragment }), &target).unwrap();
        validate(&binary.words).unwrap_or_else(|error| panic!("{fragment:?} for {}: {error}", target.name));
    }
}

#[test]
fn every_register_gemm_module_is_valid_for_vulkan_1_2() {
    if !validates_matrices() {
        return skip("matrix validation", "register GEMM modules");
    }
    for target in target::presets() {
        let Some(GemmTuning::Registers(tuning)) = target.matrix.map(|matrix| matrix.gemm) else { continue };
        let formats = [WeightFormat::Int4 { group: 64 }, WeightFormat::Int8, WeightFormat::F16];
        for (one, format) in tuning.tiles.iter().flat_map(|one| formats.map(|format| (one, format))) {
            for (splits, lanes_hold_fragments) in [(1, true), (2, true), (2, false)] {
                let spec = RegisterGemmSpec {
                    product: product(format),
                    halves_out: splits > 1,
                    tile: one.tile,
                    rows: 64,
                    splits,
                    subgroup_size: target.subgroup_size,
                    lanes_hold_fragments,
                };
                let spec = KernelSpec::RegisterGemm(spec);
                for spec in alternatives(&spec, &target).into_iter().chain([spec]) {
                    let binary = unicorn_spirv::emit(&spec, &target).unwrap();
                    assert!(uses_matrices(&binary.words));
                    validate(&binary.words).unwrap_or_else(|error| panic!("{spec:?} for {}: {error}", target.name));
                }
            }
        }
    }
}

fn product(format: WeightFormat) -> Product {
    Product {
        layout: WeightLayout { format, rows: 256, cols: 256 },
        input: Precision::Int11,
        input_stride: 256,
        output_stride: 128,
        output_first: 0,
        bias: true,
        rows_per_token: 1,
        act_mul: Some(Activation::GeluTanh),
        experts: None,
    }
}

#[test]
fn every_flash_module_is_valid_for_vulkan_1_2() {
    if !validates_matrices() {
        return skip("matrix validation", "flash modules");
    }
    for target in target::presets() {
        let Some(tile) = target.matrix.map(|tuning| tuning.flash) else { continue };
        let formats = [
            ActivationFormat::Halves(Precision::Int8),
            ActivationFormat::F32,
            ActivationFormat::RowScaled(Precision::Int8),
        ];
        for ((head_dim, window), output) in [(64, None), (80, Some(100)), (256, None)].into_iter().zip(formats) {
            let spec = FlashSpec {
                gqa: 4,
                cache: CacheLayout {
                    format: KvFormat::F16,
                    n_kv_heads: 2,
                    head_dim,
                    page_tokens: 32,
                    latent_value: None,
                },
                kv_group: 0,
                window,
                heads_per_group: 4,
                input_stride: 8 * head_dim,
                output_stride: 8 * head_dim,
                output,
                softcap: window.map(|_| Number::new(50.0)),
                sinks: window.is_some(),
                image_rows: if window.is_some() { 16 } else { 0 },
                patches: None,
                rows: StepRows::All,
                tile,
                subgroup_size: target.subgroup_size,
            };
            let binary = unicorn_spirv::emit(&KernelSpec::Flash(spec.clone()), &target).unwrap();
            assert!(uses_matrices(&binary.words));
            validate(&binary.words).unwrap_or_else(|error| panic!("{spec:?} for {}: {error}", target.name));
        }
    }
}

#[test]
fn every_delta_chunks_module_is_valid_for_vulkan_1_2() {
    if !validates_matrices() {
        return skip("matrix validation", "modules of delta chunks");
    }
    let mut n_valid = 0;
    for target in target::presets() {
        let Some(fragment) = target.matrix.map(|tuning| tuning.fragment) else { continue };
        let rule = DeltaRuleSpec {
            state: StateLayout { heads: 4, key_dim: 128, value_dim: 128, channels: 1024, taps: 4 },
            key_heads: 2,
            kv_group: 0,
            input_stride: 1024,
            gate_stride: 32,
            decay_first: 0,
            strength_first: 0,
            output_stride: 512,
            rows_are_alone: false,
            counter_sync: false,
        };
        let spec = DeltaChunksSpec { rule, fragment, subgroup_size: target.subgroup_size };
        if spec.shared_bytes() <= target.shared_memory_bytes {
            let binary = unicorn_spirv::emit(&KernelSpec::DeltaChunks(spec.clone()), &target).unwrap();
            assert!(uses_matrices(&binary.words));
            validate(&binary.words).unwrap_or_else(|error| panic!("{spec:?} for {}: {error}", target.name));
            n_valid += 1;
        }
    }
    assert!(n_valid > 0, "no target has the workgroup memory");
}

fn uses_matrices(words: &[u32]) -> bool {
    let module = rspirv::dr::load_words(words).unwrap();
    unicorn_spirv::check::capabilities(&module).contains(&Capability::CooperativeMatrixKHR)
}

/// Whether spirv-val has SPV_KHR_cooperative_matrix; Debian 12's does not.
fn validates_matrices() -> bool {
    let output = Command::new("spirv-val").arg("--version").output();
    let output = output.unwrap_or_else(|error| panic!("spirv-val does not start ({error}): install spirv-tools"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.strip_prefix("SPIRV-Tools v").and_then(|rest| rest.split([' ', '~']).next());
    let (year, release) = version.and_then(|version| version.split_once('.')).expect("spirv-val names its version");
    (year.parse::<u32>().unwrap_or(0), release.parse::<u32>().unwrap_or(0)) >= (2023, 4)
}

fn validate(words: &[u32]) -> Result<(), String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all(&bytes).unwrap();
    let output = Command::new("spirv-val").args(["--target-env", "vulkan1.2"]).arg(file.path()).output();
    let output = output.unwrap_or_else(|error| panic!("spirv-val does not start ({error}): install spirv-tools"));
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
