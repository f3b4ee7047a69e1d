//! C++ of the cores: compiled for the host and run on objects, against their twins; and what is done with a compiler's machine code.
//!
//! | variable | meaning |
//! |---|---|
//! | `PEANO=DIR` | an installation of llvm-aie, with `bin/clang++`; without it, its check is skipped |

mod support;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use half::bf16;
use support::{activations, small, small_gemv, values};
use test_support::skip;
use unicorn_artifact::npu::control::{check_control, runs_cores};
use unicorn_kernels::Activation;
use unicorn_kernels::npu::attention::{AttentionShape, AttentionTile};
use unicorn_kernels::npu::quantize::Weights;
use unicorn_kernels::npu::tile::{CoreTile, Epilogue, GEMV_ROWS, GemmShape};
use unicorn_kernels::npu::twin;
use unicorn_npu::addresses::addresses;
use unicorn_npu::control::control;
use unicorn_npu::design::{Core, Design};
use unicorn_npu::lower::{Lowered, lower};
use unicorn_npu::peano::{CoreText, Peano, core_texts};
use unicorn_npu::{attention, gemm, unicorn_artifact, unicorn_kernels};

/// Sums of scaled products are the twin's; an activation differs by rounding of its exponential, which bf16 shows as one step at most.
const MOST_STEPS: i32 = 1;
/// The twin's 1 + tanh of GELU loses what is below 2^-24 of 1: far from 0, gate and up being some tens, outputs differ by as much of the largest.
const LOST: f32 = 1.0 / (1 << 20) as f32;

const SUPPORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support");

/// A folder of this test, empty.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peano").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// What one core gets and makes in two runs of a design with a single tile for each core.
struct CoreCase {
    core: CoreTile,
    activations: Vec<u8>,
    weights: Vec<u8>,
    /// Bits of bf16.
    expected: Vec<u8>,
}

impl CoreCase {
    /// Objects of the core in array row `array_row`, or of the `array_row`th stream of a GEMV.
    fn of(shape: &GemmShape, array_row: usize) -> CoreCase {
        let core = shape.core;
        let mut case = CoreCase { core, activations: Vec::new(), weights: Vec::new(), expected: Vec::new() };
        for seed in [11, 12] {
            let a = activations(shape, seed).pack(shape);
            let w = Weights::quantize(shape, &values(shape.cols * shape.depth, 2 * seed), shape.cols, shape.depth);
            let w = w.pack(shape);
            let (mut sums, mut scales) = (vec![0; core.sums()], vec![0; core.scales_bytes()]);
            for chunk in 0..shape.chunks() {
                let place = if shape.is_gemv() { chunk } else { 4 * chunk + array_row };
                let a = &a[place * core.activation_bytes()..][..core.activation_bytes()];
                let stream = if shape.is_gemv() { array_row } else { 0 };
                let w = &w[shape.weights_at(stream, 0) + chunk * core.weight_bytes()..][..core.weight_bytes()];
                twin::add_products(&core, a, w, &mut sums);
                twin::keep_scales(&core, a, w, &mut scales);
                case.activations.extend(a);
                case.weights.extend(w);
            }
            for piece in 0..core.pieces() {
                let mut output = vec![0; 2 * core.output_values()];
                twin::finish(&core, &sums, &scales, piece, &mut output);
                case.expected.extend(output);
            }
        }
        case
    }

