//! Programs read, verified, lowered and converted by mlir-aie's own `aie-opt`, where there is one.
//!
//! | variable | meaning |
//! |---|---|
//! | `AIE_OPT=PATH` | the program; without it, these checks are skipped |
//! | `AIE_OPT_DIALECT=2024` | it is of summer 2024, not of 2026 |
//! | `AIE_OPT_PASSES=...` | arguments for its passes instead of those of [`passes`] |
//! | `AIE_OPT_RANDOM=N` | programs of random sizes, 12 if it is not set |

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::models::MODELS;
use support::odd;
use test_support::skip;
use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::attention::{self, AttentionProblem};
use unicorn_npu::design::Design;
use unicorn_npu::device::Tile;
use unicorn_npu::emit::{Dialect, module, readable};
use unicorn_npu::lower::{Direction, Lowered, lower};
use unicorn_npu::stream::{self, Instruction};
use unicorn_npu::{Problem, passthrough, solve};

/// From FIFOs to buffers with addresses, locks, descriptors and routes, and from the host's transfers to instructions, in the order of mlir-aie's `aiecc`.
/// Sums lie in more than one bank of a core's memory, so that buffers are placed one after the other: in 2024 by this option, in 2026 by the program itself.
fn passes(dialect: Dialect) -> String {
    let addresses = match dialect {
        Dialect::Y2024 => "--aie-assign-buffer-addresses=basic-alloc",
        Dialect::Y2026 => "--aie-assign-buffer-addresses",
    };
    format!(
        "--aie-canonicalize-device --aie-assign-lock-ids --aie-register-objectFifos --aie-objectFifo-stateful-transform --aie-assign-bd-ids {addresses} \
         --aie-create-pathfinder-flows --aie-dma-to-npu"
    )
}

/// From vector operations to the intrinsics of AIE2.
const CONVERSIONS: [&str; 2] =
    ["--convert-vector-to-aievec=aie-target=aie2 target-backend=llvmir", "--convert-aievec-to-llvm"];

struct AieOpt {
    program: PathBuf,
    dialect: Dialect,
    passes: Vec<String>,
}

impl AieOpt {
    /// The one that the environment names; without one, the check is reported as skipped.
    fn find() -> Option<AieOpt> {
        let Some(program) = std::env::var_os("AIE_OPT") else {
            skip("aie-opt", "AIE_OPT names no program");
            return None;
        };
        let dialect = match std::env::var("AIE_OPT_DIALECT").as_deref() {
            Ok("2024") => Dialect::Y2024,
            Ok("2026") | Err(_) => Dialect::Y2026,
            Ok(other) => panic!("AIE_OPT_DIALECT is {other}, expected 2024 or 2026"),
        };
        let passes = std::env::var("AIE_OPT_PASSES").unwrap_or_else(|_| passes(dialect));
        let passes = passes.split_whitespace().map(str::to_owned).collect();
        Some(AieOpt { program: program.into(), dialect, passes })
    }

    /// What it makes of a text.
    fn run(&self, name: &str, text: &str, passes: &[String]) -> String {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}.mlir", self.dialect.name()));
        std::fs::write(&file, text).unwrap();
        let output = Command::new(&self.program).arg(&file).args(passes).output().expect("AIE_OPT starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}, {}: {}", file.display(), errors);
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same, of a program's readable form, and in a build with MLIR of its generic form, which has to mean the same.
    fn run_both(&self, program: &Program, passes: &[String]) -> String {
        let operations = module(&program.design, self.dialect);
        let of_readable = self.run(&program.name, &readable(&operations), passes);
        #[cfg(feature = "mlir")]
        {
            let generic = unicorn_npu::emit::generic_text(&operations).unwrap();
            let of_generic = self.run(&format!("{}-generic", program.name), &generic, passes);
            assert!(of_readable == of_generic, "{}: the generic form means something else", program.name);
        }
        of_readable
    }

    fn verify(&self, program: &Program) {
        let canonical = self.run_both(program, &[]);
        assert!(canonical.contains("aie.device"), "{canonical}");
    }

    /// Places and routes a program, and compares the instructions with our own.
    fn place(&self, program: &Program) {
        let lowered = self.run_both(program, &self.passes);
        assert!(!lowered.contains("aie.objectfifo @"), "{}: FIFOs are left", program.name);
        let mut bytes = stream::encode(&program.design, &program.lowered);
        if self.dialect == Dialect::Y2026 {
            let header = bytes[..8].to_vec();
            bytes = stream::as_of_2026(&bytes, program.design.columns).unwrap();
            bytes[..8].copy_from_slice(&header);
        }
        let expected = stream::decode(&bytes).unwrap();
        let found = instructions(&lowered);
        let differs = found.iter().zip(&expected).find(|(found, expected)| found != expected);
        assert!(found == expected, "{}: found and expected: {differs:?}", program.name);
    }

