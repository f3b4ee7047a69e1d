//! Programs read, verified and lowered by mlir-aie's own `aie-opt`, where there is one.
//!
//! | variable | meaning |
//! |---|---|
//! | `AIE_OPT=PATH` | the program; without it, these checks are skipped |
//! | `AIE_OPT_DIALECT=2024` | it is of summer 2024, not of 2026 |
//! | `AIE_OPT_PASSES=...` | arguments for its passes instead of [`PASSES`] |

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::models::MODELS;
use support::odd;
use test_support::skip;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::attention::{self, AttentionProblem};
use unicorn_npu::device::Tile;
use unicorn_npu::emit::{Dialect, module, readable};
use unicorn_npu::lower::Direction;
use unicorn_npu::stream::{self, Instruction};
use unicorn_npu::{Problem, solve};

/// From FIFOs to buffers with addresses, locks, descriptors and routes, and from the host's transfers to instructions. Sums lie in more than one
/// bank of a core's memory, so that buffers are placed one after the other.
const PASSES: &str = "--aie-canonicalize-device --aie-objectFifo-stateful-transform --aie-assign-lock-ids --aie-assign-bd-ids \
                      --aie-assign-buffer-addresses=basic-alloc --aie-create-pathfinder-flows --aie-dma-to-npu";

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
        let passes = std::env::var("AIE_OPT_PASSES").unwrap_or_else(|_| PASSES.to_owned());
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
}

fn problems() -> Vec<Problem> {
    let of_models = MODELS.iter().flat_map(|model| (1..=4).flat_map(|columns| model.products(columns)));
    let of_few_rows = MODELS.iter().flat_map(|model| model.products_of(1, 4));
    odd::problems().chain(of_models.chain(of_few_rows).map(|(_, problem)| problem)).collect()
}

fn name(problem: &Problem) -> String {
    let Problem { rows, cols, depth, epilogue, columns } = problem;
    let kind = if *epilogue == Epilogue::Scale { "scale" } else { "act-mul" };
    format!("{rows}x{cols}x{depth}-{kind}-{columns}")
}

#[test]
fn aie_opt_verifies_the_programs_of_all_shapes() {
    let Some(tool) = AieOpt::find() else { return };
    for problem in problems() {
        let solution = solve(&problem).expect("some size fits");
        let operations = module(&solution.design, tool.dialect);
        let canonical = tool.run(&name(&problem), &readable(&operations), &[]);
        assert!(canonical.contains("aie.device"), "{canonical}");
        #[cfg(feature = "mlir")]
        {
            let generic = unicorn_npu::emit::generic_text(&operations).unwrap();
            let of_generic = tool.run(&format!("{}-generic", name(&problem)), &generic, &[]);
            assert_eq!(canonical, of_generic, "{problem:?}: the generic form means something else");
        }
    }
}

#[test]
fn aie_opt_places_and_routes_the_programs() {
    let Some(tool) = AieOpt::find() else { return };
    let of_models = |problem: &Problem| [1, support::models::ROWS].contains(&problem.rows) && problem.columns == 4;
    let chosen = problems().into_iter().filter(|problem| !of_models(problem) || problem.cols == 6144);
    for problem in chosen {
        let solution = solve(&problem).expect("some size fits");
        let operations = module(&solution.design, tool.dialect);
        let lowered = tool.run(&name(&problem), &readable(&operations), &tool.passes);
        #[cfg(feature = "mlir")]
        {
            let generic = unicorn_npu::emit::generic_text(&operations).unwrap();
            let of_generic = tool.run(&format!("{}-generic", name(&problem)), &generic, &tool.passes);
            assert!(lowered == of_generic, "{problem:?}: the generic form is lowered to something else");
        }
        assert!(!lowered.contains("aie.objectfifo @"), "{problem:?}: FIFOs are left");
        // The text of the instructions is that of 2024.
        if tool.dialect == Dialect::Y2024 {
            let bytes = stream::encode(&solution.design, &solution.lowered);
            assert_eq!(instructions(&lowered), stream::decode(&bytes).unwrap(), "{problem:?}");
        }
    }
}

#[test]
fn aie_opt_takes_attention() {
    let Some(tool) = AieOpt::find() else { return };
    let problems = MODELS.iter().flat_map(|model| (1..=4).map(|columns| model.attention(columns)));
    for problem in problems.chain(odd::attention()) {
        let AttentionProblem { heads, rows, keys, depth, columns } = problem;
        let solution = attention::solve(&problem).expect("some size fits");
        let operations = module(&solution.design, tool.dialect);
        let text = readable(&operations);
        let name = format!("attention-{heads}x{rows}x{keys}x{depth}-{columns}");
        let canonical = tool.run(&name, &text, &[]);
        assert!(canonical.contains("aie.device"), "{canonical}");
        #[cfg(feature = "mlir")]
        {
            let generic = unicorn_npu::emit::generic_text(&operations).unwrap();
            let of_generic = tool.run(&format!("{name}-generic"), &generic, &[]);
            assert_eq!(canonical, of_generic, "{problem:?}: the generic form means something else");
        }
        let lowered = tool.run(&name, &text, &tool.passes);
        assert!(!lowered.contains("aie.objectfifo @"), "{problem:?}: FIFOs are left");
        if tool.dialect == Dialect::Y2024 {
            let bytes = stream::encode(&solution.design, &solution.lowered);
            assert_eq!(instructions(&lowered), stream::decode(&bytes).unwrap(), "{problem:?}");
        }
    }
}

/// The instructions in a lowered text.
fn instructions(text: &str) -> Vec<Instruction> {
    let number = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("{name} = "))?;
        let digits: &str = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        Some(digits.parse::<u32>().expect("32 bits"))
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
            let address = of("column") << 25 | of("row") << 20 | of("address");
            instructions.push(Instruction::Write { address, value: of("value") });
        } else if line.starts_with("aiex.npu.sync") {
            let direction = if of("direction") == 0 { Direction::In } else { Direction::Out };
            let tile = Tile { col: of("column"), row: of("row") };
            instructions.push(Instruction::Wait { tile, direction, channel: of("channel") });
        }
    }
    instructions
}
