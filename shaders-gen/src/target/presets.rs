//! Every target, as data. A new kind of device is a new row here.

use unicorn_artifact::DeviceClass;
use unicorn_kernels::flash::FlashTile;
use unicorn_kernels::fragment_shape::FragmentShape;
use unicorn_kernels::gemm::GemmTile;
use unicorn_kernels::lane_tile::LaneTile;
use unicorn_kernels::matmul::Sharing;
use unicorn_kernels::register_gemm::RegisterTile;

use super::{
    DecodeAttentionTuning, FusedTailTuning, GemmTuning, LaneGemmTuning, LongContextAttention, MatMulTuning,
    MatrixTuning, MinRows, NormTuning, RegisterTuning, Target, TimedTile,
};

/// The more specific first: the runtime chooses the first that fits the device.
pub(super) const PRESETS: &[Target] = &[
    RDNA4,
    RDNA3,
    RDNA2,
    GCN,
    NVIDIA,
    NVIDIA_TURING,
    NVIDIA_LARGE,
    NVIDIA_RTX,
    XE2,
    XE_HPG,
    INTEL,
    ADRENO,
    MALI,
    LLVMPIPE_MESA26,
    LLVMPIPE,
    GENERIC_MATRIX,
    GENERIC_DOT,
    GENERIC_SUBGROUP,
    GENERIC,
];

/// RDNA 3's numbers, until it is measured.
const RDNA4: Target = Target {
    name: "rdna4",
    about: "Radeon RX 9000 (gfx12)",
    classes: &[DeviceClass::Rdna4],
    is_default: false,
    compute_units: 32,
    ..RDNA3
};

const RDNA3: Target = Target {
    name: "rdna3",
    about: "Radeon 780M, 890M, 8060S and RX 7000 (gfx11), and RX 9000 where there is no rdna4",
    is_measured: false,
    subgroup_size: 32,
    shared_memory_bytes: 32 << 10,
    workgroup_invocations: 256,
    compute_units: 12,
    classes: &[DeviceClass::Rdna3, DeviceClass::Rdna4],
    is_default: true,
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
        unroll_prologue_once: 2,
        early_lanes_per_unit: 0,
        sharing_one: Sharing::Own,
        sharing_many: Sharing::Own,
    },
    lane_gemm: None,
    norm: NormTuning { fold: true, lanes: 128 },
    matrix: Some(SQUARE_MATRIX),
    attention_workgroups: 192,
    attention_words_ahead: 4,
    counter_sync: false,
    keeps_loops: false,
    fused_tail: None,
    decode_attention: None,
};

/// RDNA 3's numbers without its matrices, until it is measured.
const RDNA2: Target = Target {
    name: "rdna2",
    about: "Radeon 680M, Steam Deck and RX 6000 (gfx10.3): packed dot products, no matrix units",
    classes: &[DeviceClass::Rdna2],
    is_default: false,
    lane_gemm: Some(LANE_GEMM),
    matrix: None,
    ..RDNA3
};

const GCN: Target = Target {
    name: "gcn",
    about: "Vega and older Radeons (gfx8, gfx9): subgroups of 64",
    classes: &[DeviceClass::Gcn],
    is_default: true,
    subgroup_size: 64,
    integer_dot: false,
    ..RDNA2
};

const NVIDIA: Target = Target {
    name: "nvidia",
    about: "NVIDIA Hopper: H100, H200, GH200; measured on an H200",
    is_measured: true,
    subgroup_size: 32,
    shared_memory_bytes: 48 << 10,
    workgroup_invocations: 1024,
    compute_units: 132,
    classes: &[DeviceClass::NvidiaHopper],
    is_default: true,
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
        unroll_prologue_once: 4,
        early_lanes_per_unit: 1024,
        sharing_one: Sharing::Own,
        sharing_many: Sharing::Own,
    },
    lane_gemm: None,
    norm: NormTuning { fold: true, lanes: 256 },
    matrix: Some(NVIDIA_MATRIX),
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

/// Barriers instead of counters: the order of workgroups that counters need was observed only on Hopper. Ampere, Ada and Blackwell have the
/// same kernels: as Vulkan reports them, they have the same shared memory, subgroups and matrices of f16.
const NVIDIA_RTX: Target = Target {
    name: "nvidia-rtx",
    about: "GeForce and RTX, Ampere to Blackwell; and NVIDIA's others with matrix units",
    is_measured: false,
    compute_units: 48,
    classes: &[DeviceClass::NvidiaRtx],
    counter_sync: false,
    ..NVIDIA
};

