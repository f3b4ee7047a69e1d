//! [`Target`]: what we know of a kind of device. Presets are data; a new device is a new row.

use std::collections::BTreeSet;

use rspirv::spirv::Capability;
use unicorn_artifact::TargetMatch;
use unicorn_kernels::flash::FlashTile;
use unicorn_kernels::fragments::Fragment;
use unicorn_kernels::gemm::GemmTile;
use unicorn_kernels::matmul::Sharing;
use unicorn_kernels::register_gemm::RegisterTile;

/// Facts and tile sizes of one kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub name: &'static str,
    pub about: &'static str,
    /// Lanes of a subgroup that reductions may count on; 0: none, reductions go through workgroup memory.
    pub subgroup_size: u32,
    pub shared_memory_bytes: usize,
    pub workgroup_invocations: usize,
    /// Parts of the device that want a workgroup each.
    pub compute_units: usize,
    vendor_id: Option<u32>,
    name_contains: &'static [&'static str],
    /// Dot products of four int8 pairs in one instruction: INT4 and INT8 weights meet integer activations.
    pub integer_dot: bool,
    pub matmul: MatMulTuning,
    pub norm: NormTuning,
    /// For devices with cooperative matrices of f16 with f32 sums, 16 x 16 x 16.
    pub matrix: Option<MatrixTuning>,
    /// Workgroups into which decode's attention is split, where a context is long enough: they fill the device. That in one
    /// dispatch has a number of its own.
    pub attention_workgroups: usize,
    /// Words of K, and of V, that a lane of attention has under way, at most. Each is code of its own, and a driver for CPUs takes
    /// long to compile it.
    pub attention_words_ahead: usize,
    /// Dispatches of decode follow one another without barriers where they can (`unicorn_kernels::chain`): the device starts workgroups
    /// in the order of their dispatches.
    pub chains: bool,
    /// The driver is asked to unroll no loops: see `loops`.
    pub keeps_loops: bool,
    /// Kernels of decode do the matmul behind them, too, where that is little; for devices with 64-bit atomics.
    pub next: Option<NextTuning>,
    /// Decode's attention in one dispatch, on devices whose subgroups hold a head.
    pub decode_attention: Option<DecodeAttentionTuning>,
}

/// Which kernels of decode do the matmul behind them, too (`unicorn_kernels::next`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NextTuning {
    /// Parts that its workgroups add to sums, all together, at most.
    pub most_added: usize,
    /// Groups of 32 weights that a lane holds for it, at most.
    pub most_groups: usize,
    /// Words of K, and of V, that a lane of an attention with such a matmul has under way: with the weights that it holds few lanes
    /// have room, whatever else it has.
    pub words_ahead: usize,
}

/// How decode's attention is cut on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeAttentionTuning {
    /// Lanes of a workgroup, and cached tokens that they look at together.
    pub lanes: usize,
    /// Into which it is split, where a context is long enough.
    pub workgroups: usize,
    /// Query heads of one KV head, at most, in steps of up to eight rows, and of more: more share each read of K and V, fewer have
    /// less to do one after the other.
    pub few_heads: usize,
    pub many_heads: usize,
    /// Words of K, and of V, that a lane has under way while something else is waited for: with more it waits less often, and fewer
    /// lanes have room.
    pub words_ahead: usize,
    /// In steps of one row behind many others.
    pub deep: DeepAttention,
}

/// How attention is cut in a program by itself, for sequences of so many tokens that K and V are what it waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeepAttention {
    /// Cached tokens from which on it is faster.
    pub from_tokens: usize,
    pub heads: usize,
    pub workgroups: usize,
}

impl DecodeAttentionTuning {
    /// Query heads a workgroup, at most, in a program of so many rows.
    pub fn heads(&self, rows: usize) -> usize {
        if rows > 8 { self.many_heads } else { self.few_heads }
    }
}

/// How matmuls are cut on a device; `unicorn_compiler::select` fits these to each shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMulTuning {
    /// Rows of the step that share one pass over the weights, in programs of many rows.
    pub columns: usize,
    /// Tiles of 8 matrix rows a lane, with one column and with many.
    pub tiles_per_lane_one: usize,
    pub tiles_per_lane_many: usize,
    /// Most lanes that share a matrix row; 1 keeps addresses uniform, as a CPU's subgroup likes them.
    pub k_slices: usize,
    /// Lanes of a workgroup.
    pub workgroup: usize,
    /// The same where it norms and quantises its input first, or as many as have four columns of it.
    pub prologue_workgroup: usize,
    /// Tiles that share such a prologue, where there are more than one for each of the device's `compute_units`.
    pub prologue_tiles: usize,
    /// Workgroups with a prologue for each of the `compute_units`: rows beyond theirs are made in passes. 0: in workgroups of
    /// their own.
    pub prologue_groups_per_unit: usize,
    /// Groups of 32 columns whose weights a lane has under way, at most, with one column and with many (integer activations
    /// only).
    pub unroll_one: usize,
    pub unroll_many: usize,
    /// With one column and no prologue, so many groups at most are under way in one of the `compute_units`: more take
    /// registers that other workgroups want.
    pub loads_per_unit: usize,
    /// The same as `unroll_one` with a prologue, whose lanes are many and have few registers.
    pub unroll_prologue: usize,
    /// With one column, a kernel that waits has its first weights before it does, where one of the `compute_units` has so many of its
    /// lanes at most and they make their rows in one pass: the registers of more would be missed.
    pub early_lanes_per_unit: usize,
    /// With one column and with many.
    pub sharing_one: Sharing,
    pub sharing_many: Sharing,
}

