//! Checks a design against every limit of the device. A design that passes can be placed; [`crate::interpret`] checks whether its
//! result is right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use unicorn_kernels::npu::attention::BLOCK;

use crate::addresses::{addresses, reserved_bytes};
use crate::design::{Body, BufferId, Core, CoreOp, Design, FifoId, HostOp, Port, Work};
use crate::device::{
    ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, COLUMNS, LOCK_MAX, ROWS, Tile, TileKind, WORD_BYTES, descriptors_of_parity,
    limits,
};
use crate::lower::{Direction, Lowered};
use crate::route::route;
use crate::rule::Rule;
use crate::shim;

/// Most resources that a tile of one kind uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Bytes of data memory, in a core with its stack and the tables of its epilogue.
    pub memory_bytes: usize,
    /// DMA channels in and out.
    pub channels: [u32; 2],
    /// DMA descriptors.
    pub descriptors: u32,
    /// Locks.
    pub locks: u32,
}

/// Use of the fullest tile of each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage(pub BTreeMap<TileKind, Use>);

impl Usage {
    /// Use of the fullest tile of a kind.
    pub fn of(&self, kind: TileKind) -> Use {
        self.0.get(&kind).copied().unwrap_or_default()
    }
}

impl Display for Usage {
    /// A line for each kind of tile.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, kind) in [TileKind::Core, TileKind::Memory, TileKind::Shim].into_iter().enumerate() {
            let (found, most, end) = (self.of(kind), limits(kind), if index == 0 { "" } else { "\n" });
            write!(
                f,
                "{end}  {:<18} {} of {} bytes, {} + {} of {} + {} channels, {} of {} descriptors, {} of {} locks",
                kind.name(),
                found.memory_bytes,
                most.memory_bytes,
                found.channels[0],
                found.channels[1],
                most.channels,
                most.channels,
                found.descriptors,
                most.descriptors,
                found.locks,
                most.locks
            )?;
        }
        Ok(())
    }
}

/// A limit that a design exceeds, or a rule that it breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The limit or rule.
    pub rule: Rule,
    /// Tile, FIFO or step.
    pub place: String,
    /// The fault: what, expected, found.
    pub what: String,
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (rule: {})", self.place, self.what, self.rule)
    }
}

/// Buffers with their bytes, and objects with their side and bytes.
type Needs = (Vec<(BufferId, usize)>, Vec<(FifoId, Port, usize)>);

/// Operands of a body; `None`: it belongs to another kind of design.
fn needs(work: &Work, body: &Body) -> Option<Needs> {
    use Port::{Consume, Produce};
    Some(match (*body, work) {
        (Body::Clear { sums }, Work::Product(core)) => (vec![(sums, 4 * core.sums())], vec![]),
        (Body::AddProducts { activations, weights, sums, scales }, Work::Product(core)) => (
            vec![(sums, 4 * core.sums()), (scales, core.scales_bytes())],
            vec![(activations, Consume, core.activation_bytes()), (weights, Consume, core.weight_bytes())],
        ),
        (Body::Finish { sums, scales, output }, Work::Product(core)) => (
            vec![(sums, 4 * core.sums()), (scales, core.scales_bytes())],
            vec![(output, Produce, 2 * core.output_values())],
        ),
        (Body::Clear { sums }, Work::Attention(tile)) => (vec![(sums, 4 * tile.sums())], vec![]),
        (Body::Scores { queries, keys, scores }, Work::Attention(tile)) => (
            vec![],
            vec![
                (queries, Consume, tile.query_bytes()),
                (keys, Consume, tile.key_bytes()),
                (scores, Produce, tile.score_bytes()),
            ],
        ),
        (Body::Softmax { scores, state, probabilities }, Work::Attention(tile)) => (
            vec![(state, 4 * tile.state())],
            vec![(scores, Consume, tile.score_bytes()), (probabilities, Produce, tile.probability_bytes())],
        ),
        (Body::AddValues { probabilities, values, sums, inverses }, Work::Attention(tile)) => (
            vec![(sums, 4 * tile.sums()), (inverses, 4 * BLOCK * tile.rows)],
            vec![(probabilities, Consume, tile.probability_bytes()), (values, Consume, tile.key_bytes())],
        ),
        (Body::Normalise { sums, inverses, output }, Work::Attention(tile)) => (
            vec![(sums, 4 * tile.sums()), (inverses, 4 * BLOCK * tile.rows)],
            vec![(output, Produce, 2 * tile.output_values())],
        ),
        _ => return None,
    })
}