/// The numbers of `nvidia-rtx` for an A100, the smallest of them.
const NVIDIA_LARGE: Target = Target {
    name: "nvidia-large",
    about: "NVIDIA with a hundred multiprocessors or more: A100, RTX 4090 and 5090, B200",
    classes: &[DeviceClass::NvidiaLarge],
    is_default: false,
    compute_units: 108,
    ..NVIDIA_RTX
};

/// The numbers of `nvidia-rtx` for a T4. A multiprocessor has 64 KiB of shared memory (NVIDIA's Turing tuning guide), where Ampere and
/// later have 100 KiB or more: with half the subgroups, several workgroups of attention fit, and not one.
const NVIDIA_TURING: Target = Target {
    name: "nvidia-turing",
    about: "GeForce RTX 2000, Quadro RTX and T4 (Turing)",
    classes: &[DeviceClass::NvidiaTuring],
    is_default: false,
    compute_units: 40,
    matrix: Some(MatrixTuning { flash: FlashTile { fragment: SQUARE, subgroups: 4 }, ..NVIDIA_MATRIX }),
    ..NVIDIA_RTX
};

const INTEL: Target = Target {
    name: "intel",
    about: "Arc and Xe graphics without matrix units: packed dot products, subgroups of 16",
    classes: &[DeviceClass::Intel],
    subgroup_size: 16,
    compute_units: 20,
    lane_gemm: Some(LANE_GEMM_OF_FEW_REGISTERS),
    ..RDNA2
};

/// A row of a matrix of sums is as wide as the device's instructions, and so is a subgroup. A thread has 8 KiB of registers, of which a
/// subgroup's sums take half.
const XE2: Target = Target {
    name: "xe2",
    about: "Arc B and Lunar Lake (Xe2 and later): matrix units of 8 x 16 x 16, subgroups of 16",
    lane_gemm: None,
    matrix: Some(xe_matrix(FragmentShape { m: 8, n: 16, k: 16 }, 4, 2)),
    ..INTEL
};

/// The same with instructions, and so subgroups, of 8 lanes; a thread has 4 KiB of registers.
const XE_HPG: Target = Target {
    name: "xe-hpg",
    about: "Arc A and Xe graphics with matrix units of 8 x 8 x 16, subgroups of 8",
    subgroup_size: 8,
    lane_gemm: None,
    matrix: Some(xe_matrix(FragmentShape { m: 8, n: 8, k: 16 }, 2, 4)),
    ..INTEL
};

const ADRENO: Target = Target {
    name: "adreno",
    about: "Adreno 600 and later: packed dot products, subgroups of 64",
    classes: &[DeviceClass::Adreno],
    subgroup_size: 64,
    lane_gemm: Some(LANE_GEMM_OF_FEW_REGISTERS),
    ..RDNA2
};

const MALI: Target = Target {
    name: "mali",
    about: "Mali Valhall and later: packed dot products, subgroups of 16",
    classes: &[DeviceClass::Mali],
    ..INTEL
};

const LLVMPIPE_MESA26: Target = Target {
    name: "llvmpipe-mesa26",
    about: "the same from Mesa 26 on, which loads once what all lanes read",
    classes: &[DeviceClass::LlvmpipeMesa26],
    is_default: false,
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
    classes: &[DeviceClass::Llvmpipe, DeviceClass::LlvmpipeMesa26],
    is_default: true,
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
        unroll_prologue_once: 1,
        early_lanes_per_unit: 0,
        sharing_one: Sharing::Broadcast,
        sharing_many: Sharing::Broadcast,
    },
    lane_gemm: None,
    norm: NormTuning { fold: false, lanes: 8 },
    matrix: None,
    attention_workgroups: 1,
    attention_words_ahead: 1,
    counter_sync: false,
    keeps_loops: false,
    fused_tail: None,
    decode_attention: None,
};

const GENERIC_MATRIX: Target = Target {
    name: "generic-matrix",
    about: "any device with 16 x 16 matrices of f16, packed dot products and subgroups of 32",
    classes: &[],
    is_default: false,
    compute_units: 32,
    // On an H100 and an H200, norms of 512 rows take three quarters of the time that they take with 128 lanes.
    norm: NormTuning { fold: true, lanes: 256 },
    ..RDNA3
};

const GENERIC_DOT: Target = Target {
    name: "generic-dot",
    about: "any device with packed dot products and subgroups of 32",
    is_default: true,
    lane_gemm: Some(LANE_GEMM),
    matrix: None,
    ..GENERIC_MATRIX
};

const GENERIC_SUBGROUP: Target = Target {
    name: "generic-subgroup",
    about: "any device with subgroups of 32: Apple's, older ones of NVIDIA and Intel",
    is_default: true,
    integer_dot: false,
    // Each workgroup of a matmul would normalise the row again: without that, decode on an H100 takes 0.86 of the time.
    norm: NormTuning { fold: false, lanes: 256 },
    ..GENERIC_DOT
};