    /// Converts the bodies to intrinsics: of each kind as many as there are operations that have to become them.
    fn convert(&self, program: &Program) {
        let name = &program.name;
        let text = readable(&module(&program.design, self.dialect));
        // As the conversion finds it, which computes common subexpressions once.
        let before = self.run(name, &text, &["--canonicalize".into(), "--cse".into()]);
        let after = self.run(&format!("{name}-converted"), &text, &CONVERSIONS.map(str::to_owned));
        for left in
            ["aievec.", "vector.contract", "arith.trunci", "arith.extsi", "arith.extf", "arith.truncf", "arith.mulf"]
        {
            assert_eq!(count(&after, left), 0, "{name}: {left} is left");
        }
        // Operations, and the intrinsics that only they become.
        for (operation, intrinsic) in [
            (": vector<4x16xi32>, vector<16x8xi32> into vector<4x8xi32>", "I512.I512.ACC1024.acc32.mac.conf"),
            ("arith.trunci", "I512.v32.acc32.srs"),
            (": vector<1x32xi32>\n", "I512.I512.acc32.mul.conf"),
            ("arith.mulf", "bf.mul16.conf"),
        ] {
            let found = count(&after, &format!("\"xllvm.intr.aie2.{intrinsic}\""));
            assert_eq!(found, count(&before, operation), "{name}: {intrinsic} of {operation}");
        }
        for signs in signs_of_products(&after) {
            let known = self.dialect == Dialect::Y2026 && signs == UNSIGNED;
            assert!(signs == SIGNED || known, "{name}: a product of configuration {signs}");
        }
    }
}

/// Configurations of the 4×16×8 product: of signed operands, and of unsigned activations. mlir-aie's conversion takes signed ones for unsigned from 2026-02-26
/// until 2026-08-05 (its pull requests 2894 and 3489): then the products are wrong, and nothing in a program can prevent it.
const SIGNED: u32 = 768;
const UNSIGNED: u32 = 256;

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

/// Configurations of all 4×16×8 products in a converted text.
fn signs_of_products(text: &str) -> Vec<u32> {
    let mut constants = BTreeMap::new();
    let mut signs = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some((name, rest)) = line.split_once(" = llvm.mlir.constant(") {
            constants.insert(name, rest.split(' ').next().and_then(|value| value.parse().ok()));
        } else if let Some((_, rest)) = line.split_once("acc32.mac.conf\"(") {
            let operands = rest.split(')').next().unwrap_or_default();
            let last = operands.rsplit(", ").next().unwrap_or_default();
            signs.push(constants[last].expect("a number"));
        }
    }
    signs
}

/// A program with its name.
struct Program {
    name: String,
    design: Design,
    lowered: Lowered,
}

impl Program {
    fn of(problem: &Problem) -> Program {
        let Problem { rows, cols, depth, epilogue, columns } = problem;
        let kind = if *epilogue == Epilogue::Scale { "scale" } else { "act-mul" };
        let solution = solve(problem).expect("some size fits");
        let name = format!("{rows}x{cols}x{depth}-{kind}-{columns}");
        Program { name, design: solution.design, lowered: solution.lowered }
    }

    fn of_attention(problem: &AttentionProblem) -> Program {
        let AttentionProblem { heads, rows, keys, depth, columns } = problem;
        let solution = attention::solve(problem).expect("some size fits");
        let name = format!("attention-{heads}x{rows}x{keys}x{depth}-{columns}");
        Program { name, design: solution.design, lowered: solution.lowered }
    }

    fn passthrough(columns: usize) -> Program {
        let design = passthrough::design(columns, 4);
        let lowered = lower(&design);
        Program { name: format!("passthrough-{columns}"), design, lowered }
    }
}

/// The products of all models and of awkward sizes.
fn products() -> Vec<Problem> {
    let of_models = MODELS.iter().flat_map(|model| (1..=4).flat_map(|columns| model.products(columns)));
    let of_few_rows = MODELS.iter().flat_map(|model| model.products_of(1, 4));
    odd::problems().chain(of_models.chain(of_few_rows).map(|(_, problem)| problem)).collect()
}

/// Some of them.
fn fewer_products() -> Vec<Problem> {
    let of_models = |problem: &Problem| [1, support::models::ROWS].contains(&problem.rows) && problem.columns == 4;
    products().into_iter().filter(|problem| !of_models(problem) || problem.cols == 6144).collect()
}

/// The same of attention, and transfers without cores.
fn others() -> Vec<Program> {
    let of_models = MODELS.iter().flat_map(|model| (1..=4).map(|columns| model.attention(columns)));
    let attention = of_models.chain(odd::attention()).map(|problem| Program::of_attention(&problem));
    attention.chain((1..=4).map(Program::passthrough)).collect()
}

