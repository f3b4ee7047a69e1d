//! The design of a passthrough: bytes go from DRAM through the memory tiles and back, without a core.
//!
//! ```text
//! shim c ─ in ─► memory c ─ out ─► shim c          c = 0..columns, each with its own part of the bytes
//! ```
//!
//! It needs no machine code of cores, so that an NPU runs it with the control image that [`crate::control`] makes. It checks what every other program relies on:
//! driver, control image, instruction stream, shim and memory tiles, locks.

pub use unicorn_artifact::npu::{ACTIVATIONS, OUTPUTS, WEIGHTS};

use crate::design::{Argument, Design, Element, Fifo, FifoId, HostOp, Link, Transfer, Work};
use crate::device::{Tile, WORD_BYTES};

/// Bytes of an object: two of them in flight are a small part of a memory tile.
const OBJECT_BYTES: usize = 16 << 10;
const DEPTH: usize = 2;

/// The design that copies `objects` objects of 16 KiB in each of `columns` columns, from the first to the last of the three buffers that a command has.
pub fn design(columns: usize, objects: usize) -> Design {
    let (mut fifos, mut links) = (Vec::new(), Vec::new());
    let (mut starts, mut waits) = (Vec::new(), Vec::new());
    let bytes = objects * OBJECT_BYTES;
    for column in 0..columns {
        let (shim, memory) = (Tile::shim(column as u32), Tile::memory(column as u32));
        let [input, output] = [("in", shim, memory), ("out", memory, shim)].map(|(name, producer, consumer)| {
            let (name, consumers) = (format!("{name}_{column}"), vec![consumer]);
            fifos.push(Fifo { name, producer, consumers, depth: DEPTH, element: Element::I8, len: OBJECT_BYTES });
            FifoId(fifos.len() - 1)
        });
        links.push(Link { inputs: vec![input], outputs: vec![output] });
        let (sizes, strides) = ([1, 1, 1, bytes], [0, 0, 0, 1]);
        // The result first, so that its buffer is ready before the first object.
        for (fifo, argument, descriptor) in [(output, OUTPUTS, 0), (input, ACTIVATIONS, 1)] {
            let offset = column * bytes;
            starts.push(HostOp::Start(Transfer { fifo, argument, offset, sizes, strides, descriptor }));
        }
        waits.push(HostOp::Wait(output));
    }
    let argument = |name, len| Argument { name, element: Element::I8, len };
    Design {
        columns: columns as u32,
        work: Work::Passthrough,
        fifos,
        links,
        buffers: Vec::new(),
        cores: Vec::new(),
        // A command has a buffer of weights, which nothing reads.
        arguments: vec![
            argument("activations", columns * bytes),
            argument("weights", WORD_BYTES),
            argument("outputs", columns * bytes),
        ],
        host: starts.into_iter().chain(waits).collect(),
    }
}

/// Objects of each column in a design that copies `bytes` bytes; `None`: no number of objects has them.
pub fn objects(columns: usize, bytes: usize) -> Option<usize> {
    let all = columns * OBJECT_BYTES;
    (bytes > 0 && bytes.is_multiple_of(all)).then(|| bytes / all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::control;
    use crate::interpret::run;
    use crate::legal;
    use crate::lower::lower;
    use crate::stream;

    #[test]
    fn bytes_come_back_as_they_were_sent() {
        for columns in 1..=4 {
            let design = design(columns, 3);
            let lowered = lower(&design);
            legal::check(&design, &lowered).unwrap_or_else(|faults| panic!("{columns} columns: {faults:?}"));
            // An image without programs of cores is whole.
            assert!(control(&design, &lowered, &Default::default()).expect("it has routes").programs.is_empty());
            let instructions = stream::decode(&stream::encode(&design, &lowered)).unwrap();
            let commands = stream::commands(&instructions, &lowered).unwrap();
            let bytes = design.arguments[ACTIVATIONS].len;
            assert_eq!(objects(columns, bytes), Some(3));
            let sent: Vec<u8> = (0..bytes).map(|index| (index * 31 + index / 251) as u8).collect();
            let mut arguments = [sent.clone(), vec![0; WORD_BYTES], vec![0xff; bytes]];
            run(&design, &lowered, &commands, &mut arguments).unwrap();
            assert!(arguments[OUTPUTS] == sent, "{columns} columns");
        }
        assert_eq!([objects(2, 0), objects(2, 3 << 14)], [None; 2]);
    }
}
