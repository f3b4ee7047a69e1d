//! Bodies of cores, compiled for this machine by MLIR and run, against their twins. Only with the feature `mlir`.

#![cfg(feature = "mlir")]

mod support;

use melior::ExecutionEngine;
use melior::pass::PassManager;
use melior::utility::parse_pass_pipeline;
use support::values;
use unicorn_kernels::npu::tile::{CoreTile, Epilogue};
use unicorn_kernels::npu::twin;
use unicorn_npu::emit::{body_function, context, generic};

/// From vectors to LLVM.
const PASSES: &str = "builtin.module(convert-vector-to-scf,convert-scf-to-cf,convert-vector-to-llvm,finalize-memref-to-llvm,convert-index-to-llvm,convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)";

/// A one-dimensional memref, as MLIR's C interface passes it.
#[repr(C)]
struct Memref<T> {
    allocated: *mut T,
    aligned: *mut T,
    offset: i64,
    size: i64,
    stride: i64,
}

impl<T> Memref<T> {
    fn of(values: &mut [T]) -> Memref<T> {
        let (at, size) = (values.as_mut_ptr(), values.len() as i64);
        Memref { allocated: at, aligned: at, offset: 0, size, stride: 1 }
    }
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
        let mut module = generic(&context, &body_function(&core)).unwrap();
        let passes = PassManager::new(&context);
        parse_pass_pipeline(passes.as_operation_pass_manager(), PASSES).unwrap();
        passes.run(&mut module).unwrap();
        let engine = ExecutionEngine::new(&module, 2, &[], false);
        let (mut sums, mut scales) = (vec![-1; core.sums()], vec![0xff; core.scales_bytes()]);
        let mut bytes = [Memref::of(&mut activations), Memref::of(&mut weights), Memref::of(&mut scales)];
        let mut words = Memref::of(&mut sums);
        let [a, w, s] = &mut bytes;
        let mut pointers: [*mut (); 4] =
            [(&raw mut *a).cast(), (&raw mut *w).cast(), (&raw mut words).cast(), (&raw mut *s).cast()];
        let mut arguments: Vec<*mut ()> = pointers.iter_mut().map(|pointer| (&raw mut *pointer).cast()).collect();
        // SAFETY: `body` has four memrefs of these sizes, each of which outlives the call, and reads and writes within them.
        unsafe { engine.invoke_packed("body", &mut arguments) }.expect("the body runs");
        assert_eq!(sums, expected, "{core:?}");
        assert_eq!(scales, expected_scales, "{core:?}");
    }
}
