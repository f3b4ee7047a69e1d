//! C++ of a core's program, and the linker script that gives it its place.

use std::fmt::Write;

use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::{CoreTile, Epilogue, REGISTER_COLS};

use crate::addresses::Addresses;
use crate::design::{Body, BufferId, Core, CoreOp, Design, FifoId, Work};
use crate::device::{STACK_BYTES, TileKind, limits};
use crate::lower::Lowered;

/// Where a core sees its own data memory.
pub(super) const OWN_MEMORY: u32 = 0x7_0000;
/// Number of a core's own first lock: those of its neighbours come before.
const OWN_LOCKS: u32 = 48;
/// Bytes of a core's program memory.
pub(super) const PROGRAM_BYTES: u32 = 16 << 10;

/// The bodies, which are the same text for every product.
const BODIES: &str = include_str!("product.h");

/// The program of one core: cores whose buffers and locks have the same places have the same text.
///
/// # Errors
/// When the design is no matrix product: attention's bodies are not written in C++, and a passthrough has none.
pub(super) fn source(design: &Design, lowered: &Lowered, addresses: &Addresses, core: &Core) -> Result<String, String> {
    let Work::Product(tile) = &design.work else {
        return Err("attention has no C++ of its cores, expected a matrix product".into());
    };
    let mut writer = Writer { lowered, addresses, core, text: String::new(), depth: 1, loops: 0 };
    writer.ports();
    writer.steps(&core.program);
    let Writer { text, .. } = writer;
    Ok(format!(
        "{}\n{BODIES}\n#ifndef MEMORY\n#define MEMORY ((Byte *){OWN_MEMORY:#x})\n#endif\n\nint main() {{\n  set_rnd(0);\n  clr_sat();\n{text}}}\n",
        definitions(tile)
    ))
}

/// The numbers that [`BODIES`] needs.
fn definitions(tile: &CoreTile) -> String {
    let activation = match tile.epilogue {
        Epilogue::Scale => 0,
        Epilogue::ActMul(Activation::Silu) => 1,
        Epilogue::ActMul(Activation::GeluTanh) => 2,
        Epilogue::ActMul(Activation::ClampedSwiGlu) => {
            unreachable!("only experts have it, and no NPU computes those")
        }
        Epilogue::ActMul(Activation::Gelu) => {
            unreachable!("only what makes rows of images has it, without a product")
        }
    };
    let numbers = [
        ("ROWS", tile.rows),
        ("COLS", tile.cols),
        ("DEPTH", tile.depth),
        ("SHIFT", tile.shift() as usize),
        ("HALF", tile.half() as usize),
        ("MULTIPLIER_SHIFT", tile.multiplier_shift() as usize),
        ("MULTIPLIER_HALF", tile.multiplier_half() as usize),
        ("REGISTER_ROWS", tile.register_rows()),
        ("REGISTER_COLS", REGISTER_COLS),
        ("ACTIVATION", activation),
    ];
    numbers.iter().fold(String::new(), |text, (name, number)| text + &format!("#define {name} {number}\n"))
}

struct Writer<'d> {
    lowered: &'d Lowered,
    addresses: &'d Addresses,
    core: &'d Core,
    text: String,
    /// Of the next line.
    depth: usize,
    /// Loops around the next line, by which their counters are named.
    loops: usize,
}

