//! [`Target`]: facts about a kind of device, and how kernels are cut for it. [`presets`] are data.

mod presets;
mod tuning;

pub use tuning::{
    DecodeAttentionTuning, FusedTailTuning, GemmTuning, LaneGemmTuning, LongContextAttention, MIN_LARGE_TILES,
    MatMulTuning, MatrixTuning, MinRows, NormTuning, RegisterTuning, TimedTile,
};

use std::collections::BTreeSet;

use rspirv::spirv::Capability;
use unicorn_artifact::{DeviceClass, MatrixSides, ModuleNeeds, TargetMatch};
use unicorn_kernels::fragment_shape::FragmentShape;
use unicorn_kernels::fragments::Fragment;

/// Facts and tile sizes of one kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The name in artifacts and on command lines.
    pub name: &'static str,
    /// Which devices it is for, in a few words.
    pub about: &'static str,
    /// Whether its numbers were chosen by measurements on such a device: then an artifact holds no alternatives to them.
    pub is_measured: bool,
    /// Invocations of a subgroup, which reductions use; 0: unknown, reductions go through workgroup memory.
    pub subgroup_size: u32,
    /// Bytes of workgroup memory, as Vulkan's maxComputeSharedMemorySize.
    pub shared_memory_bytes: usize,
    /// Most invocations of a workgroup, as maxComputeWorkGroupInvocations.
    pub workgroup_invocations: usize,
    /// Parts of the device that run workgroups independently (CUs, SMs, cores).
    pub compute_units: usize,
    /// Classes of devices that use it by default; empty: any that meets its requirements.
    classes: &'static [DeviceClass],
    /// Whether artifacts hold it by default.
    pub is_default: bool,
    /// Whether the device multiplies four pairs of int8 in one instruction: INT4 and INT8 weights are then multiplied by integer activations.
    pub integer_dot: bool,
    /// How matmuls are cut.
    pub matmul: MatMulTuning,
    /// How matmuls of many rows are cut on devices without cooperative matrices.
    pub lane_gemm: Option<LaneGemmTuning>,
    /// How norms are computed.
    pub norm: NormTuning,
    /// For devices with cooperative matrices of f16 and sums of f32.
    pub matrix: Option<MatrixTuning>,
    /// Workgroups into which decode's attention is split where a context is long enough: the number that fills the device.
    /// `decode_attention` has its own number.
    pub attention_workgroups: usize,
    /// Maximum number of words of K, and of V, that a lane of attention loads ahead. Each is unrolled code, which a driver for CPUs
    /// compiles slowly.
    pub attention_words_ahead: usize,
    /// Whether dispatches of decode are synchronised by counters instead of barriers where they can be (`unicorn_kernels::counter_sync`): the
    /// device must start workgroups in the order of their dispatches.
    pub counter_sync: bool,
    /// Whether loops are marked DontUnroll.
    pub keeps_loops: bool,
    /// Which kernels of decode also compute the matmul behind them; for devices with 64-bit atomics.
    pub fused_tail: Option<FusedTailTuning>,
    /// How decode's attention is cut as one dispatch; for devices on which a subgroup holds a head.
    pub decode_attention: Option<DecodeAttentionTuning>,
}

impl Target {
    /// The capabilities that a module for this target may declare.
    pub fn capabilities(&self) -> BTreeSet<Capability> {
        let mut allowed = BTreeSet::from([Capability::Shader]);
        if self.subgroup_size > 0 {
            allowed.extend([
                Capability::GroupNonUniform,
                Capability::GroupNonUniformArithmetic,
                Capability::GroupNonUniformBallot,
                Capability::GroupNonUniformShuffle,
                Capability::GroupNonUniformVote,
            ]);
        }
        if self.integer_dot {
            allowed.extend([Capability::DotProduct, Capability::DotProductInput4x8BitPacked]);
        }
        if self.fused_tail.is_some() {
            allowed.extend([Capability::Int64, Capability::Int64Atomics]);
        }
        if self.has_memory_model() {
            allowed.insert(Capability::VulkanMemoryModel);
        }
        if self.matrix.is_some() {
            allowed.extend([Capability::Float16, Capability::CooperativeMatrixKHR]);
        }
        allowed
    }

    /// Whether kernels may declare the Vulkan memory model: those with matrices, and those whose workgroups exchange data.
    pub fn has_memory_model(&self) -> bool {
        self.matrix.is_some() || self.counter_sync || self.decode_attention.is_some()
    }

    /// Whether a kernel's SPIR-V is the same for both, where [`Target::allows`] it for both.
    pub fn emits_like(&self, other: &Target) -> bool {
        let facts = |target: &Target| (target.integer_dot, target.keeps_loops, target.subgroup_size);
        facts(self) == facts(other)
    }

    /// Whether a module may need this of the target's devices.
    pub fn allows(&self, needs: &ModuleNeeds) -> bool {
        needs.workgroup_invocations as usize <= self.workgroup_invocations
            && (self.matrix.is_some() || !needs.float16 && needs.matrices.is_empty())
            && (self.fused_tail.is_some() || !needs.int64)
            && (self.has_memory_model() || !needs.memory_model)
    }

    /// The cooperative matrices whose elements its kernels expect in the lanes that `unicorn_kernels::fragments` draws.
    pub fn fragments(&self) -> Option<Fragment> {
        let matrix = self.matrix?;
        let GemmTuning::Registers(RegisterTuning { lanes_hold_fragments: true, .. }) = matrix.gemm else { return None };
        Some(Fragment { side: matrix.fragment.m, subgroup_size: self.subgroup_size })
    }