#[test]
fn aie_opt_verifies_the_programs_of_all_shapes() {
    let Some(tool) = AieOpt::find() else { return };
    products().iter().for_each(|problem| tool.verify(&Program::of(problem)));
}

#[test]
fn aie_opt_places_and_routes_the_programs() {
    let Some(tool) = AieOpt::find() else { return };
    fewer_products().iter().for_each(|problem| tool.place(&Program::of(problem)));
}

#[test]
fn aie_opt_converts_the_bodies() {
    let Some(tool) = AieOpt::find() else { return };
    fewer_products().iter().for_each(|problem| tool.convert(&Program::of(problem)));
}

#[test]
fn aie_opt_takes_attention_and_transfers() {
    let Some(tool) = AieOpt::find() else { return };
    for program in others() {
        tool.verify(&program);
        tool.place(&program);
        tool.convert(&program);
    }
}

#[test]
fn aie_opt_takes_random_sizes() {
    let Some(tool) = AieOpt::find() else { return };
    let count = std::env::var("AIE_OPT_RANDOM").map_or(12, |text| text.parse().expect("AIE_OPT_RANDOM is a number"));
    let mut random = Random(0x5eed);
    for index in 0..count {
        let program = if index % 4 == 3 {
            let problem = random.attention();
            // What exceeds a limit has no program.
            let Ok(_) = attention::solve(&problem) else { continue };
            Program::of_attention(&problem)
        } else {
            Program::of(&random.product())
        };
        tool.verify(&program);
        tool.place(&program);
        tool.convert(&program);
    }
}

/// The same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    /// From 1 to `most`, of each order of magnitude as often.
    fn size(&mut self, most: usize) -> usize {
        let order = 1 << self.below(most.ilog2() as usize + 1);
        (order + self.below(order)).min(most)
    }

    fn product(&mut self) -> Problem {
        let activations = [Activation::Silu, Activation::GeluTanh].map(Epilogue::ActMul);
        let epilogue = [Epilogue::Scale, activations[0], activations[1]][self.below(3)];
        let cols = self.size(32768).next_multiple_of(if epilogue == Epilogue::Scale { 1 } else { 2 });
        Problem { rows: self.size(2048), cols, depth: self.size(32768), epilogue, columns: 1 + self.below(4) }
    }

    fn attention(&mut self) -> AttentionProblem {
        let (heads, rows, keys) = (self.size(32), self.size(8192), self.size(131_072));
        AttentionProblem { heads, rows, keys, depth: self.size(512), columns: 1 + self.below(4) }
    }
}

/// The instructions in a lowered text.
fn instructions(text: &str) -> Vec<Instruction> {
    let number = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("{name} = "))?;
        let digits: &str = rest.split(|c: char| !c.is_ascii_digit() && c != '-').next()?;
        // An offset of more than 2 GiB has a sign there.
        Some(digits.parse::<i64>().expect("32 bits") as u32)
    };
    let mut constants: Vec<(&str, Vec<u32>)> = Vec::new();
    let mut last_constant = "";
    let mut instructions = Vec::new();
    for line in text.lines().map(str::trim) {
        let of = |name: &str| number(line, name).unwrap_or_else(|| panic!("{name} is not in {line}"));
        if let Some((name, values)) =
            line.strip_prefix("memref.global \"private\" constant @").and_then(|rest| rest.split_once(" :"))
        {
            let (_, values) = values.split_once("dense<[").expect("values");
            let values = values.split(']').next().unwrap_or_default().split(", ");
            constants.push((name, values.map(|value| value.parse::<i64>().expect("a number") as u32).collect()));
        } else if line.contains("memref.get_global @") {
            last_constant = line.split('@').nth(1).and_then(|rest| rest.split(' ').next()).expect("a name");
        } else if line.starts_with("aiex.npu.blockwrite") {
            let (_, words) = constants.iter().find(|(name, _)| *name == last_constant).expect("the constant");
            instructions.push(Instruction::BlockWrite { address: of("address"), words: words.clone() });
        } else if line.starts_with("aiex.npu.address_patch") {
            let (argument, offset_bytes) = (of("arg_idx"), of("arg_plus"));
            instructions.push(Instruction::Patch { address: of("addr"), argument, offset_bytes });
        } else if line.starts_with("aiex.npu.write32") {
            // Without column and row, the address is of the whole array.
            let [column, row] = ["column", "row"].map(|name| number(line, name).unwrap_or(0));
            let address = column << 25 | row << 20 | of("address");
            instructions.push(Instruction::Write { address, value: of("value") });
        } else if line.starts_with("aiex.npu.sync") {
            let direction = if of("direction") == 0 { Direction::In } else { Direction::Out };
            let tile = Tile { col: of("column"), row: of("row") };
            instructions.push(Instruction::Wait { tile, direction, channel: of("channel") });
        }
    }
    instructions
}
