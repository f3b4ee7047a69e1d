//! An NPU with the programs and weights of an artifact, ready to run commands: several may be submitted before the first is waited for.

use std::collections::VecDeque;
use std::time::Duration;

use unicorn_artifact::npu::{ACTIVATIONS, ARGUMENTS, OUTPUTS, WEIGHTS};
use unicorn_artifact::{NpuProduct, NpuProgram, NpuSection};

use super::command::{self, COMMAND_BYTES, MAX_CHAIN, Packet, Start, State};
use super::diagnosis::check_firmware;
use super::driver::{
    BufferKind, DeviceBuffer, Direction, Driver, HEAP_BYTES, MAX_RUNNING, MAX_UNITS, NpuFacts, SharedMemory, Unit,
};
use super::error::NpuError;

/// The array of XDNA1, as an artifact calls it.
const ARRAY: &str = "npu1";

/// Programs, weights and buffers on an NPU.
pub struct NpuDevice {
    driver: Box<dyn Driver>,
    section: NpuSection,
    columns: u32,
    /// `None`: it was lost with a command that hung, and is created again for the next one.
    context: Option<u32>,
    /// One a program: control image and instruction stream.
    images: Vec<DeviceBuffer>,
    streams: Vec<DeviceBuffer>,
    /// One a section of NPU weights.
    weights: Vec<DeviceBuffer>,
    /// One a run of a step ([`NpuSection::most_runs`]).
    runs: Vec<RunBuffers>,
    /// Commands that were submitted and whose outputs were not read, oldest first.
    running: VecDeque<Running>,
    /// Longest time of a command.
    limit: Duration,
}

/// Buffers of one run, as long as the longest program's.
#[derive(Clone, Copy)]
struct RunBuffers {
    activations: DeviceBuffer,
    outputs: DeviceBuffer,
    command: DeviceBuffer,
}

#[derive(Clone, Copy)]
struct Running {
    product: usize,
    run: usize,
    /// The driver's number; `None`: it has ended.
    number: Option<u64>,
}

/// Longest time of a command: estimates are below 50 ms, and the kernel's own limit is a minute.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(2);

impl NpuDevice {
    /// Puts programs and weights where the array reads them, and configures it.
    ///
    /// # Errors
    /// [`NpuError`] names what the device, its driver or the artifact lack.
    pub fn load(
        mut driver: Box<dyn Driver>,
        section: &NpuSection,
        slices: &[&[u8]],
        limit: Duration,
    ) -> Result<NpuDevice, NpuError> {
        check_array(driver.facts(), section)?;
        // A program whose shape has no cores, which is none of an artifact, needs no machine code for them.
        let lacks_cores = |program: &&NpuProgram| program.shape.core_rows > 0 && !program.runs_cores();
        if let Some(program) = section.programs.iter().find(|program| driver.needs_control() && lacks_cores(program)) {
            let (program, has_image) = (program.name.clone(), !program.control.is_empty());
            return Err(NpuError::NoCorePrograms { program, has_image });
        }
        if section.programs.len() > MAX_UNITS {
            let what = format!("{} programs, expected at most {MAX_UNITS} in a context", section.programs.len());
            return Err(NpuError::Driver { what });
        }
        driver.create_buffer(BufferKind::Heap, HEAP_BYTES)?;
        let longest = |argument: usize| {
            section.programs.iter().map(|program| program.arguments[argument].bytes).max().unwrap_or(4)
        };
        let (activation_bytes, output_bytes) = (longest(ACTIVATIONS), longest(OUTPUTS));
        let mut filled = |kind, bytes: &[u8]| {
            let buffer = driver.create_buffer(kind, bytes.len().max(4) as u64)?;
            driver.bytes(buffer)?[..bytes.len()].copy_from_slice(bytes);
            driver.sync(buffer, Direction::ToDevice)?;
            Ok(buffer)
        };
        let images = section.programs.iter().map(|program| filled(BufferKind::Device, &program.control));
        let images = images.collect::<Result<_, NpuError>>()?;
        let streams = section.programs.iter().map(|program| filled(BufferKind::Device, &program.instructions));
        let streams = streams.collect::<Result<_, NpuError>>()?;
        let weights = slices.iter().map(|slice| filled(BufferKind::Shared, slice)).collect::<Result<_, NpuError>>()?;
        let mut buffers_of_run = || {
            Ok(RunBuffers {
                activations: driver.create_buffer(BufferKind::Shared, activation_bytes)?,
                outputs: driver.create_buffer(BufferKind::Shared, output_bytes)?,
                command: driver.create_buffer(BufferKind::Command, COMMAND_BYTES)?,
            })
        };
        let runs = (0..section.most_runs()).map(|_| buffers_of_run()).collect::<Result<_, NpuError>>()?;
        let columns = section.programs.iter().map(|program| program.shape.columns).max().unwrap_or(1);
        let section = section.clone();
        let mut device = NpuDevice {
            driver,
            section,
            columns,
            context: None,
            images,
            streams,
            weights,
            runs,
            running: VecDeque::new(),
            limit,
        };
        device.context()?;
        Ok(device)
    }

