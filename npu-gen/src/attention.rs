//! The design of attention for prefill on 1 to 4 columns: each is a pipeline of three cores for one KV head at a time.
//!
//! ```text
//!           column c
//! core 2    sums = corrections · sums + probabilities · values, at the end times the inverses ─► shim
//! core 1    online softmax                                                                      ▲ probabilities
//! core 0    scores = queries · keysᵀ                                                             ▲ scores
//! memory    divides each object into keys ─► core 0, and values ─► core 2
//! shim      queries ─► core 0; keys and values in; outputs out
//! ```
//!
//! Keys and values are read once for each tile of query rows. The range of keys that a query may attend to (causal order, windows,
//! the end of a sequence) is stored with the queries, so that one program is enough for all positions.

use std::fmt::{self, Display};

use unicorn_kernels::npu::attention::{AttentionShape, AttentionTile, BLOCK, BLOCK_INNER};

use crate::design::{
    Argument, Body, Buffer, BufferId, Core, CoreOp, Design, Element, Fifo, FifoId, HostOp, Link, Port, Transfer, Work,
};
use crate::device::{CLOCK_HZ, ITERATION_MAX, STREAM_BYTES_PER_CYCLE, Tile};
use crate::excluded::{Excluded, Exclusions};
use crate::gemm::in_three;
use crate::legal::{self, Fault, Usage};
use crate::lower::{Lowered, lower};

/// Index of the host's buffer of queries with their limits.
pub const QUERIES: usize = 0;
/// Index of the host's buffer of keys and values.
pub const KEYS_AND_VALUES: usize = 1;
/// Index of the host's buffer of outputs.
pub const OUTPUTS: usize = 2;

/// The design that computes `shape`.
pub fn design(shape: &AttentionShape) -> Design {
    let mut builder = Builder { shape, fifos: Vec::new(), links: Vec::new(), buffers: Vec::new(), cores: Vec::new() };
    let streams: Vec<Streams> = (0..shape.columns as u32).map(|col| builder.column(col)).collect();
    let arguments = vec![
        Argument { name: "queries", element: Element::I8, len: shape.query_bytes() },
        Argument { name: "keys_and_values", element: Element::I8, len: shape.key_value_bytes() },
        Argument { name: "outputs", element: Element::Bf16, len: shape.output_values() },
    ];
    let host = host(shape, &streams);
    let Builder { fifos, links, buffers, cores, .. } = builder;
    let work = Work::Attention(shape.tile);
    Design { columns: shape.columns as u32, work, fifos, links, buffers, cores, arguments, host }
}

struct Builder<'s> {
    shape: &'s AttentionShape,
    fifos: Vec<Fifo>,
    links: Vec<Link>,
    buffers: Vec<Buffer>,
    cores: Vec<Core>,
}

/// The FIFOs of a column that begin or end in its shim tile.
struct Streams {
    queries: FifoId,
    keys_and_values: FifoId,
    outputs: FifoId,
}

const fn acquire(fifo: FifoId, port: Port) -> CoreOp {
    CoreOp::Acquire { fifo, port }
}

const fn release(fifo: FifoId, port: Port) -> CoreOp {
    CoreOp::Release { fifo, port }
}

