//! The designs of a W4A8 GEMM on 1 to 4 columns of four cores, and of a W4A8 GEMV for at most 8 rows.
//!
//! A GEMM:
//!
//! ```text
//!           column c
//! core r    sums += activations(r) · weights(c), then scaled or act · mul           r = 0..4
//! memory    divides activations among the array rows of the column ─► each to one row of cores, in all columns
//!           passes weights on ─► all four cores of the column
//!           joins the outputs of the four cores ◄─
//! shim      activations, weights in; outputs out
//! ```
//!
//! A GEMV is bound by the streams of weights from DRAM, of which a shim tile has two: each goes to a core of its own, and one of
//! the first tile's carries the activations to all of them.
//!
//! ```text
//! core 0, 1     sums += activations · weights(core), then scaled or act · mul; one core in column 0, two in each of the others
//! shim          weights in, outputs out, both directly; activations in, from column 0 to all cores
//! ```
//!
//! A row tile needs one descriptor for each stream of a column: activations are repeated for every column tile, weights are read
//! consecutively, and outputs are written four rows of 4 × columns at a time.

pub use unicorn_artifact::npu::{ACTIVATIONS, OUTPUTS, WEIGHTS};
use unicorn_kernels::npu::tile::{BLOCK_ROWS, CORE_ROWS, GemmShape};

use crate::design::{
    Argument, Body, Buffer, BufferId, Core, CoreOp, Design, Element, Fifo, FifoId, HostOp, Link, Port, Transfer, Work,
};
use crate::device::{FIRST_CORE_ROW, ITERATION_MAX, Tile, WORD_BYTES, limits};

/// Objects in the buffers of each end of a stream: one is filled while the other is read.
const DEPTH: usize = 2;

/// The design that computes `shape`, of a GEMM or of a GEMV.
pub fn design(shape: &GemmShape) -> Design {
    let mut builder = Builder { shape, fifos: Vec::new(), links: Vec::new(), buffers: Vec::new(), cores: Vec::new() };
    let streams = if shape.is_gemv() { builder.gemv_streams() } else { builder.gemm_streams() };
    builder.cores(&streams);
    let arguments = vec![
        Argument { name: "activations", element: Element::I8, len: shape.activation_bytes() },
        Argument { name: "weights", element: Element::I8, len: shape.weight_bytes() },
        Argument { name: "outputs", element: Element::Bf16, len: shape.rows * shape.outputs() },
    ];
    let host = builder.host(&streams);
    let Builder { fifos, links, buffers, cores, .. } = builder;
    Design {
        columns: shape.columns as u32,
        work: Work::Product(shape.core),
        fifos,
        links,
        buffers,
        cores,
        arguments,
        host,
    }
}

struct Builder<'s> {
    shape: &'s GemmShape,
    fifos: Vec<Fifo>,
    links: Vec<Link>,
    buffers: Vec<Buffer>,
    cores: Vec<Core>,
}

#[derive(Default)]
struct Streams {
    /// Streams from DRAM, one for each array column through which activations enter.
    activations: Vec<FifoId>,
    /// Streams of weights from DRAM.
    weights: Vec<FifoId>,
    /// Streams to DRAM, one for each stream of weights.
    outputs: Vec<FifoId>,
    cores: Vec<CoreStreams>,
}

/// The streams of one core.
struct CoreStreams {
    tile: Tile,
    activations: FifoId,
    weights: FifoId,
    output: FifoId,
}