/// How norms are made on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormTuning {
    /// In steps of one row the next matmul norms its input by itself, each workgroup anew; saves a dispatch.
    pub fold: bool,
    /// Lanes of a norm by itself. A CPU pays for each barrier between subgroups.
    pub lanes: usize,
}

/// How GEMMs, and attention of many rows, are cut on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatrixTuning {
    /// Rows and columns of the device's cooperative matrices of f16.
    pub fragment: usize,
    pub gemm: GemmTuning,
    pub least_rows: LeastRows,
    pub flash: FlashTile,
}

/// Matmuls of fewer rows of the step do without matrix units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeastRows {
    pub large: usize,
    /// By matrices of fewer weights than `small_weights`: they take no longer without, and the device is not filled either way.
    pub small: usize,
    pub small_weights: usize,
}

impl LeastRows {
    /// The same for all matrices.
    pub const fn of_all(rows: usize) -> LeastRows {
        LeastRows { large: rows, small: rows, small_weights: 0 }
    }

    /// For a matrix of so many weights.
    pub fn of(&self, weights: usize) -> usize {
        if weights < self.small_weights { self.small } else { self.large }
    }
}

/// Which way operands of a GEMM take to the matrix units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GemmTuning {
    /// Both by way of workgroup memory.
    Workgroup {
        /// In programs of more rows than `few` has, and of at most as many.
        many: GemmTile,
        few: GemmTile,
    },
    /// Weights from registers.
    Registers(RegisterTuning),
}

/// How GEMMs from registers are cut on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegisterTuning {
    /// Of which a shape takes what is done first.
    pub tiles: &'static [TimedTile],
    /// See `RegisterGemmSpec`.
    pub lanes_hold_fragments: bool,
}

/// A tile, and how long a workgroup takes for a stage of 128 columns of INT4, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedTile {
    pub tile: RegisterTile,
    /// Alone in one of the `compute_units`.
    pub alone_ns: usize,
    /// Of several there, the share of each.
    pub shared_ns: usize,
}

impl MatrixTuning {
    /// Every tile by way of workgroup memory.
    pub fn gemm_tiles(&self) -> Vec<GemmTile> {
        match self.gemm {
            GemmTuning::Workgroup { many, few } => vec![many, few],
            GemmTuning::Registers(_) => Vec::new(),
        }
    }
}

