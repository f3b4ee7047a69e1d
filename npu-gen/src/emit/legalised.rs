//! The vector operations that bodies of cores may have: those that mlir-aie's conversion for AIE2 takes, with their types.
//!
//! The conversion (`--convert-vector-to-aievec=aie-target=aie2 target-backend=llvmir`) replaces some operations by instructions of AIE2, leaves others to the
//! compiler of the core, and refuses a third kind, such as `vector.fma` and `arith.addf` of f32. What is not in this list is an error of the emitter. External
//! functions are not checked: their declarations carry [`NOT_CHECKED`].
//!
//! Sources are functions of mlir-aie of 2024: `lib/Dialect/AIEVec/Transforms/VectorToAIEVecConversions.cpp`, which says what is converted and what is legal as it
//! is, and `lib/Conversion/AIEVecToLLVM/AIEVecToLLVM.cpp`, which has the intrinsics. `npu-gen/tests/aie_opt.rs` runs both conversions where there is an `aie-opt`.

use super::op::{Module, Op, Value};

/// Object file of the external functions.
pub const EPILOGUES: &str = "unicorn_epilogues.o";
/// Label of the declaration of an external function.
pub const NOT_CHECKED: &str = "not legalisation-checked";

/// What becomes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Becomes {
    /// Instructions of AIE2, by the conversion.
    Instructions,
    /// Part of the instruction that its result is an operand of; nothing else may use it.
    PartOf(&'static str),
    /// It stays as it is, and the compiler of the core selects instructions for it: legal for the conversion, which checks no more.
    Itself,
    /// A product. Of two extensions from 16 bits, instructions of AIE2, if its uses are changes of its shape. Of other operands, it stays as it is where its only
    /// use is an addition; the conversion would multiply bytes by an instruction whose other half is undefined.
    Product,
}

/// Type of what the factors of a [`Becomes::Product`] are extended from.
const FACTOR: &str = "vector<32xi16>";

/// A vector operation of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Legalised {
    /// Name of the operation.
    pub name: &'static str,
    /// Types of its operands that are vectors.
    pub operands: &'static [&'static str],
    /// Type of its result, if that is a vector.
    pub result: Option<&'static str>,
    /// What becomes of it.
    pub becomes: Becomes,
    /// Where the sources say so.
    pub source: &'static str,
}

const fn entry(
    name: &'static str,
    operands: &'static [&'static str],
    result: &'static str,
    becomes: Becomes,
    source: &'static str,
) -> Legalised {
    Legalised { name, operands, result: Some(result), becomes, source }
}

const fn load(result: &'static str) -> Legalised {
    entry("vector.load", &[], result, Becomes::Itself, UNNAMED)
}

const fn store(operand: &'static [&'static str]) -> Legalised {
    Legalised { name: "vector.store", operands: operand, result: None, becomes: Becomes::Itself, source: UNNAMED }
}

const fn constant(result: &'static str) -> Legalised {
    entry("arith.constant", &[], result, Becomes::Itself, ARITH)
}

const fn cast(operand: &'static [&'static str], result: &'static str) -> Legalised {
    entry("vector.shape_cast", operand, result, Becomes::Itself, "configureAIEVecV2Legalizations: a legal operation")
}

const fn bits(operand: &'static [&'static str], result: &'static str) -> Legalised {
    entry("vector.bitcast", operand, result, Becomes::Itself, UNNAMED)
}

const UNNAMED: &str = "neither pattern nor legalization names it: a partial conversion leaves it";
const ARITH: &str = "configureAIEVecCommonLegalizations: the arith dialect is legal where no rule says otherwise";
const EXTSI: &str =
    "LowerExtSIOpPattern: aievec.ups of 32 lanes to acc32; UPSOpConversion: v32int8 and v32int16 to v32acc32";
const OF_CONTRACT: &str = "LowerVectorContractionOpToAIEVecMatMulPattern: takes the operand of the extension";
const OF_PRODUCT: &str = "ConvertMulIToAIEVecMulElemOpPattern: takes the operand of the extension; elsewhere, UPSOp::fold would drop the truncation in front, \
                          and in 2026 its shift";
const MATRIX: &str = "LowerVectorContractionOpToAIEVecMatMulPattern: aievec.matmul of these sizes; MatMulOpConversion";