impl Builder<'_> {
    fn fifo(&mut self, name: String, [from, to]: [Tile; 2], depth: usize, element: Element, len: usize) -> FifoId {
        self.fifos.push(Fifo { name, producer: from, consumers: vec![to], depth, element, len });
        FifoId(self.fifos.len() - 1)
    }

    fn buffer(&mut self, name: String, tile: Tile, len: usize) -> BufferId {
        self.buffers.push(Buffer { name, tile, element: Element::F32, len });
        BufferId(self.buffers.len() - 1)
    }

    fn column(&mut self, col: u32) -> Streams {
        let (tile, blocks) = (self.shape.tile, self.shape.blocks());
        let (shim, memory) = (Tile::shim(col), Tile::memory(col));
        let [of_scores, of_softmax, of_values] = [0, 1, 2].map(|row| Tile::core(col, row));
        let mut bytes = |name: &str, ends: [Tile; 2], depth: usize, bytes: usize| {
            self.fifo(format!("{name}_{col}"), ends, depth, Element::I8, bytes)
        };
        // One tile of queries is used for all blocks of keys.
        let queries = bytes("q", [shim, of_scores], 1, tile.query_bytes());
        let keys_and_values = bytes("kv_in", [shim, memory], 2, 2 * tile.key_bytes());
        let keys = bytes("k", [memory, of_scores], 2, tile.key_bytes());
        let values = bytes("v", [memory, of_values], 2, tile.key_bytes());
        let scores = bytes("s", [of_scores, of_softmax], 2, tile.score_bytes());
        let probabilities = bytes("p", [of_softmax, of_values], 2, tile.probability_bytes());
        let outputs = self.fifo(format!("out_{col}"), [of_values, shim], 2, Element::Bf16, tile.output_values());
        self.links.push(Link { inputs: vec![keys_and_values], outputs: vec![keys, values] });
        let state = self.buffer(format!("state_{col}"), of_softmax, tile.state());
        let sums = self.buffer(format!("sums_{col}"), of_values, tile.sums());
        let inverses = self.buffer(format!("inverses_{col}"), of_values, BLOCK * tile.rows);

        let of_block = |taken: FifoId, made: FifoId, body: Body| {
            vec![
                acquire(taken, Port::Consume),
                acquire(made, Port::Produce),
                CoreOp::Run(body),
                release(taken, Port::Consume),
                release(made, Port::Produce),
            ]
        };
        let each_block = |body: Vec<CoreOp>| CoreOp::Repeat { count: blocks, body };
        let first = vec![
            acquire(queries, Port::Consume),
            each_block(of_block(keys, scores, Body::Scores { queries, keys, scores })),
            release(queries, Port::Consume),
        ];
        let second = vec![each_block(of_block(scores, probabilities, Body::Softmax { scores, state, probabilities }))];
        let third = vec![
            CoreOp::Run(Body::Clear { sums }),
            each_block(vec![
                acquire(probabilities, Port::Consume),
                acquire(values, Port::Consume),
                CoreOp::Run(Body::AddValues { probabilities, values, sums, inverses }),
                release(probabilities, Port::Consume),
                release(values, Port::Consume),
            ]),
            CoreOp::Repeat {
                count: tile.pieces(),
                body: vec![
                    acquire(outputs, Port::Produce),
                    CoreOp::Run(Body::Normalise { sums, inverses, output: outputs }),
                    release(outputs, Port::Produce),
                ],
            },
        ];
        for (tile, program) in [(of_scores, first), (of_softmax, second), (of_values, third)] {
            self.cores.push(Core { tile, program: vec![CoreOp::Forever(program)] });
        }
        Streams { queries, keys_and_values, outputs }
    }
}

