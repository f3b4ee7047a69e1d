//! The computations of attention's cores, in operations of MLIR's vector dialect.
//!
//! What mlir-aie's conversion makes of each is in [`super::legalised`]: a `vector.contract` of 4×8 by 8×4 bf16 with extensions to f32 in front becomes the
//! matrix unit's instruction, and products of f32 and the truncation to bf16 are converted. The softmax is an external function: AIE2 has exponentials only
//! by tables, and its vectors of f32 have neither sum nor difference.

use unicorn_kernels::npu::attention::{AttentionTile, BLOCK, BLOCK_INNER, BLOCK_VALUES, OPERAND_BYTES};

use super::op::{Block, Value};

/// Name of the external function of the softmax.
pub const SOFTMAX: &str = "unicorn_online_softmax";

const BYTES: &str = "vector<64xi8>";
const FLOATS: &str = "vector<16xf32>";
const SUMS: &str = "vector<4x4xf32>";
/// Bytes of [`BYTES`]: a block of operands, and of sums.
const VECTOR_BYTES: usize = 64;

/// Sets `sums` to 0.
pub fn clear(block: &mut Block, tile: &AttentionTile, sums: Value) {
    block.repeat(tile.sums() / BLOCK_VALUES, &[], |block, index, _| {
        let zero = block.constant("dense<0.000000e+00>", FLOATS);
        let nothing = block.index(0);
        let at = block.scaled_sum(index, BLOCK_VALUES, nothing);
        block.add("vector.store", &[zero, sums, at], Vec::new());
        Vec::new()
    });
}

/// Computes the scores of a block of keys, and copies the limits.
pub fn scores(block: &mut Block, tile: &AttentionTile, queries: Value, keys: Value, scores: Value) {
    let (across, steps) = (tile.keys / BLOCK, tile.depth / BLOCK_INNER);
    block.repeat(tile.rows / BLOCK, &[], |block, rows, _| {
        block.repeat(across, &[], |block, cols, _| {
            let zero = block.constant("dense<0.000000e+00>", FLOATS);
            let sums = products(block, [(queries, rows), (keys, cols)], steps, zero);
            let bytes = block.make("vector.bitcast", &[sums], Vec::new(), BYTES);
            let nothing = block.index(0);
            let first = block.scaled_sum(cols, VECTOR_BYTES, nothing);
            let at = block.scaled_sum(rows, across * VECTOR_BYTES, first);
            block.add("vector.store", &[bytes, scores, at], Vec::new());
            Vec::new()
        });
        Vec::new()
    });
    block.repeat(tile.limits_bytes() / VECTOR_BYTES, &[], |block, index, _| {
        let [from, to] = [tile.query_limits_at(), tile.score_limits_at()].map(|first| {
            let first = block.index(first);
            block.scaled_sum(index, VECTOR_BYTES, first)
        });
        let copied = block.make("vector.load", &[queries, from], Vec::new(), BYTES);
        block.add("vector.store", &[copied, scores, to], Vec::new());
        Vec::new()
    });
}

/// `sum` and the products of a row of blocks of each operand, over `steps` blocks.
fn products(block: &mut Block, operands: [(Value, Value); 2], steps: usize, sum: Value) -> Value {
    let sums = block.repeat(steps, &[sum], |block, step, sums| {
        let shapes = [(BLOCK, BLOCK_INNER), (BLOCK_INNER, BLOCK)];
        let pair = [0, 1].map(|side| {
            let ((object, line), (rows, cols)) = (operands[side], shapes[side]);
            let nothing = block.index(0);
            let first = block.scaled_sum(line, steps * OPERAND_BYTES, nothing);
            let at = block.scaled_sum(step, OPERAND_BYTES, first);
            let bytes = block.make("vector.load", &[object, at], Vec::new(), BYTES);
            let values = block.make("vector.bitcast", &[bytes], Vec::new(), "vector<32xbf16>");
            let values = block.make("vector.shape_cast", &[values], Vec::new(), format!("vector<{rows}x{cols}xbf16>"));
            block.make("arith.extf", &[values], Vec::new(), format!("vector<{rows}x{cols}xf32>"))
        });
        // A loop carries lanes: rows would be carried apart.
        let sum = block.make("vector.shape_cast", &[sums[0]], Vec::new(), SUMS);
        let sum = block.contract(pair[0], pair[1], sum);
        vec![block.make("vector.shape_cast", &[sum], Vec::new(), FLOATS)]
    });
    sums[0]
}

