//! Bodies of cores, compiled for this machine by MLIR and run, against their twins. Only with the feature `mlir`.

#![cfg(feature = "mlir")]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;
use melior::pass::PassManager;
use melior::utility::parse_pass_pipeline;
use melior::{Context, ExecutionEngine};
use support::body_mutants::body_mutants;
use support::values;
use unicorn_kernels::npu::attention::{self, AttentionTile, BLOCK};
use unicorn_kernels::npu::tile::{CoreTile, Epilogue};
use unicorn_kernels::npu::twin;
use unicorn_npu::emit::legalised::not_legalised;
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
    try_compiled(context, functions, 2).expect("MLIR takes the functions")
}

/// The same, optimised to a level of LLVM's; `None`: MLIR refuses them.
fn try_compiled(context: &Context, functions: &Module, level: usize) -> Option<ExecutionEngine> {
    let mut module = generic(context, functions).ok()?;
    let passes = PassManager::new(context);
    parse_pass_pipeline(passes.as_operation_pass_manager(), PASSES).unwrap();
    passes.run(&mut module).ok()?;
    Some(ExecutionEngine::new(&module, level, &[], false))
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
        // As many groups as need a shift of several bits.
        let core = CoreTile { groups: 40, ..CoreTile::new(rows, cols, depth, Epilogue::Scale) };
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

/// A buffer with bytes on both sides that no body may write.
struct Guarded<T> {
    values: Vec<T>,
    guard: usize,
}

/// More than any single mistake goes beyond a buffer.
const GUARD_BYTES: usize = 1 << 16;

impl<T: Copy + PartialEq> Guarded<T> {
    fn of(inner: &[T], outer: T) -> Guarded<T> {
        let guard = GUARD_BYTES / size_of::<T>();
        let mut values = vec![outer; inner.len() + 2 * guard];
        values[guard..][..inner.len()].copy_from_slice(inner);
        Guarded { values, guard }
    }

    fn memref(&mut self) -> Memref {
        let end = self.values.len() - self.guard;
        Memref::of(&mut self.values[self.guard..end])
    }

    /// Whether it holds this, and both sides are as they were.
    fn is(&self, inner: &[T], outer: T) -> bool {
        self.values == Guarded::of(inner, outer).values
    }
}

/// Share of single mistakes in a body that must be caught.
const CAUGHT: f64 = 0.95;

/// Every mistake is refused by MLIR, computes something else than the twin, writes outside of the buffers, or is refused as an operation that is not
/// known for AIE2. Nibbles of weights in the other order give other sums, too.
#[test]
fn single_mistakes_in_a_body_are_caught() {
    // Several turns of each loop: what is multiplied by a turn of 0 is never seen.
    let core = CoreTile { groups: 40, ..CoreTile::new(32, 32, 64, Epilogue::Scale) };
    let random =
        |n: usize, seed| -> Vec<u8> { values(n, seed).into_iter().map(|value| (value * 127.0) as i8 as u8).collect() };
    let (activations, weights) = (random(core.activation_bytes(), 7), random(core.weight_bytes(), 11));
    let (mut sums, mut scales) = (vec![0; core.sums()], vec![0; core.scales_bytes()]);
    twin::add_products(&core, &activations, &weights, &mut sums);
    twin::keep_scales(&core, &activations, &weights, &mut scales);
    let is_right = |engine: &ExecutionEngine, weights: &[u8]| {
        let mut inputs = [&activations[..], weights].map(|bytes| Guarded::of(bytes, 0x55));
        let mut found = (Guarded::of(&vec![-1; core.sums()], -2), Guarded::of(&vec![0xff; core.scales_bytes()], 0xaa));
        let [first, second] = &mut inputs;
        let arguments = [first.memref(), second.memref(), found.0.memref(), found.1.memref()];
        // SAFETY: `body` has four memrefs of these sizes; a single mistake reads and writes less than a guard beyond them, and all outlive the call.
        unsafe { call(engine, "body", arguments) };
        found.0.is(&sums, -2) && found.1.is(&scales, 0xaa)
    };
    let context = context();
    let body = body_function(&core);
    let engine = compiled(&context, &body);
    assert!(is_right(&engine, &weights));
    let mut swapped = weights.clone();
    swapped[..core.multipliers_at()].iter_mut().for_each(|byte| *byte = byte.rotate_left(4));
    assert!(!is_right(&engine, &swapped), "the order of nibbles makes no difference");

    let mutants = body_mutants(&body);
    let next = AtomicUsize::new(0);
    let work = || {
        let context = unicorn_npu::emit::context();
        let survives = |module: &Module| match try_compiled(&context, module, 0) {
            None => false,
            Some(engine) => is_right(&engine, &weights) && not_legalised(module).is_empty(),
        };
        let mut survivors = Vec::new();
        while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            survivors.extend(survives(&mutant.module).then_some(&mutant.what[..]));
        }
        survivors
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let survivors: Vec<&str> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("every mistake is tried")).collect()
    });
    let caught = (mutants.len() - survivors.len()) as f64 / mutants.len() as f64;
    println!("{} of {} mistakes caught; survivors: {survivors:#?}", mutants.len() - survivors.len(), mutants.len());
    assert!(mutants.len() >= 290, "only {} mistakes were tried", mutants.len());
    assert!(caught >= CAUGHT, "{caught} of the mistakes are caught; survivors: {survivors:#?}");
    // One turn more of the loop that copies row scales: what it writes, the next loop overwrites.
    assert!(
        survivors.len() <= 1 && survivors.iter().all(|what| what.ends_with("4 : index becomes 5 : index")),
        "{survivors:#?}"
    );
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
