//! The design of a W4A8 GEMM on 1 to 4 columns of four cores.
//!
//! ```text
//!           column c
//! core r    sums += activations(r) · weights(c), then scaled or act · mul           r = 0..4
//! memory    divides activations among the array rows that the column feeds ─► each to one row of cores, in all columns
//!           passes weights on ─► all four cores of the column
//!           joins the outputs of the four cores ◄─
//! shim      activations, weights in; outputs out
//! ```
//!
//! A row tile takes one descriptor for each stream of a column: activations are repeated for every column tile, weights are read in a line, and
//! outputs are written four rows of 4 × columns at a time.

pub use unicorn_artifact::npu::{ACTIVATIONS, OUTPUTS, WEIGHTS};
use unicorn_kernels::npu::tile::{BLOCK_ROWS, CORE_ROWS, GemmShape};

use crate::design::{
    Argument, Body, Buffer, BufferId, Core, CoreOp, Design, Element, Fifo, FifoId, HostOp, Link, Port, Transfer,
};
use crate::device::{ITERATION_MAX, Tile, WORD_BYTES, limits};

/// Objects that each end of a stream has room for: one is filled while the other is read.
const DEPTH: usize = 2;

/// The design that computes `shape`.
pub fn design(shape: &GemmShape) -> Design {
    let mut builder = Builder { shape, fifos: Vec::new(), links: Vec::new(), buffers: Vec::new(), cores: Vec::new() };
    let streams = builder.streams();
    builder.cores(&streams);
    let arguments = vec![
        Argument { name: "activations", element: Element::I8, len: shape.activation_bytes() },
        Argument { name: "weights", element: Element::I8, len: shape.weight_bytes() },
        Argument { name: "outputs", element: Element::Bf16, len: shape.rows * shape.outputs() },
    ];
    let host = builder.host(&streams);
    let Builder { fifos, links, buffers, cores, .. } = builder;
    Design { columns: shape.columns as u32, core_tile: shape.core, fifos, links, buffers, cores, arguments, host }
}

struct Builder<'s> {
    shape: &'s GemmShape,
    fifos: Vec<Fifo>,
    links: Vec<Link>,
    buffers: Vec<Buffer>,
    cores: Vec<Core>,
}

struct Streams {
    /// Into each column, from DRAM.
    activations: Vec<FifoId>,
    /// To each array row.
    activations_of_row: Vec<FifoId>,
    /// Into each column, from DRAM.
    weights: Vec<FifoId>,
    /// To the cores of each column.
    weights_of_column: Vec<FifoId>,
    /// From each core, by column and array row.
    outputs_of_core: Vec<Vec<FifoId>>,
    /// Out of each column.
    outputs: Vec<FifoId>,
}

