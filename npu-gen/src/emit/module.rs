//! The operations of a whole design.

use std::collections::BTreeMap;

use unicorn_kernels::npu::attention::{AttentionTile, BLOCK};
use unicorn_kernels::npu::tile::CoreTile;

use super::Dialect;
use super::attention::{self, SOFTMAX};
use super::body;
use super::legalised::{EPILOGUES, not_legalised};
use super::op::{Block, Module, Op, Region, Value};
use crate::design::{Body, BufferId, Core, CoreOp, Design, Element, Fifo, FifoId, HostOp, Link, Port, Transfer, Work};
use crate::device::{STACK_BYTES, Tile, TileKind};

/// Iterations of a loop without end: even, so that unrolling by two leaves no remainder.
const FOREVER: usize = 4_294_967_294;

/// The operations of `design`.
///
/// # Panics
/// If a body has a vector operation that is not known to be taken for AIE2: a defect of this crate, not of the design.
pub fn module(design: &Design, dialect: Dialect) -> Module {
    let mut module = Module::default();
    let mut emitter = Emitter { design, dialect, tiles: BTreeMap::new(), buffers: Vec::new() };
    let ops = emitter.device(&mut module);
    let device = Op { name: "aie.device", attributes: device_attributes(design, dialect), ..Op::default() };
    module.ops = vec![Op { regions: vec![Region { arguments: Vec::new(), ops }], ..device }];
    let refused = not_legalised(&module);
    assert!(refused.is_empty(), "bodies have operations that are not for AIE2: {}", refused.join("; "));
    module
}

/// A function `@body` of the sums of a core and of one object of each stream, to run on the host.
pub fn body_function(core: &CoreTile) -> Module {
    let mut module = Module::default();
    let types = [
        memref(core.activation_bytes(), Element::I8),
        memref(core.weight_bytes(), Element::I8),
        memref(core.sums(), Element::I32),
        memref(core.scales_bytes(), Element::I8),
    ];
    let function = host_function(&mut module, "body", &types, |block, arguments| {
        body::clear(block, core, arguments[2]);
        body::add_products(block, core, arguments[0], arguments[1], arguments[2]);
        body::keep_scales(block, core, arguments[0], arguments[1], arguments[3]);
    });
    module.ops = vec![function];
    module
}

/// Functions `@scores` (queries, keys, scores), `@add_values` (probabilities, values, sums, inverses) and `@normalise` (sums, inverses, the first output
/// object), to run on the host.
pub fn attention_functions(tile: &AttentionTile) -> Module {
    let mut module = Module::default();
    let bytes = |len: usize| memref(len, Element::I8);
    let (sums, inverses) = (memref(tile.sums(), Element::F32), memref(BLOCK * tile.rows, Element::F32));
    let scores = [bytes(tile.query_bytes()), bytes(tile.key_bytes()), bytes(tile.score_bytes())];
    let scores = host_function(&mut module, "scores", &scores, |block, arguments| {
        attention::scores(block, tile, arguments[0], arguments[1], arguments[2]);
    });
    let values = [bytes(tile.probability_bytes()), bytes(tile.key_bytes()), sums.clone(), inverses.clone()];
    let values = host_function(&mut module, "add_values", &values, |block, arguments| {
        attention::add_values(block, tile, [arguments[0], arguments[1]], [arguments[2], arguments[3]]);
    });
    let output = memref(tile.output_values(), Element::Bf16);
    let normalise = host_function(&mut module, "normalise", &[sums, inverses, output], |block, arguments| {
        let first = block.index(0);
        attention::normalise(block, tile, [arguments[0], arguments[1]], first, arguments[2]);
    });
    module.ops = vec![scores, values, normalise];
    module
}

/// A function of memrefs that C can call.
fn host_function(module: &mut Module, name: &str, types: &[String], body: impl FnOnce(&mut Block, &[Value])) -> Op {
    let arguments: Vec<Value> = types.iter().map(|ty| module.value("argument", ty.clone())).collect();
    let attributes = vec![
        ("sym_name", format!("\"{name}\"")),
        ("function_type", format!("({}) -> ()", types.join(", "))),
        ("llvm.emit_c_interface", "unit".to_owned()),
    ];
    let mut block = Block { module, ops: Vec::new() };
    body(&mut block, &arguments);
    block.add("func.return", &[], Vec::new());
    let ops = block.ops;
    Op { name: "func.func", attributes, regions: vec![Region { arguments, ops }], ..Op::default() }
}

