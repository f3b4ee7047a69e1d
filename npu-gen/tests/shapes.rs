//! The solver on the GEMMs of real models: each has a design that the device takes, and the large ones keep the matrix units busy.

use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::{Problem, solve};

/// hidden, q + k + v, heads' outputs, gate (as many as up), of config.json.
const MODELS: [(&str, [usize; 4]); 6] = [
    ("Llama-3-8B", [4096, 6144, 4096, 14336]),
    ("Qwen3-8B", [4096, 6144, 4096, 12288]),
    ("Gemma-3-27B", [5376, 8192, 4096, 21504]),
    ("Gemma-3-4B", [2560, 4096, 2048, 10240]),
    ("Gemma-3-1B", [1152, 1536, 1024, 6912]),
    ("SmolLM2-135M", [576, 960, 576, 1536]),
];

/// What the issue asks of the large ones.
const BUSY: f64 = 0.75;

#[test]
fn every_gemm_of_the_models_has_a_legal_design() {
    for (model, [hidden, qkv, heads, ffn]) in MODELS {
        let gated = Epilogue::ActMul(Activation::Silu);
        for (what, cols, depth, epilogue) in [
            ("qkv", qkv, hidden, Epilogue::Scale),
            ("output", hidden, heads, Epilogue::Scale),
            ("gate·up", 2 * ffn, hidden, gated),
            ("down", hidden, ffn, Epilogue::Scale),
        ] {
            for columns in 1..=4 {
                let problem = Problem { rows: 512, cols, depth, epilogue, columns };
                let solution = solve(&problem).unwrap_or_else(|| panic!("{model} {what}: no size fits"));
                let busy = solution.estimate.busy;
                assert!(busy <= 1.0, "{model} {what}: {solution}");
                if hidden >= 4096 && columns == 4 {
                    assert!(busy >= BUSY, "{model} {what}: {solution}");
                }
            }
        }
    }
}

#[test]
fn the_reasons_name_what_limits_a_design() {
    let problem = Problem { rows: 512, cols: 6144, depth: 4096, epilogue: Epilogue::Scale, columns: 4 };
    let text = solve(&problem).expect("some size fits").to_string();
    for part in ["fastest of", "exceed a core's memory", "limited by the", "of 65536 bytes", "slots busy"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}