    /// The target with attention for long contexts, and the number of cached tokens from which on it is used; `None`: one program
    /// for all contexts.
    pub fn long_context(&self) -> Option<(usize, Target)> {
        let tuning = self.decode_attention?;
        let LongContextAttention { from_tokens, heads, workgroups } = tuning.long_context;
        let decode_attention = Some(DecodeAttentionTuning { few_heads: heads, workgroups, ..tuning });
        Some((from_tokens, Target { decode_attention, ..self.clone() }))
    }

    /// The same kernels for any device with subgroups of this size, so that tests can run them without the target's hardware.
    pub fn for_any_device(mut self, subgroup_size: u32) -> Target {
        if let Some(MatrixTuning { gemm: GemmTuning::Registers(tuning), .. }) = &mut self.matrix {
            tuning.lanes_hold_fragments = false;
        }
        Target { subgroup_size, classes: &[], ..self }
    }

    /// The artifact's record of which devices it is for.
    pub fn matches(&self) -> TargetMatch {
        TargetMatch {
            classes: self.classes.to_vec(),
            subgroup_size: self.subgroup_size,
            shared_memory_bytes: self.shared_memory_bytes as u32,
            workgroup_invocations: self.workgroup_invocations as u32,
            integer_dot_product: self.integer_dot,
            int64_atomics: self.fused_tail.is_some(),
            memory_model_chains: self.counter_sync,
            matrix_sides: self.matrix.map_or(MatrixSides::NONE, |matrix| {
                let FragmentShape { m, n, k } = matrix.fragment;
                MatrixSides::of([m, n, k].map(|side| side as u8))
            }),
        }
    }
}

/// The target with this name.
pub fn by_name(name: &str) -> Option<Target> {
    presets::PRESETS.iter().find(|target| target.name == name).cloned()
}

/// All targets, the more specific first: the runtime chooses the first that fits the device.
pub fn presets() -> Vec<Target> {
    presets::PRESETS.to_vec()
}

/// The default targets of an artifact, in the order of [`presets`].
pub fn defaults() -> Vec<Target> {
    presets::PRESETS.iter().filter(|target| target.is_default).cloned().collect()
}

#[cfg(test)]
mod tests {
    use unicorn_kernels::dot_gemm::DotGemmSpec;
    use unicorn_kernels::float_gemm::FloatGemmSpec;
    use unicorn_kernels::{CacheLayout, KvFormat, Precision};

    use super::*;

    #[test]
    fn flash_tiles_fit_into_their_device() {
        for target in presets() {
            let Some(tile) = target.matrix.map(|tuning| tuning.flash) else { continue };
            for head_dim in [64, 80, 96, 128, 160, 192, 256] {
                let cache =
                    CacheLayout { format: KvFormat::F16, n_kv_heads: 1, head_dim, page_tokens: 32, latent_value: None };
                assert!(tile.takes(&cache), "{} {cache:?}", target.name);
                let bytes = tile.shared_bytes(&cache);
                assert!(bytes <= target.shared_memory_bytes, "{} {cache:?}: {bytes} bytes", target.name);
            }
        }
    }

    /// Vulkan reports what a workgroup may have, 48 KiB for each of NVIDIA's; a multiprocessor of Turing has 64 KiB in all.
    #[test]
    fn attention_on_turing_leaves_room_for_a_second_workgroup() {
        const TURING_BYTES: usize = 64 << 10;
        let cache =
            CacheLayout { format: KvFormat::F16, n_kv_heads: 1, head_dim: 128, page_tokens: 32, latent_value: None };
        let fits_twice = |name: &str| {
            let flash = by_name(name).and_then(|target| target.matrix).expect("a target with matrices").flash;
            2 * flash.shared_bytes(&cache) <= TURING_BYTES
        };
        assert!(fits_twice("nvidia-turing") && !fits_twice("nvidia-rtx"));
    }

    #[test]
    fn targets_with_the_vulkan_memory_model_require_it_of_the_device() {
        for target in presets() {
            let matches = target.matches();
            let is_asked_for = matches.memory_model_chains || matches.matrix_sides != MatrixSides::NONE;
            assert_eq!(target.capabilities().contains(&Capability::VulkanMemoryModel), is_asked_for, "{}", target.name);
        }
    }

    #[test]
    fn lane_tiles_fit_into_their_device() {
        for target in presets() {
            let tiles = target.lane_gemm.iter().flat_map(|tuning| [tuning.many, tuning.few]);
            for tile in tiles {
                let bytes = match target.integer_dot {
                    true => DotGemmSpec::shared_bytes(&tile, Precision::Int11),
                    false => 0,
                };
                let bytes = bytes.max(FloatGemmSpec::shared_bytes(&tile));
                assert!(FloatGemmSpec::fits(&tile), "{} {tile:?}", target.name);
                assert!(bytes <= target.shared_memory_bytes, "{} {tile:?}: {bytes} bytes", target.name);
                assert!(tile.lanes() <= target.workgroup_invocations, "{} {tile:?}", target.name);
            }
        }
    }

    #[test]
    fn gemm_tiles_fit_into_their_device() {
        for target in presets() {
            let tiles = target.matrix.iter().flat_map(|tuning| tuning.gemm_tiles());
            for tile in tiles {
                let bytes = tile.shared_bytes();
                assert!(bytes <= target.shared_memory_bytes, "{} {tile:?}: {bytes} bytes", target.name);
                let lanes = tile.subgroups() * target.subgroup_size as usize;
                assert!(lanes <= target.workgroup_invocations, "{} {tile:?}", target.name);
            }
        }
    }
}