    /// What the driver reports.
    pub fn facts(&self) -> &NpuFacts {
        self.driver.facts()
    }

    /// The section that it was loaded with.
    pub fn section(&self) -> &NpuSection {
        &self.section
    }

    /// Gives a run's activations or outputs, by index of the argument, memory that a GPU has, too; `false`: the driver shares none of this kind.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// If there is no such run, or something runs.
    pub fn share(&mut self, run: usize, argument: usize, memory: &SharedMemory) -> Result<bool, NpuError> {
        assert!(self.running.is_empty(), "buffers are exchanged while nothing runs");
        let Some(shared) = self.driver.share(memory)? else { return Ok(false) };
        let buffers = &mut self.runs[run];
        let own = if argument == ACTIVATIONS { &mut buffers.activations } else { &mut buffers.outputs };
        let before = std::mem::replace(own, shared);
        self.driver.free_buffer(before)?;
        Ok(true)
    }

    /// Runs the program of a product on what `write` puts into its activations; returns its outputs, bf16.
    ///
    /// # Errors
    /// [`NpuError::Hung`] and [`NpuError::Failed`] name the program. After them, and after what the driver refuses, the next call begins with a
    /// new context.
    ///
    /// # Panics
    /// If there is no such product, or other runs were begun and not ended.
    pub fn run(&mut self, product: usize, write: impl FnOnce(&mut [u8])) -> Result<&[u8], NpuError> {
        assert!(self.running.is_empty(), "runs that were begun are ended first");
        write(self.activations(product, 0)?);
        self.begin(product, 0)?;
        let (product, run) = self.end_first()?;
        self.outputs(product, run)
    }

    /// The activations of run number `run` of a step, of a product, for the host to write.
    ///
    /// # Errors
    /// When the run was begun and not ended, or its memory is shared.
    ///
    /// # Panics
    /// If there is no such product or run.
    pub fn activations(&mut self, product: usize, run: usize) -> Result<&mut [u8], NpuError> {
        let bytes = self.argument_bytes(product, ACTIVATIONS);
        Ok(&mut self.driver.bytes(self.runs[run].activations)?[..bytes])
    }

    /// The outputs of a run that has ended, bf16, for the host to read.
    ///
    /// # Errors
    /// As [`NpuDevice::activations`].
    ///
    /// # Panics
    /// As [`NpuDevice::activations`].
    pub fn outputs(&mut self, product: usize, run: usize) -> Result<&[u8], NpuError> {
        let bytes = self.argument_bytes(product, OUTPUTS);
        Ok(&self.driver.bytes(self.runs[run].outputs)?[..bytes])
    }

    /// Submits the program of a product on the activations of a run of a step, behind those that were begun before.
    ///
    /// # Errors
    /// As [`NpuDevice::run`]: everything that was begun is lost.
    ///
    /// # Panics
    /// If there is no such product or run, or this run was begun and not ended.
    pub fn begin(&mut self, product: usize, run: usize) -> Result<(), NpuError> {
        assert!(self.running.iter().all(|running| running.run != run), "run {run} was begun and not ended");
        let number = self.submit_run(product, run).inspect_err(|_| self.abandon())?;
        self.running.push_back(Running { product, run, number: Some(number) });
        Ok(())
    }

    /// Waits for the run that was begun first; returns its product and its number in the step.
    ///
    /// # Errors
    /// As [`NpuDevice::begin`].
    ///
    /// # Panics
    /// If none was begun.
    pub fn end_first(&mut self) -> Result<(usize, usize), NpuError> {
        self.wait_for(0)?;
        let Running { product, run, .. } = self.running.pop_front().expect("waited for");
        self.driver.sync(self.runs[run].outputs, Direction::FromDevice)?;
        Ok((product, run))
    }

    /// Waits for everything that was begun, whose outputs no one reads.
    ///
    /// # Errors
    /// As [`NpuDevice::begin`].
    pub fn end_all(&mut self) -> Result<(), NpuError> {
        while !self.running.is_empty() {
            self.wait_for(0)?;
            self.running.pop_front();
        }
        Ok(())
    }

    /// Ends whatever runs; the next call begins with a new context.
    fn abandon(&mut self) {
        self.running.clear();
        if let Some(context) = self.context.take() {
            // It ends what the context runs and resets its columns. The command's own error is the one to report.
            let _ = self.driver.destroy_context(context);
        }
    }

    fn submit_run(&mut self, product: usize, run: usize) -> Result<u64, NpuError> {
        let waits = self.running.iter().filter(|running| running.number.is_some()).count() >= MAX_RUNNING;
        if let Some(first) = self.running.iter().position(|running| waits && running.number.is_some()) {
            self.wait_for(first)?;
        }
        self.driver.sync(self.runs[run].activations, Direction::ToDevice)?;
        let packet = self.start(product, run);
        self.submit(product, run, &packet, &[])
    }

    /// Waits for one of those that were begun.
    fn wait_for(&mut self, index: usize) -> Result<(), NpuError> {
        let Running { product, run, number } = self.running[index];
        if let Some(number) = number {
            self.wait(product, run, number).inspect_err(|_| self.abandon())?;
            self.running[index].number = None;
        }
        Ok(())
    }

