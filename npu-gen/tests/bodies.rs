//! Bodies of cores, compiled for this machine by MLIR and run, against their twins. Only with the feature `mlir`.

#![cfg(feature = "mlir")]

mod support;

use half::bf16;
use melior::pass::PassManager;
use melior::utility::parse_pass_pipeline;
use melior::{Context, ExecutionEngine};
use support::values;
use unicorn_kernels::npu::attention::{self, AttentionTile, BLOCK};
use unicorn_kernels::npu::tile::{CoreTile, Epilogue};
use unicorn_kernels::npu::twin;
use unicorn_npu::emit::{Module, attention_functions, body_function, context, generic};

/// From vectors to LLVM; no host has bf16.
const PASSES: &str = "builtin.module(func.func(arith-expand{include-bf16=true}),convert-vector-to-scf,convert-scf-to-cf,convert-vector-to-llvm,finalize-memref-to-llvm,convert-index-to-llvm,convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)";

/// A one-dimensional memref, as MLIR's C interface passes it.
#[repr(C)]
struct Memref {
    allocated: *mut (),
    aligned: *mut (),
    offset: i64,
    size: i64,
    stride: i64,
}

impl Memref {
    fn of<T>(values: &mut [T]) -> Memref {
        let (at, size) = (values.as_mut_ptr().cast(), values.len() as i64);
        Memref { allocated: at, aligned: at, offset: 0, size, stride: 1 }
    }
}

/// Functions as machine code of this host.
fn compiled(context: &Context, functions: &Module) -> ExecutionEngine {
    let mut module = generic(context, functions).unwrap();
    let passes = PassManager::new(context);
    parse_pass_pipeline(passes.as_operation_pass_manager(), PASSES).unwrap();
    passes.run(&mut module).unwrap();
    ExecutionEngine::new(&module, 2, &[], false)
}

/// Calls a function of memrefs.
///
/// # Safety
/// It has as many memrefs, of these sizes, each of which outlives the call, and reads and writes within them.
unsafe fn call<const N: usize>(engine: &ExecutionEngine, name: &str, mut memrefs: [Memref; N]) {
    let mut pointers: Vec<*mut ()> = memrefs.iter_mut().map(|one| (&raw mut *one).cast()).collect();
    let mut arguments: Vec<*mut ()> = pointers.iter_mut().map(|pointer| (&raw mut *pointer).cast()).collect();
    // SAFETY: the caller's.
    unsafe { engine.invoke_packed(name, &mut arguments) }.expect("the body runs");
}

#[test]
fn bodies_compute_what_their_twins_do() {
    for (rows, cols, depth) in [(16, 16, 32), (32, 48, 64), (16, 32, 96), (16, 16, 128), (8, 16, 32), (8, 96, 128)] {
        let core = CoreTile { rows, cols, depth, epilogue: Epilogue::Scale };
        let random =
            |n: usize, seed| values(n, seed).into_iter().map(|value| (value * 127.0) as i8 as u8).collect::<Vec<u8>>();
        let (mut activations, mut weights) = (random(core.activation_bytes(), 7), random(core.weight_bytes(), 11));
        let (mut expected, mut expected_scales) = (vec![0; core.sums()], vec![0; core.scales_bytes()]);
        twin::add_products(&core, &activations, &weights, &mut expected);
        twin::keep_scales(&core, &activations, &weights, &mut expected_scales);

        let context = context();
        let engine = compiled(&context, &body_function(&core));
        let (mut sums, mut scales) = (vec![-1; core.sums()], vec![0xff; core.scales_bytes()]);
        let arguments =
            [Memref::of(&mut activations), Memref::of(&mut weights), Memref::of(&mut sums), Memref::of(&mut scales)];
        // SAFETY: `body` has four memrefs of these sizes, each of which outlives the call, and reads and writes within them.
        unsafe { call(&engine, "body", arguments) };
        assert_eq!(sums, expected, "{core:?}");
        assert_eq!(scales, expected_scales, "{core:?}");
    }
}

/// Permits another order or one rounding less in sums of at most 256 products of values below 1.
const SUM_ERROR: f32 = 1e-4;

#[test]
fn bodies_of_attention_compute_what_their_twins_do() {
    for (rows, keys, depth) in [(8, 8, 8), (16, 24, 64), (32, 16, 256)] {
        let tile = AttentionTile { rows, keys, depth };
        let random = |bytes: usize, seed| -> Vec<u8> {
            values(bytes / 2, seed).into_iter().flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect()
        };
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
        };
        let near = |found: &[f32], expected: &[f32]| {
            let apart = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
            assert!(apart.fold(0.0, f32::max) <= SUM_ERROR, "{tile:?}: {found:?} for {expected:?}");
        };
        let (mut queries, mut key_bytes) = (random(tile.query_bytes(), 3), random(tile.key_bytes(), 5));
        let mut expected = vec![0; tile.score_bytes()];
        attention::scores(&tile, &queries, &key_bytes, &mut expected);
        let context = context();
        let engine = compiled(&context, &attention_functions(&tile));
        let mut found = vec![0xff; tile.score_bytes()];
        let arguments = [Memref::of(&mut queries), Memref::of(&mut key_bytes), Memref::of(&mut found)];
        // SAFETY: `scores` has three memrefs of these sizes, each of which outlives the call, and reads and writes within them.
        unsafe { call(&engine, "scores", arguments) };
        let (found_scores, limits) = found.split_at(tile.score_limits_at());
        near(&floats(found_scores), &floats(&expected[..tile.score_limits_at()]));
        assert_eq!(limits, &expected[tile.score_limits_at()..]);

        // Probabilities and factors are below 1.
        let mut probabilities = random(tile.corrections_at(), 7);
        let factors = values(tile.factor_bytes() / 2, 11);
        probabilities.extend(factors.iter().flat_map(|factor| factor.to_le_bytes()));
        let mut object = random(tile.key_bytes(), 13);
        let mut sums = values(tile.sums(), 17);
        let mut inverses = vec![f32::NAN; BLOCK * rows];
        let (mut expected_sums, mut expected_inverses) = (sums.clone(), inverses.clone());
        attention::add_values(&tile, &probabilities, &object, &mut expected_sums, &mut expected_inverses);
        let arguments =
            [Memref::of(&mut probabilities), Memref::of(&mut object), Memref::of(&mut sums), Memref::of(&mut inverses)];
        // SAFETY: as above, four of them.
        unsafe { call(&engine, "add_values", arguments) };
        near(&sums, &expected_sums);
        assert_eq!(inverses, expected_inverses);

        let mut output = vec![0u16; tile.output_values()];
        let mut expected = vec![0; 2 * tile.output_values()];
        attention::finish(&tile, &sums, &inverses, 0, &mut expected);
        let arguments = [Memref::of(&mut sums), Memref::of(&mut inverses), Memref::of(&mut output)];
        // SAFETY: as above, three of them.
        unsafe { call(&engine, "normalise", arguments) };
        let found: Vec<u8> = output.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        assert_eq!(found, expected, "{tile:?}");
    }
}
