//! AMD's own runtime (XRT) as a driver, by its C API: an XCLBIN for each program, made from the artifact's control image.
//!
//! ```text
//! configure   control image ─ xclbin ─► xrtDeviceLoadXclbin ─► xrtPLKernelOpen        a unit
//! submit      ERT packet ─ decode ─► xrtRunOpen, xrtRunSetArg × 6, xrtRunStart      a run; several for a chain
//! wait        xrtRunWaitFor ─► state in the packet's head
//! ```
//!
//! XRT has its own heap and its own packets: addresses here are numbers of buffers, which tell a packet's buffers apart.
//!
//! Not run on an NPU here: a test runs it on a library of its own, whose array is simulated. Whether XRT's C API opens contexts for several XCLBINs
//! on XDNA1 is for an owner of the hardware to see.

mod library;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use unicorn_artifact::NpuProgram;
use unicorn_artifact::hash::hash;
use unicorn_artifact::npu::xclbin::{FIRST_BUFFER, HOST, KERNEL, Program, SRAM, xclbin};

use super::command::{Packet, Start};
use super::driver::{BufferKind, DeviceBuffer, Direction, Driver, NpuFacts, Unit};
use super::error::NpuError;
use library::{Argument, FLAGS_HEAP, FLAGS_HOST, Handle, Library};

/// Addresses of a buffer: its handle above these bits, offsets in it below.
const OFFSET_BITS: u32 = 40;
/// The kernel's opcode that runs an instruction stream.
const RUN_STREAM: u64 = 3;
/// States of a command (ERT): below it, a command has not ended.
const COMPLETED: i32 = 4;
const TIMED_OUT: i32 = 8;
/// Contexts of an NPU of Phoenix, of which each XCLBIN takes one.
const MAX_CONTEXTS: usize = 6;

/// An NPU by XRT.
pub struct Xrt {
    library: Library,
    device: Handle,
    facts: NpuFacts,
    buffers: BTreeMap<u32, Buffer>,
    contexts: BTreeMap<u32, Context>,
    next_handle: u32,
}

struct Buffer {
    kind: BufferKind,
    bytes: usize,
    held: Held,
}

enum Held {
    /// The heap: XRT has its own.
    Nothing,
    /// A packet, which XRT makes itself.
    Packet(Vec<u8>),
    Object(Handle),
}

#[derive(Default)]
struct Context {
    columns: u32,
    units: Vec<OpenUnit>,
    next_number: u64,
    running: Vec<Running>,
}

struct OpenUnit {
    kernel: Handle,
    /// Bytes of each of the program's buffers.
    arguments: Vec<u64>,
}

struct Running {
    number: u64,
    command: u32,
    /// The command's buffers.
    buffers: Vec<u32>,
    /// One a command of a chain, in order; only the first is started.
    runs: Vec<Handle>,
    /// Parts of buffers, which live as long.
    parts: Vec<Handle>,
}

impl Xrt {
    /// Opens the first device of the XRT at `library`; `None`: where it usually is.
    ///
    /// # Errors
    /// When there is no such library, it lacks a function, or it has no device.
    pub fn open(library: Option<&Path>) -> Result<Xrt, NpuError> {
        let library = Library::open(library)?;
        let device = library.open_device(0)?;
        let facts = NpuFacts {
            driver: format!("XRT ({})", library.path.display()),
            firmware: "as XRT loads it".into(),
            // XRT compares the array with that of the XCLBIN, which is this one.
            columns: 5,
            rows: 6,
            core_rows: 4,
            clock_mhz: None,
        };
        Ok(Xrt { library, device, facts, buffers: BTreeMap::new(), contexts: BTreeMap::new(), next_handle: 1 })
    }

    fn next(&mut self) -> u32 {
        self.next_handle += 1;
        self.next_handle - 1
    }

    fn buffer(&mut self, handle: u32) -> Result<&mut Buffer, NpuError> {
        self.buffers.get_mut(&handle).ok_or_else(|| refused(format!("buffer {handle} is unknown")))
    }

    fn context(&mut self, handle: u32) -> Result<&mut Context, NpuError> {
        self.contexts.get_mut(&handle).ok_or_else(|| refused(format!("context {handle} is unknown")))
    }

    /// The buffer object at an address, and the offset in it.
    fn at(&self, address: u64, kind: BufferKind, pinned: &[u32]) -> Result<(Handle, usize), NpuError> {
        let (handle, offset) = ((address >> OFFSET_BITS) as u32, (address & ((1 << OFFSET_BITS) - 1)) as usize);
        match self.buffers.get(&handle) {
            Some(Buffer { kind: of, held: Held::Object(object), .. }) if *of == kind && pinned.contains(&handle) => {
                Ok((*object, offset))
            }
            _ => Err(refused(format!("address {address:#x} is of none of the command's {kind:?} buffers"))),
        }
    }