impl Builder<'_> {
    fn fifo(&mut self, name: String, from: Tile, to: Vec<Tile>, element: Element, len: usize) -> FifoId {
        self.fifos.push(Fifo { name, producer: from, consumers: to, depth: DEPTH, element, len });
        FifoId(self.fifos.len() - 1)
    }

    /// Streams of a GEMM, through the memory tiles.
    fn gemm_streams(&mut self) -> Streams {
        let shape = self.shape;
        let (core, columns) = (shape.core, 0..shape.columns as u32);
        let (a_bytes, w_bytes, out) = (core.activation_bytes(), core.weight_bytes(), core.output_values());
        let mut streams = Streams::default();
        let (mut of_row, mut of_column) = (Vec::new(), Vec::new());
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
            of_row.extend(parts);

            let whole = self.fifo(format!("w_in_{col}"), shim, vec![memory], Element::I8, w_bytes);
            let weights = self.fifo(format!("w_col_{col}"), memory, cores.clone(), Element::I8, w_bytes);
            self.links.push(Link { inputs: vec![whole], outputs: vec![weights] });
            streams.weights.push(whole);

            let parts: Vec<FifoId> = cores
                .iter()
                .enumerate()
                .map(|(row, core)| self.fifo(format!("out_{col}_{row}"), *core, vec![memory], Element::Bf16, out))
                .collect();
            let whole = self.fifo(format!("out_{col}"), memory, vec![shim], Element::Bf16, CORE_ROWS * out);
            self.links.push(Link { inputs: parts.clone(), outputs: vec![whole] });
            streams.outputs.push(whole);
            of_column.push((cores, weights, parts));
        }
        for (cores, weights, parts) in of_column {
            let of_core = cores.into_iter().zip(&of_row).zip(parts);
            let of_core = of_core.map(|((tile, a), output)| CoreStreams { tile, activations: *a, weights, output });
            streams.cores.extend(of_core);
        }
        streams
    }

    /// Streams of a GEMV, between shim tiles and cores, without the memory tiles. The first shim tile's last input stream
    /// carries the activations.
    fn gemv_streams(&mut self) -> Streams {
        let shape = self.shape;
        let (core, columns) = (shape.core, shape.columns as u32);
        let (a_bytes, w_bytes, out) = (core.activation_bytes(), core.weight_bytes(), core.output_values());
        let tiles: Vec<Tile> = (0..shape.weight_streams()).map(gemv_core).collect();
        let mut streams = Streams::default();
        for col in 0..columns {
            let shim = Tile::shim(col);
            for (index, tile) in tiles.iter().enumerate().filter(|(_, tile)| tile.col == col) {
                let weights = self.fifo(format!("w_{index}"), shim, vec![*tile], Element::I8, w_bytes);
                streams.weights.push(weights);
                streams.outputs.push(self.fifo(format!("out_{index}"), *tile, vec![shim], Element::Bf16, out));
            }
            if col == 0 {
                streams.activations.push(self.fifo("a_in".to_owned(), shim, tiles.clone(), Element::I8, a_bytes));
            }
        }
        let activations = streams.activations[0];
        let of_core = tiles.into_iter().zip(&streams.weights).zip(&streams.outputs);
        let of_core = of_core.map(|((tile, w), out)| CoreStreams { tile, activations, weights: *w, output: *out });
        streams.cores = of_core.collect();
        streams
    }

    fn cores(&mut self, streams: &Streams) {
        for &CoreStreams { tile, activations, weights, output } in &streams.cores {
            let (core, chunks) = (self.shape.core, self.shape.chunks());
            let place = format!("{}_{}", tile.col, tile.row - FIRST_CORE_ROW);
            let sums = self.buffer(format!("sums_{place}"), tile, Element::I32, core.sums());
            let scales = self.buffer(format!("scales_{place}"), tile, Element::I8, core.scales_bytes());
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
        // Streams of each of both groups in a shim tile: two in, and one out, or in a GEMV two.
        let descriptors = if shape.is_gemv() { 4 } else { 3 };
        let (mut host, mut in_flight) = (Vec::new(), 0);
        for (index, (row_tile, first)) in groups.enumerate() {
            if in_flight == 2 {
                host.extend(streams.outputs.iter().map(|output| HostOp::Wait(*output)));
                in_flight -= 1;
            }
            let tiles = ITERATION_MAX.min(shape.col_tiles() - first);
            for col in 0..shape.columns {
                let of_column = |stream: &usize| self.shim_of(streams.weights[*stream]).col as usize == col;
                let in_column: Vec<usize> = (0..shape.weight_streams()).filter(of_column).collect();
                // Outputs first, so that their buffers are ready before the first result.
                let mut transfers: Vec<Transfer> =
                    in_column.iter().map(|stream| self.outputs(streams, row_tile, first, tiles, *stream)).collect();
                if col < streams.activations.len() {
                    transfers.push(self.activations(streams, row_tile, tiles, col));
                }
                transfers.extend(in_column.iter().map(|stream| self.weights(streams, first, tiles, *stream)));
                let numbered = transfers.into_iter().zip(descriptors * (index % 2) as u32..);
                host.extend(numbered.map(|(transfer, descriptor)| HostOp::Start(Transfer { descriptor, ..transfer })));
            }
            in_flight += 1;
        }
        for _ in 0..in_flight {
            host.extend(streams.outputs.iter().map(|output| HostOp::Wait(*output)));
        }
        host
    }

    /// The shim tile in which a FIFO from DRAM begins.
    fn shim_of(&self, fifo: FifoId) -> Tile {
        self.fifos[fifo.0].producer
    }

    fn outputs(&self, streams: &Streams, row_tile: usize, first: usize, tiles: usize, stream: usize) -> Transfer {
        let (shape, outputs) = (self.shape, self.shape.core.outputs());
        let width = shape.outputs();
        let start = shape.core.epilogue.outputs(shape.first_col(first, stream));
        Transfer {
            fifo: streams.outputs[stream],
            argument: OUTPUTS,
            offset: row_tile * shape.tile_rows() * width + start,
            sizes: [tiles, shape.tile_rows() / BLOCK_ROWS, BLOCK_ROWS, outputs],
            strides: [if tiles > 1 { shape.weight_streams() * outputs } else { 0 }, BLOCK_ROWS * width, width, 1],
            descriptor: 0,
        }
    }

    fn activations(&self, streams: &Streams, row_tile: usize, tiles: usize, col: usize) -> Transfer {
        let shape = self.shape;
        let bytes = shape.array_rows_of(col).len() * shape.chunks() * shape.core.activation_bytes();
        let [outer, middle, inner] = in_three(bytes);
        Transfer {
            fifo: streams.activations[col],
            argument: ACTIVATIONS,
            offset: shape.activations_at(row_tile, col),
            sizes: [tiles, outer, middle, inner],
            // The same activations for every column tile.
            strides: [0, if outer > 1 { middle * inner } else { 0 }, if middle > 1 { inner } else { 0 }, 1],
            descriptor: 0,
        }
    }

    fn weights(&self, streams: &Streams, first: usize, tiles: usize, stream: usize) -> Transfer {
        let shape = self.shape;
        Transfer {
            fifo: streams.weights[stream],
            argument: WEIGHTS,
            offset: shape.weights_at(stream, first),
            sizes: [1, 1, 1, tiles * shape.chunks() * shape.core.weight_bytes()],
            strides: [0, 0, 0, 1],
            descriptor: 0,
        }
    }
}

/// The core of a weight stream of a GEMV: one in the first column, whose other stream in carries the activations, and two in each of the others.
fn gemv_core(stream: usize) -> Tile {
    Tile::core(stream.div_ceil(2) as u32, (stream > 0 && stream.is_multiple_of(2)).into())
}

/// `bytes` consecutive bytes as three dimensions, outermost first, whose inner two fit the shim's counts.
pub(crate) fn in_three(bytes: usize) -> [usize; 3] {
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