impl Builder<'_> {
    fn fifo(&mut self, name: String, from: Tile, to: Vec<Tile>, element: Element, len: usize) -> FifoId {
        self.fifos.push(Fifo { name, producer: from, consumers: to, depth: DEPTH, element, len });
        FifoId(self.fifos.len() - 1)
    }

    fn streams(&mut self) -> Streams {
        let shape = self.shape;
        let (core, columns) = (shape.core, 0..shape.columns as u32);
        let (a_bytes, w_bytes, out) = (core.activation_bytes(), core.weight_bytes(), core.output_values());
        let mut streams = Streams {
            activations: Vec::new(),
            activations_of_row: Vec::new(),
            weights: Vec::new(),
            weights_of_column: Vec::new(),
            outputs_of_core: Vec::new(),
            outputs: Vec::new(),
        };
        for col in columns.clone() {
            let rows = shape.array_rows_of(col as usize);
            let (shim, memory) = (Tile::shim(col), Tile::memory(col));
            let cores: Vec<Tile> = (0..CORE_ROWS as u32).map(|row| Tile::core(col, row)).collect();
            let whole = self.fifo(format!("a_in_{col}"), shim, vec![memory], Element::I8, rows.len() * a_bytes);
            let parts: Vec<FifoId> = rows
                .map(|row| {
                    let row_of_cores = columns.clone().map(|col| Tile::core(col, row as u32)).collect();
                    self.fifo(format!("a_row_{row}"), memory, row_of_cores, Element::I8, a_bytes)
                })
                .collect();
            self.links.push(Link { inputs: vec![whole], outputs: parts.clone() });
            streams.activations.push(whole);
            streams.activations_of_row.extend(parts);

            let whole = self.fifo(format!("w_in_{col}"), shim, vec![memory], Element::I8, w_bytes);
            let to_cores = self.fifo(format!("w_col_{col}"), memory, cores.clone(), Element::I8, w_bytes);
            self.links.push(Link { inputs: vec![whole], outputs: vec![to_cores] });
            streams.weights.push(whole);
            streams.weights_of_column.push(to_cores);

            let parts: Vec<FifoId> = cores
                .iter()
                .enumerate()
                .map(|(row, core)| self.fifo(format!("out_{col}_{row}"), *core, vec![memory], Element::Bf16, out))
                .collect();
            let whole = self.fifo(format!("out_{col}"), memory, vec![shim], Element::Bf16, CORE_ROWS * out);
            self.links.push(Link { inputs: parts.clone(), outputs: vec![whole] });
            streams.outputs_of_core.push(parts);
            streams.outputs.push(whole);
        }
        streams
    }

    fn cores(&mut self, streams: &Streams) {
        for col in 0..self.shape.columns {
            for row in 0..CORE_ROWS {
                let tile = Tile::core(col as u32, row as u32);
                let (core, chunks) = (self.shape.core, self.shape.chunks());
                let sums = self.buffer(format!("sums_{col}_{row}"), tile, Element::I32, core.sums());
                let scales = self.buffer(format!("scales_{col}_{row}"), tile, Element::I8, core.scales_bytes());
                let activations = streams.activations_of_row[row];
                let weights = streams.weights_of_column[col];
                let output = streams.outputs_of_core[col][row];
                let take = |fifo| CoreOp::Acquire { fifo, port: Port::Consume };
                let give_back = |fifo| CoreOp::Release { fifo, port: Port::Consume };
                let program = vec![
                    CoreOp::Run(Body::Clear { sums }),
                    CoreOp::Repeat {
                        count: chunks,
                        body: vec![
                            take(activations),
                            take(weights),
                            CoreOp::Run(Body::AddProducts { activations, weights, sums, scales }),
                            give_back(activations),
                            give_back(weights),
                        ],
                    },
                    CoreOp::Repeat {
                        count: core.pieces(),
                        body: vec![
                            CoreOp::Acquire { fifo: output, port: Port::Produce },
                            CoreOp::Run(Body::Finish { sums, scales, output }),
                            CoreOp::Release { fifo: output, port: Port::Produce },
                        ],
                    },
                ];
                self.cores.push(Core { tile, program: vec![CoreOp::Forever(program)] });
            }
        }
    }

    fn buffer(&mut self, name: String, tile: Tile, element: Element, len: usize) -> BufferId {
        self.buffers.push(Buffer { name, tile, element, len });
        BufferId(self.buffers.len() - 1)
    }

    /// One row tile after the other, in groups of as many column tiles as a descriptor can count. Two groups are in flight: while one is
    /// computed, the next is queued.
    fn host(&self, streams: &Streams) -> Vec<HostOp> {
        let shape = self.shape;
        let groups = (0..shape.row_tiles())
            .flat_map(|row_tile| (0..shape.col_tiles()).step_by(ITERATION_MAX).map(move |first| (row_tile, first)));
        let (mut host, mut in_flight) = (Vec::new(), 0);
        for (index, (row_tile, first)) in groups.enumerate() {
            if in_flight == 2 {
                host.extend(streams.outputs.iter().map(|output| HostOp::Wait(*output)));
                in_flight -= 1;
            }
            let tiles = ITERATION_MAX.min(shape.col_tiles() - first);
            for col in 0..shape.columns {
                let descriptors = 3 * (index % 2) as u32;
                // Outputs first: their room is there before the first result.
                host.push(self.outputs(streams, row_tile, first, tiles, col, descriptors));
                host.push(self.activations(streams, row_tile, tiles, col, descriptors + 1));
                host.push(self.weights(streams, first, tiles, col, descriptors + 2));
            }
            in_flight += 1;
        }
        for _ in 0..in_flight {
            host.extend(streams.outputs.iter().map(|output| HostOp::Wait(*output)));
        }
        host
    }

    fn outputs(&self, streams: &Streams, row_tile: usize, first: usize, tiles: usize, col: usize, id: u32) -> HostOp {
        let (shape, outputs) = (self.shape, self.shape.core.outputs());
        let width = shape.outputs();
        let start = shape.core.epilogue.outputs(shape.first_col(first, col));
        HostOp::Start(Transfer {
            fifo: streams.outputs[col],
            argument: OUTPUTS,
            offset: row_tile * shape.tile_rows() * width + start,
            sizes: [tiles, shape.tile_rows() / BLOCK_ROWS, BLOCK_ROWS, outputs],
            strides: [if tiles > 1 { shape.columns * outputs } else { 0 }, BLOCK_ROWS * width, width, 1],
            descriptor: id,
        })
    }

    fn activations(&self, streams: &Streams, row_tile: usize, tiles: usize, col: usize, id: u32) -> HostOp {
        let shape = self.shape;
        let bytes = shape.array_rows_of(col).len() * shape.chunks() * shape.core.activation_bytes();
        let [outer, middle, inner] = in_three(bytes);
        HostOp::Start(Transfer {
            fifo: streams.activations[col],
            argument: ACTIVATIONS,
            offset: shape.activations_at(row_tile, col),
            sizes: [tiles, outer, middle, inner],
            // The same activations for every column tile.
            strides: [0, if outer > 1 { middle * inner } else { 0 }, if middle > 1 { inner } else { 0 }, 1],
            descriptor: id,
        })
    }

    fn weights(&self, streams: &Streams, first: usize, tiles: usize, col: usize, id: u32) -> HostOp {
        let shape = self.shape;
        HostOp::Start(Transfer {
            fifo: streams.weights[col],
            argument: WEIGHTS,
            offset: shape.weights_at(col, first),
            sizes: [1, 1, 1, tiles * shape.chunks() * shape.core.weight_bytes()],
            strides: [0, 0, 0, 1],
            descriptor: id,
        })
    }
}

/// `bytes` in a line as three dimensions, outermost first, whose inner two the shim can count.
fn in_three(bytes: usize) -> [usize; 3] {
    let most = limits(crate::device::TileKind::Shim).wrap_max;
    let largest_divisor = |n: usize| (1..=most.min(n)).rev().find(|divisor| n.is_multiple_of(*divisor)).unwrap_or(1);
    let inner = largest_divisor(bytes / WORD_BYTES);
    let middle = largest_divisor(bytes / WORD_BYTES / inner);
    [bytes / WORD_BYTES / inner / middle, middle, inner * WORD_BYTES]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_divided_into_dimensions_that_the_shim_counts() {
        for bytes in [8448 * 32, 4352 * 112, 8448 * 168 * 4] {
            let [outer, middle, inner] = in_three(bytes);
            assert_eq!(outer * middle * inner, bytes);
            assert!(middle <= 1023 && inner <= 1023 * 4 && inner % 4 == 0, "{bytes}: {outer} × {middle} × {inner}");
        }
    }
}