/// All of them.
pub const LEGALISED: &[Legalised] = &[
    load("vector<64xi8>"),
    load("vector<32xi8>"),
    load("vector<32xi32>"),
    load("vector<16xf32>"),
    store(&["vector<64xi8>"]),
    store(&["vector<32xi8>"]),
    store(&["vector<32xi32>"]),
    store(&["vector<16xf32>"]),
    store(&["vector<16xbf16>"]),
    constant("vector<32xi32>"),
    constant("vector<16xf32>"),
    // INT8 by INT4.
    cast(&["vector<64xi8>"], "vector<4x16xi8>"),
    bits(&["vector<64xi8>"], "vector<128xi4>"),
    cast(&["vector<128xi4>"], "vector<16x8xi4>"),
    entry("arith.extsi", &["vector<4x16xi8>"], "vector<4x16xi32>", Becomes::PartOf("vector.contract"), OF_CONTRACT),
    entry("arith.extsi", &["vector<16x8xi4>"], "vector<16x8xi32>", Becomes::PartOf("vector.contract"), OF_CONTRACT),
    entry(
        "vector.contract",
        &["vector<4x16xi32>", "vector<16x8xi32>", "vector<4x8xi32>"],
        "vector<4x8xi32>",
        Becomes::Instructions,
        MATRIX,
    ),
    // A group's sums.
    cast(&["vector<32xi32>"], "vector<4x8xi32>"),
    cast(&["vector<4x8xi32>"], "vector<32xi32>"),
    entry(
        "arith.shrsi",
        &["vector<32xi32>", "vector<32xi32>"],
        "vector<32xi32>",
        Becomes::Itself,
        "configureAIEVecCommonLegalizations: a shift of other than 512 bits is legal",
    ),
    entry(
        "arith.trunci",
        &["vector<32xi32>"],
        "vector<32xi16>",
        Becomes::Instructions,
        "LowerTruncIOpPattern: aievec.srs of acc32; SRSOpConversion: v32acc32 to v32int16",
    ),
    entry("arith.extsi", &[FACTOR], "vector<32xi32>", Becomes::PartOf("arith.muli"), OF_PRODUCT),
    entry("arith.extsi", &["vector<32xi8>"], "vector<32xi32>", Becomes::Instructions, EXTSI),
    entry(
        "arith.muli",
        &["vector<32xi32>", "vector<32xi32>"],
        "vector<32xi32>",
        Becomes::Product,
        "configureAIEVecV2Legalizations: legal as a part of a multiplication with addition; else MulElemOpConversion: v32int16 by v32int16",
    ),
    entry("arith.addi", &["vector<32xi32>", "vector<32xi32>"], "vector<32xi32>", Becomes::Itself, ARITH),
    cast(&["vector<32xi32>"], "vector<1x32xi32>"),
    entry("arith.addi", &["vector<1x32xi32>", "vector<1x32xi32>"], "vector<1x32xi32>", Becomes::Itself, ARITH),
    cast(&["vector<1x32xi32>"], "vector<32xi32>"),
    // Attention.
    bits(&["vector<64xi8>"], "vector<32xbf16>"),
    cast(&["vector<32xbf16>"], "vector<4x8xbf16>"),
    cast(&["vector<32xbf16>"], "vector<8x4xbf16>"),
    entry("arith.extf", &["vector<4x8xbf16>"], "vector<4x8xf32>", Becomes::PartOf("vector.contract"), OF_CONTRACT),
    entry("arith.extf", &["vector<8x4xbf16>"], "vector<8x4xf32>", Becomes::PartOf("vector.contract"), OF_CONTRACT),
    entry(
        "vector.contract",
        &["vector<4x8xf32>", "vector<8x4xf32>", "vector<4x4xf32>"],
        "vector<4x4xf32>",
        Becomes::Instructions,
        MATRIX,
    ),
    cast(&["vector<4x4xf32>"], "vector<16xf32>"),
    cast(&["vector<16xf32>"], "vector<4x4xf32>"),
    bits(&["vector<16xf32>"], "vector<64xi8>"),
    bits(&["vector<64xi8>"], "vector<16xf32>"),
    entry(
        "arith.mulf",
        &["vector<16xf32>", "vector<16xf32>"],
        "vector<16xf32>",
        Becomes::Instructions,
        "ConvertMulFToAIEVecMulElemOpPattern; MulElemOpConversion: f32 by products of bf16",
    ),
    entry(
        "arith.truncf",
        &["vector<16xf32>"],
        "vector<16xbf16>",
        Becomes::Instructions,
        "LowerTruncFOpPattern: aievec.srs; SRSOpConversion: v16accfloat to v16bfloat16",
    ),
];