fn device_attributes(design: &Design, dialect: Dialect) -> Vec<(&'static str, String)> {
    // The number that the dialect gives to npu1_Ncol; since 2025 four columns are npu1 itself.
    let (whole, partition) = (4, 4 + design.columns);
    match dialect {
        Dialect::Y2024 => vec![("device", format!("{partition} : i32"))],
        Dialect::Y2026 => {
            let number = if design.columns == 4 { whole } else { partition };
            vec![("device", format!("{number} : i32")), ("sym_name", "\"main\"".to_owned())]
        }
    }
}

pub(super) fn memref(len: usize, element: Element) -> String {
    format!("memref<{len}x{}>", element.name())
}

struct Emitter<'d> {
    design: &'d Design,
    dialect: Dialect,
    tiles: BTreeMap<Tile, Value>,
    buffers: Vec<Value>,
}

impl Emitter<'_> {
    fn device(&mut self, module: &mut Module) -> Vec<Op> {
        let design = self.design;
        let mut block = Block { module, ops: Vec::new() };
        block.ops.extend(self.external());
        for fifo in &design.fifos {
            for tile in std::iter::once(&fifo.producer).chain(&fifo.consumers) {
                if !self.tiles.contains_key(tile) {
                    let value = block.module.value(&format!("tile_{}_{}", tile.col, tile.row), "index");
                    let mut attributes =
                        vec![("col", format!("{} : i32", tile.col)), ("row", format!("{} : i32", tile.row))];
                    // Sums take more than one bank of a core's memory. In 2024, an option of the pass permits that.
                    if self.dialect == Dialect::Y2026 && tile.kind() == TileKind::Core {
                        attributes.push(("allocation_scheme", "\"basic-sequential\"".to_owned()));
                    }
                    block.ops.push(Op { name: "aie.tile", results: vec![value], attributes, ..Op::default() });
                    self.tiles.insert(*tile, value);
                }
            }
        }
        for buffer in &design.buffers {
            let value = block.module.value(&buffer.name, memref(buffer.len, buffer.element));
            let attributes = vec![("sym_name", format!("\"{}\"", buffer.name))];
            let operands = vec![self.tiles[&buffer.tile]];
            block.ops.push(Op { name: "aie.buffer", operands, results: vec![value], attributes, ..Op::default() });
            self.buffers.push(value);
        }
        for fifo in &design.fifos {
            let tiles = std::iter::once(&fifo.producer).chain(&fifo.consumers);
            let operands: Vec<Value> = tiles.map(|tile| self.tiles[tile]).collect();
            let no_dimensions = vec!["[]"; fifo.consumers.len()].join(", ");
            let attributes = vec![
                ("sym_name", format!("\"{}\"", fifo.name)),
                ("elemNumber", format!("{} : i32", fifo.depth)),
                ("elemType", format!("!aie.objectfifo<{}>", memref(fifo.len, fifo.element))),
                ("dimensionsToStream", "#aie<bd_dim_layout_array[]>".to_owned()),
                ("dimensionsFromStreamPerConsumer", format!("#aie<bd_dim_layout_array_array[{no_dimensions}]>")),
                ("via_DMA", between_cores(fifo).to_string()),
                ("plio", "false".to_owned()),
            ];
            block.add("aie.objectfifo", &operands, attributes);
        }
        for link in &design.links {
            block.add("aie.objectfifo.link", &[], self.link(link));
        }
        for core in &design.cores {
            self.core(&mut block, core);
        }
        self.sequence(&mut block);
        // A device of 2026 ends with a terminator, which only its own syntax implies. One of 2024 has none, and passes add operations at its end.
        if self.dialect == Dialect::Y2026 {
            block.add("aie.end", &[], Vec::new());
        }
        block.ops
    }

    /// The declaration of the function that is not part of the program's text, if there is one.
    fn external(&self) -> Option<Op> {
        let (name, first, second, last) = match &self.design.work {
            Work::Product(core) => (
                body::epilogue_name(core.epilogue),
                memref(core.sums(), Element::I32),
                memref(core.scales_bytes(), Element::I8),
                memref(core.output_values(), Element::Bf16),
            ),
            Work::Attention(tile) => (
                SOFTMAX,
                memref(tile.score_bytes(), Element::I8),
                memref(tile.state(), Element::F32),
                memref(tile.probability_bytes(), Element::I8),
            ),
            Work::Passthrough => return None,
        };
        let types = [first, second, "i32".into(), "i32".into(), "i32".into(), last];
        let mut attributes = vec![
            ("sym_name", format!("\"{name}\"")),
            ("function_type", format!("({}) -> ()", types.join(", "))),
            ("sym_visibility", "\"private\"".to_owned()),
        ];
        if self.dialect == Dialect::Y2026 {
            attributes.push(("link_with", format!("\"{EPILOGUES}\"")));
        }
        Some(Op { name: "func.func", attributes, regions: vec![Region::default()], ..Op::default() })
    }

    fn link(&self, link: &Link) -> Vec<(&'static str, String)> {
        let names = |ids: &[FifoId]| {
            let names: Vec<String> = ids.iter().map(|id| format!("@{}", self.design.fifo(*id).name)).collect();
            format!("[{}]", names.join(", "))
        };
        let mut attributes = vec![("fifoIns", names(&link.inputs)), ("fifoOuts", names(&link.outputs))];
        if self.dialect == Dialect::Y2026 {
            attributes.push(("src_offsets", self.offsets(&link.inputs)));
            attributes.push(("dst_offsets", self.offsets(&link.outputs)));
        }
        attributes
    }

    /// Elements before each part; nothing where there is one part.
    fn offsets(&self, parts: &[FifoId]) -> String {
        let mut at = 0;
        let mut offsets = Vec::new();
        for part in parts {
            offsets.push(format!("{at} : i64"));
            at += self.design.fifo(*part).len;
        }
        format!("[{}]", if parts.len() > 1 { offsets.join(", ") } else { String::new() })
    }

    fn core(&self, block: &mut Block, core: &Core) {
        let result = block.module.value(&format!("core_{}_{}", core.tile.col, core.tile.row), "index");
        let mut inner = Block { module: block.module, ops: Vec::new() };
        self.steps(&mut inner, &core.program, &mut BTreeMap::new(), None);
        inner.add("aie.end", &[], Vec::new());
        let ops = inner.ops;
        let mut attributes = vec![("stack_size", format!("{STACK_BYTES} : i32"))];
        if self.dialect == Dialect::Y2024 && calls(&ops) {
            attributes.push(("link_with", format!("\"{EPILOGUES}\"")));
        }
        block.ops.push(Op {
            name: "aie.core",
            operands: vec![self.tiles[&core.tile]],
            results: vec![result],
            attributes,
            regions: vec![Region { arguments: Vec::new(), ops }],
        });
    }

    fn steps(&self, block: &mut Block, steps: &[CoreOp], held: &mut BTreeMap<FifoId, Value>, around: Option<Value>) {
        for step in steps {
            match step {
                CoreOp::Forever(body) => self.repeat(block, FOREVER, body, held),
                CoreOp::Repeat { count, body } => self.repeat(block, *count, body, held),
                CoreOp::Acquire { fifo, port } => {
                    let one = self.design.fifo(*fifo);
                    let object = memref(one.len, one.element);
                    let attributes = port_attributes(&one.name, *port);
                    let view = format!("!aie.objectfifosubview<{object}>");
                    let view = block.make("aie.objectfifo.acquire", &[], attributes, view);
                    let index = vec![("index", "0 : i32".to_owned())];
                    held.insert(*fifo, block.make("aie.objectfifo.subview.access", &[view], index, object));
                }
                CoreOp::Release { fifo, port } => {
                    held.remove(fifo);
                    let attributes = port_attributes(&self.design.fifo(*fifo).name, *port);
                    block.add("aie.objectfifo.release", &[], attributes);
                }
                CoreOp::Run(body) => self.body(block, body, held, around),
            }
        }
    }

    fn repeat(&self, block: &mut Block, count: usize, body: &[CoreOp], held: &mut BTreeMap<FifoId, Value>) {
        block.repeat(count, &[], |block, index, _| {
            self.steps(block, body, held, Some(index));
            Vec::new()
        });
    }

    fn body(&self, block: &mut Block, body: &Body, held: &BTreeMap<FifoId, Value>, around: Option<Value>) {
        let buffer = |id: BufferId| self.buffers[id.0];
        let counted = || around.expect("objects and blocks are counted by a loop");
        match (*body, &self.design.work) {
            (Body::Clear { sums }, Work::Product(core)) => body::clear(block, core, buffer(sums)),
            (Body::AddProducts { activations, weights, sums, scales }, Work::Product(core)) => {
                let (a, w) = (held[&activations], held[&weights]);
                body::add_products(block, core, a, w, buffer(sums));
                body::keep_scales(block, core, a, w, buffer(scales));
            }
            (Body::Finish { sums, scales, output }, Work::Product(core)) => {
                body::finish(block, core, buffer(sums), buffer(scales), counted(), held[&output]);
            }
            (Body::Clear { sums }, Work::Attention(tile)) => attention::clear(block, tile, buffer(sums)),
            (Body::Scores { queries, keys, scores }, Work::Attention(tile)) => {
                attention::scores(block, tile, held[&queries], held[&keys], held[&scores]);
            }
            (Body::Softmax { scores, state, probabilities }, Work::Attention(tile)) => {
                let (scores, probabilities) = (held[&scores], held[&probabilities]);
                attention::softmax(block, tile, scores, buffer(state), counted(), probabilities);
            }
            (Body::AddValues { probabilities, values, sums, inverses }, Work::Attention(tile)) => {
                let objects = [held[&probabilities], held[&values]];
                attention::add_values(block, tile, objects, [buffer(sums), buffer(inverses)]);
            }
            (Body::Normalise { sums, inverses, output }, Work::Attention(tile)) => {
                let buffers = [buffer(sums), buffer(inverses)];
                attention::normalise(block, tile, buffers, counted(), held[&output]);
            }
            (other, work) => panic!("{other:?} is of another kind of design than {work:?}"),
        }
    }

    fn sequence(&self, block: &mut Block) {
        let arguments: Vec<Value> = (self.design.arguments.iter())
            .map(|one| block.module.value(one.name, memref(one.len, one.element)))
            .collect();
        let mut inner = Block { module: block.module, ops: Vec::new() };
        for op in &self.design.host {
            match op {
                HostOp::Start(transfer) => {
                    let argument = arguments[transfer.argument];
                    inner.add("aiex.npu.dma_memcpy_nd", &[argument], self.transfer(transfer));
                }
                HostOp::Wait(fifo) => {
                    let symbol = format!("@{}", self.design.fifo(*fifo).name);
                    inner.add("aiex.npu.dma_wait", &[], vec![("symbol", symbol)]);
                }
            }
        }
        let ops = inner.ops;
        let (name, attributes) = match self.dialect {
            Dialect::Y2024 => ("aiex.runtime_sequence", Vec::new()),
            Dialect::Y2026 => ("aie.runtime_sequence", vec![("sym_name", "\"sequence\"".to_owned())]),
        };
        block.ops.push(Op { name, attributes, regions: vec![Region { arguments, ops }], ..Op::default() });
    }

    fn transfer(&self, transfer: &Transfer) -> Vec<(&'static str, String)> {
        let list = |values: [usize; 4]| format!("array<i64: {}>", values.map(|value| value.to_string()).join(", "));
        let mut attributes = vec![
            ("static_offsets", list([0, 0, 0, transfer.offset])),
            ("static_sizes", list(transfer.sizes)),
            ("static_strides", list(transfer.strides)),
            ("operandSegmentSizes", "array<i32: 1, 0, 0, 0>".to_owned()),
            ("metadata", format!("@{}", self.design.fifo(transfer.fifo).name)),
            ("id", format!("{} : i64", transfer.descriptor)),
        ];
        if self.dialect == Dialect::Y2024 {
            attributes.push(("x", "0 : i64".to_owned()));
            attributes.push(("y", "0 : i64".to_owned()));
        }
        attributes
    }
}

/// Whether a FIFO goes from core to core. Two neighbours could share memory instead, which the design does not use.
fn between_cores(fifo: &Fifo) -> bool {
    std::iter::once(&fifo.producer).chain(&fifo.consumers).all(|tile| tile.kind() == TileKind::Core)
}

/// Whether operations call the external function.
fn calls(ops: &[Op]) -> bool {
    ops.iter().any(|op| op.name == "func.call" || op.regions.iter().any(|region| calls(&region.ops)))
}

fn port_attributes(name: &str, port: Port) -> Vec<(&'static str, String)> {
    let number = match port {
        Port::Produce => 0,
        Port::Consume => 1,
    };
    vec![("objFifo_name", format!("@{name}")), ("port", format!("{number} : i32")), ("size", "1 : i32".to_owned())]
}
