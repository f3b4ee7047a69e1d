//! The driver's calls, which are refused in the same cases as by amdxdna.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use unicorn_artifact::npu::OUTPUTS;
use unicorn_runtime::npu::NpuError;
use unicorn_runtime::npu::command::{Packet, Start};
use unicorn_runtime::npu::driver::{
    BufferKind, DeviceBuffer, Direction, Driver, MAX_RUNNING, MAX_TENSORS, MAX_UNITS, NpuFacts, SharedMemory,
    SharedPages, Unit,
};

use crate::array::Array;
use crate::faults::Fault;
use crate::memory::Memory;
use crate::{Event, Simulator, State};

/// Contexts of an NPU of Phoenix.
const MAX_CONTEXTS: usize = 6;
/// Columns with access to memory.
const MAX_COLUMNS: u32 = 4;

/// States of a command (ERT).
const COMPLETED: u8 = 4;
const ERROR: u8 = 5;
const ABORT: u8 = 6;

/// An open node.
pub struct Simulated {
    simulator: Simulator,
    facts: NpuFacts,
    memory: Memory,
    contexts: BTreeMap<u32, Context>,
    next_context: u32,
}

#[derive(Default)]
struct Context {
    columns: u32,
    units: Vec<Array>,
    /// The context was reset and accepts no more commands.
    is_lost: bool,
    next_number: u64,
    running: Vec<Running>,
}

struct Running {
    number: u64,
    command: u32,
    /// The command's other buffers.
    buffers: Vec<u32>,
    progress: Progress,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The command runs when it is waited for.
    Late,
    /// The command never ends.
    Hangs,
    Ended,
}

impl Simulated {
    pub fn new(simulator: Simulator) -> Simulated {
        let facts = NpuFacts {
            driver: "a simulated driver".into(),
            firmware: "none".into(),
            columns: 5,
            rows: 6,
            core_rows: 4,
            clock_mhz: None,
        };
        Simulated { simulator, facts, memory: Memory::default(), contexts: BTreeMap::new(), next_context: 1 }
    }

    fn context(&mut self, handle: u32) -> Result<&mut Context, NpuError> {
        self.contexts.get_mut(&handle).ok_or_else(|| refused(format!("context {handle} is unknown")))
    }

    /// Runs one start; returns the state in which it ends, none if it hangs.
    fn start(&mut self, context: u32, start: &Start, pinned: &[u32]) -> Result<Option<u8>, NpuError> {
        let Start { unit, stream_address, stream_words, tensors } = start;
        let array = self.contexts[&context].units.get(*unit);
        let array = array.ok_or_else(|| refused(format!("unit {unit} was not configured")))?;
        let stream_bytes = 4 * *stream_words as usize;
        let stream = self.memory.array(BufferKind::Device, *stream_address, stream_bytes, pinned).map_err(refused)?;
        let stream = stream.to_vec();
        let lengths = array.argument_bytes();
        if tensors.len() != lengths.len() || tensors.len() > MAX_TENSORS {
            return Err(refused(format!("{} tensors, expected {}", tensors.len(), lengths.len())));
        }
        let mut arguments = Vec::new();
        for (address, bytes) in tensors.iter().zip(&lengths) {
            if !address.is_multiple_of(4) {
                return Err(refused(format!("tensor at {address:#x}, expected a multiple of 4")));
            }
            let tensor = self.memory.array(BufferKind::Shared, *address, *bytes, pinned).map_err(refused)?;
            arguments.push(tensor.to_vec());
        }
        let mut state = self.simulator.state();
        let State { faults, runs, errors, .. } = &mut *state;
        let fault = faults.of(*runs);
        *runs += 1;
        match fault {
            Some(Fault::Hang) => return Ok(None),
            Some(Fault::Error) => return Ok(Some(ERROR)),
            Some(Fault::Reset) => {
                self.contexts.get_mut(&context).expect("it runs").is_lost = true;
                return Ok(Some(ABORT));
            }
            Some(Fault::Stale) => return Ok(Some(COMPLETED)),
            Some(Fault::Wrong) | None => {}
        }
        if let Err(error) = array.run(&stream, &mut arguments) {
            errors.push(error);
            return Ok(Some(ERROR));
        }
        if fault == Some(Fault::Wrong) {
            arguments[OUTPUTS][0] ^= 1;
        }
        for (address, bytes) in tensors.iter().zip(&arguments) {
            let tensor = self.memory.array(BufferKind::Shared, *address, bytes.len(), pinned).map_err(refused)?;
            tensor.copy_from_slice(bytes);
        }
        Ok(Some(COMPLETED))
    }