/// What a module's bodies compute with vectors and no entry of [`LEGALISED`] permits, each as text; none: all is permitted.
///
/// Loops carry vectors without computing with them.
pub fn not_legalised(module: &Module) -> Vec<String> {
    let mut ops = Vec::new();
    collect(&module.ops, &mut ops);
    ops.iter().filter_map(|op| fault(module, op, &ops)).collect()
}

/// The comment before the declaration of an external function; `None` for other operations.
pub(super) fn label(op: &Op) -> Option<String> {
    let is_external = op.name == "func.func" && op.regions.iter().all(|region| region.ops.is_empty());
    let name = op.attribute("sym_name").trim_matches('"');
    is_external.then(|| format!("// @{name} is compiled outside of this text, to {EPILOGUES}: {NOT_CHECKED}"))
}

/// The comments on all external functions, in the order of the text.
#[cfg(feature = "mlir")]
pub(super) fn labels(module: &Module) -> Vec<String> {
    let mut ops = Vec::new();
    collect(&module.ops, &mut ops);
    ops.into_iter().filter_map(label).collect()
}

fn collect<'m>(ops: &'m [Op], all: &mut Vec<&'m Op>) {
    for op in ops {
        all.push(op);
        op.regions.iter().for_each(|region| collect(&region.ops, all));
    }
}

fn fault(module: &Module, op: &Op, all: &[&Op]) -> Option<String> {
    let vectors = |values: &[Value]| -> Vec<&str> {
        values.iter().map(|value| module.ty(*value)).filter(|ty| ty.starts_with("vector<")).collect()
    };
    let (operands, results) = (vectors(&op.operands), vectors(&op.results));
    if operands.is_empty() && results.is_empty() || matches!(op.name, "scf.for" | "scf.yield") {
        return None;
    }
    let text = format!("{} of ({}) to ({})", op.name, operands.join(", "), results.join(", "));
    let is_this =
        |one: &&Legalised| one.name == op.name && one.operands == operands && one.result.as_slice() == results;
    let Some(entry) = LEGALISED.iter().find(is_this) else {
        return Some(format!("{text} is no operation that is known to be taken for AIE2"));
    };
    let (only, at_most) = match entry.becomes {
        Becomes::Instructions | Becomes::Itself => return None,
        Becomes::PartOf(only) => (only, usize::MAX),
        Becomes::Product => match op.operands.iter().filter(|value| is_extended(module, **value, all)).count() {
            0 => ("arith.addi", 1),
            2 => ("vector.shape_cast", usize::MAX),
            _ => {
                return Some(format!("{text} has one operand that is an extension of {FACTOR}, expected none or both"));
            }
        },
    };
    let is_used_by = |other: &&&Op| op.results.iter().any(|result| other.operands.contains(result));
    let uses: Vec<&str> = all.iter().filter(is_used_by).map(|other| other.name).collect();
    let holds = !uses.is_empty() && uses.len() <= at_most && uses.iter().all(|name| *name == only);
    (!holds).then(|| format!("{text} is used by {uses:?}, expected {only}"))
}

/// Whether a value is an extension of a [`FACTOR`].
fn is_extended(module: &Module, value: Value, all: &[&Op]) -> bool {
    all.iter().any(|op| op.name == "arith.extsi" && op.results == [value] && module.ty(op.operands[0]) == FACTOR)
}

#[cfg(test)]
mod tests {
    use unicorn_kernels::Activation;
    use unicorn_kernels::npu::attention::{AttentionShape, AttentionTile};
    use unicorn_kernels::npu::tile::{CoreTile, Epilogue, GemmShape};

    use super::*;
    use crate::emit::{Block, Dialect, body_function, module};
    use crate::{attention, gemm};

    /// Products with and without a shift and an activation, as a GEMM and as a GEMV, and attention.
    fn modules() -> Vec<Module> {
        let epilogues = [Epilogue::Scale, Epilogue::ActMul(Activation::Silu)];
        let sizes = [(16, 16, 32), (64, 128, 128), (8, 96, 64)];
        let products = epilogues.into_iter().flat_map(|epilogue| {
            sizes.map(|(rows, cols, depth)| {
                let core = CoreTile::new(rows, cols, depth, epilogue);
                gemm::design(&GemmShape::padded(rows, cols, depth, 1, core))
            })
        });
        let tiles = [(8, 8, 8), (32, 16, 256)].map(|(rows, keys, depth)| {
            attention::design(&AttentionShape::padded(1, rows, keys, 1, AttentionTile { rows, keys, depth }))
        });
        products.chain(tiles).map(|design| module(&design, Dialect::Y2026)).collect()
    }