/// Calls the external function that computes probabilities from the scores of block `index`.
pub fn softmax(
    block: &mut Block,
    tile: &AttentionTile,
    scores: Value,
    state: Value,
    index: Value,
    probabilities: Value,
) {
    let index = block.make("arith.index_cast", &[index], Vec::new(), "i32");
    let rows = block.constant(&tile.rows.to_string(), "i32");
    let keys = block.constant(&tile.keys.to_string(), "i32");
    let callee = vec![("callee", format!("@{SOFTMAX}"))];
    block.add("func.call", &[scores, state, index, rows, keys, probabilities], callee);
}

/// Corrects the sums, adds the products of probabilities and values, and keeps the inverses.
pub fn add_values(
    block: &mut Block,
    tile: &AttentionTile,
    [probabilities, values]: [Value; 2],
    [sums, inverses]: [Value; 2],
) {
    let (across, steps) = (tile.depth / BLOCK, tile.keys / BLOCK_INNER);
    let factors = |block: &mut Block, first: usize, rows: Value| {
        let first = block.index(first);
        let at = block.scaled_sum(rows, VECTOR_BYTES, first);
        let bytes = block.make("vector.load", &[probabilities, at], Vec::new(), BYTES);
        block.make("vector.bitcast", &[bytes], Vec::new(), FLOATS)
    };
    block.repeat(tile.rows / BLOCK, &[], |block, rows, _| {
        let corrections = factors(block, tile.corrections_at(), rows);
        block.repeat(across, &[], |block, cols, _| {
            let nothing = block.index(0);
            let first = block.scaled_sum(cols, BLOCK_VALUES, nothing);
            let at = block.scaled_sum(rows, across * BLOCK_VALUES, first);
            let before = block.make("vector.load", &[sums, at], Vec::new(), FLOATS);
            let corrected = block.make("arith.mulf", &[before, corrections], Vec::new(), FLOATS);
            let after = products(block, [(probabilities, rows), (values, cols)], steps, corrected);
            block.add("vector.store", &[after, sums, at], Vec::new());
            Vec::new()
        });
        let of_rows = factors(block, tile.corrections_at() + tile.factor_bytes(), rows);
        let nothing = block.index(0);
        let at = block.scaled_sum(rows, BLOCK_VALUES, nothing);
        block.add("vector.store", &[of_rows, inverses, at], Vec::new());
        Vec::new()
    });
}

/// Computes output object `piece`.
pub fn normalise(block: &mut Block, tile: &AttentionTile, [sums, inverses]: [Value; 2], piece: Value, output: Value) {
    let nothing = block.index(0);
    let at = block.scaled_sum(piece, BLOCK_VALUES, nothing);
    let factors = block.make("vector.load", &[inverses, at], Vec::new(), FLOATS);
    block.repeat(tile.depth / BLOCK, &[], |block, cols, _| {
        let nothing = block.index(0);
        let to = block.scaled_sum(cols, BLOCK_VALUES, nothing);
        let from = block.scaled_sum(piece, tile.output_values(), to);
        let values = block.make("vector.load", &[sums, from], Vec::new(), FLOATS);
        let values = block.make("arith.mulf", &[values, factors], Vec::new(), FLOATS);
        let values = block.make("arith.truncf", &[values], Vec::new(), "vector<16xbf16>");
        block.add("vector.store", &[values, output, to], Vec::new());
        Vec::new()
    });
}