/// One head of each column after the other, in groups of as many tiles of rows as a descriptor can count. Two groups are in flight.
fn host(shape: &AttentionShape, streams: &[Streams]) -> Vec<HostOp> {
    let groups = (0..shape.heads / shape.columns)
        .flat_map(|group| (0..shape.row_tiles()).step_by(ITERATION_MAX).map(move |first| (group, first)));
    let waits = || streams.iter().map(|of_column| HostOp::Wait(of_column.outputs));
    let (mut host, mut in_flight) = (Vec::new(), 0);
    for (index, (group, first)) in groups.enumerate() {
        if in_flight == 2 {
            host.extend(waits());
            in_flight -= 1;
        }
        let tiles = ITERATION_MAX.min(shape.row_tiles() - first);
        for (col, streams) in streams.iter().enumerate() {
            let (tile, head) = (shape.tile, group * shape.columns + col);
            let first_tile = head * shape.row_tiles() + first;
            let line = |fifo, argument, at: usize, len: usize| Transfer {
                fifo,
                argument,
                offset: at * len,
                sizes: [1, 1, 1, tiles * len],
                strides: [0, 0, 0, 1],
                descriptor: 0,
            };
            let key_value_bytes = 2 * tile.key_bytes() * shape.blocks();
            let [outer, middle, inner] = in_three(key_value_bytes);
            // The same keys and values for every tile of rows.
            let keys_and_values = Transfer {
                sizes: [tiles, outer, middle, inner],
                strides: [0, if outer > 1 { middle * inner } else { 0 }, if middle > 1 { inner } else { 0 }, 1],
                ..line(streams.keys_and_values, KEYS_AND_VALUES, head, key_value_bytes)
            };
            let transfers = [
                line(streams.outputs, OUTPUTS, first_tile, tile.sums()),
                line(streams.queries, QUERIES, first_tile, tile.query_bytes()),
                keys_and_values,
            ];
            for (transfer, descriptor) in transfers.into_iter().zip(3 * (index % 2) as u32..) {
                host.push(HostOp::Start(Transfer { descriptor, ..transfer }));
            }
        }
        in_flight += 1;
    }
    for _ in 0..in_flight {
        host.extend(waits());
    }
    host
}

/// Cycles in which a core computes 16 probabilities, and multiplies 16 values of f32. Assumptions: the softmax is external, f32 is
/// emulated by products of bf16, and no compiler for either is available here.
const CYCLES_PER_16_PROBABILITIES: usize = 40;
const CYCLES_PER_16_FLOATS: usize = 13;
/// Products of bf16 of one core and cycle (4×8×4).
const MACS_PER_CYCLE: usize = 128;
/// Rows and keys of a tile that are tried.
const ROWS_MAX: usize = 128;
const KEYS_MAX: usize = 128;

/// Attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttentionProblem {
    /// KV heads.
    pub heads: usize,
    /// Query rows of a KV head: tokens times the query heads that share it.
    pub rows: usize,
    /// Most keys.
    pub keys: usize,
    /// Values of a head.
    pub depth: usize,
    /// Columns of the array.
    pub columns: usize,
}

/// A design that fits the device, and its estimated cost.
#[derive(Clone, Debug)]
pub struct AttentionSolution {
    /// The requested attention.
    pub problem: AttentionProblem,
    /// Shape with its padding; zeros behind a head's values change no score.
    pub shape: AttentionShape,
    /// The design.
    pub design: Design,
    /// Its lowering.
    pub lowered: Lowered,
    /// Resources that it uses.
    pub usage: Usage,
    /// Estimated cycles of the whole attention.
    pub cycles: usize,
    /// Share of the matrix units' slots of the whole array that do a product of the problem.
    pub busy: f64,
    /// Name of the part that takes longest.
    pub limit: &'static str,
    /// Sizes that would be faster, and the limits that exclude them.
    pub excluded: Exclusions,
}

