//! The solver on the GEMMs of real models and on sizes that fit badly: each has a design that the device takes, and the large ones keep the
//! matrix units busy.

mod support;

use support::models::MODELS;
use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::rule::Rule;
use unicorn_npu::{Problem, solve};

/// Share of the matrix units' slots that the large models keep busy at least.
const BUSY: f64 = 0.75;

#[test]
fn every_gemm_of_the_models_has_a_legal_design() {
    for model in MODELS {
        for columns in 1..=4 {
            for (what, problem) in model.products(columns) {
                let solution = solve(&problem).unwrap_or_else(|| panic!("{} {what}: no size fits", model.name));
                let busy = solution.estimate.busy;
                assert!(busy <= 1.0, "{} {what}: {solution}", model.name);
                if model.hidden >= 4096 && columns == 4 {
                    assert!(busy >= BUSY, "{} {what}: {solution}", model.name);
                }
            }
        }
    }
}

#[test]
fn sizes_that_fit_badly_have_a_legal_design() {
    let silu = Epilogue::ActMul(Activation::Silu);
    for (rows, cols, depth, epilogue) in [
        (1, 1, 1, Epilogue::Scale),
        (1, 2, 1, silu),
        (7, 100, 60, Epilogue::Scale),
        (129, 1000, 1021, Epilogue::Scale),
        (300, 2 * 11008, 4096, silu),
        (512, 4096, 11008, Epilogue::Scale),
        (2048, 151_936, 896, Epilogue::Scale),
        (4096, 2 * 53248, 16384, silu),
        (64, 16384, 53248, Epilogue::Scale),
        (33, 96, 100_003, Epilogue::Scale),
    ] {
        for columns in 1..=4 {
            let problem = Problem { rows, cols, depth, epilogue, columns };
            assert!(solve(&problem).is_some(), "{problem:?}: no size fits");
        }
    }
}

/// A core's memory in a GEMM; in a GEMV, the stream of weights, which no size relieves.
#[test]
fn the_reasons_name_what_limits_a_design() {
    let gemm = Problem { rows: 512, cols: 6144, depth: 4096, epilogue: Epilogue::Scale, columns: 4 };
    for (rows, decided) in [(512, Some(Rule::Memory)), (8, None)] {
        let solution = solve(&Problem { rows, ..gemm }).expect("some size fits");
        let text = solution.to_string();
        for part in
            ["fastest of", "exceed a core's memory", "decided by ", "limited by the", "of 65536 bytes", "slots busy"]
        {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert_eq!(solution.excluded.decided(), decided, "{text}");
        if let Some(next) = decided.and_then(|rule| solution.excluded.next_of(rule)) {
            assert!(next.cycles <= solution.estimate.cycles, "{text}");
        }
    }
}
