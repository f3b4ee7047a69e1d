//! A driver whose array computes each product from its definition, on the host: with it, a step gives what it must give with an NPU, and nothing of an NPU or of
//! its driver takes part.

use std::time::Duration;

use unicorn_artifact::NpuProgram;
use unicorn_artifact::npu::{ACTIVATIONS, OUTPUTS, WEIGHTS};
use unicorn_compiler::npu_product;
use unicorn_runtime::npu::NpuError;
use unicorn_runtime::npu::command::{Packet, Start};
use unicorn_runtime::npu::driver::{BufferKind, DeviceBuffer, Direction, Driver, NpuFacts, Unit};

/// Bits of an address behind the number of its buffer.
const OFFSET_BITS: u32 = 32;
/// State of a command that is done (ERT).
const COMPLETED: u8 = 4;

/// One context, whose commands end when they are submitted.
pub struct Definition {
    facts: NpuFacts,
    /// By handle; the heap, of which only addresses are used, has none.
    buffers: Vec<Vec<u8>>,
    programs: Vec<NpuProgram>,
}

impl Definition {
    pub fn open() -> Box<dyn Driver> {
        let facts = NpuFacts {
            driver: "the definition of its products".into(),
            firmware: "none".into(),
            columns: 5,
            rows: 6,
            core_rows: 4,
            clock_mhz: None,
        };
        Box::new(Definition { facts, buffers: Vec::new(), programs: Vec::new() })
    }

    /// The bytes from an address on.
    fn at(&mut self, address: u64, bytes: u64) -> Result<&mut [u8], NpuError> {
        let (handle, offset) = (address >> OFFSET_BITS, address & ((1 << OFFSET_BITS) - 1));
        let buffer = self.buffers.get_mut(handle as usize);
        let found = buffer.and_then(|buffer| buffer.get_mut(offset as usize..)?.get_mut(..bytes as usize));
        found.ok_or_else(|| refused(format!("{bytes} bytes at {address:#x} are in no buffer")))
    }

    fn run(&mut self, Start { unit, tensors, .. }: &Start) -> Result<(), NpuError> {
        let program = self.programs.get(*unit).cloned().ok_or_else(|| refused(format!("unit {unit} is unknown")))?;
        let bytes = |argument: usize| program.arguments[argument].bytes;
        let activations = self.at(tensors[ACTIVATIONS], bytes(ACTIVATIONS))?.to_vec();
        let weights = self.at(tensors[WEIGHTS], bytes(WEIGHTS))?;
        let outputs =
            npu_product(&program, &activations, weights).ok_or_else(|| refused(super::other_layout(&program)))?;
        self.at(tensors[OUTPUTS], bytes(OUTPUTS))?.copy_from_slice(&outputs);
        Ok(())
    }
}

impl Driver for Definition {
    fn facts(&self) -> &NpuFacts {
        &self.facts
    }

    fn needs_control(&self) -> bool {
        false
    }

    fn create_buffer(&mut self, kind: BufferKind, bytes: u64) -> Result<DeviceBuffer, NpuError> {
        let len = if kind == BufferKind::Heap { 0 } else { bytes as usize };
        self.buffers.push(vec![0; len]);
        let handle = self.buffers.len() as u32 - 1;
        Ok(DeviceBuffer { handle, bytes, address: u64::from(handle) << OFFSET_BITS })
    }

    fn free_buffer(&mut self, buffer: DeviceBuffer) -> Result<(), NpuError> {
        self.bytes(buffer)?;
        self.buffers[buffer.handle as usize] = Vec::new();
        Ok(())
    }

    fn bytes(&mut self, buffer: DeviceBuffer) -> Result<&mut [u8], NpuError> {
        let found = self.buffers.get_mut(buffer.handle as usize);
        found.map(Vec::as_mut_slice).ok_or_else(|| refused(format!("buffer {} is unknown", buffer.handle)))
    }

    fn sync(&mut self, buffer: DeviceBuffer, _direction: Direction) -> Result<(), NpuError> {
        self.bytes(buffer).map(drop)
    }

    fn create_context(&mut self, _columns: u32) -> Result<u32, NpuError> {
        Ok(0)
    }

    fn configure(&mut self, _context: u32, units: &[Unit<'_>]) -> Result<(), NpuError> {
        self.programs = units.iter().map(|unit| unit.program.clone()).collect();
        Ok(())
    }

    fn destroy_context(&mut self, _context: u32) -> Result<(), NpuError> {
        Ok(())
    }

    fn submit(&mut self, _context: u32, command: DeviceBuffer, _arguments: &[DeviceBuffer]) -> Result<u64, NpuError> {
        match Packet::decode(self.bytes(command)?).map_err(refused)? {
            Packet::Start(start) => self.run(&start)?,
            Packet::Chain(_) => return Err(refused("a chain of commands, of which a step has none")),
        }
        let header = &mut self.bytes(command)?[0];
        *header = *header & 0xf0 | COMPLETED;
        Ok(0)
    }

    fn wait(&mut self, _context: u32, _number: u64, _timeout: Duration) -> Result<bool, NpuError> {
        Ok(true)
    }
}

fn refused(what: impl Into<String>) -> NpuError {
    NpuError::Driver { what: what.into() }
}