impl Writer<'_> {
    fn line(&mut self, line: &str) {
        writeln!(self.text, "{:1$}{line}", "", 2 * self.depth).expect("a string takes all");
    }

    /// The object of each FIFO that comes next: a FIFO's buffers are used in turn.
    fn ports(&mut self) {
        let own = self.lowered.ports.keys().filter(|(_, tile)| *tile == self.core.tile);
        for (fifo, _) in own.collect::<Vec<_>>() {
            self.line(&format!("unsigned next_{} = 0;", fifo.0));
        }
    }

    fn steps(&mut self, steps: &[CoreOp]) {
        for step in steps {
            match step {
                CoreOp::Forever(body) => self.block("for (;;) {", body),
                CoreOp::Repeat { count, body } => {
                    let counter = format!("i{}", self.loops);
                    self.block(&format!("for (unsigned {counter} = 0; {counter} < {count}; {counter}++) {{"), body);
                }
                CoreOp::Acquire { fifo, .. } => {
                    let lock = self.lock(self.port(*fifo).acquire.0);
                    self.line(&format!("acquire_greater_equal({lock}, 1);"));
                    self.line("fence();");
                    let place = self.object(*fifo);
                    self.line(&format!("Byte *const object_{} = {place};", fifo.0));
                }
                CoreOp::Release { fifo, .. } => {
                    let (lock, number) = (self.lock(self.port(*fifo).release.0), fifo.0);
                    let buffers = self.port(*fifo).memories.len();
                    self.line("fence();");
                    self.line(&format!("release({lock}, 1);"));
                    self.line(&format!("next_{number} = next_{number} + 1 == {buffers} ? 0 : next_{number} + 1;"));
                }
                CoreOp::Run(body) => self.run(*body),
            }
        }
    }

    fn block(&mut self, head: &str, body: &[CoreOp]) {
        self.line(head);
        (self.depth, self.loops) = (self.depth + 1, self.loops + 1);
        self.steps(body);
        (self.depth, self.loops) = (self.depth - 1, self.loops - 1);
        self.line("}");
    }

    fn run(&mut self, body: Body) {
        match body {
            Body::Clear { sums } => self.line(&format!("clear({});", self.buffer(sums))),
            Body::AddProducts { activations, weights, sums, scales } => {
                let (a, w) = (activations.0, weights.0);
                self.line(&format!("add_products(object_{a}, object_{w}, {});", self.buffer(sums)));
                self.line(&format!("keep_scales(object_{a}, object_{w}, {});", self.buffer(scales)));
            }
            Body::Finish { sums, scales, output } => {
                let (sums, scales, piece) = (self.buffer(sums), self.buffer(scales), self.loops - 1);
                self.line(&format!("finish({sums}, {scales}, i{piece}, object_{});", output.0));
            }
            Body::Scores { .. } | Body::Softmax { .. } | Body::AddValues { .. } | Body::Normalise { .. } => {
                unreachable!("of attention, which has no text")
            }
        }
    }

    fn port(&self, fifo: FifoId) -> &crate::lower::CorePort {
        &self.lowered.ports[&(fifo, self.core.tile)]
    }

    /// A lock's number as the core counts.
    fn lock(&self, index: usize) -> u32 {
        OWN_LOCKS + self.addresses.locks[index]
    }

    fn buffer(&self, id: BufferId) -> String {
        format!("MEMORY + {:#x}", self.addresses.buffers[id.0])
    }

    /// The buffer that a FIFO's next object is in, by its number.
    fn object(&self, fifo: FifoId) -> String {
        let places: Vec<usize> =
            self.port(fifo).memories.iter().map(|memory| self.addresses.memories[memory.0]).collect();
        let (last, others) = places.split_last().expect("a FIFO has buffers");
        let mut text = String::from("MEMORY + (");
        for (number, place) in others.iter().enumerate() {
            write!(text, "next_{} == {number} ? {place:#x} : ", fifo.0).expect("a string takes all");
        }
        text + &format!("{last:#x})")
    }
}

/// The linker script of a core: code from address 0 on, constants behind the core's buffers, the stack below them.
pub(super) fn linker_script(design: &Design, lowered: &Lowered, addresses: &Addresses, core: &Core) -> String {
    let of_core = |index: &usize| lowered.memories[*index].tile == core.tile;
    let objects = (0..lowered.memories.len()).filter(of_core);
    let objects = objects.map(|index| addresses.memories[index] + lowered.memories[index].bytes);
    let buffers = design.buffers.iter().zip(&addresses.buffers).filter(|(buffer, _)| buffer.tile == core.tile);
    let buffers = buffers.map(|(buffer, at)| at + buffer.len * buffer.element.bytes());
    let end = objects.chain(buffers).max().unwrap_or(STACK_BYTES).next_multiple_of(32) as u32;
    let (stack, data) = (OWN_MEMORY, OWN_MEMORY + end);
    let data_bytes = (limits(TileKind::Core).memory_bytes as u32).saturating_sub(end);
    format!(
        "MEMORY
{{
  program (RX) : ORIGIN = 0, LENGTH = {PROGRAM_BYTES:#x}
  data (!RX) : ORIGIN = {data:#x}, LENGTH = {data_bytes:#x}
}}
ENTRY(__start)
_sp_start_value_DM_stack = {stack:#x};
SECTIONS
{{
  .text 0 : {{
    *crt0.o(.text*)
    _ctors_start = .;
    _init_array_start = .;
    KEEP(SORT(*.init_array))
    _ctors_end = .;
    _init_array_end = .;
    _dtors_start = .;
    _dtors_end = .;
    *(.text*)
  }} > program
  .data : {{ *(.data*) *(.rodata*) }} > data
  .bss : {{ *(.bss*) *(COMMON) }} > data
}}
"
    )
}
