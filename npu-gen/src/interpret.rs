//! Runs a lowered design on the host: data movement by locks, descriptors and streams, and the cores' maths by the twins.
//!
//! Every core and every DMA channel is an agent that makes one step at a time, in turn: a word through a stream, a descriptor, a step of a
//! program. Streams hold 64 bytes, so that a missing consumer stops its producer. A round in which no agent makes a step while the host
//! still waits is a deadlock, reported with the state of each agent that waits.
//!
//! Not modelled: time, arbitration between streams, bank conflicts, rounding modes of the silicon, firmware.

use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;
use unicorn_kernels::npu::attention::{self, AttentionTile};
use unicorn_kernels::npu::tile::CoreTile;
use unicorn_kernels::npu::twin;

use crate::design::{Body, BufferId, CoreOp, Design, FifoId, HostOp, Port, Work};
use crate::device::{LOCK_MAX, Tile, WORD_BYTES};
use crate::lower::{ChannelId, Direction, LockId, Lowered, MemoryId};
use crate::shim::{ShimTask, consecutive, task};

/// Bytes that a stream holds between two channels.
const STREAM_BYTES: usize = 64;

/// Why a run ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RunError {
    /// No agent could make a step.
    #[error("deadlock: {}", .waiting.join("; "))]
    Deadlock {
        /// What each agent waits for.
        waiting: Vec<String>,
    },
    /// The value of a lock exceeded six bits.
    #[error("lock of {tile} rises to {value}, expected at most {LOCK_MAX}")]
    Lock {
        /// Tile of the lock.
        tile: String,
        /// Its value.
        value: i32,
    },
    /// A transfer left the buffer of the host.
    #[error("transfer of bytes {from} to {to} of buffer {argument}, which has {bytes}")]
    Outside {
        /// Index of the buffer.
        argument: usize,
        /// Offset of the first byte.
        from: usize,
        /// Offset of the end.
        to: usize,
        /// Length of the buffer.
        bytes: usize,
    },
    /// A core computes on an object that it has not acquired, or whose size is wrong.
    #[error("core of {tile} computes on {what}")]
    Body {
        /// Tile of the core.
        tile: String,
        /// The object, and what is wrong with it.
        what: String,
    },
    /// Data was left in streams or buffers at the end of the host's steps: more was sent than the cores read.
    #[error("{what} is left over at the end")]
    LeftOver {
        /// The data that was left.
        what: String,
    },
}

/// A command of the host to the shim tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Gives a task to a channel.
    Start {
        /// Channel that runs the task.
        channel: ChannelId,
        /// The task: a descriptor and the number of its runs.
        task: ShimTask,
    },
    /// Waits until the channel has completed one more task.
    Wait(ChannelId),
}

/// The host's steps of a design.
pub fn commands(design: &Design, lowered: &Lowered) -> Vec<Command> {
    let channel = |fifo| lowered.shim_channel(fifo).expect("a legal design ends in shim tiles");
    let command = |op: &HostOp| match op {
        HostOp::Start(transfer) => Command::Start {
            channel: channel(transfer.fifo),
            task: task(transfer, design.arguments[transfer.argument].element),
        },
        HostOp::Wait(fifo) => Command::Wait(channel(*fifo)),
    };
    design.host.iter().map(command).collect()
}

/// Runs `commands` on a design; `arguments` are the host's buffers, inputs and outputs.
///
/// # Errors
/// See [`RunError`]. The content of the buffers is then unspecified.
pub fn run(
    design: &Design,
    lowered: &Lowered,
    commands: &[Command],
    arguments: &mut [Vec<u8>],
) -> Result<(), RunError> {
    let mut machine = Machine::new(design, lowered, arguments);
    let mut commands = commands.iter();
    let mut next = commands.next();
    loop {
        let mut moved = false;
        while let Some(command) = next {
            if !machine.host_step(command) {
                break;
            }
            moved = true;
            next = commands.next();
        }
        for index in 0..machine.channels.len() {
            moved |= machine.channel_steps(index)?;
        }
        for index in 0..machine.cores.len() {
            moved |= machine.core_steps(index)?;
        }
        if !moved {
            return match next {
                Some(command) => Err(RunError::Deadlock { waiting: machine.waiting(command) }),
                None => machine.check_empty(),
            };
        }
    }
}