impl Target {
    /// What SPIR-V for this target may ask for.
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
        if self.next.is_some() {
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

    /// Whether kernels ask for the Vulkan memory model: those with matrices, and those whose workgroups tell each other something.
    fn has_memory_model(&self) -> bool {
        self.matrix.is_some() || self.chains || self.decode_attention.is_some()
    }

    /// The cooperative matrices that its kernels count on lanes to hold as `unicorn_kernels::fragments` draws them.
    pub fn fragments(&self) -> Option<Fragment> {
        let matrix = self.matrix?;
        let GemmTuning::Registers(RegisterTuning { lanes_hold_fragments: true, .. }) = matrix.gemm else { return None };
        Some(Fragment { side: matrix.fragment, subgroup_size: self.subgroup_size })
    }

    /// The same with attention for long sequences, and from how many cached tokens on it serves; `None`: one serves all.
    pub fn deep(&self) -> Option<(usize, Target)> {
        let tuning = self.decode_attention?;
        let DeepAttention { from_tokens, heads, workgroups } = tuning.deep;
        let decode_attention = Some(DecodeAttentionTuning { few_heads: heads, workgroups, ..tuning });
        Some((from_tokens, Target { decode_attention, ..self.clone() }))
    }

    /// The same kernels for any device with subgroups of this size, so that they can be checked where their own hardware is
    /// not at hand.
    pub fn for_any_device(mut self, subgroup_size: u32) -> Target {
        if let Some(MatrixTuning { gemm: GemmTuning::Registers(tuning), .. }) = &mut self.matrix {
            tuning.lanes_hold_fragments = false;
        }
        Target { subgroup_size, vendor_id: None, name_contains: &[], ..self }
    }

    /// The artifact's record of which devices this is for.
    pub fn matches(&self) -> TargetMatch {
        TargetMatch {
            vendor_id: self.vendor_id,
            name_contains: self.name_contains.iter().map(|part| (*part).to_owned()).collect(),
            subgroup_size: self.subgroup_size,
            shared_memory_bytes: self.shared_memory_bytes as u32,
            workgroup_invocations: self.workgroup_invocations as u32,
            integer_dot_product: self.integer_dot,
            int64_atomics: self.next.is_some(),
            memory_model_chains: self.chains,
            matrix_side: self.matrix.map_or(0, |matrix| matrix.fragment as u32),
        }
    }
}

/// 128 matrix rows each, of four subgroups; times are of an H200.
const NVIDIA_TILES: &[TimedTile] = &[
    nvidia_tile(16, 128, 1160, 366),
    nvidia_tile(32, 128, 1010, 497),
    nvidia_tile(64, 128, 1170, 860),
    nvidia_tile(128, 64, 2000, 1520),
];

const fn nvidia_tile(step_rows: usize, panel: usize, alone_ns: usize, shared_ns: usize) -> TimedTile {
    let tile = RegisterTile { step_rows, panel, fragment: 16, fragments: 2, subgroups: 4 };
    TimedTile { tile, alone_ns, shared_ns }
}

/// The target of this name.
pub fn by_name(name: &str) -> Option<Target> {
    presets().into_iter().find(|target| target.name == name)
}

/// All targets, the more particular first: the runtime takes the first that fits the device.
pub fn presets() -> Vec<Target> {
    vec![
        Target {
            name: "phoenix",
            about: "Radeon 780M and its RDNA3 siblings (gfx1103)",
            subgroup_size: 32,
            shared_memory_bytes: 32 << 10,
            workgroup_invocations: 256,
            compute_units: 12,
            vendor_id: Some(0x1002),
            name_contains: &["780M", "760M", "740M", "PHOENIX", "gfx1103", "HAWK"],
            integer_dot: true,
            matmul: MatMulTuning {
                columns: 8,
                tiles_per_lane_one: 1,
                tiles_per_lane_many: 2,
                k_slices: 32,
                workgroup: 256,
                prologue_workgroup: 256,
                prologue_tiles: 8,
                prologue_groups_per_unit: 8,
                unroll_one: 2,
                unroll_many: 2,
                loads_per_unit: usize::MAX,
                unroll_prologue: 2,
                early_lanes_per_unit: 0,
                sharing_one: Sharing::Own,
                sharing_many: Sharing::Own,
            },
            norm: NormTuning { fold: true, lanes: 128 },
            matrix: Some(MatrixTuning {
                fragment: 16,
                gemm: GemmTuning::Workgroup {
                    many: GemmTile {
                        matrix_rows: 128,
                        step_rows: 64,
                        k: 32,
                        fragment: 16,
                        subgroups_across: 2,
                        subgroups_down: 2,
                        double_buffered: false,
                    },
                    few: GemmTile {
                        matrix_rows: 128,
                        step_rows: 32,
                        k: 32,
                        fragment: 16,
                        subgroups_across: 4,
                        subgroups_down: 1,
                        double_buffered: true,
                    },
                },
                least_rows: LeastRows::of_all(9),
                flash: FlashTile { fragment: 16, subgroups: 4 },
            }),
            attention_workgroups: 192,
            attention_words_ahead: 4,
            chains: false,
            keeps_loops: false,
            next: None,
            decode_attention: None,
        },
        Target {
            name: "nvidia",
            about: "NVIDIA GPUs with 32-lane subgroups",
            subgroup_size: 32,
            shared_memory_bytes: 48 << 10,
            workgroup_invocations: 1024,
            compute_units: 132,
            vendor_id: Some(0x10de),
            name_contains: &[],
            integer_dot: true,
            matmul: MatMulTuning {
                columns: 8,
                tiles_per_lane_one: 1,
                tiles_per_lane_many: 2,
                k_slices: 32,
                workgroup: 256,
                prologue_workgroup: 512,
                prologue_tiles: 8,
                prologue_groups_per_unit: 2,
                unroll_one: 8,
                unroll_many: 1,
                loads_per_unit: 7168,
                unroll_prologue: 2,
                early_lanes_per_unit: 1024,
                sharing_one: Sharing::Own,
                sharing_many: Sharing::Own,
            },
            norm: NormTuning { fold: true, lanes: 256 },
            matrix: Some(MatrixTuning {
                fragment: 16,
                gemm: GemmTuning::Registers(RegisterTuning { tiles: NVIDIA_TILES, lanes_hold_fragments: true }),
                least_rows: LeastRows { large: 5, small: 33, small_weights: 4 << 20 },
                flash: FlashTile { fragment: 16, subgroups: 8 },
            }),
            attention_workgroups: 256,
            attention_words_ahead: 4,
            chains: true,
            keeps_loops: true,
            next: Some(NextTuning { most_added: 32 << 10, most_groups: 16, words_ahead: 8 }),
            decode_attention: Some(DecodeAttentionTuning {
                lanes: 128,
                workgroups: 256,
                few_heads: 1,
                many_heads: 2,
                words_ahead: 1,
                deep: DeepAttention { from_tokens: 2048, heads: 2, workgroups: 512 },
            }),
        },
        Target {
            name: "llvmpipe-mesa26",
            about: "the same from Mesa 26 on, which loads once what all lanes want",
            // Versions of Mesa are not in a device's name, those of LLVM are.
            name_contains: &["llvmpipe (LLVM 22", "llvmpipe (LLVM 23", "llvmpipe (LLVM 24"],
            matmul: MatMulTuning { sharing_one: Sharing::Across, ..llvmpipe().matmul },
            ..llvmpipe()
        },
        llvmpipe(),
        Target {
            name: "generic",
            about: "any Vulkan 1.2 device, within the limits that the specification guarantees",
            subgroup_size: 0,
            shared_memory_bytes: 16 << 10,
            workgroup_invocations: 128,
            compute_units: 8,
            vendor_id: None,
            name_contains: &[],
            integer_dot: false,
            matmul: MatMulTuning {
                columns: 8,
                tiles_per_lane_one: 1,
                tiles_per_lane_many: 2,
                k_slices: 16,
                workgroup: 128,
                prologue_workgroup: 128,
                prologue_tiles: 1,
                prologue_groups_per_unit: 0,
                unroll_one: 1,
                unroll_many: 1,
                loads_per_unit: usize::MAX,
                unroll_prologue: 1,
                early_lanes_per_unit: 0,
                sharing_one: Sharing::Own,
                sharing_many: Sharing::Own,
            },
            norm: NormTuning { fold: true, lanes: 128 },
            matrix: None,
            attention_workgroups: 64,
            attention_words_ahead: 4,
            chains: false,
            keeps_loops: false,
            next: None,
            decode_attention: None,
        },
    ]
}

/// Mesa's software device, whatever its version.
fn llvmpipe() -> Target {
    Target {
        name: "llvmpipe",
        about: "Mesa's software Vulkan device",
        subgroup_size: 8,
        shared_memory_bytes: 32 << 10,
        workgroup_invocations: 128,
        compute_units: 1,
        vendor_id: Some(0x1_0005),
        name_contains: &["llvmpipe"],
        integer_dot: false,
        matmul: MatMulTuning {
            columns: 16,
            tiles_per_lane_one: 2,
            tiles_per_lane_many: 2,
            k_slices: 1,
            workgroup: 64,
            prologue_workgroup: 64,
            prologue_tiles: 1,
            prologue_groups_per_unit: 0,
            unroll_one: 1,
            unroll_many: 1,
            loads_per_unit: usize::MAX,
            unroll_prologue: 1,
            early_lanes_per_unit: 0,
            sharing_one: Sharing::Broadcast,
            sharing_many: Sharing::Broadcast,
        },
        norm: NormTuning { fold: false, lanes: 8 },
        matrix: None,
        attention_workgroups: 1,
        attention_words_ahead: 1,
        chains: false,
        keeps_loops: false,
        next: None,
        decode_attention: None,
    }
}

#[cfg(test)]
mod tests {
    use unicorn_kernels::{CacheLayout, KvFormat};

    use super::*;

    #[test]
    fn flash_tiles_fit_into_their_device() {
        for target in presets() {
            let Some(tile) = target.matrix.map(|tuning| tuning.flash) else { continue };
            for head_dim in [64, 80, 96, 128, 160, 192, 256] {
                let cache = CacheLayout { format: KvFormat::F16, n_kv_heads: 1, head_dim, page_tokens: 32 };
                assert!(tile.takes(&cache), "{} {cache:?}", target.name);
                let bytes = tile.shared_bytes(&cache);
                assert!(bytes <= target.shared_memory_bytes, "{} {cache:?}: {bytes} bytes", target.name);
            }
        }
    }

    #[test]
    fn whoever_asks_for_the_memory_model_asks_the_device_for_it() {
        for target in presets() {
            let matches = target.matches();
            let is_asked_for = matches.memory_model_chains || matches.matrix_side != 0;
            assert_eq!(target.capabilities().contains(&Capability::VulkanMemoryModel), is_asked_for, "{}", target.name);
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