    fn set_state(&mut self, command: u32, state: u8) -> Result<(), NpuError> {
        let header = &mut self.memory.command(command).map_err(refused)?[0];
        *header = *header & 0xf0 | state;
        Ok(())
    }

    /// Runs a packet; returns whether it ends.
    fn execute(&mut self, context: u32, command: u32, pinned: &[u32]) -> Result<bool, NpuError> {
        if self.context(context)?.is_lost {
            return self.set_state(command, ABORT).map(|()| true);
        }
        let packet = Packet::decode(self.memory.command(command).map_err(refused)?).map_err(refused)?;
        let starts: Vec<Start> = match packet {
            Packet::Start(start) => vec![start],
            Packet::Chain(handles) => {
                let link = |handle: u64| {
                    let handle = u32::try_from(handle).map_err(|_| refused(format!("buffer {handle} is unknown")))?;
                    if !pinned.contains(&handle) {
                        return Err(refused(format!("command {handle} of a chain is none of its arguments")));
                    }
                    match Packet::decode(self.memory.command(handle).map_err(refused)?).map_err(refused)? {
                        Packet::Start(start) => Ok(start),
                        Packet::Chain(_) => Err(refused("a chain in a chain".to_owned())),
                    }
                };
                handles.into_iter().map(link).collect::<Result<_, _>>()?
            }
        };
        for start in &starts {
            match self.start(context, start, pinned)? {
                None => return Ok(false),
                Some(COMPLETED) => {}
                Some(failed) => return self.set_state(command, failed).map(|()| true),
            }
        }
        self.set_state(command, COMPLETED).map(|()| true)
    }
}

impl Driver for Simulated {
    fn facts(&self) -> &NpuFacts {
        &self.facts
    }

    fn needs_control(&self) -> bool {
        false
    }

    fn create_buffer(&mut self, kind: BufferKind, bytes: u64) -> Result<DeviceBuffer, NpuError> {
        self.memory.create(kind, bytes).map_err(refused)
    }

    fn share(&mut self, memory: &SharedMemory) -> Result<Option<DeviceBuffer>, NpuError> {
        if self.simulator.state().refuses_sharing {
            return Ok(None);
        }
        let pages = match memory {
            SharedMemory::Pages(pages) => pages.clone(),
            SharedMemory::DmaBuf(dma_buf, bytes) => match SharedPages::of_dma_buf(dma_buf.as_fd(), *bytes) {
                Ok(pages) => Arc::new(pages),
                Err(_) => return Ok(None),
            },
        };
        self.memory.share(pages).map(Some).map_err(refused)
    }

    fn free_buffer(&mut self, buffer: DeviceBuffer) -> Result<(), NpuError> {
        self.check_idle(buffer)?;
        self.memory.free(buffer.handle).map_err(refused)
    }

    fn bytes(&mut self, buffer: DeviceBuffer) -> Result<&mut [u8], NpuError> {
        self.check_idle(buffer)?;
        self.memory.host(buffer.handle).map_err(refused)
    }

    fn sync(&mut self, buffer: DeviceBuffer, direction: Direction) -> Result<(), NpuError> {
        self.memory.sync(buffer.handle, direction).map_err(refused)
    }

    fn create_context(&mut self, columns: u32) -> Result<u32, NpuError> {
        if !self.memory.has_heap() {
            return Err(refused("context before the heap"));
        }
        if !(1..=MAX_COLUMNS).contains(&columns) {
            return Err(refused(format!("context of {columns} columns, expected 1 to {MAX_COLUMNS}")));
        }
        if self.contexts.len() + self.simulator.state().taken >= MAX_CONTEXTS {
            let source = io::Error::from(io::ErrorKind::ResourceBusy);
            return Err(NpuError::Busy { call: "CREATE_HWCTX", source });
        }
        let handle = self.next_context;
        self.next_context += 1;
        self.contexts.insert(handle, Context { columns, ..Context::default() });
        Ok(handle)
    }