    /// The largest difference of an output in steps of bf16, of those that differ by more than [`LOST`]; what went wrong otherwise.
    fn run(&self, design: &Design, lowered: &Lowered, core: &Core, source: &str, folder: &Path) -> Result<i32, String> {
        let program = folder.join("core_host");
        let file = folder.join("core.cc");
        fs::write(&file, source).unwrap();
        let header = Path::new(SUPPORT).join("aie2_host.h");
        compile(&[Path::new("-include"), &header, &file, host(), Path::new("-o"), &program]);
        let (ports, made) = (folder.join("ports"), folder.join("outputs"));
        fs::write(&ports, self.ports(design, lowered, core, folder)).unwrap();
        let output = Command::new(&program).arg(&ports).arg(&made).output().unwrap();
        if !output.status.success() {
            return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
        let found = fs::read(&made).unwrap();
        if found.len() != self.expected.len() {
            return Err(format!("{} bytes of outputs, expected {}", found.len(), self.expected.len()));
        }
        let value = |bytes: &[u8]| bf16::from_le_bytes([bytes[0], bytes[1]]);
        let pairs = found.chunks_exact(2).zip(self.expected.chunks_exact(2));
        let pairs: Vec<(bf16, bf16)> = pairs.map(|(one, other)| (value(one), value(other))).collect();
        let largest = pairs.iter().map(|(_, expected)| expected.to_f32().abs()).fold(0.0, f32::max);
        let permitted = if self.core.epilogue == Epilogue::Scale { 0.0 } else { LOST * largest };
        let is_more = |(one, other): &&(bf16, bf16)| (one.to_f32() - other.to_f32()).abs() > permitted;
        Ok(pairs.iter().filter(is_more).map(|(one, other)| steps(*one, *other)).max().unwrap_or(0))
    }

    /// The core's ports, for `core_host.cc`.
    fn ports(&self, design: &Design, lowered: &Lowered, core: &Core, folder: &Path) -> String {
        let addresses = addresses(design, lowered).unwrap();
        let mut lines = String::new();
        for ((fifo, _), port) in lowered.ports.iter().filter(|((_, tile), _)| *tile == core.tile) {
            let bytes = design.fifo(*fifo).bytes();
            let objects = match bytes {
                _ if design.fifo(*fifo).producer == core.tile => None,
                bytes if bytes == self.core.activation_bytes() => Some(("activations", &self.activations)),
                _ => Some(("weights", &self.weights)),
            };
            let file = objects.map_or("-".to_owned(), |(name, bytes)| {
                fs::write(folder.join(name), bytes).unwrap();
                folder.join(name).display().to_string()
            });
            // A core counts the locks of three neighbours before its own.
            let [acquire, release] = [port.acquire, port.release].map(|lock| 3 * 16 + addresses.locks[lock.0]);
            write!(lines, "{acquire} {release} {bytes} {file}").unwrap();
            port.memories.iter().for_each(|memory| write!(lines, " {}", addresses.memories[memory.0]).unwrap());
            lines.push('\n');
        }
        lines
    }
}

/// Runs the host's C++ compiler.
fn compile(arguments: &[&Path]) {
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++20", "-fno-strict-aliasing", "-Wall", "-Werror"]).args(arguments);
    let output = compiler.output().expect("a C++ compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The program around a core's, compiled once.
fn host() -> &'static Path {
    static HOST: OnceLock<PathBuf> = OnceLock::new();
    HOST.get_or_init(|| {
        let object = folder("host").join("core_host.o");
        compile(&[&Path::new(SUPPORT).join("core_host.cc"), Path::new("-c"), Path::new("-o"), &object]);
        object
    })
}

/// Steps of bf16 between two values.
fn steps(one: bf16, other: bf16) -> i32 {
    let ordered = |value: bf16| {
        let bits = i32::from(value.to_bits() as i16);
        if bits < 0 { i32::from(i16::MIN) - bits } else { bits }
    };
    (ordered(one) - ordered(other)).abs()
}

/// A product whose cores have one tile each.
fn single(core: CoreTile, columns: usize, groups: usize) -> GemmShape {
    let streams = if core.rows == GEMV_ROWS { 2 * columns - 1 } else { columns };
    let rows = if core.rows == GEMV_ROWS { GEMV_ROWS } else { 4 * core.rows };
    GemmShape::padded(rows, core.cols * streams, groups * core.depth, columns, core)
}

#[test]
fn cores_compiled_for_the_host_compute_what_their_twins_do() {
    let silu = Epilogue::ActMul(Activation::Silu);
    let gelu = Epilogue::ActMul(Activation::GeluTanh);
    for (name, rows, cols, depth, columns, epilogue) in [
        ("scale", 16, 32, 64, 1, Epilogue::Scale),
        ("silu", 32, 32, 32, 1, silu),
        ("gelu", 16, 48, 128, 1, gelu),
        ("gemv", GEMV_ROWS, 32, 96, 2, silu),
    ] {
        let shape = single(CoreTile::new(rows, cols, depth, epilogue), columns, 4);
        let design = gemm::design(&shape);
        let lowered = lower(&design);
        let texts = core_texts(&design, &lowered).unwrap();
        let index = design.cores.len() - 1;
        let core = &design.cores[index];
        let case = CoreCase::of(&shape, index);
        let most = case.run(&design, &lowered, core, &texts[&core.tile].source, &folder(name)).unwrap();
        let permitted = if epilogue == Epilogue::Scale { 0 } else { MOST_STEPS };
        assert!(most <= permitted, "{name}: {most} steps of bf16, expected at most {permitted}");
    }
}

/// The check itself: single mistakes in the text.
#[test]
fn mistakes_in_a_core_are_noticed() {
    let core = CoreTile::new(16, 32, 64, Epilogue::Scale);
    let shape = single(core, 1, 4);
    let design = gemm::design(&shape);
    let lowered = lower(&design);
    let core = &design.cores[2];
    let source = core_texts(&design, &lowered).unwrap()[&core.tile].source.clone();
    let case = CoreCase::of(&shape, 2);
    assert_eq!(case.run(&design, &lowered, core, &source, &folder("no-mistake")), Ok(0));
    for (number, (right, wrong)) in [
        ("#define HALF 1", "#define HALF 0"),
        ("#define SHIFT 1", "#define SHIFT 2"),
        ("#define MULTIPLIER_HALF 1", "#define MULTIPLIER_HALF 0"),
        ("#define MULTIPLIER_SHIFT 1", "#define MULTIPLIER_SHIFT 2"),
        ("BLOCK_SUMS * (down / REGISTER_ROWS)", "BLOCK_SUMS * (1 + down / REGISTER_ROWS)"),
        ("clear(MEMORY", "if (0) clear(MEMORY"),
        ("set_rnd(0)", "set_rnd(1)"),
        ("release(48, 1);", "release(49, 1);"),
        ("acquire_greater_equal(48, 1);", ""),
        ("+ 1 == 2 ? 0", "+ 1 == 3 ? 0"),
        ("i1 < 4; i1++", "i1 < 3; i1++"),
        ("4 * ROWS + at) =", "4 * ROWS + 4 + at) ="),
        ("bits + 0x7fffu", "bits + 0x3fffu"),
    ]
    .into_iter()
    .enumerate()
    {
        // Locks are numbered by the design, so that some of these texts name others.
        let lock = source.split("acquire_greater_equal(").nth(1).unwrap().split(',').next().unwrap();
        let (right, wrong) = (right.replace("(48", &format!("({lock}")), wrong.replace("(49", "(63"));
        let free = source.split("release(").nth(1).unwrap().split(',').next().unwrap();
        let right = if right.starts_with("release") { format!("release({free}, 1);") } else { right };
        assert!(source.contains(&right), "{right} is not in {source}");
        let changed = source.replacen(&right, &wrong, 1);
        let found = case.run(&design, &lowered, core, &changed, &folder(&format!("mistake-{number}")));
        assert!(!matches!(found, Ok(0)), "{right} → {wrong} is not noticed");
    }
}

/// A stand-in for Peano: checks its arguments and gives a program that was made before.
fn stand_in(name: &str, script: &str) -> PathBuf {
    let folder = folder(name);
    fs::create_dir_all(folder.join("bin")).unwrap();
    let program = folder.join("bin/clang++");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// An ELF file of 32 bits with `code` at address 0.
fn elf(code: &[u32]) -> Vec<u8> {
    let bytes = 4 * code.len() as u32;
    let mut words = vec![0x464c_457f, 0x0001_0101, 0, 0, 0x0108_0002, 1, 0, 52, 0, 0, 0x0020_0034, 1, 0];
    words.extend([1, 84, 0, 0, bytes, bytes, 5, 4]);
    words.iter().chain(code).flat_map(|word: &u32| word.to_le_bytes()).collect()
}

#[test]
fn machine_code_comes_into_the_image_and_its_cores_start() {
    let design = gemm::design(&small(2, 32, Epilogue::ActMul(Activation::Silu)));
    let lowered = lower(&design);
    let script =
        "echo \"$@\" >> \"$0.calls\"; while [ \"$1\" != -o ]; do shift; done; cp \"$(dirname \"$0\")/../core\" \"$2\"";
    let place = stand_in("stand-in", script);
    fs::write(place.join("core"), elf(&[0x1234_5678, 0x9abc_def0])).unwrap();
    let programs = Peano::at(&place).unwrap().compile("small", &design, &lowered, &place).unwrap();
    assert_eq!(programs.len(), 8);
    let image = control(&design, &lowered, &programs).unwrap().image();
    assert!(runs_cores(&image, 2) && check_control(&image, 2).unwrap().cores == 8);
    let code: Vec<u8> = [0x1234_5678u32, 0x9abc_def0].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(image.windows(8).filter(|bytes| *bytes == code).count(), 8);
    // Cores with the same text are compiled once.
    let different: std::collections::BTreeSet<CoreText> =
        core_texts(&design, &lowered).unwrap().into_values().collect();
    let calls = fs::read_to_string(place.join("bin/clang++.calls")).unwrap();
    assert_eq!(calls.lines().count(), different.len());
    assert!(calls.starts_with("-target aie2-none-unknown-elf") && calls.contains("-Wl,-T,"), "{calls}");
}

#[test]
fn what_is_wrong_with_a_compiler_is_named() {
    let design = gemm::design(&small_gemv(1, 32, Epilogue::Scale));
    let lowered = lower(&design);
    let error = |name: &str, script: &str, design: &Design, lowered: &Lowered| {
        let place = stand_in(name, script);
        Peano::at(&place).unwrap().compile("small", design, lowered, &place).unwrap_err().to_string()
    };
    let found = error("refuses", "echo 'unknown target' >&2; exit 1", &design, &lowered);
    assert!(found.contains("does not compile") && found.contains("unknown target"), "{found}");
    let found = error("nothing", "exit 0", &design, &lowered);
    assert!(found.contains("cannot read") && found.contains("small-0.elf"), "{found}");
    let found = error("text", "while [ \"$1\" != -o ]; do shift; done; echo text > \"$2\"", &design, &lowered);
    assert!(found.contains("no program of a core") && found.contains("no little-endian ELF"), "{found}");
    let found = Peano::at(&folder("empty")).unwrap_err().to_string();
    assert!(found.contains("Peano's compiler") && found.contains("bin/clang++"), "{found}");
    let tile = AttentionTile { rows: 8, keys: 16, depth: 32 };
    let attention = attention::design(&AttentionShape::padded(4, 32, 64, 1, tile));
    let found = error("attention", "exit 0", &attention, &lower(&attention));
    assert!(found.contains("attention has no C++"), "{found}");
}

#[test]
fn peano_compiles_the_cores() {
    let Some(peano) = std::env::var_os("PEANO") else {
        return skip("peano", "PEANO names no installation of llvm-aie");
    };
    let peano = Peano::at(Path::new(&peano)).unwrap();
    for (name, shape) in [
        ("gemm", small(4, 64, Epilogue::Scale)),
        ("silu", small(4, 32, Epilogue::ActMul(Activation::Silu))),
        ("gelu", small(1, 128, Epilogue::ActMul(Activation::GeluTanh))),
        ("gemv", small_gemv(4, 32, Epilogue::Scale)),
    ] {
        let design = gemm::design(&shape);
        let lowered = lower(&design);
        let programs = peano.compile(name, &design, &lowered, &folder(&format!("peano-{name}"))).unwrap();
        let image = control(&design, &lowered, &programs).unwrap().image();
        assert!(runs_cores(&image, shape.columns as u32), "{name}");
    }
}