    #[test]
    fn every_body_has_permitted_operations_only() {
        for module in modules() {
            assert_eq!(not_legalised(&module), Vec::<String>::new());
        }
    }

    #[test]
    fn every_entry_is_of_an_operation_that_a_body_has() {
        let modules = modules();
        for entry in LEGALISED {
            let types = |module: &Module, values: &[Value]| -> Vec<String> {
                let types = values.iter().map(|value| module.ty(*value).to_owned());
                types.filter(|ty| ty.starts_with("vector<")).collect()
            };
            let is_used = modules.iter().any(|module| {
                let mut ops = Vec::new();
                collect(&module.ops, &mut ops);
                ops.iter().any(|op| {
                    op.name == entry.name
                        && types(module, &op.operands) == entry.operands
                        && types(module, &op.results) == entry.result.as_slice()
                })
            });
            assert!(is_used, "no body has {entry:?}");
        }
    }

    /// Bodies with one operation that the conversion refuses, with other types, or with another use of a result.
    #[test]
    fn another_operation_is_refused_by_name() {
        /// Applies a change to every operation of a name that computes a vector.
        fn change(ops: &mut [Op], vectors: &[bool], of: &str, to: &mut dyn FnMut(&mut Op)) {
            for op in ops {
                if op.name == of && op.results.iter().any(|value| vectors[value.0]) {
                    to(op);
                }
                op.regions.iter_mut().for_each(|region| change(&mut region.ops, vectors, of, to));
            }
        }
        let refused = |of: &str, to: &mut dyn FnMut(&mut Op)| {
            let mut module = body_function(&CoreTile::new(16, 16, 64, Epilogue::Scale));
            let vectors: Vec<bool> = module.values.iter().map(|value| value.ty.starts_with("vector<")).collect();
            change(&mut module.ops, &vectors, of, to);
            not_legalised(&module).join("; ")
        };
        let text = refused("vector.contract", &mut |op| op.name = "vector.fma");
        assert!(text.contains("vector.fma of (vector<4x16xi32>, vector<16x8xi32>, vector<4x8xi32>)"), "{text}");
        let text = refused("arith.addi", &mut |op| op.name = "arith.subi");
        assert!(text.contains("arith.subi of (vector<32xi32>, vector<32xi32>)"), "{text}");
        assert!(text.contains("is used by [\"arith.subi\"], expected arith.addi"), "{text}");
        let text = refused("arith.muli", &mut |op| op.name = "arith.trunci");
        assert!(text.contains("arith.trunci of (vector<32xi32>, vector<32xi32>) to (vector<32xi32>)"), "{text}");
        let mut module = body_function(&CoreTile::new(16, 16, 64, Epilogue::Scale));
        for value in module.values.iter_mut().filter(|value| value.ty == "vector<32xi16>") {
            value.ty = "vector<16xi16>".into();
        }
        let text = not_legalised(&module).join("; ");
        assert!(text.contains("arith.trunci of (vector<32xi32>) to (vector<16xi16>)"), "{text}");
    }

    /// A product that is added, of which mlir-aie's conversion makes the product of the values before truncation, in 2026 before the shift.
    #[test]
    fn factors_of_a_product_that_is_added_are_no_extensions() {
        let refused = |extended: [bool; 2]| {
            let mut module = Module::default();
            let mut block = Block { module: &mut module, ops: Vec::new() };
            let one = block.constant("dense<1>", "vector<32xi32>");
            let shifted = block.make("arith.shrsi", &[one, one], Vec::new(), "vector<32xi32>");
            let short = block.make("arith.trunci", &[shifted], Vec::new(), FACTOR);
            let factors = extended.map(|extended| match extended {
                true => block.make("arith.extsi", &[short], Vec::new(), "vector<32xi32>"),
                false => shifted,
            });
            let product = block.make("arith.muli", &factors, Vec::new(), "vector<32xi32>");
            block.make("arith.addi", &[product, one], Vec::new(), "vector<32xi32>");
            let ops = block.ops;
            module.ops = ops;
            not_legalised(&module).join("; ")
        };
        assert_eq!(refused([false, false]), "");
        let text = refused([true, true]);
        assert!(
            text.contains("arith.muli") && text.contains("is used by [\"arith.addi\"], expected vector.shape_cast"),
            "{text}"
        );
        for mixed in [[true, false], [false, true]] {
            let text = refused(mixed);
            assert!(text.contains("has one operand that is an extension of vector<32xi16>"), "{text}");
        }
    }
}
