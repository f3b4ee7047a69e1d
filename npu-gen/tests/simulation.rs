//! Designs run by the interpreter against the product from its definition, bit for bit.

mod support;

use support::{Case, small, small_gemv};
use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::device::ITERATION_MAX;
use unicorn_npu::interpret::{RunError, commands};
use unicorn_npu::lower::lower;
use unicorn_npu::{Problem, design::HostOp, gemm, legal, solve};

#[test]
fn designs_of_every_width_compute_the_product() {
    for columns in 1..=4 {
        for (depth, epilogue) in [
            (32, Epilogue::Scale),
            (64, Epilogue::ActMul(Activation::Silu)),
            (128, Epilogue::ActMul(Activation::GeluTanh)),
        ] {
            for shape in [small(columns, depth, epilogue), small_gemv(columns, depth, epilogue)] {
                let case = Case::of(shape);
                let design = gemm::design(&case.shape);
                let lowered = lower(&design);
                legal::check(&design, &lowered).unwrap_or_else(|faults| panic!("{shape:?}: {faults:?}"));
                let equal = case.run(&design, &lowered, &commands(&design, &lowered));
                assert_eq!(equal, Ok(true), "{shape:?}");
            }
        }
    }
}

/// SmolLM2-135M's gate and up, and its q, k and v, with the tiles that the solver finds.
#[test]
fn solved_designs_of_a_model_compute_the_product() {
    for (cols, depth, epilogue) in [(960, 576, Epilogue::Scale), (3072, 576, Epilogue::ActMul(Activation::Silu))] {
        let solution = solve(&Problem { rows: 64, cols, depth, epilogue, columns: 4 }).expect("some size fits");
        let case = Case::of(solution.estimate.shape);
        let commands = commands(&solution.design, &solution.lowered);
        assert_eq!(case.run(&solution.design, &solution.lowered, &commands), Ok(true), "{solution}");
    }
}

/// Few rows, of any number: GEMVs, whose cores read weights by streams of their own. More column tiles than a descriptor counts.
#[test]
fn few_rows_are_a_gemv_that_computes_the_product() {
    for rows in 1..=8 {
        let problem = Problem { rows, cols: 960 + 7 * rows, depth: 100 * rows, epilogue: Epilogue::Scale, columns: 4 };
        let solution = solve(&problem).expect("some size fits");
        assert!(solution.estimate.shape.is_gemv() && solution.design.cores.len() == 7, "{solution}");
        let case = Case::of(solution.estimate.shape);
        let commands = commands(&solution.design, &solution.lowered);
        assert_eq!(case.run(&solution.design, &solution.lowered, &commands), Ok(true), "{solution}");
    }
    let mut shape = small_gemv(2, 32, Epilogue::Scale);
    shape.cols *= 43;
    assert_eq!(shape.col_tiles(), 129);
    let (case, design) = (Case::of(shape), gemm::design(&shape));
    let lowered = lower(&design);
    legal::check(&design, &lowered).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(case.run(&design, &lowered, &commands(&design, &lowered)), Ok(true));
    // Nine rows are a GEMM.
    let problem = Problem { rows: 9, cols: 960, depth: 64, epilogue: Epilogue::Scale, columns: 4 };
    assert!(!solve(&problem).unwrap().estimate.shape.is_gemv());
}

/// The host fetches the column tiles of a row tile in groups: here the last one is a group of its own.
#[test]
fn a_gemm_of_more_column_tiles_than_a_descriptor_counts_computes_the_product() {
    let mut shape = small(1, 32, Epilogue::Scale);
    shape.cols = (ITERATION_MAX + 1) * shape.tile_cols();
    let comparison = Case::of(shape).compared().unwrap_or_else(|fault| panic!("{shape:?}: {fault}"));
    assert_eq!((comparison.beyond, comparison.values), (0, shape.rows * shape.cols), "{comparison:?}");
}

#[test]
fn a_host_that_fetches_or_sends_too_little_is_detected() {
    let case = Case::of(small(2, 32, Epilogue::Scale));
    let design = gemm::design(&case.shape);
    let lowered = lower(&design);
    let without = |is_left_out: &dyn Fn(&HostOp) -> bool| {
        let mut design = design.clone();
        let first = design.host.iter().position(is_left_out).expect("there is one");
        design.host.remove(first);
        case.run(&design, &lowered, &commands(&design, &lowered))
    };
    let of = |argument: usize| move |op: &HostOp| matches!(op, HostOp::Start(one) if one.argument == argument);
    assert!(matches!(without(&of(gemm::ACTIVATIONS)), Err(RunError::Deadlock { .. })));
    assert!(matches!(without(&of(gemm::WEIGHTS)), Err(RunError::Deadlock { .. })));
    assert!(matches!(without(&of(gemm::OUTPUTS)), Err(RunError::Deadlock { .. })));
    assert!(matches!(without(&|op| matches!(op, HostOp::Wait(_))), Err(RunError::LeftOver { .. })));
}