/// Checks `design` with its lowering.
///
/// # Errors
/// Every fault.
pub fn check(design: &Design, lowered: &Lowered) -> Result<Usage, Vec<Fault>> {
    let mut checker = Checker { design, lowered, faults: Vec::new() };
    checker.names();
    checker.fifos();
    checker.links();
    let usage = checker.tiles();
    checker.cores();
    checker.host();
    checker.balance();
    // Only of a design without other faults: routes start and end at channels that exist.
    if checker.faults.is_empty() {
        if let Err(error) = route(design, lowered) {
            checker.expect(false, Rule::Switches, "stream switches", error);
        }
        if let Err(error) = addresses(design, lowered) {
            checker.expect(false, Rule::Gaps, "gaps between buffers", error);
        }
    }
    if checker.faults.is_empty() { Ok(usage) } else { Err(checker.faults) }
}

struct Checker<'d> {
    design: &'d Design,
    lowered: &'d Lowered,
    faults: Vec<Fault>,
}

impl Checker<'_> {
    fn expect(&mut self, holds: bool, rule: Rule, place: impl Display, what: impl Display) {
        if !holds {
            self.faults.push(Fault { rule, place: place.to_string(), what: what.to_string() });
        }
    }

    fn names(&mut self) {
        let names = self.design.fifos.iter().map(|fifo| &fifo.name);
        let names: Vec<&String> = names.chain(self.design.buffers.iter().map(|buffer| &buffer.name)).collect();
        let mut seen = BTreeSet::new();
        for name in names {
            self.expect(seen.insert(name.clone()), Rule::Names, name, "name is there twice, expected once");
        }
    }

    fn fifos(&mut self) {
        let design = self.design;
        let is_placed = |tile: Tile| tile.col < design.columns && tile.row < ROWS;
        let columns = design.columns;
        let what = format!("{columns} columns, expected 1 to {COLUMNS}");
        self.expect((1..=COLUMNS).contains(&columns), Rule::Columns, "design", what);
        for fifo in &design.fifos {
            let place = format!("FIFO {}", fifo.name);
            for tile in std::iter::once(&fifo.producer).chain(&fifo.consumers) {
                let what = format!("{tile} is outside of the array of {columns} columns");
                self.expect(is_placed(*tile), Rule::Placement, &place, what);
            }
            let consumers: BTreeSet<&Tile> = fifo.consumers.iter().collect();
            for (holds, what) in [
                (!consumers.is_empty(), "no consumer, expected at least one"),
                (consumers.len() == fifo.consumers.len(), "a consumer is there twice, expected once"),
                (!consumers.contains(&fifo.producer), "producer and consumer are the same tile"),
            ] {
                self.expect(holds, Rule::Consumers, &place, what);
            }
            self.expect(fifo.depth >= 1, Rule::FifoDepth, &place, "depth is 0, expected at least 1");
            let bytes = fifo.bytes();
            self.expect(
                bytes > 0 && bytes.is_multiple_of(WORD_BYTES),
                Rule::ObjectWords,
                &place,
                format!("objects of {bytes} bytes, expected a multiple of {WORD_BYTES}"),
            );
        }
    }

    fn links(&mut self) {
        let mut linked = BTreeSet::new();
        for link in &self.design.links {
            let name =
                |ids: &[FifoId]| ids.iter().map(|id| &self.design.fifo(*id).name[..]).collect::<Vec<_>>().join(", ");
            let place = format!("link [{}] to [{}]", name(&link.inputs), name(&link.outputs));
            let is_one_sided = link.inputs.len() == 1 || link.outputs.len() == 1;
            self.expect(
                is_one_sided,
                Rule::LinkSides,
                &place,
                "several FIFOs on both sides, expected one on one of them",
            );
            let sum = |ids: &[FifoId]| ids.iter().map(|id| self.design.fifo(*id).bytes()).sum::<usize>();
            let (bytes_in, bytes_out) = (sum(&link.inputs), sum(&link.outputs));
            self.expect(
                bytes_in == bytes_out,
                Rule::LinkBytes,
                &place,
                format!("{bytes_in} bytes in, {bytes_out} out, expected the same"),
            );
            let ends = link.inputs.iter().flat_map(|id| self.design.fifo(*id).consumers.clone());
            let starts = link.outputs.iter().map(|id| self.design.fifo(*id).producer);
            let tiles: BTreeSet<Tile> = ends.chain(starts).collect();
            let is_memory = tiles.len() == 1 && tiles.first().is_some_and(|tile| tile.kind() == TileKind::Memory);
            self.expect(
                is_memory,
                Rule::LinkTile,
                &place,
                "ends and starts in several tiles, expected one memory tile",
            );
            for id in link.inputs.iter().map(|id| (*id, true)).chain(link.outputs.iter().map(|id| (*id, false))) {
                let name = &self.design.fifo(id.0).name;
                let what = format!("{name} is in another link already");
                self.expect(linked.insert(id), Rule::LinkOnce, &place, what);
            }
            let depths: BTreeSet<usize> =
                link.inputs.iter().chain(&link.outputs).map(|id| self.design.fifo(*id).depth).collect();
            let what = format!("depths {depths:?}, expected the same for all");
            self.expect(depths.len() == 1, Rule::LinkDepths, &place, what);
        }
    }

    fn tiles(&mut self) -> Usage {
        let mut tiles: BTreeMap<Tile, Use> = BTreeMap::new();
        let mut parities: BTreeMap<(Tile, u32), u32> = BTreeMap::new();
        for memory in &self.lowered.memories {
            tiles.entry(memory.tile).or_default().memory_bytes += memory.bytes;
        }
        for buffer in &self.design.buffers {
            tiles.entry(buffer.tile).or_default().memory_bytes += buffer.len * buffer.element.bytes();
        }
        for core in &self.design.cores {
            tiles.entry(core.tile).or_default().memory_bytes += reserved_bytes(&self.design.work, core);
        }
        for lock in &self.lowered.locks {
            tiles.entry(lock.tile).or_default().locks += 1;
            let initial = lock.initial;
            let what = format!("lock starts at {initial}, expected 0 to {LOCK_MAX}");
            self.expect((0..=LOCK_MAX).contains(&initial), Rule::LockStart, lock.tile, what);
        }
        for channel in &self.lowered.channels {
            let entry = tiles.entry(channel.tile).or_default();
            entry.channels[usize::from(channel.direction == Direction::Out)] += 1;
            entry.descriptors += channel.chain.len() as u32;
            *parities.entry((channel.tile, channel.index % 2)).or_default() += channel.chain.len() as u32;
            for one in &channel.chain {
                let bytes = self.lowered.memories[one.memory.0].bytes;
                let (from, to) = (one.offset, one.offset + one.len);
                self.expect(
                    to <= bytes,
                    Rule::DescriptorBounds,
                    channel.tile,
                    format!("descriptor of bytes {from} to {to} of a buffer of {bytes}"),
                );
                let is_word = from.is_multiple_of(WORD_BYTES) && one.len.is_multiple_of(WORD_BYTES) && one.len > 0;
                let what = format!("descriptor of bytes {from} to {to}, expected whole words");
                self.expect(is_word, Rule::DescriptorWords, channel.tile, what);
                let here = [self.lowered.locks[one.acquire.0].tile, self.lowered.locks[one.release.0].tile];
                let is_here = here == [channel.tile; 2];
                self.expect(is_here, Rule::DescriptorLocks, channel.tile, "descriptor uses a lock of another tile");
            }
        }
        for op in &self.design.host {
            if let HostOp::Start(transfer) = op
                && let Some(id) = self.lowered.shim_channel(transfer.fifo)
            {
                let entry = tiles.entry(self.lowered.channels[id.0].tile).or_default();
                entry.descriptors = entry.descriptors.max(transfer.descriptor + 1);
            }
        }
        let mut usage = Usage(BTreeMap::new());
        for (tile, found) in tiles {
            let limits = limits(tile.kind());
            let rows = [
                (Rule::Memory, "bytes of memory", found.memory_bytes, limits.memory_bytes),
                (Rule::ChannelsIn, "DMA channels in", found.channels[0] as usize, limits.channels as usize),
                (Rule::ChannelsOut, "DMA channels out", found.channels[1] as usize, limits.channels as usize),
                (Rule::Descriptors, "descriptors", found.descriptors as usize, limits.descriptors as usize),
                (Rule::Locks, "locks", found.locks as usize, limits.locks as usize),
            ];
            for (rule, what, found, most) in rows {
                self.expect(found <= most, rule, tile, format!("{found} {what}, expected at most {most}"));
            }
            let most = usage.0.entry(tile.kind()).or_default();
            most.memory_bytes = most.memory_bytes.max(found.memory_bytes);
            most.channels = [0, 1].map(|side| most.channels[side].max(found.channels[side]));
            most.descriptors = most.descriptors.max(found.descriptors);
            most.locks = most.locks.max(found.locks);
        }
        for ((tile, parity), found) in parities {
            let most = descriptors_of_parity(tile.kind());
            let channels = ["even", "odd"][parity as usize];
            self.expect(
                found <= most,
                Rule::DescriptorParity,
                tile,
                format!("{found} descriptors of {channels} channels, expected at most {most}"),
            );
        }
        usage
    }

    fn cores(&mut self) {
        let mut tiles = BTreeSet::new();
        for core in &self.design.cores {
            let is_core = core.tile.kind() == TileKind::Core;
            self.expect(is_core, Rule::CoreTile, core.tile, "a program, expected a core tile for it");
            self.expect(tiles.insert(core.tile), Rule::CoreOnce, core.tile, "two programs, expected one");
            let mut held = BTreeSet::new();
            self.steps(core.tile, &core.program, &mut held);
            let what = "program ends with an object that it has not released";
            self.expect(held.is_empty(), Rule::Released, core.tile, what);
        }
    }

    /// Follows a program: used objects are acquired, and acquired objects are released.
    fn steps(&mut self, tile: Tile, steps: &[CoreOp], held: &mut BTreeSet<(FifoId, Port)>) {
        for step in steps {
            match step {
                CoreOp::Forever(body) | CoreOp::Repeat { body, .. } => {
                    let before = held.clone();
                    self.steps(tile, body, held);
                    let what = "an iteration ends with other objects than it began with";
                    self.expect(*held == before, Rule::Iteration, tile, what);
                }
                CoreOp::Acquire { fifo, port } => {
                    let name = &self.design.fifo(*fifo).name;
                    let has_port = match port {
                        Port::Produce => self.design.fifo(*fifo).producer == tile,
                        Port::Consume => self.design.fifo(*fifo).consumers.contains(&tile),
                    };
                    let what = format!("acquires an object of {name}, which does not come here");
                    self.expect(has_port, Rule::Port, tile, what);
                    let is_new = held.insert((*fifo, *port));
                    self.expect(
                        is_new,
                        Rule::OneHeld,
                        tile,
                        format!("acquires a second object of {name} before it releases the first"),
                    );
                }
                CoreOp::Release { fifo, port } => {
                    let name = &self.design.fifo(*fifo).name;
                    self.expect(
                        held.remove(&(*fifo, *port)),
                        Rule::Held,
                        tile,
                        format!("releases an object of {name} that it does not hold"),
                    );
                }
                CoreOp::Run(body) => self.body(tile, body, held),
            }
        }
    }

    fn body(&mut self, tile: Tile, body: &Body, held: &BTreeSet<(FifoId, Port)>) {
        let Some((buffers, objects)) = needs(&self.design.work, body) else {
            let what = format!("computes {body:?}, which is of another kind of design");
            return self.expect(false, Rule::BodyKind, tile, what);
        };
        for (id, bytes) in buffers {
            let buffer = self.design.buffer(id);
            let (name, found) = (&buffer.name, buffer.len * buffer.element.bytes());
            let what = format!("computes on {name}, which lies in another tile");
            self.expect(buffer.tile == tile, Rule::BufferTile, tile, what);
            let what = format!("{name} has {found} bytes, expected {bytes}");
            self.expect(found == bytes, Rule::BufferBytes, tile, what);
        }
        for (id, port, bytes) in objects {
            let (name, found) = (&self.design.fifo(id).name, self.design.fifo(id).bytes());
            self.expect(
                held.contains(&(id, port)),
                Rule::Acquired,
                tile,
                format!("computes on an object of {name} without acquiring it"),
            );
            let what = format!("objects of {name} have {found} bytes, expected {bytes}");
            self.expect(found == bytes, Rule::ObjectBytes, tile, what);
        }
    }

    fn host(&mut self) {
        let arguments = self.design.arguments.len();
        let what = format!("{arguments} buffers of the host, expected at most {ARGUMENTS_MAX}");
        self.expect(arguments <= ARGUMENTS_MAX, Rule::Arguments, "host", what);
        for argument in &self.design.arguments {
            let bytes = argument.len * argument.element.bytes();
            let what = format!("{bytes} bytes of {}, expected at most {ARGUMENT_BYTES_MAX}", argument.name);
            self.expect(bytes <= ARGUMENT_BYTES_MAX, Rule::ArgumentBytes, "host", what);
        }
        // Descriptors in use, each with its FIFO; a wait ends its FIFO's oldest transfer, and all that were started before that.
        let mut in_use: Vec<(u32, u32, FifoId)> = Vec::new();
        for (index, op) in self.design.host.iter().enumerate() {
            match op {
                HostOp::Wait(fifo) => {
                    let place = format!("host step {index}, wait for {}", self.design.fifo(*fifo).name);
                    let started = in_use.iter().position(|(_, _, other)| other == fifo);
                    self.expect(started.is_some(), Rule::Wait, &place, "no transfer to wait for");
                    let Some(position) = started else { continue };
                    let (column, _, ended) = in_use.remove(position);
                    // A tile's result is complete only when its inputs were read: the column has as many inputs left as results.
                    let pending = |in_use: &[(u32, u32, FifoId)], fifo: FifoId| {
                        in_use.iter().filter(|one| one.0 == column && one.2 == fifo).count()
                    };
                    let of_column: BTreeSet<FifoId> =
                        in_use.iter().filter(|one| one.0 == column).map(|one| one.2).chain([ended]).collect();
                    let is_output = |fifo: &FifoId| self.design.fifo(*fifo).producer.kind() != TileKind::Shim;
                    let (outputs, inputs): (Vec<FifoId>, Vec<FifoId>) = of_column.into_iter().partition(is_output);
                    let results = outputs.iter().map(|fifo| pending(&in_use, *fifo)).max().unwrap_or(0);
                    for input in inputs {
                        while pending(&in_use, input) > results {
                            let first = in_use.iter().position(|one| one.0 == column && one.2 == input);
                            in_use.remove(first.expect("one is pending"));
                        }
                    }
                }
                HostOp::Start(transfer) => {
                    let fifo = self.design.fifo(transfer.fifo);
                    let place = format!("host step {index}, transfer of {}", fifo.name);
                    let Some(channel) = self.lowered.shim_channel(transfer.fifo) else {
                        self.expect(false, Rule::ShimEnd, &place, "FIFO without an end in a shim tile");
                        continue;
                    };
                    let Some(argument) = self.design.arguments.get(transfer.argument) else {
                        let what = format!("no buffer {}", transfer.argument);
                        self.expect(false, Rule::Argument, &place, what);
                        continue;
                    };
                    let column = self.lowered.channels[channel.0].tile.col;
                    let id = transfer.descriptor;
                    let is_free = !in_use.iter().any(|one| one.0 == column && one.1 == id);
                    self.expect(is_free, Rule::DescriptorFree, &place, format!("descriptor {id} is still in use"));
                    in_use.push((column, id, transfer.fifo));
                    for (rule, what) in shim::faults(transfer, argument.element) {
                        self.expect(false, rule, &place, what);
                    }
                    let steps = transfer.sizes.iter().zip(transfer.strides);
                    let last = transfer.offset + steps.map(|(size, stride)| (size.max(&1) - 1) * stride).sum::<usize>();
                    let (name, len) = (argument.name, argument.len);
                    let what = format!("element {last} of {name}, which has {len}");
                    self.expect(last < len, Rule::TransferBounds, &place, what);
                    let bytes = transfer.elements() * argument.element.bytes();
                    let object = fifo.bytes();
                    self.expect(
                        bytes.is_multiple_of(object),
                        Rule::WholeObjects,
                        &place,
                        format!("{bytes} bytes, expected whole objects of {object}"),
                    );
                }
            }
        }
        self.expect(in_use.is_empty(), Rule::Complete, "host", "ends before its transfers are complete");
    }

    /// Checks that the cores read as many objects as the host sends, and that the host fetches as many as they write.
    fn balance(&mut self) {
        let mut objects: BTreeMap<FifoId, usize> = BTreeMap::new();
        for op in &self.design.host {
            if let HostOp::Start(transfer) = op
                && let Some(argument) = self.design.arguments.get(transfer.argument)
            {
                let bytes = transfer.elements() * argument.element.bytes();
                *objects.entry(transfer.fifo).or_default() += bytes / self.design.fifo(transfer.fifo).bytes().max(1);
            }
        }
        // Objects pass links one by one, in both directions.
        for link in &self.design.links {
            let all = || link.inputs.iter().chain(&link.outputs);
            if let Some(count) = all().find_map(|id| objects.get(id)).copied() {
                all().for_each(|id| _ = objects.entry(*id).or_insert(count));
            }
        }
        let (counts, whole) = self.counts();
        for (fifo, [made, taken]) in whole {
            let name = &self.design.fifo(fifo).name;
            let what = format!("{made} objects are made in an iteration, and {taken} taken, expected as many");
            self.expect(made == taken, Rule::MadeAndTaken, format!("FIFO {name}"), what);
        }
        for (core, taken) in self.design.cores.iter().zip(counts) {
            let mut iterations = BTreeSet::new();
            for ((fifo, _), per_iteration) in taken {
                let name = &self.design.fifo(fifo).name;
                // Objects between two cores are compared above.
                if !self.is_between_cores(fifo) {
                    let moved = objects.get(&fifo).copied().unwrap_or(0);
                    let what = format!(
                        "{moved} objects of {name}, expected a multiple of the {per_iteration} of one iteration"
                    );
                    let is_whole = moved > 0 && moved.is_multiple_of(per_iteration.max(1));
                    self.expect(is_whole, Rule::WholeIterations, core.tile, what);
                    iterations.insert(moved / per_iteration.max(1));
                }
                let depth = self.design.fifo(fifo).depth;
                // The estimate assumes that one object is filled while another is read.
                let what = format!(
                    "{per_iteration} objects of {name} in an iteration through a FIFO of {depth}, expected at least 2"
                );
                self.expect(per_iteration <= 1 || depth >= 2, Rule::TwoObjects, core.tile, what);
                // The buffers of unrolled loops must be the same when the program repeats.
                let what = format!(
                    "{per_iteration} objects of {name} in an iteration, expected a multiple of its depth {depth}"
                );
                self.expect(per_iteration.is_multiple_of(depth.max(1)), Rule::MultipleOfDepth, core.tile, what);
            }
            let what = format!("streams last for {iterations:?} iterations, expected one number");
            self.expect(iterations.len() <= 1, Rule::SameIterations, core.tile, what);
        }
    }
}