    /// A run of one start, with its arguments.
    fn run(&self, context: u32, start: &Start, pinned: &[u32], parts: &mut Vec<Handle>) -> Result<Handle, NpuError> {
        let unit = self.contexts[&context].units.get(start.unit);
        let unit = unit.ok_or_else(|| refused(format!("unit {} was not configured", start.unit)))?;
        if start.tensors.len() != unit.arguments.len() {
            return Err(refused(format!("{} tensors, expected {}", start.tensors.len(), unit.arguments.len())));
        }
        let (stream, _) = self.at(start.stream_address, BufferKind::Device, pinned)?;
        let mut arguments =
            vec![Argument::Number64(RUN_STREAM), Argument::Buffer(stream), Argument::Number32(start.stream_words)];
        debug_assert_eq!(arguments.len(), FIRST_BUFFER);
        for (address, bytes) in start.tensors.iter().zip(&unit.arguments) {
            let (object, offset) = self.at(*address, BufferKind::Shared, pinned)?;
            let part = self.library.part(object, *bytes as usize, offset)?;
            parts.push(part);
            arguments.push(Argument::Buffer(part));
        }
        let run = self.library.open_run(unit.kernel)?;
        let mut numbered = (0..).zip(&arguments);
        let set = numbered.try_for_each(|(index, argument)| self.library.set_argument(run, index, argument));
        set.inspect_err(|_| drop(self.library.close_run(run)))?;
        Ok(run)
    }

    /// The starts of a command: one, or those of a chain.
    fn starts(&self, command: u32, pinned: &[u32]) -> Result<Vec<Start>, NpuError> {
        let packet = |handle: u32| match self.buffers.get(&handle) {
            Some(Buffer { held: Held::Packet(bytes), .. }) => Packet::decode(bytes).map_err(refused),
            _ => Err(refused(format!("buffer {handle} is no command"))),
        };
        let link = |handle: u64| {
            let handle = u32::try_from(handle).ok().filter(|handle| pinned.contains(handle));
            match packet(handle.ok_or_else(|| refused("command of a chain is none of its arguments".into()))?)? {
                Packet::Start(start) => Ok(start),
                Packet::Chain(_) => Err(refused("a chain in a chain".into())),
            }
        };
        match packet(command)? {
            Packet::Start(start) => Ok(vec![start]),
            Packet::Chain(handles) => handles.into_iter().map(link).collect(),
        }
    }

    fn close(&self, running: &Running) {
        running.runs.iter().for_each(|run| drop(self.library.close_run(*run)));
        running.parts.iter().for_each(|part| drop(self.library.free(*part)));
    }

    fn check_idle(&self, buffer: DeviceBuffer) -> Result<(), NpuError> {
        let mut running = self.contexts.values().flat_map(|context| &context.running);
        match running.any(|one| one.command == buffer.handle || one.buffers.contains(&buffer.handle)) {
            true => Err(refused(format!("buffer {} is of a command that was not waited for", buffer.handle))),
            false => Ok(()),
        }
    }
}

/// The XCLBIN of a program, and its identity: a hash of what it does.
fn container(program: &NpuProgram) -> (Vec<u8>, [u8; 16]) {
    let arguments: Vec<&str> = program.arguments.iter().map(|argument| argument.name.as_str()).collect();
    let content = [program.name.as_bytes(), &program.control, &program.instructions].concat();
    let identity = *hash(&content).first_chunk().expect("a hash has 32 bytes");
    let columns = program.shape.columns;
    (xclbin(&Program { columns, arguments: &arguments, image: &program.control, identity }), identity)
}

impl Driver for Xrt {
    fn facts(&self) -> &NpuFacts {
        &self.facts
    }

    fn needs_control(&self) -> bool {
        true
    }

    fn create_buffer(&mut self, kind: BufferKind, bytes: u64) -> Result<DeviceBuffer, NpuError> {
        let len = usize::try_from(bytes).ok().filter(|_| bytes < 1 << OFFSET_BITS);
        let len = len.ok_or_else(|| refused(format!("buffer of {bytes} bytes")))?;
        let held = match kind {
            BufferKind::Heap => Held::Nothing,
            BufferKind::Command => Held::Packet(vec![0; len]),
            BufferKind::Device => Held::Object(self.library.allocate(self.device, len, FLAGS_HEAP, SRAM)?),
            BufferKind::Shared => Held::Object(self.library.allocate(self.device, len, FLAGS_HOST, HOST)?),
        };
        let handle = self.next();
        self.buffers.insert(handle, Buffer { kind, bytes: len, held });
        Ok(DeviceBuffer { handle, bytes, address: u64::from(handle) << OFFSET_BITS })
    }

    fn free_buffer(&mut self, buffer: DeviceBuffer) -> Result<(), NpuError> {
        self.check_idle(buffer)?;
        self.buffer(buffer.handle)?;
        match self.buffers.remove(&buffer.handle).map(|buffer| buffer.held) {
            Some(Held::Object(object)) => self.library.free(object),
            _ => Ok(()),
        }
    }

