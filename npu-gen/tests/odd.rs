//! Programs of sizes that no model of the report has: solved, written in both dialects, and the text read and checked against the limits separately, without
//! the design that it was made from.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use support::Case;
use support::odd::{self, problems};
use unicorn_kernels::npu::tile::GemmShape;
use unicorn_npu::emit::{Dialect, module, readable};
use unicorn_npu::{Design, attention, gemm, interpret, lower, solve, stream};

/// Longest k of which a tile is run: a step of the interpreter is a word.
const RUN_DEPTH: usize = 6000;

#[test]
fn odd_sizes_are_written_within_the_limits_in_both_dialects() {
    assert!(problems().count() >= 24);
    for problem in problems() {
        let solution = solve(&problem).unwrap_or_else(|| panic!("{problem:?}: no size fits"));
        in_both_dialects(&format!("{problem:?}"), &solution.design);
    }
}

#[test]
fn odd_attention_is_written_within_the_limits_in_both_dialects() {
    for problem in odd::attention() {
        let solution = attention::solve(&problem).unwrap_or_else(|fault| panic!("{problem:?}: {fault}"));
        in_both_dialects(&format!("{problem:?}"), &solution.design);
    }
}

fn in_both_dialects(name: &str, design: &Design) {
    for dialect in Dialect::ALL {
        let operations = module(design, dialect);
        let text = readable(&operations);
        let faults = Program::read(&text, dialect).faults();
        assert!(faults.is_empty(), "{name}, {}: {faults:#?}\n{text}", dialect.name());
        #[cfg(feature = "mlir")]
        unicorn_npu::emit::generic_text(&operations).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn a_tile_of_each_odd_size_computes_the_product() {
    for problem in problems().filter(|problem| problem.depth <= RUN_DEPTH) {
        let shape = solve(&problem).expect("some size fits").estimate.shape;
        let shape = GemmShape { rows: shape.tile_rows(), cols: shape.tile_cols(), ..shape };
        let (case, design) = (Case::of_every(if shape.is_gemv() { 1 } else { 29 }, shape), gemm::design(&shape));
        let lowered = lower::lower(&design);
        let encoded = stream::decode(&stream::encode(&design, &lowered)).unwrap();
        let commands = stream::commands(&encoded, &lowered).unwrap();
        assert_eq!(commands, interpret::commands(&design, &lowered), "{problem:?}");
        assert_eq!(case.run(&design, &lowered, &commands), Ok(true), "{problem:?}");
    }
}

/// The reader is no test if it finds nothing.
#[test]
fn what_exceeds_a_limit_is_found_in_the_text() {
    let problem = problems().find(|problem| problem.rows > 100 && problem.columns == 4).unwrap();
    let text = readable(&module(&solve(&problem).unwrap().design, Dialect::Y2026));
    assert!(Program::read(&text, Dialect::Y2026).faults().is_empty());
    for (from, to, part) in [
        (", 2 : i32) : !aie.objectfifo<memref<", ", 99 : i32) : !aie.objectfifo<memref<", "bytes"),
        ("id = 1 : i64", "id = 16 : i64", "id"),
        ("[0, 0, 0, 0][", "[0, 0, 0, 1][", "whole words"),
        ("objectfifo.release @w_col_0", "objectfifo.acquire @w_col_0", "acquired"),
        ("metadata = @a_in_0", "metadata = @a_row_0", "shim"),
        ("{%tile_0_0}", "{%tile_4_0}", "tile"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert!(changed != text, "{from} is not in:\n{text}");
        let faults = Program::read(&changed, Dialect::Y2026).faults();
        assert!(faults.iter().any(|fault| fault.contains(part)), "{to}: {part} is not in {faults:?}");
    }
}

/// A tile by the name of its value: `tile_0_2`.
type TileName = String;

struct Fifo {
    producer: TileName,
    consumers: Vec<TileName>,
    depth: usize,
    bytes: usize,
}

struct Transfer {
    fifo: String,
    id: usize,
    offset: usize,
    sizes: Vec<usize>,
    strides: Vec<usize>,
    element_bytes: usize,
    len: usize,
}

/// A text without its bodies.
#[derive(Default)]
struct Program {
    dialect: Option<Dialect>,
    columns: usize,
    tiles: BTreeSet<TileName>,
    fifos: BTreeMap<String, Fifo>,
    links: Vec<(Vec<String>, Vec<String>)>,
    /// Bytes of buffers by tile.
    buffers: BTreeMap<TileName, usize>,
    /// Acquires less releases, by core and FIFO.
    held: BTreeMap<(usize, String), i32>,
    cores: usize,
    transfers: Vec<Transfer>,
    waits: Vec<String>,
    faults: Vec<String>,
}

/// Length and bytes of an element of `memref<12xi8>`.
fn memref(text: &str) -> (usize, usize) {
    let (_, inner) = text.rsplit_once("memref<").expect("a memref");
    let (len, element) = inner.split('>').next().unwrap().split_once('x').expect("one dimension");
    let bytes = match element {
        "i8" => 1,
        "bf16" => 2,
        "i32" | "f32" => 4,
        other => panic!("elements of {other}"),
    };
    (len.parse().expect("a length"), bytes)
}

fn between<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("{from} is not in {text}"));
    rest.split_once(to).unwrap_or_else(|| panic!("{to} is not in {text}")).0
}

fn names(list: &str) -> Vec<String> {
    let name = |name: &str| name.trim().trim_start_matches(['@', '%']).to_owned();
    list.split(',').map(name).filter(|name| !name.is_empty()).collect()
}

fn numbers(list: &str) -> Vec<usize> {
    list.split(',').map(|number| number.trim().parse().expect("a number")).collect()
}

impl Program {
    fn read(text: &str, dialect: Dialect) -> Program {
        let mut program = Program { dialect: Some(dialect), ..Program::default() };
        for line in text.lines().map(str::trim) {
            program.line(line);
        }
        program
    }

    fn line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("aie.device(") {
            let name = rest.split(')').next().unwrap_or_default();
            self.columns = match (name, self.dialect) {
                ("npu1", Some(Dialect::Y2026)) | ("npu1_4col", Some(Dialect::Y2024)) => 4,
                _ => {
                    let digits = name.strip_prefix("npu1_").and_then(|rest| rest.strip_suffix("col"));
                    let columns = digits.and_then(|digits| digits.parse().ok()).filter(|columns| *columns < 4);
                    columns.unwrap_or_else(|| panic!("device {name}"))
                }
            };
        } else if line.contains("= aie.tile(") {
            let [col, row] = numbers(between(line, "aie.tile(", ")"))[..] else { panic!("{line}") };
            let name = names(line.split(" =").next().unwrap()).remove(0);
            self.expect(name == format!("tile_{col}_{row}") && col < self.columns && row < 6, || {
                format!("tile {name} is outside of the array")
            });
            let is_new = self.tiles.insert(name.clone());
            self.expect(is_new, || format!("tile {name} is there twice"));
        } else if line.contains("= aie.buffer(") {
            let tile = names(between(line, "aie.buffer(", ")")).remove(0);
            let (len, bytes) = memref(line);
            *self.buffers.entry(tile).or_default() += len * bytes;
        } else if let Some(rest) = line.strip_prefix("aie.objectfifo @") {
            let name = rest.split('(').next().unwrap().to_owned();
            let producer = names(between(rest, "(", ",")).remove(0);
            let consumers = names(between(rest, "{", "}"));
            let depth = between(rest, "}, ", " : i32").parse().expect("a depth");
            let (len, bytes) = memref(rest);
            let is_new = self.fifos.insert(name, Fifo { producer, consumers, depth, bytes: len * bytes }).is_none();
            self.expect(is_new, || format!("FIFO is there twice: {rest}"));
        } else if let Some(rest) = line.strip_prefix("aie.objectfifo.link ") {
            let (inputs, outputs) = rest.split_once(" -> ").expect("an arrow");
            let list = |text: &str| names(between(text, "[", "]"));
            self.links.push((list(inputs), list(outputs)));
        } else if line.contains("= aie.core(") {
            self.cores += 1;
        } else if line.contains("aie.objectfifo.acquire @") || line.starts_with("aie.objectfifo.release @") {
            let name = between(line, "@", "(").to_owned();
            let change = if line.contains("acquire") { 1 } else { -1 };
            *self.held.entry((self.cores, name)).or_default() += change;
        } else if let Some(rest) = line.strip_prefix("aiex.npu.dma_memcpy_nd(") {
            self.transfer(rest);
        } else if line.starts_with("aiex.npu.dma_wait") {
            self.waits.push(between(line, "@", "}").to_owned());
        }
    }

    fn transfer(&mut self, rest: &str) {
        let has_place = rest.starts_with("0, 0, %");
        self.expect(has_place == (self.dialect == Some(Dialect::Y2024)), || format!("transfer with place: {rest}"));
        let lists: Vec<Vec<usize>> =
            rest.split('[').skip(1).map(|list| numbers(list.split(']').next().unwrap())).collect();
        let [offsets, sizes, strides] = &lists[..] else { panic!("{rest}") };
        let (len, element_bytes) = memref(rest);
        self.transfers.push(Transfer {
            fifo: between(rest, "metadata = @", ",").to_owned(),
            id: between(rest, "id = ", " : i64").parse().expect("an id"),
            offset: offsets.iter().zip(strides).map(|(offset, stride)| offset * stride.max(&1)).sum(),
            sizes: sizes.clone(),
            strides: strides.clone(),
            element_bytes,
            len,
        });
    }

    fn expect(&mut self, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.faults.push(fault());
        }
    }

    fn faults(mut self) -> Vec<String> {
        self.check_tiles();
        self.check_links();
        self.check_transfers();
        for ((core, fifo), held) in self.held.clone() {
            self.expect(held == 0, || format!("core {core}: {fifo} is acquired {held} times more than released"));
            let is_there = self.fifos.contains_key(&fifo);
            self.expect(is_there, || format!("core {core}: no FIFO {fifo}"));
        }
        self.faults
    }

    /// Memory and channels of each tile, as their kinds have them by the row.
    fn check_tiles(&mut self) {
        let mut bytes: BTreeMap<TileName, usize> = self.buffers.clone();
        let mut channels: BTreeMap<TileName, [usize; 2]> = BTreeMap::new();
        let parts: BTreeSet<&String> = self
            .links
            .iter()
            .flat_map(|(inputs, outputs)| {
                // The one side of a link has the memory, the other is a part of it.
                if inputs.len() > 1 { inputs.iter().collect::<Vec<_>>() } else { outputs.iter().collect() }
            })
            .collect();
        for (name, fifo) in &self.fifos {
            let ends = std::iter::once((&fifo.producer, 1)).chain(fifo.consumers.iter().map(|tile| (tile, 0)));
            for (tile, side) in ends {
                channels.entry(tile.clone()).or_default()[side] += 1;
                let shared = tile.ends_with("_1") && parts.contains(name);
                if !tile.ends_with("_0") && !shared {
                    *bytes.entry(tile.clone()).or_default() += fifo.depth * fifo.bytes;
                }
            }
        }
        for tile in channels.keys() {
            let is_there = self.tiles.contains(tile);
            self.expect(is_there, || format!("tile {tile} is not declared"));
        }
        for (tile, used) in channels {
            let most = if tile.ends_with("_1") { 6 } else { 2 };
            self.expect(used.iter().all(|used| *used <= most), || format!("{tile}: {used:?} channels"));
        }
        for (tile, used) in bytes {
            let most = if tile.ends_with("_1") { 512 << 10 } else { (64 << 10) - 1024 };
            self.expect(used <= most, || format!("{tile}: {used} bytes, expected at most {most}"));
        }
    }

    fn check_links(&mut self) {
        for (inputs, outputs) in self.links.clone() {
            let all = |names: &[String]| -> usize { names.iter().map(|name| self.fifos[name].bytes).sum() };
            let (inward, outward) = (all(&inputs), all(&outputs));
            self.expect(inward == outward, || format!("link {inputs:?} -> {outputs:?}: {inward} and {outward} bytes"));
        }
    }

    fn check_transfers(&mut self) {
        for one in std::mem::take(&mut self.transfers) {
            let place = format!("transfer of {}", one.fifo);
            let fifo = &self.fifos[&one.fifo];
            let is_out = fifo.consumers.iter().any(|tile| tile.ends_with("_0"));
            let ends_in_shim = is_out || fifo.producer.ends_with("_0");
            let object = fifo.bytes;
            let elements: usize = one.sizes.iter().product();
            let is_words = |elements: usize| (elements * one.element_bytes).is_multiple_of(4);
            let words = |elements: usize| elements * one.element_bytes / 4;
            let last: usize =
                one.offset + one.sizes.iter().zip(&one.strides).map(|(n, stride)| (n - 1) * stride).sum::<usize>();
            let is_line = one.sizes[..3] == [1; 3];
            let (sizes, strides) = (&one.sizes, &one.strides);
            self.expect(ends_in_shim, || format!("{place}: no end in a shim tile"));
            self.expect(one.id < 16, || format!("{place}: id {}, expected at most 15", one.id));
            self.expect(is_words(one.offset) && is_words(sizes[3]), || format!("{place}: expected whole words"));
            self.expect(strides[..3].iter().all(|stride| is_words(*stride) && words(*stride) < 1 << 20), || {
                format!("{place}: strides {strides:?}")
            });
            let counted = sizes[0] <= 64 && sizes[1] < 1024 && sizes[2] < 1024 && words(sizes[3]) < 1024;
            self.expect(is_line || counted, || format!("{place}: sizes {sizes:?}"));
            self.expect(strides[3] == 1 && last < one.len, || format!("{place}: element {last} of {}", one.len));
            let bytes = elements * one.element_bytes;
            self.expect(bytes.is_multiple_of(object), || format!("{place}: {bytes} bytes of objects of {object}"));
            if is_out {
                let at = self.waits.iter().position(|wait| *wait == one.fifo);
                self.expect(at.is_some(), || format!("{place} is never waited for"));
                at.into_iter().for_each(|at| drop(self.waits.remove(at)));
            }
        }
        let left = self.waits.clone();
        self.expect(left.is_empty(), || format!("waits for nothing: {left:?}"));
    }
}