    /// Bytes of an argument of a product's program.
    fn argument_bytes(&self, product: usize, argument: usize) -> usize {
        let program = self.section.products[product].program as usize;
        self.section.programs[program].arguments[argument].bytes as usize
    }

    /// Runs the program of a product `count` times on the activations of the last run, in one command.
    ///
    /// # Errors
    /// As [`NpuDevice::run`].
    ///
    /// # Panics
    /// If there is no such product, or there are more runs than a chain has, or others were begun and not ended.
    pub fn run_chain(&mut self, product: usize, count: usize) -> Result<(), NpuError> {
        assert!((1..=MAX_CHAIN).contains(&count) && self.running.is_empty(), "chain of {count} commands");
        let packet = self.start(product, 0).encode();
        let mut links = Vec::new();
        for _ in 0..count {
            links.push(self.driver.create_buffer(BufferKind::Command, COMMAND_BYTES)?);
        }
        let filled = links.iter().try_for_each(|link| {
            self.driver.bytes(*link)?[..packet.len()].copy_from_slice(&packet);
            self.driver.sync(*link, Direction::ToDevice)
        });
        let chain = Packet::Chain(links.iter().map(|link| u64::from(link.handle)).collect());
        let ran = filled
            .and_then(|()| self.submit(product, 0, &chain, &links))
            .and_then(|number| self.wait(product, 0, number))
            .inspect_err(|_| self.abandon());
        links.into_iter().try_for_each(|link| self.driver.free_buffer(link)).and(ran)
    }

    fn start(&self, product: usize, run: usize) -> Packet {
        let NpuProduct { program, slice, offset_bytes, .. } = self.section.products[product];
        let (stream, run) = (self.streams[program as usize], &self.runs[run]);
        let mut tensors = vec![0; ARGUMENTS];
        tensors[ACTIVATIONS] = run.activations.address;
        tensors[WEIGHTS] = self.weights[slice as usize].address + offset_bytes;
        tensors[OUTPUTS] = run.outputs.address;
        let (stream_address, stream_words) = (stream.address, (stream.bytes / 4) as u32);
        Packet::Start(Start { unit: program as usize, stream_address, stream_words, tensors })
    }

    /// Submits a packet in the command of a run; returns the driver's number.
    fn submit(&mut self, product: usize, run: usize, packet: &Packet, links: &[DeviceBuffer]) -> Result<u64, NpuError> {
        let (context, bytes) = (self.context()?, packet.encode());
        let RunBuffers { activations, outputs, command } = self.runs[run];
        self.driver.bytes(command)?[..bytes.len()].copy_from_slice(&bytes);
        let NpuProduct { program, slice, .. } = self.section.products[product];
        let used = [self.streams[program as usize], activations, self.weights[slice as usize], outputs];
        let arguments: Vec<DeviceBuffer> = used.into_iter().chain(links.iter().copied()).collect();
        self.driver.submit(context, command, &arguments)
    }

    /// Waits for a command of this number.
    fn wait(&mut self, product: usize, run: usize, number: u64) -> Result<(), NpuError> {
        let context = self.context.expect("it runs in a context");
        let program = self.section.products[product].program as usize;
        let name = || self.section.programs[program].name.clone();
        if !self.driver.wait(context, number, self.limit)? {
            return Err(NpuError::Hung { program: name(), limit_ms: self.limit.as_millis() });
        }
        match command::state(self.driver.bytes(self.runs[run].command)?) {
            State::Completed => Ok(()),
            State::Failed(state) => Err(NpuError::Failed { program: name(), state: state.into() }),
            State::Pending => {
                Err(NpuError::Failed { program: name(), state: "pending, though it was waited for".into() })
            }
        }
    }

    /// The context with its units, created if there is none.
    fn context(&mut self) -> Result<u32, NpuError> {
        if let Some(context) = self.context {
            return Ok(context);
        }
        let context = self.driver.create_context(self.columns)?;
        let programs = self.section.programs.iter().zip(&self.images);
        let units: Vec<Unit<'_>> = programs.map(|(program, image)| Unit { image: *image, program }).collect();
        self.driver.configure(context, &units).inspect_err(|_| drop(self.driver.destroy_context(context)))?;
        self.context = Some(context);
        Ok(context)
    }
}

impl Drop for NpuDevice {
    fn drop(&mut self) {
        if let Some(context) = self.context {
            let _ = self.driver.destroy_context(context);
        }
    }
}

fn check_array(facts: &NpuFacts, section: &NpuSection) -> Result<(), NpuError> {
    let found = format!("{} columns and {} rows by {}", facts.columns, facts.rows, facts.driver);
    if section.device != ARRAY {
        let expected = format!("{}, which this version does not drive", section.device);
        return Err(NpuError::OtherDevice { found, expected });
    }
    if !facts.is_npu1() {
        let expected = format!("{ARRAY}, 5 columns and 6 rows (Phoenix, Hawk Point)");
        return Err(NpuError::OtherDevice { found, expected });
    }
    check_firmware(facts)
}
