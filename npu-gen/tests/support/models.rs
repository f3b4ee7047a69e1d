//! The products of real models.

use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::Problem;
use unicorn_npu::attention::AttentionProblem;

/// Tokens of a prefill step.
pub const ROWS: usize = 512;

/// A model's sizes, as config.json has them.
pub struct Model {
    pub name: &'static str,
    pub hidden: usize,
    /// Outputs of q, k and v together.
    pub qkv: usize,
    /// Outputs of the attention's heads.
    pub heads: usize,
    /// Outputs of gate, as many as of up.
    pub ffn: usize,
    pub activation: Activation,
    /// Heads of keys and values, query heads that share one, and values of a head.
    pub attention: [usize; 3],
}

/// Keys of attention in prefill, at most.
pub const KEYS: usize = 4096;

const fn model(
    name: &'static str,
    [hidden, qkv, heads, ffn]: [usize; 4],
    attention: [usize; 3],
    activation: Activation,
) -> Model {
    Model { name, hidden, qkv, heads, ffn, activation, attention }
}

pub const MODELS: [Model; 6] = [
    model("Llama-3-8B", [4096, 6144, 4096, 14336], [8, 4, 128], Activation::Silu),
    model("Qwen3-8B", [4096, 6144, 4096, 12288], [8, 4, 128], Activation::Silu),
    model("Gemma-3-27B", [5376, 8192, 4096, 21504], [16, 2, 128], Activation::GeluTanh),
    model("Gemma-3-4B", [2560, 4096, 2048, 10240], [4, 2, 256], Activation::GeluTanh),
    model("Gemma-3-1B", [1152, 1536, 1024, 6912], [1, 4, 256], Activation::GeluTanh),
    model("SmolLM2-135M", [576, 960, 576, 1536], [3, 3, 64], Activation::Silu),
];

impl Model {
    /// Attention of a prefill step.
    pub fn attention(&self, columns: usize) -> AttentionProblem {
        let [heads, shared, depth] = self.attention;
        AttentionProblem { heads, rows: shared * ROWS, keys: KEYS, depth, columns }
    }

    /// The four products of a layer in prefill, with their names.
    pub fn products(&self, columns: usize) -> [(&'static str, Problem); 4] {
        self.products_of(ROWS, columns)
    }

    /// The same for any number of rows.
    pub fn products_of(&self, rows: usize, columns: usize) -> [(&'static str, Problem); 4] {
        let problem = |cols, depth, epilogue| Problem { rows, cols, depth, epilogue, columns };
        let gated = Epilogue::ActMul(self.activation);
        [
            ("q·k·v", problem(self.qkv, self.hidden, Epilogue::Scale)),
            ("output", problem(self.hidden, self.heads, Epilogue::Scale)),
            ("gate·up", problem(2 * self.ffn, self.hidden, gated)),
            ("down", problem(self.hidden, self.ffn, Epilogue::Scale)),
        ]
    }
}
