//! The computations of cores, in operations of MLIR's vector dialect.
//!
//! What mlir-aie's conversion makes of each is in [`super::legalised`]: a `vector.contract` of 4×16 INT8 by 16×8 INT4 with sign extensions of its operands
//! in front becomes the matrix unit's instruction. The epilogue is an external function.

use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::{
    BLOCK_BYTES, BLOCK_COLS, BLOCK_DEPTH, BLOCK_ROWS, BLOCK_SUMS, CoreTile, Epilogue, REGISTER_COLS,
};

use super::op::{Block, Value};

const BYTES: &str = "vector<64xi8>";
const LANES: &str = "vector<32xi32>";
const SHORTS: &str = "vector<32xi16>";
const SUMS: &str = "vector<4x8xi32>";
/// [`LANES`] as a row.
const ROW: &str = "vector<1x32xi32>";
/// Bytes of a vector that copies scales.
const COPIED_BYTES: usize = 32;

/// Name of the external function that computes an output object.
pub fn epilogue_name(epilogue: Epilogue) -> &'static str {
    match epilogue {
        Epilogue::Scale => "unicorn_scale_bf16",
        Epilogue::ActMul(Activation::Silu) => "unicorn_silu_mul_bf16",
        Epilogue::ActMul(Activation::GeluTanh) => "unicorn_gelu_mul_bf16",
        Epilogue::ActMul(Activation::ClampedSwiGlu) => unreachable!("only experts have it, and no NPU computes those"),
        Epilogue::ActMul(Activation::Gelu) => unreachable!("only what makes rows of images has it, without a product"),
    }
}

/// Sets `sums` to 0.
pub fn clear(block: &mut Block, core: &CoreTile, sums: Value) {
    block.repeat(core.sums() / BLOCK_SUMS, &[], |block, index, _| {
        let zero = block.constant("dense<0>", LANES);
        let nothing = block.index(0);
        let at = block.scaled_sum(index, BLOCK_SUMS, nothing);
        block.add("vector.store", &[zero, sums, at], Vec::new());
        Vec::new()
    });
}

/// Adds the products of two objects to `sums`.
pub fn add_products(block: &mut Block, core: &CoreTile, activations: Value, weights: Value, sums: Value) {
    let across = core.cols / BLOCK_COLS;
    let row_bytes = core.depth / BLOCK_DEPTH * BLOCK_BYTES;
    let register_rows = core.register_rows();
    block.repeat(core.rows / BLOCK_ROWS / register_rows, &[], |block, rows, _| {
        let at = block.index(core.row_multipliers_at());
        let at = block.scaled_sum(rows, BLOCK_SUMS, at);
        let of_rows = wide_bytes(block, activations, at);
        block.repeat(across / REGISTER_COLS, &[], |block, cols, _| {
            let nothing = block.index(0);
            let a_at = block.scaled_sum(rows, register_rows * row_bytes, nothing);
            let w_at = block.scaled_sum(cols, REGISTER_COLS * row_bytes, nothing);
            let half = block.constant(&format!("dense<{}>", core.half()), LANES);
            let groups = block.repeat(
                core.depth / BLOCK_DEPTH,
                &vec![half; register_rows * REGISTER_COLS],
                |block, step, groups| {
                    products_of_step(block, [(activations, a_at), (weights, w_at)], row_bytes, step, groups)
                },
            );
            let multipliers: Vec<Value> = (0..REGISTER_COLS)
                .map(|col| {
                    let at = block.index(core.multipliers_at() + col * BLOCK_SUMS);
                    let at = block.scaled_sum(cols, REGISTER_COLS * BLOCK_SUMS, at);
                    let of_columns = wide_bytes(block, weights, at);
                    product_of_multipliers(block, core, of_columns, of_rows)
                })
                .collect();
            for (index, group) in groups.into_iter().enumerate() {
                let (row, col) = (index / REGISTER_COLS, index % REGISTER_COLS);
                let first = block.index((row * across + col) * BLOCK_SUMS);
                let first = block.scaled_sum(cols, REGISTER_COLS * BLOCK_SUMS, first);
                let at = block.scaled_sum(rows, register_rows * across * BLOCK_SUMS, first);
                add_group(block, core, group, multipliers[col], sums, at);
            }
            Vec::new()
        });
        Vec::new()
    });
}