    fn bytes(&mut self, buffer: DeviceBuffer) -> Result<&mut [u8], NpuError> {
        self.check_idle(buffer)?;
        let found = self.buffers.get_mut(&buffer.handle);
        let Buffer { bytes, held, .. } =
            found.ok_or_else(|| refused(format!("buffer {} is unknown", buffer.handle)))?;
        match held {
            Held::Nothing => Ok(&mut []),
            Held::Packet(packet) => Ok(packet),
            Held::Object(object) => self.library.bytes(object, *bytes),
        }
    }

    fn sync(&mut self, buffer: DeviceBuffer, direction: Direction) -> Result<(), NpuError> {
        let direction = match direction {
            Direction::ToDevice => 0,
            Direction::FromDevice => 1,
        };
        let Buffer { bytes, held, .. } = self.buffer(buffer.handle)?;
        match *held {
            Held::Object(object) => {
                let bytes = *bytes;
                self.library.sync(object, direction, bytes)
            }
            _ => Ok(()),
        }
    }

    fn create_context(&mut self, columns: u32) -> Result<u32, NpuError> {
        let handle = self.next();
        self.contexts.insert(handle, Context { columns, ..Context::default() });
        Ok(handle)
    }

    fn configure(&mut self, context: u32, units: &[Unit<'_>]) -> Result<(), NpuError> {
        let columns = self.context(context)?.columns;
        if units.len() > MAX_CONTEXTS {
            let what = format!(
                "{} NPU programs, expected at most {MAX_CONTEXTS} by XRT, which makes a context for each; the \
                 kernel's driver has one for all",
                units.len()
            );
            return Err(refused(what));
        }
        for Unit { program, .. } in units {
            assert!(program.shape.columns <= columns, "the context has the columns of its widest program");
            let (file, identity) = container(program);
            self.library.load(self.device, &file)?;
            let kernel = self.library.open_kernel(self.device, &identity, KERNEL)?;
            let arguments = program.arguments.iter().map(|argument| argument.bytes).collect();
            self.context(context)?.units.push(OpenUnit { kernel, arguments });
        }
        Ok(())
    }

    fn destroy_context(&mut self, context: u32) -> Result<(), NpuError> {
        let Some(Context { units, running, .. }) = self.contexts.remove(&context) else {
            return Err(refused(format!("context {context} is unknown")));
        };
        running.iter().for_each(|running| self.close(running));
        units.iter().try_for_each(|unit| self.library.close_kernel(unit.kernel))
    }

    fn submit(&mut self, context: u32, command: DeviceBuffer, arguments: &[DeviceBuffer]) -> Result<u64, NpuError> {
        self.context(context)?;
        let buffers: Vec<u32> = arguments.iter().map(|argument| argument.handle).collect();
        let starts = self.starts(command.handle, &buffers)?;
        let mut running = Running { number: 0, command: command.handle, buffers, runs: Vec::new(), parts: Vec::new() };
        let mut open = || -> Result<(), NpuError> {
            for start in &starts {
                running.runs.push(self.run(context, start, &running.buffers, &mut running.parts)?);
            }
            running.runs.first().map_or(Ok(()), |first| self.library.start(*first))
        };
        if let Err(error) = open() {
            self.close(&running);
            return Err(error);
        }
        let state = self.context(context)?;
        running.number = state.next_number;
        state.next_number += 1;
        let number = running.number;
        state.running.push(running);
        Ok(number)
    }

    fn wait(&mut self, context: u32, number: u64, timeout: Duration) -> Result<bool, NpuError> {
        let index = self.context(context)?.running.iter().position(|running| running.number == number);
        let index = index.ok_or_else(|| refused(format!("command {number} is unknown")))?;
        let end = Instant::now() + timeout;
        let runs = self.contexts[&context].running[index].runs.clone();
        let mut state = COMPLETED;
        for (place, run) in runs.iter().enumerate() {
            // A chain's runs begin one after the other.
            if place > 0 {
                self.library.start(*run)?;
            }
            // XRT takes 0 for a wait without end.
            let left = end.saturating_duration_since(Instant::now()).as_millis().clamp(1, u128::from(u32::MAX));
            state = self.library.wait(*run, left as u32);
            if state != COMPLETED {
                break;
            }
        }
        if state < COMPLETED || state == TIMED_OUT {
            return Ok(false);
        }
        let running = self.context(context)?.running.remove(index);
        self.close(&running);
        if let Held::Packet(packet) = &mut self.buffer(running.command)?.held {
            packet[0] = packet[0] & 0xf0 | state as u8 & 15;
        }
        Ok(true)
    }
}

impl Drop for Xrt {
    fn drop(&mut self) {
        let contexts: Vec<u32> = self.contexts.keys().copied().collect();
        contexts.into_iter().for_each(|context| drop(self.destroy_context(context)));
        for buffer in std::mem::take(&mut self.buffers).into_values() {
            if let Held::Object(object) = buffer.held {
                let _ = self.library.free(object);
            }
        }
        self.library.close_device(self.device);
    }
}

fn refused(what: String) -> NpuError {
    NpuError::Driver { what }
}
