//! Prints operations for people, each in its own syntax.

use std::fmt::Write;

use super::legalised::label;
use super::op::{Module, Op, Region, Value};

/// The text of a module.
pub fn readable(module: &Module) -> String {
    let mut writer = Writer { module, text: "module {\n".to_owned(), depth: 1 };
    writer.ops(&module.ops);
    writer.text + "}\n"
}

/// Names of devices by their number in the dialects.
const DEVICES: [&str; 9] = ["", "", "", "", "npu1", "npu1_1col", "npu1_2col", "npu1_3col", "npu1_4col"];

struct Writer<'m> {
    module: &'m Module,
    text: String,
    depth: usize,
}

impl Writer<'_> {
    fn ops(&mut self, ops: &[Op]) {
        for op in ops {
            self.op(op);
        }
    }

    fn line(&mut self, text: &str) {
        let indent = 2 * self.depth;
        writeln!(self.text, "{:indent$}{text}", "").expect("writing to a String");
    }

    /// Prints `head {`, the region, `} tail`.
    fn region(&mut self, head: &str, region: &Region, tail: &str) {
        self.line(&format!("{head} {{"));
        self.depth += 1;
        self.ops(&region.ops);
        self.depth -= 1;
        self.line(&format!("}}{tail}"));
    }

    fn names(&self, values: &[Value]) -> String {
        let names: Vec<String> = values.iter().map(|value| format!("%{}", self.module.values[value.0].name)).collect();
        names.join(", ")
    }

    fn types(&self, values: &[Value]) -> String {
        let types: Vec<&str> = values.iter().map(|value| self.module.ty(*value)).collect();
        types.join(", ")
    }

    fn op(&mut self, op: &Op) {
        let results = self.names(&op.results);
        let assigned = if results.is_empty() { String::new() } else { format!("{results} = ") };
        let operands = self.names(&op.operands);
        let (types, result) = (self.types(&op.operands), self.types(&op.results));
        let first = op.operands.first().map_or("", |value| self.module.ty(*value));
        let quoted = |name| op.attribute(name).trim_matches('"');
        let number = |name| op.attribute(name).split(' ').next().unwrap_or_default();
        match op.name {
            "aie.device" => {
                let device = number("device").parse().ok().and_then(|index: usize| DEVICES.get(index));
                let name = quoted("sym_name");
                let symbol = if name.is_empty() { String::new() } else { format!(" @{name}") };
                let head = format!("aie.device({}){symbol}", device.copied().unwrap_or_default());
                // A terminator is implied.
                let ops = op.regions[0].ops.iter().filter(|op| op.name != "aie.end").cloned().collect();
                self.region(&head, &Region { arguments: Vec::new(), ops }, "");
            }
            "aie.tile" => {
                let scheme = match op.attribute("allocation_scheme") {
                    "" => String::new(),
                    scheme => format!(" {{allocation_scheme = {scheme}}}"),
                };
                self.line(&format!("{assigned}aie.tile({}, {}){scheme}", number("col"), number("row")));
            }
            "aie.buffer" => {
                let name = op.attribute("sym_name");
                self.line(&format!("{assigned}aie.buffer({operands}) {{sym_name = {name}}} : {result}"));
            }
            "aie.objectfifo" => {
                let (producer, consumers) = operands.split_once(", ").expect("a FIFO has a consumer");
                let (name, depth, element) = (quoted("sym_name"), op.attribute("elemNumber"), op.attribute("elemType"));
                let via_dma = if op.attribute("via_DMA") == "true" { " {via_DMA = true}" } else { "" };
                self.line(&format!(
                    "aie.objectfifo @{name}({producer}, {{{consumers}}}, {depth}){via_dma} : {element}"
                ));
            }
            "aie.objectfifo.link" => {
                let plain = |name| op.attribute(name).replace(" : i64", "");
                let offsets = match op.attribute("src_offsets") {
                    "" => String::new(),
                    _ => format!("{} {}", plain("src_offsets"), plain("dst_offsets")),
                };
                let (ins, outs) = (op.attribute("fifoIns"), op.attribute("fifoOuts"));
                self.line(&format!("aie.objectfifo.link {ins} -> {outs} ({offsets})"));
            }
            "aie.objectfifo.acquire" => self.line(&format!("{assigned}{} {} : {result}", op.name, port(op))),
            "aie.objectfifo.release" => self.line(&format!("{} {}", op.name, port(op))),
            "aie.objectfifo.subview.access" => {
                self.line(&format!("{assigned}{} {operands}[{}] : {types} -> {result}", op.name, number("index")));
            }
            "aie.core" => {
                let attributes: Vec<String> =
                    op.attributes.iter().map(|(name, text)| format!("{name} = {text}")).collect();
                let tail = format!(" {{{}}}", attributes.join(", "));
                self.region(&format!("{assigned}aie.core({operands})"), &op.regions[0], &tail);
            }
            "aie.runtime_sequence" | "aiex.runtime_sequence" => {
                let name = quoted("sym_name");
                let symbol = if name.is_empty() { String::new() } else { format!(" @{name}") };
                let arguments = self.arguments(&op.regions[0]);
                self.region(&format!("{}{symbol}({arguments})", op.name), &op.regions[0], "");
            }
            "aiex.npu.dma_memcpy_nd" => {
                let list = |name| op.attribute(name).trim_start_matches("array<i64: ").trim_end_matches('>');
                let (offsets, sizes, strides) = (list("static_offsets"), list("static_sizes"), list("static_strides"));
                let place = if op.attribute("x").is_empty() { "" } else { "0, 0, " };
                let (metadata, id) = (op.attribute("metadata"), op.attribute("id"));
                self.line(&format!(
                    "{}({place}{operands}[{offsets}][{sizes}][{strides}]) {{metadata = {metadata}, id = {id}}} : {types}",
                    op.name
                ));
            }
            "aiex.npu.dma_wait" => self.line(&format!("{} {{symbol = {}}}", op.name, op.attribute("symbol"))),
            "aie.end" => self.line("aie.end"),
            "arith.constant" => self.line(&format!("{assigned}arith.constant {}", op.attribute("value"))),
            "scf.for" => self.for_loop(op, &assigned),
            "scf.yield" if operands.is_empty() => {}
            "scf.yield" => self.line(&format!("scf.yield {operands} : {types}")),
            "func.func" => self.function(op),
            "func.return" => self.line("return"),
            "func.call" => self.line(&format!("func.call {}({operands}) : ({types}) -> ()", op.attribute("callee"))),
            "vector.load" => {
                let (base, at) = operands.split_once(", ").expect("a load has an index");
                self.line(&format!("{assigned}vector.load {base}[{at}] : {first}, {result}"));
            }
            "vector.store" => {
                let names: Vec<&str> = operands.split(", ").collect();
                let base = self.module.ty(op.operands[1]);
                self.line(&format!("vector.store {}, {}[{}] : {base}, {first}", names[0], names[1], names[2]));
            }
            "vector.contract" => {
                let maps = op.attribute("indexing_maps");
                let (pair, kinds) = (self.types(&op.operands[..2]), "[\"parallel\", \"parallel\", \"reduction\"]");
                self.line(&format!(
                    "{assigned}vector.contract {{indexing_maps = {maps}, iterator_types = {kinds}, kind = #vector.kind<add>}} {operands} : {pair} into {result}"
                ));
            }
            "vector.shape_cast" | "vector.bitcast" | "arith.extsi" | "arith.trunci" | "arith.extf" | "arith.truncf"
            | "arith.index_cast" => {
                self.line(&format!("{assigned}{} {operands} : {first} to {result}", op.name));
            }
            _ => self.line(&format!("{assigned}{} {operands} : {result}", op.name)),
        }
    }

    fn arguments(&self, region: &Region) -> String {
        let argument = |value: &Value| format!("{}: {}", self.names(&[*value]), self.module.ty(*value));
        region.arguments.iter().map(argument).collect::<Vec<_>>().join(", ")
    }

    fn for_loop(&mut self, op: &Op, assigned: &str) {
        let region = &op.regions[0];
        let (induction, carried) = region.arguments.split_first().expect("a loop has an induction variable");
        let [from, to, step] = [0, 1, 2].map(|index| self.names(&op.operands[index..=index]));
        let mut head = format!("{assigned}scf.for {} = {from} to {to} step {step}", self.names(&[*induction]));
        if !carried.is_empty() {
            let pairs: Vec<String> = (carried.iter().zip(&op.operands[3..]))
                .map(|(inner, outer)| format!("{} = {}", self.names(&[*inner]), self.names(&[*outer])))
                .collect();
            write!(head, " iter_args({}) -> ({})", pairs.join(", "), self.types(carried)).expect("writing to a String");
        }
        self.region(&head, region, "");
    }

    fn function(&mut self, op: &Op) {
        let name = op.attribute("sym_name").trim_matches('"');
        let link_with = op.attribute("link_with");
        if op.regions[0].ops.is_empty() {
            let types = op.attribute("function_type").trim_end_matches(" -> ()");
            let tail =
                if link_with.is_empty() { String::new() } else { format!(" attributes {{link_with = {link_with}}}") };
            self.line(&label(op).expect("a function without operations is external"));
            return self.line(&format!("func.func private @{name}{types}{tail}"));
        }
        let arguments = self.arguments(&op.regions[0]);
        self.region(
            &format!("func.func @{name}({arguments}) attributes {{llvm.emit_c_interface}}"),
            &op.regions[0],
            "",
        );
    }
}

/// `@fifo(Port, 1)`.
fn port(op: &Op) -> String {
    let port = if op.attribute("port").starts_with('0') { "Produce" } else { "Consume" };
    format!("{}({port}, 1)", op.attribute("objFifo_name"))
}
