//! An NPU with the programs and weights of an artifact, ready to run one command after another.

use std::time::Duration;

use unicorn_artifact::npu::{ACTIVATIONS, ARGUMENTS, OUTPUTS, WEIGHTS};
use unicorn_artifact::{NpuProduct, NpuProgram, NpuSection};

use super::command::{self, COMMAND_BYTES, MAX_CHAIN, Packet, Start, State};
use super::diagnosis::check_firmware;
use super::driver::{BufferKind, DeviceBuffer, Direction, Driver, HEAP_BYTES, MAX_UNITS, NpuFacts, Unit};
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
    /// Buffer of activations, as long as the longest program's.
    activations: DeviceBuffer,
    outputs: DeviceBuffer,
    command: DeviceBuffer,
    /// Longest time of a command.
    limit: Duration,
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
        let activations = driver.create_buffer(BufferKind::Shared, activation_bytes)?;
        let outputs = driver.create_buffer(BufferKind::Shared, output_bytes)?;
        let command = driver.create_buffer(BufferKind::Command, COMMAND_BYTES)?;
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
            activations,
            outputs,
            command,
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

    /// Runs the program of a product on what `write` puts into its activations; returns its outputs, bf16.
    ///
    /// # Errors
    /// [`NpuError::Hung`] and [`NpuError::Failed`] name the program. After them, and after what the driver refuses, the next call begins with a
    /// new context.
    ///
    /// # Panics
    /// If there is no such product.
    pub fn run(&mut self, product: usize, write: impl FnOnce(&mut [u8])) -> Result<&[u8], NpuError> {
        let program = self.section.products[product].program as usize;
        let [activation_bytes, output_bytes] =
            [ACTIVATIONS, OUTPUTS].map(|index| self.section.programs[program].arguments[index].bytes as usize);
        write(&mut self.driver.bytes(self.activations)?[..activation_bytes]);
        self.driver.sync(self.activations, Direction::ToDevice)?;
        let packet = self.start(product);
        self.execute(product, &packet, &[])?;
        self.driver.sync(self.outputs, Direction::FromDevice)?;
        Ok(&self.driver.bytes(self.outputs)?[..output_bytes])
    }

    /// Runs the program of a product `count` times on the activations of the last run, in one command.
    ///
    /// # Errors
    /// As [`NpuDevice::run`].
    ///
    /// # Panics
    /// If there is no such product, or there are more runs than a chain has.
    pub fn run_chain(&mut self, product: usize, count: usize) -> Result<(), NpuError> {
        assert!((1..=MAX_CHAIN).contains(&count), "chain of {count} commands");
        let packet = self.start(product).encode();
        let mut links = Vec::new();
        for _ in 0..count {
            links.push(self.driver.create_buffer(BufferKind::Command, COMMAND_BYTES)?);
        }
        let filled = links.iter().try_for_each(|link| {
            self.driver.bytes(*link)?[..packet.len()].copy_from_slice(&packet);
            self.driver.sync(*link, Direction::ToDevice)
        });
        let chain = Packet::Chain(links.iter().map(|link| u64::from(link.handle)).collect());
        let ran = filled.and_then(|()| self.execute(product, &chain, &links));
        links.into_iter().try_for_each(|link| self.driver.free_buffer(link)).and(ran)
    }

    fn start(&self, product: usize) -> Packet {
        let NpuProduct { program, slice, offset_bytes, .. } = self.section.products[product];
        let stream = self.streams[program as usize];
        let mut tensors = vec![0; ARGUMENTS];
        tensors[ACTIVATIONS] = self.activations.address;
        tensors[WEIGHTS] = self.weights[slice as usize].address + offset_bytes;
        tensors[OUTPUTS] = self.outputs.address;
        let (stream_address, stream_words) = (stream.address, (stream.bytes / 4) as u32);
        Packet::Start(Start { unit: program as usize, stream_address, stream_words, tensors })
    }

    /// Submits a packet and waits for it.
    fn execute(&mut self, product: usize, packet: &Packet, links: &[DeviceBuffer]) -> Result<(), NpuError> {
        let context = self.context()?;
        let ran = self.submit_and_wait(context, product, packet, links);
        if ran.is_err() {
            self.context = None;
            // It ends what the context runs and resets its columns. The command's own error is the one to report.
            let _ = self.driver.destroy_context(context);
        }
        ran
    }

    fn submit_and_wait(
        &mut self,
        context: u32,
        product: usize,
        packet: &Packet,
        links: &[DeviceBuffer],
    ) -> Result<(), NpuError> {
        let bytes = packet.encode();
        self.driver.bytes(self.command)?[..bytes.len()].copy_from_slice(&bytes);
        let NpuProduct { program, slice, .. } = self.section.products[product];
        let (program, slice) = (program as usize, slice as usize);
        let used = [self.streams[program], self.activations, self.weights[slice], self.outputs];
        let arguments: Vec<DeviceBuffer> = used.into_iter().chain(links.iter().copied()).collect();
        let number = self.driver.submit(context, self.command, &arguments)?;
        let name = || self.section.programs[program].name.clone();
        if !self.driver.wait(context, number, self.limit)? {
            return Err(NpuError::Hung { program: name(), limit_ms: self.limit.as_millis() });
        }
        match command::state(self.driver.bytes(self.command)?) {
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