struct Machine<'r> {
    design: &'r Design,
    lowered: &'r Lowered,
    arguments: &'r mut [Vec<u8>],
    locks: Vec<i32>,
    memories: Vec<Vec<u8>>,
    sums: BTreeMap<usize, Vec<i32>>,
    scales: BTreeMap<usize, Vec<u8>>,
    /// Buffers that attention keeps between its calls, by number.
    floats: BTreeMap<usize, Vec<f32>>,
    channels: Vec<ChannelState>,
    cores: Vec<CoreState>,
}

#[derive(Default)]
struct ChannelState {
    /// Bytes that arrived at a channel into a tile and were not written yet.
    stream: VecDeque<u8>,
    /// Receivers of a channel out of a tile.
    to: Vec<usize>,
    /// Index in the chain, or number of the task's run.
    at: usize,
    /// Bytes of the descriptor or run that are done; none before its lock is taken.
    done: Option<usize>,
    tasks: VecDeque<ShimTask>,
    completed: usize,
}

struct CoreState {
    tile: Tile,
    program: Vec<Step>,
    at: usize,
    /// Iterations done of each open loop.
    loops: Vec<usize>,
    /// Object in use and objects taken so far, for each end.
    ports: BTreeMap<FifoId, (Option<MemoryId>, usize)>,
}

/// A program without nesting.
enum Step {
    Open,
    /// Jumps to the step after `open` until the loop has run `count` times; none: without end.
    Close {
        open: usize,
        count: Option<usize>,
    },
    Acquire(FifoId),
    Release(FifoId),
    Run(Body),
}

fn flatten(steps: &[CoreOp], flat: &mut Vec<Step>) {
    for step in steps {
        match step {
            CoreOp::Forever(body) => {
                let open = flat.len();
                flat.push(Step::Open);
                flatten(body, flat);
                flat.push(Step::Close { open, count: None });
            }
            CoreOp::Repeat { count, body } if *count > 0 => {
                let open = flat.len();
                flat.push(Step::Open);
                flatten(body, flat);
                flat.push(Step::Close { open, count: Some(*count) });
            }
            CoreOp::Repeat { .. } => {}
            CoreOp::Acquire { fifo, .. } => flat.push(Step::Acquire(*fifo)),
            CoreOp::Release { fifo, .. } => flat.push(Step::Release(*fifo)),
            CoreOp::Run(body) => flat.push(Step::Run(*body)),
        }
    }
}

