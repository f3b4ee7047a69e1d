//! Every target, as data. A new kind of device is a new row here.

use unicorn_kernels::flash::FlashTile;
use unicorn_kernels::gemm::GemmTile;
use unicorn_kernels::matmul::Sharing;
use unicorn_kernels::register_gemm::RegisterTile;

use super::{
    DecodeAttentionTuning, FusedTailTuning, GemmTuning, LongContextAttention, MatMulTuning, MatrixTuning, MinRows,
    NormTuning, RegisterTuning, Target, TimedTile,
};

/// The more specific first: the runtime takes the first that fits the device.
pub(super) const PRESETS: &[Target] = &[PHOENIX, NVIDIA, LLVMPIPE_MESA26, LLVMPIPE, GENERIC];

const PHOENIX: Target = Target {
    name: "phoenix",
    about: "Radeon 780M and its RDNA3 siblings (gfx1103)",
    is_measured: false,
    subgroup_size: 32,
    shared_memory_bytes: 32 << 10,
    workgroup_invocations: 256,
    compute_units: 12,
    vendor_id: Some(0x1002),
    name_contains: &["780M", "760M", "740M", "PHOENIX", "gfx1103", "HAWK"],
    integer_dot: true,
    matmul: MatMulTuning {
        tokens_per_lane: 8,
        tiles_per_lane_one: 1,
        tiles_per_lane_many: 2,
        split_k: 32,
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
        min_rows: MinRows::of_all(9),
        flash: FlashTile { fragment: 16, subgroups: 4 },
    }),
    attention_workgroups: 192,
    attention_words_ahead: 4,
    counter_sync: false,
    keeps_loops: false,
    fused_tail: None,
    decode_attention: None,
};

const NVIDIA: Target = Target {
    name: "nvidia",
    about: "NVIDIA GPUs with 32-lane subgroups",
    is_measured: true,
    subgroup_size: 32,
    shared_memory_bytes: 48 << 10,
    workgroup_invocations: 1024,
    compute_units: 132,
    vendor_id: Some(0x10de),
    name_contains: &[],
    integer_dot: true,
    matmul: MatMulTuning {
        tokens_per_lane: 8,
        tiles_per_lane_one: 1,
        tiles_per_lane_many: 2,
        split_k: 32,
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
        min_rows: MinRows { large: 5, small: 33, small_weights: 4 << 20 },
        flash: FlashTile { fragment: 16, subgroups: 8 },
    }),
    attention_workgroups: 256,
    attention_words_ahead: 4,
    counter_sync: true,
    keeps_loops: true,
    fused_tail: Some(FusedTailTuning { max_added: 32 << 10, max_groups: 16, words_ahead: 8 }),
    decode_attention: Some(DecodeAttentionTuning {
        lanes: 128,
        workgroups: 256,
        few_heads: 1,
        many_heads: 2,
        words_ahead: 1,
        long_context: LongContextAttention { from_tokens: 2048, heads: 2, workgroups: 512 },
    }),
};

const LLVMPIPE_MESA26: Target = Target {
    name: "llvmpipe-mesa26",
    about: "the same from Mesa 26 on, which loads once what all lanes read",
    // Versions of Mesa are not in a device's name, those of LLVM are.
    name_contains: &["llvmpipe (LLVM 22", "llvmpipe (LLVM 23", "llvmpipe (LLVM 24"],
    matmul: MatMulTuning { sharing_one: Sharing::Across, ..LLVMPIPE.matmul },
    ..LLVMPIPE
};

const LLVMPIPE: Target = Target {
    name: "llvmpipe",
    about: "Mesa's software Vulkan device",
    is_measured: true,
    subgroup_size: 8,
    shared_memory_bytes: 32 << 10,
    workgroup_invocations: 128,
    compute_units: 1,
    vendor_id: Some(0x1_0005),
    name_contains: &["llvmpipe"],
    integer_dot: false,
    matmul: MatMulTuning {
        tokens_per_lane: 16,
        tiles_per_lane_one: 2,
        tiles_per_lane_many: 2,
        split_k: 1,
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
    counter_sync: false,
    keeps_loops: false,
    fused_tail: None,
    decode_attention: None,
};

const GENERIC: Target = Target {
    name: "generic",
    about: "any Vulkan 1.2 device, within the limits that the specification guarantees",
    is_measured: false,
    subgroup_size: 0,
    shared_memory_bytes: 16 << 10,
    workgroup_invocations: 128,
    compute_units: 8,
    vendor_id: None,
    name_contains: &[],
    integer_dot: false,
    matmul: MatMulTuning {
        tokens_per_lane: 8,
        tiles_per_lane_one: 1,
        tiles_per_lane_many: 2,
        split_k: 16,
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
    counter_sync: false,
    keeps_loops: false,
    fused_tail: None,
    decode_attention: None,
};

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
