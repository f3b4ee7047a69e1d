//! A dispatch whose wait for the one before it times out: it stops waiting, the sampler reports it, and the step runs again with
//! barriers. The tests of each kernel check that dispatches with counter synchronisation give the same results.

use unicorn_kernels::elementwise::{ElementwiseOp, ElementwiseSpec};
use unicorn_kernels::matmul::{MatMulSpec, MatMulTile};
use unicorn_kernels::sample::SampleSpec;

use super::*;

#[test]
fn a_step_that_stalls_is_run_again_with_barriers_and_never_stalls_with_them() {
    let mut rng = StdRng::seed_from_u64(31);
    let target = integer_targets().pop().expect("a target with subgroups");
    let (cols, vocab) = (64, 256);
    let layout = WeightLayout { format: WeightFormat::Int8, rows: vocab, cols };
    let weights = packed(&mut rng, &layout);
    let input = ActivationFormat::Quantized(Precision::Int8);
    let plain = plain_matmul(&target, layout);
    let tile = MatMulTile { group_tiles: 4, early: true, ..plain.tile };
    let matmul = MatMulSpec { input, tile, counter_sync: true, ..plain };
    let copy = ElementwiseSpec {
        op: ElementwiseOp::Add,
        width: vocab,
        input_stride: 0,
        output_stride: vocab,
        rows_per_token: 1,
    };
    let sample = SampleSpec {
        vocab,
        logits_stride: vocab,
        workgroup: 64,
        subgroup_size: target.subgroup_size,
        keeps_rope_word: false,
        counter_sync: true,
    };
    let logits = Operand::Out { id: 0, words: vocab };
    let zeros = Operand::floats(&vec![0.0; vocab]);
    // The sum has a counter, and never increments it.
    let sum = vec![Operand::Step, zeros.clone(), logits.clone(), zeros, Operand::SyncCounters];
    let mut launch = launch(&target, KernelSpec::Elementwise(copy), sum, 1);
    let words = stored_rows(&mut rng, input, [1, cols, cols]);
    let operands = vec![
        Operand::Step,
        Operand::Bytes(weights.clone()),
        logits.clone(),
        Operand::words(&words),
        Operand::SyncCounters,
    ];
    launch.steps.push((KernelSpec::MatMul(matmul), operands));
    let operands = vec![Operand::Step, logits, Operand::Samples, Operand::Step, Operand::SyncCounterSlots];
    launch.steps.push((KernelSpec::Sample(sample), operands));
    let x = decode_row(input, &words, cols);
    let mut decoded = vec![0f32; cols];
    let mut products: Vec<f32> = Vec::new();
    for row in 0..vocab {
        layout.decode_row(&weights, row, &mut decoded);
        products.push(decoded.iter().zip(&x).map(|(w, x)| w * x).sum());
    }
    let largest = products.iter().copied().fold(f32::MIN, f32::max);
    for barriers in [false, true] {
        let (sampled, recoveries) = launch.sample_and_recover(vocab, barriers);
        assert_eq!(products[sampled.token as usize], largest);
        let stalls = recoveries.iter().filter(|one| one.cause.contains("waiting for the dispatch before")).count();
        assert_eq!((recoveries.len(), stalls), if barriers { (0, 0) } else { (1, 1) }, "{recoveries:?}");
        assert!(recoveries.iter().all(|one| one.barriers), "{recoveries:?}");
    }
}