impl<'r> Machine<'r> {
    fn new(design: &'r Design, lowered: &'r Lowered, arguments: &'r mut [Vec<u8>]) -> Machine<'r> {
        let mut channels: Vec<ChannelState> = lowered.channels.iter().map(|_| ChannelState::default()).collect();
        for flow in &lowered.flows {
            channels[flow.from.0].to.extend(flow.to.iter().map(|to| to.0));
        }
        let core = |core: &crate::design::Core| {
            let mut program = Vec::new();
            flatten(&core.program, &mut program);
            CoreState { tile: core.tile, program, at: 0, loops: Vec::new(), ports: BTreeMap::new() }
        };
        Machine {
            design,
            lowered,
            arguments,
            locks: lowered.locks.iter().map(|lock| lock.initial).collect(),
            // Not zeros, so that reads before the first write are detected.
            memories: lowered.memories.iter().map(|memory| vec![0x5a; memory.bytes]).collect(),
            sums: BTreeMap::new(),
            scales: BTreeMap::new(),
            floats: BTreeMap::new(),
            channels,
            cores: design.cores.iter().map(core).collect(),
        }
    }

    fn host_step(&mut self, command: &Command) -> bool {
        match command {
            Command::Start { channel, task } => {
                self.channels[channel.0].tasks.push_back(task.clone());
                true
            }
            Command::Wait(channel) => {
                let state = &mut self.channels[channel.0];
                let is_complete = state.completed > 0;
                state.completed -= usize::from(is_complete);
                is_complete
            }
        }
    }

    fn take(&mut self, lock: LockId) -> bool {
        let value = &mut self.locks[lock.0];
        let is_there = *value >= 1;
        *value -= i32::from(is_there);
        is_there
    }

    fn add(&mut self, lock: LockId) -> Result<(), RunError> {
        self.locks[lock.0] += 1;
        let (value, tile) = (self.locks[lock.0], self.lowered.locks[lock.0].tile);
        if value > LOCK_MAX { Err(RunError::Lock { tile: tile.to_string(), value }) } else { Ok(()) }
    }

    /// Runs a channel until it must wait; returns whether it made a step.
    fn channel_steps(&mut self, index: usize) -> Result<bool, RunError> {
        let mut moved = false;
        let is_shim = self.lowered.channels[index].chain.is_empty();
        while if is_shim { self.task_step(index)? } else { self.descriptor_step(index)? } {
            moved = true;
        }
        Ok(moved)
    }

    /// Transfers one piece of a descriptor, at most the bytes that the stream holds.
    fn descriptor_step(&mut self, index: usize) -> Result<bool, RunError> {
        let lowered = self.lowered;
        let channel = &lowered.channels[index];
        let descriptor = &channel.chain[self.channels[index].at];
        let Some(done) = self.channels[index].done else {
            let is_taken = self.take(descriptor.acquire);
            self.channels[index].done = is_taken.then_some(0);
            return Ok(is_taken);
        };
        let left = descriptor.len - done;
        let place = descriptor.offset + done;
        let moved = match channel.direction {
            Direction::In => {
                let stream = &mut self.channels[index].stream;
                let n = left.min(stream.len());
                receive(stream, &mut self.memories[descriptor.memory.0][place..place + n]);
                n
            }
            Direction::Out => {
                let n = left.min(self.free_in_streams(index));
                self.send(index, Source::Memory(descriptor.memory, place), n);
                n
            }
        };
        self.channels[index].done = Some(done + moved);
        if done + moved == descriptor.len {
            self.channels[index].done = None;
            self.channels[index].at = (self.channels[index].at + 1) % channel.chain.len();
            self.add(descriptor.release)?;
            return Ok(true);
        }
        Ok(moved > 0)
    }

    /// Transfers consecutive words of a shim channel's task, at most those that the stream holds.
    fn task_step(&mut self, index: usize) -> Result<bool, RunError> {
        let Some(task) = self.channels[index].tasks.front() else { return Ok(false) };
        let (run, done) = (self.channels[index].at, self.channels[index].done.unwrap_or(0));
        let (words, runs, argument) = (task.words, task.runs, task.argument);
        if words == 0 || runs == 0 {
            self.channels[index].tasks.pop_front();
            return Ok(true);
        }
        let (from, consecutive) = (task.at(run, done), consecutive(task, done));
        let bytes = self.arguments.get(argument).map_or(0, Vec::len);
        if from + WORD_BYTES > bytes {
            return Err(RunError::Outside { argument, from, to: from + WORD_BYTES, bytes });
        }
        let direction = self.lowered.channels[index].direction;
        let streamed = match direction {
            Direction::In => self.channels[index].stream.len(),
            Direction::Out => self.free_in_streams(index),
        };
        let moved = consecutive.min(streamed / WORD_BYTES).min((bytes - from) / WORD_BYTES);
        if moved == 0 {
            return Ok(false);
        }
        let len = moved * WORD_BYTES;
        match direction {
            Direction::In => receive(&mut self.channels[index].stream, &mut self.arguments[argument][from..from + len]),
            Direction::Out => self.send(index, Source::Argument(argument, from), len),
        }
        let state = &mut self.channels[index];
        state.done = Some(done + moved);
        if done + moved == words {
            state.done = None;
            state.at += 1;
            if state.at == runs {
                state.at = 0;
                state.tasks.pop_front();
                state.completed += 1;
            }
        }
        Ok(true)
    }

    fn free_in_streams(&self, from: usize) -> usize {
        let used = self.channels[from].to.iter().map(|to| self.channels[*to].stream.len());
        STREAM_BYTES - used.max().unwrap_or(STREAM_BYTES)
    }

    fn send(&mut self, from: usize, source: Source, n: usize) {
        let bytes = match source {
            Source::Memory(memory, place) => &self.memories[memory.0][place..place + n],
            Source::Argument(argument, place) => &self.arguments[argument][place..place + n],
        };
        for index in 0..self.channels[from].to.len() {
            let to = self.channels[from].to[index];
            self.channels[to].stream.extend(bytes);
        }
    }

    /// Runs a core until it must wait; returns whether it made a step.
    fn core_steps(&mut self, index: usize) -> Result<bool, RunError> {
        let mut moved = false;
        // A program that only computes would never end.
        while !moved || !matches!(self.cores[index].program.get(self.cores[index].at), Some(Step::Run(_))) {
            if !self.core_step(index)? {
                break;
            }
            moved = true;
        }
        Ok(moved)
    }

    fn core_step(&mut self, index: usize) -> Result<bool, RunError> {
        let lowered = self.lowered;
        let core = &mut self.cores[index];
        let tile = core.tile;
        let Some(step) = core.program.get(core.at) else { return Ok(false) };
        match *step {
            Step::Open => core.loops.push(0),
            Step::Close { open, count } => {
                let done = core.loops.last_mut().expect("an open loop");
                *done += 1;
                if count.is_none_or(|count| *done < count) {
                    core.at = open;
                } else {
                    core.loops.pop();
                }
            }
            Step::Acquire(fifo) => {
                let port = &lowered.ports[&(fifo, tile)];
                if !self.take(port.acquire) {
                    return Ok(false);
                }
                let (held, taken) = self.cores[index].ports.entry(fifo).or_default();
                *held = Some(port.memories[*taken % port.memories.len()]);
                *taken += 1;
            }
            Step::Release(fifo) => {
                core.ports.entry(fifo).or_default().0 = None;
                self.add(lowered.ports[&(fifo, tile)].release)?;
            }
            Step::Run(body) => {
                let iteration = core.loops.last().copied().unwrap_or(0);
                self.compute(index, body, iteration)?;
            }
        }
        self.cores[index].at += 1;
        Ok(true)
    }

    fn held(&self, index: usize, fifo: FifoId, bytes: usize) -> Result<MemoryId, RunError> {
        let (core, name) = (&self.cores[index], &self.design.fifo(fifo).name);
        let fault = |what: String| RunError::Body { tile: core.tile.to_string(), what };
        let held = core.ports.get(&fifo).and_then(|(held, _)| *held);
        let memory = held.ok_or_else(|| fault(format!("an object of {name} that it has not acquired")))?;
        let found = self.memories[memory.0].len();
        if found == bytes { Ok(memory) } else { Err(fault(format!("{found} bytes of {name}, expected {bytes}"))) }
    }

    fn compute(&mut self, index: usize, body: Body, iteration: usize) -> Result<(), RunError> {
        match self.design.work {
            Work::Product(core) => self.compute_product(index, &core, body, iteration),
            Work::Attention(tile) => self.compute_attention(index, &tile, body, iteration),
            Work::Passthrough => Err(self.fault(index, format!("{body:?} in a design that computes nothing"))),
        }
    }

    fn fault(&self, index: usize, what: String) -> RunError {
        RunError::Body { tile: self.cores[index].tile.to_string(), what }
    }

    fn compute_product(&mut self, index: usize, core: &CoreTile, body: Body, iteration: usize) -> Result<(), RunError> {
        match body {
            Body::Clear { sums } => {
                self.sums.insert(sums.0, vec![0; core.sums()]);
            }
            Body::AddProducts { activations, weights, sums, scales } => {
                let a = &self.memories[self.held(index, activations, core.activation_bytes())?.0];
                let w = &self.memories[self.held(index, weights, core.weight_bytes())?.0];
                let sums = self.sums.entry(sums.0).or_insert_with(|| vec![0x5a5a; core.sums()]);
                twin::add_products(core, a, w, sums);
                let scales = self.scales.entry(scales.0).or_insert_with(|| vec![0; core.scales_bytes()]);
                twin::keep_scales(core, a, w, scales);
            }
            Body::Finish { sums, scales, output } => {
                let memory = self.held(index, output, 2 * core.output_values())?;
                let (Some(sums), Some(scales)) = (self.sums.get(&sums.0), self.scales.get(&scales.0)) else {
                    return Err(self.fault(index, "sums that were never made".to_owned()));
                };
                if iteration >= core.pieces() {
                    let what = format!("output object {iteration}, expected at most {}", core.pieces() - 1);
                    return Err(self.fault(index, what));
                }
                twin::finish(core, sums, scales, iteration, &mut self.memories[memory.0]);
            }
            other => return Err(self.fault(index, format!("{other:?}, which is of attention"))),
        }
        Ok(())
    }

    fn compute_attention(
        &mut self,
        index: usize,
        tile: &AttentionTile,
        body: Body,
        iteration: usize,
    ) -> Result<(), RunError> {
        let mut floats = std::mem::take(&mut self.floats);
        // NaN, so that reads before the first write are detected.
        let mut buffer = |id: BufferId, len: usize| floats.remove(&id.0).unwrap_or_else(|| vec![f32::NAN; len]);
        let mut kept = Vec::new();
        match body {
            Body::Clear { sums } => kept.push((sums, vec![0.0; tile.sums()])),
            Body::Scores { queries, keys, scores } => {
                let made = self.held(index, scores, tile.score_bytes())?;
                let mut object = std::mem::take(&mut self.memories[made.0]);
                let q = &self.memories[self.held(index, queries, tile.query_bytes())?.0];
                let k = &self.memories[self.held(index, keys, tile.key_bytes())?.0];
                attention::scores(tile, q, k, &mut object);
                self.memories[made.0] = object;
            }
            Body::Softmax { scores, state, probabilities } => {
                let made = self.held(index, probabilities, tile.probability_bytes())?;
                let mut object = std::mem::take(&mut self.memories[made.0]);
                let taken = &self.memories[self.held(index, scores, tile.score_bytes())?.0];
                let mut values = buffer(state, tile.state());
                attention::softmax(tile, iteration, taken, &mut values, &mut object);
                kept.push((state, values));
                self.memories[made.0] = object;
            }
            Body::AddValues { probabilities, values, sums, inverses } => {
                let p = &self.memories[self.held(index, probabilities, tile.probability_bytes())?.0];
                let v = &self.memories[self.held(index, values, tile.key_bytes())?.0];
                let mut of_sums = buffer(sums, tile.sums());
                let mut of_inverses = buffer(inverses, attention::BLOCK * tile.rows);
                attention::add_values(tile, p, v, &mut of_sums, &mut of_inverses);
                kept.extend([(sums, of_sums), (inverses, of_inverses)]);
            }
            Body::Normalise { sums, inverses, output } => {
                let memory = self.held(index, output, 2 * tile.output_values())?;
                if iteration >= tile.pieces() {
                    let what = format!("output object {iteration}, expected at most {}", tile.pieces() - 1);
                    return Err(self.fault(index, what));
                }
                let of_sums = buffer(sums, tile.sums());
                let of_inverses = buffer(inverses, attention::BLOCK * tile.rows);
                attention::finish(tile, &of_sums, &of_inverses, iteration, &mut self.memories[memory.0]);
                kept.extend([(sums, of_sums), (inverses, of_inverses)]);
            }
            other => return Err(self.fault(index, format!("{other:?}, which is of a product"))),
        }
        floats.extend(kept.into_iter().map(|(id, values)| (id.0, values)));
        self.floats = floats;
        Ok(())
    }

    fn waiting(&self, command: &Command) -> Vec<String> {
        let Command::Wait(channel) = command else { return Vec::new() };
        let mut waiting = vec![format!("host for {}", self.lowered.channels[channel.0].tile)];
        for core in &self.cores {
            let (what, fifo) = match core.program.get(core.at) {
                Some(Step::Acquire(fifo)) => ("an object of", *fifo),
                _ => continue,
            };
            let produces = self.design.fifo(fifo).producer == core.tile;
            let port = if produces { Port::Produce } else { Port::Consume };
            waiting.push(format!("{} for {what} {} ({port:?})", core.tile, self.design.fifo(fifo).name));
        }
        waiting
    }

    /// Checks that at the end of the host's steps every buffer is free again and no byte is in a stream.
    fn check_empty(&self) -> Result<(), RunError> {
        for (state, channel) in self.channels.iter().zip(&self.lowered.channels) {
            if !state.stream.is_empty() {
                let what = format!("data in a stream to {}", channel.tile);
                return Err(RunError::LeftOver { what });
            }
            if !state.tasks.is_empty() || state.completed > 0 && channel.direction == Direction::In {
                let what = format!("a transfer of {}", channel.tile);
                return Err(RunError::LeftOver { what });
            }
            let is_between = channel.direction == Direction::In && state.done.is_some_and(|done| done > 0);
            if is_between && !channel.chain.is_empty() {
                return Err(RunError::LeftOver { what: format!("a part of an object in {}", channel.tile) });
            }
        }
        for ((fifo, tile), port) in &self.lowered.ports {
            let consumes = self.design.fifo(*fifo).producer != *tile;
            if consumes && self.locks[port.acquire.0] > 0 {
                let what = format!("an object of {} in {tile}", self.design.fifo(*fifo).name);
                return Err(RunError::LeftOver { what });
            }
        }
        Ok(())
    }
}

/// Fills `target` with the first bytes of a stream that has as many.
fn receive(stream: &mut VecDeque<u8>, target: &mut [u8]) {
    let (first, second) = stream.as_slices();
    let (from_first, from_second) = target.split_at_mut(first.len().min(target.len()));
    from_first.copy_from_slice(&first[..from_first.len()]);
    from_second.copy_from_slice(&second[..from_second.len()]);
    stream.drain(..target.len());
}

#[derive(Clone, Copy)]
enum Source {
    Memory(MemoryId, usize),
    Argument(usize, usize),
}
