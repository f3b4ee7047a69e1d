//! The placement plan: where every byte lives, how large it is, and why. Only the compiler's `place` writes addresses;
//! the runtime follows them.

use serde::{Deserialize, Serialize};

/// Every activation, weight and buffer begins on a multiple of this; no device asks for more than 256 bytes.
pub const BUFFER_ALIGN: u64 = 256;
/// Largest range that one shader binding may see: Vulkan's guaranteed minimum of maxStorageBufferRange.
pub const MAX_BINDING_BYTES: u64 = 128 << 20;

/// A kind of memory, fastest to reach first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Memory of the NPU.
    Npu,
    /// Device-local memory of the GPU (an APU's carve-out).
    Vram,
    /// Host memory that the GPU reads in place.
    Gtt,
    /// Host memory that only the CPU touches.
    Host,
}

impl Tier {
    pub fn name(self) -> &'static str {
        match self {
            Tier::Npu => "npu",
            Tier::Vram => "vram",
            Tier::Gtt => "gtt",
            Tier::Host => "host",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What the plan was made for.
    pub machine: MachinePlan,
    /// One a weight section, in the order of their index.
    pub slices: Vec<SlicePlan>,
    pub weights: Vec<WeightPlan>,
    pub kv_groups: Vec<KvGroupPlan>,
    /// Activations of all programs in one arena of `arena_bytes`; ranges whose dispatches do not overlap may.
    pub activations: Vec<ActivationPlan>,
    pub arena_bytes: u64,
    pub arena_tier: Tier,
    /// f32 logits, `logits_rows * logits_stride` elements; read back by the host on request.
    pub logits_rows: u32,
    pub logits_stride: u32,
    /// What the runtime makes besides: step, logits, read-back and staging buffers.
    pub buffers: Vec<BufferPlan>,
    /// Context the sizes shown to people are worked out for, in tokens.
    pub planned_context_tokens: u32,
    /// Most tokens that one step of such a sequence appends.
    pub planned_chunk_tokens: u32,
}

/// A machine as the planner knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachinePlan {
    pub name: String,
    /// Each tier once, in the order of [`Tier`].
    pub tiers: Vec<TierPlan>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierPlan {
    pub tier: Tier,
    /// What the plan may use; `None`: no limit is known.
    pub budget_bytes: Option<u64>,
    /// Of reads; `None`: unknown, nothing is estimated.
    pub bytes_per_s: Option<u64>,
    /// Who reads it in place.
    pub readers: Vec<Reader>,
    /// Whether tables of which a token reads a few rows may lie here.
    pub sparse_rows: bool,
    /// Where budget and bandwidth come from, for people.
    pub source: String,
}

/// Who reads a memory in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reader {
    Npu,
    Gpu,
    Cpu,
}

impl MachinePlan {
    /// The tiers that kernels on the GPU can be bound to, the one to fill first in front.
    pub fn gpu_tiers(&self) -> impl DoubleEndedIterator<Item = &TierPlan> {
        self.tiers.iter().filter(|tier| tier.readers.contains(&Reader::Gpu))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlicePlan {
    pub bytes: u64,
    pub tier: Tier,
}

/// One packed weight (several source tensors when they were fused) in a slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightPlan {
    pub name: String,
    pub slice: u32,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    pub layer: Option<u32>,
    /// Bytes of it that one decode step reads: all of a matrix, one row of an embedding.
    pub bytes_read_per_token: u64,
    pub reason: String,
}

/// Layers whose KV cache has the same shape and lifetime, and so shares one block table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvGroupPlan {
    /// Layers keep this many tokens, the newest included; `None`: all.
    pub window_tokens: Option<u32>,
    pub n_layers: u32,
    pub page_tokens: u32,
    /// Of K, and again of V, for one page of one layer.
    pub page_bytes: u64,
    pub tier: Tier,
    pub reason: String,
}

impl KvGroupPlan {
    /// Pages that one sequence of `context_tokens` holds at most, when steps add up to `chunk_tokens` at a time.
    pub fn pages_per_sequence(&self, context_tokens: u32, chunk_tokens: u32) -> u32 {
        let all = context_tokens.div_ceil(self.page_tokens);
        match self.window_tokens {
            // The window before the first new token, the chunk, and a page cut at either end.
            Some(window) => all.min((window + chunk_tokens).div_ceil(self.page_tokens) + 1),
            None => all,
        }
    }

    /// K and V of all layers for `pages` pages.
    pub fn bytes(&self, pages: u32) -> u64 {
        2 * self.page_bytes * u64::from(self.n_layers) * u64::from(pages)
    }

    /// K and V that one decode step reads at the end of a sequence of `context_tokens`.
    pub fn bytes_read_per_token(&self, context_tokens: u32) -> u64 {
        let tokens = self.window_tokens.map_or(context_tokens, |window| window.min(context_tokens));
        2 * self.page_bytes / u64::from(self.page_tokens.max(1)) * u64::from(self.n_layers) * u64::from(tokens)
    }
}

/// A buffer of the runtime's own, for the account. Like every slice, every KV pool and the arena, it is a Vulkan buffer by
/// itself and so begins at offset 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferPlan {
    pub name: String,
    pub bytes: u64,
    pub tier: Tier,
    pub reason: String,
}

/// One activation in the arena and the dispatches (of the program it was worked out for) between which it lives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivationPlan {
    pub name: String,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    pub first_use: u32,
    pub last_use: u32,
    /// Which dispatches write and read it.
    pub reason: String,
}
