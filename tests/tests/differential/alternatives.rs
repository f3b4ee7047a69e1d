//! Alternatives of the kernels that a model is compiled to, against its twin: other lanes, tiles and splits, one result. One of three of
//! each kernel, or all.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tests::compiled::{Silent, options, with};
use tests::launch::{CONTEXT, device, device_matrices, without_what_the_device_lacks};
use tests::models::everything;
use tests::tiny_model::{Family, TinyModel};
use unicorn_compiler::alternatives::alternatives;
use unicorn_compiler::{Source, plan};
use unicorn_kernels::KernelSpec;
use unicorn_kernels::attention::{AttentionSpec, TILE};
use unicorn_kernels::flash::FlashSpec;
use unicorn_kernels::heads::HeadsSpec;
use unicorn_kernels::split::{Split, StepRows};
use unicorn_spirv::target::MatrixTuning;
use unicorn_spirv::{Target, target};

use crate::attention::Case;
use crate::gemm::{check_dot_gemm, check_float_gemm, check_gemm};
use crate::{check_matmul, check_norm};

#[test]
fn of_rdna3() {
    check_all("rdna3");
}

#[test]
fn of_generic() {
    check_all("generic");
}

/// The target's kernels, made for the subgroups and matrices of the device at hand.
fn check_all(name: &str) {
    let mut target = target::by_name(name).expect("a preset");
    let own_lanes = target.subgroup_size == device().subgroup_size;
    if target.subgroup_size > 0 {
        target = target.for_any_device(device().subgroup_size);
    }
    without_what_the_device_lacks(&mut target);
    target.matrix = target.matrix.and_then(|own| matrices(own, own_lanes));
    let specs = specs(&target);
    let mut found: Vec<(&str, KernelSpec)> = Vec::new();
    let mut rng = StdRng::seed_from_u64(20);
    let every = if everything() { 1 } else { 3 };
    for spec in &specs {
        for other in alternatives(spec, &target) {
            if found.iter().all(|(_, one)| *one != other) {
                if found.iter().filter(|(name, _)| *name == spec.name()).count() % every == 0 {
                    check(&target, &specs, &other, &mut rng);
                }
                found.push((spec.name(), other));
            }
        }
    }
    let gemm = target.matrix.map(|_| "gemm");
    for family in ["norm", "matmul", "attention"].into_iter().chain(gemm) {
        assert!(found.iter().any(|(name, _)| *name == family), "{name}: no alternative of a {family}");
    }
}

/// The target's own tiles, where the device is like it.
fn matrices(own: MatrixTuning, own_lanes: bool) -> Option<MatrixTuning> {
    let small = device_matrices()?;
    Some(if own_lanes && own.fragment == small.fragment { own } else { small })
}

/// Kernels of a model with as many heads and columns as it takes for alternatives of all families.
fn specs(target: &Target) -> Vec<KernelSpec> {
    let model = TinyModel {
        family: Family::Qwen3,
        hidden: 512,
        intermediate: 1024,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 64,
        max_position_embeddings: CONTEXT as usize,
        ..Default::default()
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    model.write(folder.path());
    let options = with(options(vec![target.clone()], vec![]), |options| options.alternatives = true);
    let planned = plan(Source::Synthetic(&folder.path().join("config.json")), &options, &mut Silent);
    let selected = planned.expect("the model is planned").selection.targets.pop().expect("one target");
    selected.kernels.into_iter().map(|kernel| kernel.spec).collect()
}

fn check(target: &Target, specs: &[KernelSpec], other: &KernelSpec, rng: &mut StdRng) {
    match other {
        KernelSpec::MatMul(spec) => {
            let columns = spec.tile.tokens_per_lane;
            check_matmul(target, spec, rng.random_range(1..columns + 1), columns, rng);
        }
        KernelSpec::DotGemm(spec) => check_dot_gemm(target, spec, rng.random_range(64..150), rng),
        KernelSpec::FloatGemm(spec) => check_float_gemm(target, spec, rng.random_range(64..150), rng),
        KernelSpec::Gemm(spec) => check_gemm(target, spec, rng.random_range(1..150), rng),
        KernelSpec::Norm(spec) => check_norm(target, spec, rng.random_range(1..6), rng),
        KernelSpec::Attention(spec) => check_attention(target, specs, spec, rng),
        KernelSpec::Flash(spec) => {
            let rows = rng.random_range(9..150);
            let attention = attention_of(spec);
            let case = case(specs, attention);
            Case { flash: Some(spec.tile), n_before: 100, n_rows: rows, rows, ..case }.check(target, rng);
        }
        KernelSpec::Combine(spec) => {
            let matches = |one: &&AttentionSpec| one.split.max_splits == spec.max_splits && one.output == spec.output;
            let attentions = specs.iter().filter_map(|spec| match spec {
                KernelSpec::Attention(spec) => Some(spec),
                _ => None,
            });
            let attention = attentions.into_iter().find(matches).expect("a combine puts an attention together");
            let case = case(specs, attention.clone());
            Case { combine_lanes: spec.lanes, n_before: 600, ..case }.check(target, rng);
        }
        other => panic!("{other:?} has no alternatives"),
    }
}

fn check_attention(target: &Target, specs: &[KernelSpec], spec: &AttentionSpec, rng: &mut StdRng) {
    let rows = if spec.prologue.is_some() { 1 } else { 8 };
    // So few tokens that splits are left over, and many.
    for n_before in [rng.random_range(1..60), rng.random_range(500..900)] {
        Case { n_before, n_rows: rows, rows, ..case(specs, spec.clone()) }.check(target, rng);
    }
}

/// A launch of one row, behind the heads that go with it.
fn case(specs: &[KernelSpec], attention: AttentionSpec) -> Case {
    let heads =
        attention.prologue.clone().or_else(|| specs.iter().find_map(heads)).expect("q, k and v come from heads");
    Case { attention, flash: None, decode: None, heads, combine_lanes: 128, n_before: 0, n_rows: 1, rows: 1 }
}

fn heads(spec: &KernelSpec) -> Option<HeadsSpec> {
    match spec {
        KernelSpec::Heads(heads) if heads.is_qkv() => Some(heads.clone()),
        _ => None,
    }
}

/// The same attention without matrices.
fn attention_of(flash: &FlashSpec) -> AttentionSpec {
    AttentionSpec {
        gqa: flash.gqa,
        cache: flash.cache,
        kv_group: flash.kv_group,
        split: Split {
            rows_per_group: 1,
            rows: StepRows::All,
            tile: TILE,
            window: flash.window,
            first_token: 0,
            splits: 1,
            max_splits: 1,
            newest_apart: false,
        },
        heads_per_group: flash.heads_per_group,
        words_ahead: 1,
        input_stride: flash.input_stride,
        prologue: None,
        softcap: flash.softcap,
        sinks: flash.sinks,
        image_rows: flash.image_rows,
        output_stride: flash.output_stride,
        output: flash.output,
        subgroup_size: flash.subgroup_size,
    }
}