/// The fastest design for `problem`.
///
/// # Errors
/// Where no size fits, what the smallest one exceeds.
pub fn solve(problem: &AttentionProblem) -> Result<AttentionSolution, Fault> {
    let AttentionProblem { heads, rows, keys, depth, columns } = *problem;
    let tiles = (8..=ROWS_MAX).step_by(8).flat_map(|rows| (8..=KEYS_MAX).step_by(8).map(move |keys| (rows, keys)));
    let mut all: Vec<(usize, &str, AttentionShape)> = tiles
        .map(|(tile_rows, tile_keys)| {
            let tile = AttentionTile { rows: tile_rows, keys: tile_keys, depth: depth.next_multiple_of(BLOCK_INNER) };
            let shape = AttentionShape::padded(heads, rows, keys, columns, tile);
            let (cycles, limit) = cycles(&shape);
            (cycles, limit, shape)
        })
        .collect();
    all.sort_by_key(|(cycles, _, shape)| (*cycles, shape.query_bytes(), *shape));
    let mut excluded = Exclusions::default();
    let mut smallest: Option<(AttentionTile, Fault)> = None;
    for (cycles, limit, shape) in all {
        let design = design(&shape);
        let lowered = lower(&design);
        match legal::check(&design, &lowered) {
            Ok(usage) => {
                let slots = (cycles * MACS_PER_CYCLE * 4 * columns) as f64;
                let busy = (2 * heads * rows * keys * depth) as f64 / slots;
                let problem = *problem;
                return Ok(AttentionSolution { problem, shape, design, lowered, usage, cycles, busy, limit, excluded });
            }
            Err(faults) => {
                let fault = faults.into_iter().next().expect("a refused design has a fault");
                if smallest.as_ref().is_none_or(|(tile, _)| shape.tile < *tile) {
                    smallest = Some((shape.tile, fault.clone()));
                }
                excluded.add(Excluded { size: format!("{} × {}", shape.tile.rows, shape.tile.keys), cycles, fault });
            }
        }
    }
    Err(smallest.expect("a size that does not fit has a fault").1)
}

impl Display for AttentionSolution {
    /// Why the sizes are what they are, for `--explain`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttentionSolution { shape, usage, cycles, .. } = self;
        let AttentionProblem { heads, rows, keys, depth, columns } = self.problem;
        let tile = &shape.tile;
        writeln!(f, "{heads} heads × {rows} query rows × {keys} keys of {depth} on {columns} pipelines of 3 cores")?;
        writeln!(
            f,
            "  tile of a pipeline {} rows × {} keys: fastest of {} sizes that fits; limited by the {}",
            tile.rows,
            tile.keys,
            ROWS_MAX / 8 * (KEYS_MAX / 8),
            self.limit
        )?;
        writeln!(f, "{}", self.excluded.explained(*cycles, self.limit))?;
        writeln!(
            f,
            "  padding            {} heads × {} rows × {} keys of {}, {} tiles of rows × {} blocks of keys",
            shape.heads,
            shape.rows,
            shape.keys,
            tile.depth,
            shape.row_tiles(),
            shape.blocks()
        )?;
        writeln!(f, "{usage}")?;
        let [fast, slow] = CLOCK_HZ.map(|hz| 1e3 * *cycles as f64 / hz);
        write!(
            f,
            "  estimate           {fast:.2} ms at 1.6 GHz, {slow:.2} ms at 0.8 GHz, {:.0} % of the matrix units' slots busy, by an assumed cost of the softmax",
            100.0 * self.busy
        )
    }
}

/// Cycles of the whole attention, and the part that limits a block: cores and streams work at the same time, and the end of a tile
/// is added.
fn cycles(shape: &AttentionShape) -> (usize, &'static str) {
    let tile = &shape.tile;
    let products = tile.rows * tile.keys * tile.depth / MACS_PER_CYCLE;
    let corrections = tile.sums() / 16 * CYCLES_PER_16_FLOATS;
    let stream = |bytes: usize| bytes.div_ceil(STREAM_BYTES_PER_CYCLE);
    let (block, limit) = [
        (products + corrections, "products with values"),
        (tile.rows * tile.keys / 16 * CYCLES_PER_16_PROBABILITIES, "softmax"),
        (stream(2 * tile.key_bytes()), "stream of keys and values"),
        (stream(tile.score_bytes()), "stream of scores"),
    ]
    .into_iter()
    .max_by_key(|(cycles, _)| *cycles)
    .expect("there are some");
    let end = corrections.max(stream(2 * tile.sums())) + stream(tile.query_bytes());
    let tiles = shape.heads / shape.columns * shape.row_tiles();
    (tiles * (shape.blocks() * block + end), limit)
}
