//! The placement plan: where every byte is placed, how large it is, and why. Only the compiler's `place` writes addresses;
//! the runtime follows them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Every activation, weight and buffer begins on a multiple of this; no device requires more than 256 bytes.
pub const BUFFER_ALIGN: u64 = 256;
/// Largest range of one shader binding: Vulkan's guaranteed minimum of maxStorageBufferRange.
pub const MAX_BINDING_BYTES: u64 = 128 << 20;
/// Most layers of a model, and of a KV group.
pub const MAX_LAYERS: u64 = 10_000;

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
    /// Host memory that only the CPU accesses.
    Host,
}

impl Tier {
    /// Lower-case name, as in budgets and reports.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Npu => "npu",
            Tier::Vram => "vram",
            Tier::Gtt => "gtt",
            Tier::Host => "host",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The plan section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The machine that the plan is for.
    pub machine: MachinePlan,
    /// One slice for each weight section, in the order of their index.
    pub slices: Vec<SlicePlan>,
    /// Every packed weight, in the order of its slice.
    pub weights: Vec<WeightPlan>,
    /// Layers grouped by shape of their KV cache.
    pub kv_groups: Vec<KvGroupPlan>,
    /// Activations of all programs in one arena of `arena_bytes`; two that are never alive at the same time may overlap.
    pub activations: Vec<ActivationPlan>,
    /// Length of the arena.
    pub arena_bytes: u64,
    /// Tier of the arena.
    pub arena_tier: Tier,
    /// f32 logits, `logits_rows * logits_stride` elements; read back by the host on request.
    pub logits_rows: u32,
    /// Elements between rows of logits.
    pub logits_stride: u32,
    /// Other buffers that the runtime makes: step, logits, read-back and staging buffers.
    pub buffers: Vec<BufferPlan>,
    /// Context, in tokens, for which sizes are shown to people.
    pub planned_context_tokens: u32,
    /// Most tokens that one step of such a sequence appends.
    pub planned_chunk_tokens: u32,
}

/// A machine as the planner describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachinePlan {
    /// Name of the preset or file.
    pub name: String,
    /// Each tier once, in the order of [`Tier`].
    pub tiers: Vec<TierPlan>,
}

/// One tier of memory as the planner describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierPlan {
    /// Which memory.
    pub tier: Tier,
    /// Bytes that the plan may use; `None`: no limit is known.
    pub budget_bytes: Option<u64>,
    /// Bandwidth of reads; `None`: unknown, nothing is estimated.
    pub bytes_per_s: Option<u64>,
    /// The processors that read it in place.
    pub readers: Vec<Reader>,
    /// Whether tables of which a token reads a few rows may be placed here.
    pub sparse_rows: bool,
    /// Where budget and bandwidth come from, for people.
    pub source: String,
}

/// A processor that reads a memory in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reader {
    /// The NPU.
    Npu,
    /// The GPU.
    Gpu,
    /// The CPU.
    Cpu,
}

impl MachinePlan {
    /// The tiers that the GPU's kernels can access, in the order in which they are filled.
    pub fn gpu_tiers(&self) -> impl DoubleEndedIterator<Item = &TierPlan> {
        self.tiers.iter().filter(|tier| tier.readers.contains(&Reader::Gpu))
    }
}

/// One weight section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlicePlan {
    /// Length, the gaps between weights included.
    pub bytes: u64,
    /// Tier where it is resident.
    pub tier: Tier,
}

/// One packed weight (several source tensors when they were fused) in a slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightPlan {
    /// Names of the source tensors, joined.
    pub name: String,
    /// Index into [`Plan::slices`].
    pub slice: u32,
    /// Offset in the slice, a multiple of [`BUFFER_ALIGN`].
    pub offset_bytes: u64,
    /// Packed length.
    pub len_bytes: u64,
    /// Index of the layer; `None`: outside the layers, such as the embedding.
    pub layer: Option<u32>,
    /// Bytes that one decode step reads: all of a matrix, one row of an embedding.
    pub bytes_read_per_token: u64,
    /// Why it is placed there, for people.
    pub reason: String,
}

/// [`KvGroupPlan::page_tokens`] of recurrent state: one page holds that of a sequence of any length.
pub const STATE_PAGE_TOKENS: u32 = u32::MAX;

/// Layers whose KV cache, or recurrent state, has the same shape and lifetime, and so shares one block table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvGroupPlan {
    /// Tokens of which layers keep K and V, the newest included; `None`: all.
    pub window_tokens: Option<u32>,
    /// Layers that share the block table.
    pub n_layers: u32,
    /// Tokens of a page; [`STATE_PAGE_TOKENS`]: it is recurrent state.
    pub page_tokens: u32,
    /// Bytes of K in one page of one layer, which V takes as well; of recurrent state, bytes of each half of a page.
    pub page_bytes: u64,
    /// Tier of the pool.
    pub tier: Tier,
    /// Why it is placed there, for people.
    pub reason: String,
}

impl KvGroupPlan {
    /// Whether each step changes all of a page, so that the page is valid only at the sequence's last token.
    pub fn is_state(&self) -> bool {
        self.page_tokens == STATE_PAGE_TOKENS
    }

    /// Pages that one sequence of `context_tokens` holds at most, when steps add up to `chunk_tokens` at a time.
    pub fn pages_per_sequence(&self, context_tokens: u32, chunk_tokens: u32) -> u32 {
        let all = context_tokens.div_ceil(self.page_tokens);
        match self.window_tokens {
            // The window before the first new token, the chunk, and a page cut at either end.
            Some(window) => all.min((window + chunk_tokens).div_ceil(self.page_tokens) + 1),
            None => all,
        }
    }

    /// Bytes of K and V of all layers for `pages` pages.
    pub fn bytes(&self, pages: u32) -> u64 {
        2 * self.page_bytes * u64::from(self.n_layers) * u64::from(pages)
    }

    /// Bytes of K and V that one decode step reads at the end of a sequence of `context_tokens`.
    pub fn bytes_read_per_token(&self, context_tokens: u32) -> u64 {
        if self.is_state() {
            return self.bytes(1);
        }
        let tokens = self.window_tokens.map_or(context_tokens, |window| window.min(context_tokens));
        2 * self.page_bytes / u64::from(self.page_tokens.max(1)) * u64::from(self.n_layers) * u64::from(tokens)
    }
}

/// A buffer of the runtime, for the account. Like every slice, every KV pool and the arena, it is a Vulkan buffer of its own
/// and so begins at offset 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferPlan {
    /// Name of the buffer.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Tier of the buffer.
    pub tier: Tier,
    /// Purpose of the buffer, for people.
    pub reason: String,
}

/// One activation in the arena and the dispatches, of one program, between which its value is needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivationPlan {
    /// Name of the value in the graph.
    pub name: String,
    /// Offset in the arena.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// Dispatch that writes it.
    pub first_use: u32,
    /// Last dispatch that reads it.
    pub last_use: u32,
    /// Which dispatches write and read it.
    pub reason: String,
}
