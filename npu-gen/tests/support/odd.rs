//! Products and attention of sizes that fit badly: primes, one more and one less than a tile, ones, and a few that are very wide, deep or long.

use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::Problem;
use unicorn_npu::attention::AttentionProblem;

const SCALE: Epilogue = Epilogue::Scale;
const SILU: Epilogue = Epilogue::ActMul(Activation::Silu);
const GELU: Epilogue = Epilogue::ActMul(Activation::GeluTanh);

/// Rows, columns of weights, values of k, and what follows; GEMVs first.
const SIZES: [(usize, usize, usize, Epilogue); 30] = [
    (1, 1, 1, SCALE),
    (1, 2, 1, SILU),
    (1, 1021, 2053, SCALE),
    (2, 2 * 4099, 1023, SILU),
    (3, 17, 65, SCALE),
    (4, 5120, 13824, SCALE),
    (5, 2 * 27648, 5120, SILU),
    (6, 3072, 8191, SCALE),
    (7, 100, 60, SCALE),
    (8, 2 * 5461, 2049, GELU),
    (8, 32768, 128, SCALE),
    (9, 96, 33, SCALE),
    (15, 1537, 1537, SCALE),
    (17, 2 * 769, 257, GELU),
    (31, 640, 2560, SCALE),
    (33, 96, 100_003, SCALE),
    (63, 2 * 2731, 1000, SILU),
    (64, 16384, 53248, SCALE),
    (65, 7168, 2304, SCALE),
    (97, 2 * 1117, 769, SILU),
    (127, 3584, 18944, SCALE),
    (129, 1000, 1021, SCALE),
    (160, 2 * 8960, 1536, SILU),
    (255, 12289, 4097, SCALE),
    (257, 2 * 6151, 2311, GELU),
    (300, 2 * 11008, 4096, SILU),
    (333, 4444, 5555, SCALE),
    (511, 9216, 3072, SCALE),
    (1000, 2 * 4864, 896, SILU),
    (2048, 1, 31, SCALE),
];

/// Each on another number of columns than the one before it.
pub fn problems() -> impl Iterator<Item = Problem> {
    SIZES.into_iter().zip((1..=4).cycle()).map(|((rows, cols, depth, epilogue), columns)| Problem {
        rows,
        cols,
        depth,
        epilogue,
        columns,
    })
}

/// Heads of keys, query rows of each, keys, and values of a head.
const ATTENTION: [(usize, usize, usize, usize); 14] = [
    (1, 1, 1, 1),
    (1, 3, 4099, 64),
    (2, 7, 33, 36),
    (3, 1021, 131, 40),
    (4, 64, 2048, 64),
    (5, 517, 1000, 72),
    (5, 4096, 131_072, 80),
    (8, 2048, 8191, 96),
    (8, 1536, 1535, 112),
    (8, 8 * 512, 32_768, 128),
    (2, 100, 257, 160),
    (1, 4 * 333, 40_960, 192),
    (4, 1024, 1023 + 512, 256),
    (1, 8 * 512, 8192, 512),
];

/// Each on another number of columns than the one before it.
pub fn attention() -> impl Iterator<Item = AttentionProblem> {
    let problem = |((heads, rows, keys, depth), columns)| AttentionProblem { heads, rows, keys, depth, columns };
    ATTENTION.into_iter().zip((1..=4).cycle()).map(problem)
}