    fn configure(&mut self, context: u32, units: &[Unit<'_>]) -> Result<(), NpuError> {
        if units.is_empty() || units.len() > MAX_UNITS {
            return Err(refused(format!("{} units, expected 1 to {MAX_UNITS}", units.len())));
        }
        if let Some(unit) = units.iter().find(|unit| !self.memory.is_in_heap(unit.image.handle)) {
            return Err(refused(format!("control image in buffer {}, which is not of the heap", unit.image.handle)));
        }
        let context = self.context(context)?;
        if !context.units.is_empty() {
            return Err(refused("units for a context that has some"));
        }
        if let Some(unit) = units.iter().find(|unit| unit.program.shape.columns > context.columns) {
            let found = unit.program.shape.columns;
            return Err(refused(format!("unit of {found} columns in a context of {}", context.columns)));
        }
        context.units = units.iter().map(|unit| Array::of(unit.program)).collect::<Result<_, _>>().map_err(refused)?;
        Ok(())
    }

    fn destroy_context(&mut self, context: u32) -> Result<(), NpuError> {
        self.contexts.remove(&context).map(drop).ok_or_else(|| refused(format!("context {context} is unknown")))
    }

    fn submit(&mut self, context: u32, command: DeviceBuffer, arguments: &[DeviceBuffer]) -> Result<u64, NpuError> {
        let state = self.context(context)?;
        if state.units.is_empty() {
            return Err(refused("command for a context without units"));
        }
        if state.is_lost {
            return Err(refused("command for a context that was reset"));
        }
        if state.running.len() == MAX_RUNNING {
            return Err(refused(format!("command beside {MAX_RUNNING} that were not waited for")));
        }
        let buffers: Vec<u32> = arguments.iter().map(|argument| argument.handle).collect();
        let late = self.simulator.state().runs_late;
        let progress = if late { Progress::Late } else { self.run(context, command.handle, &buffers)? };
        let state = self.context(context)?;
        let number = state.next_number;
        state.next_number += 1;
        state.running.push(Running { number, command: command.handle, buffers, progress });
        self.simulator.state().events.push(Event::Submitted(number));
        Ok(number)
    }

    /// Does not wait for commands that hang, so that tests are fast.
    fn wait(&mut self, context: u32, number: u64, _timeout: Duration) -> Result<bool, NpuError> {
        let state = self.context(context)?;
        if number >= state.next_number {
            return Err(refused(format!("command {number} was not submitted")));
        }
        while let Some(first) = self.context(context)?.running.first().filter(|running| running.number <= number) {
            let (command, buffers, progress) = (first.command, first.buffers.clone(), first.progress);
            let late = progress == Progress::Late;
            if (if late { self.run(context, command, &buffers)? } else { progress }) == Progress::Hangs {
                self.context(context)?.running[0].progress = Progress::Hangs;
                return Ok(false);
            }
            let ended = self.context(context)?.running.remove(0).number;
            self.simulator.state().events.push(Event::Ended(ended));
        }
        Ok(true)
    }
}

impl Simulated {
    fn run(&mut self, context: u32, command: u32, buffers: &[u32]) -> Result<Progress, NpuError> {
        Ok(if self.execute(context, command, buffers)? { Progress::Ended } else { Progress::Hangs })
    }

    /// Checks that no running command uses the buffer.
    fn check_idle(&self, buffer: DeviceBuffer) -> Result<(), NpuError> {
        let mut running = self.contexts.values().flat_map(|context| &context.running);
        match running.any(|running| running.command == buffer.handle || running.buffers.contains(&buffer.handle)) {
            true => Err(refused(format!("buffer {} is of a command that was not waited for", buffer.handle))),
            false => Ok(()),
        }
    }
}

fn refused(what: impl Into<String>) -> NpuError {
    NpuError::Driver { what: what.into() }
}