const GENERIC: Target = Target {
    name: "generic",
    about: "any Vulkan 1.2 device, within the limits that the specification guarantees",
    is_measured: false,
    subgroup_size: 0,
    shared_memory_bytes: 16 << 10,
    workgroup_invocations: 128,
    compute_units: 8,
    classes: &[],
    is_default: true,
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
        unroll_prologue_once: 1,
        early_lanes_per_unit: 0,
        sharing_one: Sharing::Own,
        sharing_many: Sharing::Own,
    },
    lane_gemm: Some(LANE_GEMM_OF_UNKNOWN_REGISTERS),
    norm: NormTuning { fold: true, lanes: 128 },
    matrix: None,
    attention_workgroups: 128,
    attention_words_ahead: 4,
    counter_sync: false,
    keeps_loops: false,
    fused_tail: None,
    decode_attention: None,
};

/// The matrices of AMD and NVIDIA.
const SQUARE: FragmentShape = FragmentShape::square(16);

/// The largest tile that the registers of a lane hold. With 128 rows of the step, a workgroup of twice the lanes waits longer at
/// each barrier: on an H100 a third more time.
const LANE_GEMM: LaneGemmTuning = LaneGemmTuning {
    many: LaneTile { matrix_rows: 128, step_rows: 64, lane_tiles: 8, lane_rows: 8 },
    few: LaneTile { matrix_rows: 64, step_rows: 64, lane_tiles: 4, lane_rows: 8 },
    min_rows: 64,
};

/// For unknown devices: on an H100, half the results a lane take 40 registers fewer and 1.2 of the time.
const LANE_GEMM_OF_UNKNOWN_REGISTERS: LaneGemmTuning = LaneGemmTuning {
    many: LaneTile { matrix_rows: 64, step_rows: 64, lane_tiles: 4, lane_rows: 8 },
    few: LaneTile { matrix_rows: 64, step_rows: 64, lane_tiles: 4, lane_rows: 8 },
    min_rows: 64,
};

/// Half of those, for devices whose lanes have 64 or 128.
const LANE_GEMM_OF_FEW_REGISTERS: LaneGemmTuning = LaneGemmTuning {
    many: LaneTile { matrix_rows: 64, step_rows: 64, lane_tiles: 4, lane_rows: 4 },
    few: LaneTile { matrix_rows: 64, step_rows: 64, lane_tiles: 4, lane_rows: 4 },
    min_rows: 64,
};

const SQUARE_TILE: GemmTile = GemmTile {
    matrix_rows: 128,
    step_rows: 64,
    k: 32,
    fragment: SQUARE,
    subgroups_across: 2,
    subgroups_down: 2,
    double_buffered: false,
};

const SQUARE_MATRIX: MatrixTuning = MatrixTuning {
    fragment: SQUARE,
    gemm: GemmTuning::Workgroup {
        large: Some(GemmTile { step_rows: 128, ..SQUARE_TILE }),
        many: SQUARE_TILE,
        few: GemmTile { step_rows: 32, subgroups_across: 4, subgroups_down: 1, double_buffered: true, ..SQUARE_TILE },
    },
    min_rows: MinRows::of_all(9),
    flash: FlashTile { fragment: SQUARE, subgroups: 4 },
};

/// Tiles of 32 matrix rows for each subgroup across, and of 64 rows of the step.
const fn xe_matrix(fragment: FragmentShape, subgroups_across: usize, subgroups_down: usize) -> MatrixTuning {
    let many = GemmTile {
        matrix_rows: 32 * subgroups_across,
        step_rows: 64,
        k: 32,
        fragment,
        subgroups_across,
        subgroups_down,
        double_buffered: false,
    };
    let few = GemmTile { step_rows: 32, subgroups_down: subgroups_down / 2, double_buffered: true, ..many };
    MatrixTuning {
        fragment,
        gemm: GemmTuning::Workgroup { large: None, many, few },
        min_rows: MinRows::of_all(9),
        flash: FlashTile { fragment, subgroups: 4 },
    }
}

const NVIDIA_MATRIX: MatrixTuning = MatrixTuning {
    fragment: SQUARE,
    gemm: GemmTuning::Registers(RegisterTuning { tiles: NVIDIA_TILES, lanes_hold_fragments: true }),
    min_rows: MinRows { large: 5, small: 33, small_weights: 4 << 20 },
    flash: FlashTile { fragment: SQUARE, subgroups: 8 },
};

/// Tiles of 128 matrix rows, for four subgroups; times are of an H200.
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