/// One step of 16 values of k for all blocks of sums in registers.
fn products_of_step(
    block: &mut Block,
    [(activations, a_at), (weights, w_at)]: [(Value, Value); 2],
    row_bytes: usize,
    step: Value,
    groups: &[Value],
) -> Vec<Value> {
    let register_rows = groups.len() / REGISTER_COLS;
    let a: Vec<Value> = (0..register_rows)
        .map(|row| {
            let first = block.index(row * row_bytes);
            let first = block.make("arith.addi", &[a_at, first], Vec::new(), "index");
            let at = block.scaled_sum(step, BLOCK_BYTES, first);
            let bytes = block.make("vector.load", &[activations, at], Vec::new(), BYTES);
            let values = block.make("vector.shape_cast", &[bytes], Vec::new(), "vector<4x16xi8>");
            block.make("arith.extsi", &[values], Vec::new(), "vector<4x16xi32>")
        })
        .collect();
    let w: Vec<Value> = (0..REGISTER_COLS)
        .map(|col| {
            let first = block.index(col * row_bytes);
            let first = block.make("arith.addi", &[w_at, first], Vec::new(), "index");
            let at = block.scaled_sum(step, BLOCK_BYTES, first);
            let bytes = block.make("vector.load", &[weights, at], Vec::new(), BYTES);
            let codes = block.make("vector.bitcast", &[bytes], Vec::new(), "vector<128xi4>");
            let codes = block.make("vector.shape_cast", &[codes], Vec::new(), "vector<16x8xi4>");
            block.make("arith.extsi", &[codes], Vec::new(), "vector<16x8xi32>")
        })
        .collect();
    let places = (0..register_rows).flat_map(|row| (0..REGISTER_COLS).map(move |col| (row, col)));
    // A loop carries lanes: rows would be carried apart.
    let sums = places.zip(groups).map(|((row, col), sum)| {
        let sum = block.make("vector.shape_cast", &[*sum], Vec::new(), SUMS);
        let sum = block.contract(a[row], w[col], sum);
        block.make("vector.shape_cast", &[sum], Vec::new(), LANES)
    });
    sums.collect()
}

/// 32 bytes as numbers.
fn wide_bytes(block: &mut Block, memory: Value, at: Value) -> Value {
    let bytes = block.make("vector.load", &[memory, at], Vec::new(), "vector<32xi8>");
    block.make("arith.extsi", &[bytes], Vec::new(), LANES)
}

/// `columns · rows + half >> shift`, in 16 bits.
fn product_of_multipliers(block: &mut Block, core: &CoreTile, columns: Value, rows: Value) -> Value {
    let product = block.make("arith.muli", &[columns, rows], Vec::new(), LANES);
    let half = block.constant(&format!("dense<{}>", core.multiplier_half()), LANES);
    let product = block.make("arith.addi", &[product, half], Vec::new(), LANES);
    short(block, product, core.multiplier_shift())
}

/// `value >> shift`, cut to 16 bits.
fn short(block: &mut Block, mut value: Value, shift: u32) -> Value {
    if shift > 0 {
        let shift = block.constant(&format!("dense<{shift}>"), LANES);
        value = block.make("arith.shrsi", &[value, shift], Vec::new(), LANES);
    }
    let short = block.make("arith.trunci", &[value], Vec::new(), SHORTS);
    block.make("arith.extsi", &[short], Vec::new(), LANES)
}

/// `sums[at] += multipliers · (group >> shift)`.
///
/// The sum is one of rows, since mlir-aie's conversion leaves a product alone whose only use is a sum, and would then fold truncations with their
/// extensions: in its versions of 2026, the shift would be lost. The product of two extensions from 16 bits becomes an instruction.
fn add_group(block: &mut Block, core: &CoreTile, group: Value, multipliers: Value, sums: Value, at: Value) {
    let group = short(block, group, core.shift());
    let product = block.make("arith.muli", &[group, multipliers], Vec::new(), LANES);
    let product = block.make("vector.shape_cast", &[product], Vec::new(), ROW);
    let before = block.make("vector.load", &[sums, at], Vec::new(), LANES);
    let before = block.make("vector.shape_cast", &[before], Vec::new(), ROW);
    let after = block.make("arith.addi", &[before, product], Vec::new(), ROW);
    let after = block.make("vector.shape_cast", &[after], Vec::new(), LANES);
    block.add("vector.store", &[after, sums, at], Vec::new());
}

/// Copies the scales of both objects to `scales`.
pub fn keep_scales(block: &mut Block, core: &CoreTile, activations: Value, weights: Value, scales: Value) {
    let row_bytes = 4 * core.rows;
    for (from, first, bytes, to) in [
        (activations, core.row_scales_at(), row_bytes, 0),
        (weights, core.column_scales_at(), 4 * core.cols, row_bytes),
    ] {
        block.repeat(bytes / COPIED_BYTES, &[], |block, index, _| {
            let [first, to] = [first, to].map(|offset| {
                let offset = block.index(offset);
                block.scaled_sum(index, COPIED_BYTES, offset)
            });
            let copied = block.make("vector.load", &[from, first], Vec::new(), "vector<32xi8>");
            block.add("vector.store", &[copied, scales, to], Vec::new());
            Vec::new()
        });
    }
}

/// Calls the external function that computes output object `piece`.
pub fn finish(block: &mut Block, core: &CoreTile, sums: Value, scales: Value, piece: Value, output: Value) {
    let piece = block.make("arith.index_cast", &[piece], Vec::new(), "i32");
    let rows = block.constant(&core.rows.to_string(), "i32");
    let cols = block.constant(&core.cols.to_string(), "i32");
    let callee = format!("@{}", epilogue_name(core.epilogue));
    block.add("func.call", &[sums, scales, piece, rows, cols, output], vec![("callee", callee)]);
}