/// Objects of an iteration of a core, by FIFO and side.
type Counts = BTreeMap<(FifoId, Port), usize>;

impl Checker<'_> {
    /// The objects that an iteration of each core reads and writes; and of each FIFO between two cores, those written and read.
    fn counts(&self) -> (Vec<Counts>, BTreeMap<FifoId, [usize; 2]>) {
        let mut between: BTreeMap<FifoId, [usize; 2]> = BTreeMap::new();
        let of_core = |core: &Core| {
            let mut counts = Counts::new();
            count_objects(&core.program, 1, &mut counts);
            for ((fifo, port), count) in counts.iter().filter(|((fifo, _), _)| self.is_between_cores(*fifo)) {
                between.entry(*fifo).or_default()[usize::from(*port == Port::Consume)] += count;
            }
            counts
        };
        (self.design.cores.iter().map(of_core).collect(), between)
    }

    fn is_between_cores(&self, fifo: FifoId) -> bool {
        let fifo = self.design.fifo(fifo);
        std::iter::once(&fifo.producer).chain(&fifo.consumers).all(|tile| tile.kind() == TileKind::Core)
    }
}

fn count_objects(steps: &[CoreOp], times: usize, taken: &mut BTreeMap<(FifoId, Port), usize>) {
    for step in steps {
        match step {
            CoreOp::Forever(body) => count_objects(body, times, taken),
            CoreOp::Repeat { count, body } => count_objects(body, times * count, taken),
            CoreOp::Acquire { fifo, port } => *taken.entry((*fifo, *port)).or_default() += times,
            CoreOp::Release { .. } | CoreOp::Run(_) => {}
        }
    }
}
