//! The runtime's side of the NPU on the simulated driver: commands of an artifact's programs, what the driver refuses, and failures.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tests::compiled::{Compiled, options, with};
use tests::control_image::control_image;
use unicorn_artifact::npu::{ACTIVATIONS, OUTPUTS};
use unicorn_artifact::{ArtifactView, NpuSection};
use unicorn_compiler::{NpuOptions, NpuWork};
use unicorn_kernels::npu::quantize::{Activations, Weights};
use unicorn_kernels::npu::tile::GemmShape;
use unicorn_kernels::npu::twin;
use unicorn_npu_simulator::{Fault, Simulator};
use unicorn_runtime::npu::command::{Packet, Start};
use unicorn_runtime::npu::driver::{
    BufferKind, DeviceBuffer, Direction, Driver, HEAP_BYTES, NpuFacts, SharedMemory, SharedPages, Unit,
};
use unicorn_runtime::npu::{COMMAND_LIMIT, NpuDevice, NpuError};
use unicorn_spirv::target;

fn artifact() -> &'static [u8] {
    static ARTIFACT: OnceLock<Vec<u8>> = OnceLock::new();
    ARTIFACT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny/llama3-rope");
        let options = with(options(vec![target::by_name("generic").unwrap()], Vec::new()), |options| {
            let work = Some(vec![NpuWork::Qkv, NpuWork::Ffn]);
            options.npu = Some(NpuOptions::default().with(|npu| (npu.rows, npu.work) = (64, work)));
        });
        Compiled::of_folder(&folder, &options).artifact()
    })
}

fn loaded(simulator: &Simulator) -> NpuDevice {
    let view = ArtifactView::parse(artifact()).unwrap();
    let slices: Vec<&[u8]> = view.npu_weights().iter().map(|slice| slice.bytes).collect();
    NpuDevice::load(simulator.open(), view.npu.as_ref().unwrap(), &slices, COMMAND_LIMIT).unwrap()
}

fn section() -> NpuSection {
    ArtifactView::parse(artifact()).unwrap().npu.unwrap()
}

/// The simulated driver, which says that control images configure its array, as the hardware's does.
struct Hardware(Box<dyn Driver>);

impl Driver for Hardware {
    fn facts(&self) -> &NpuFacts {
        self.0.facts()
    }

    fn needs_control(&self) -> bool {
        true
    }

    fn create_buffer(&mut self, kind: BufferKind, bytes: u64) -> Result<DeviceBuffer, NpuError> {
        self.0.create_buffer(kind, bytes)
    }

    fn free_buffer(&mut self, buffer: DeviceBuffer) -> Result<(), NpuError> {
        self.0.free_buffer(buffer)
    }

    fn bytes(&mut self, buffer: DeviceBuffer) -> Result<&mut [u8], NpuError> {
        self.0.bytes(buffer)
    }

    fn sync(&mut self, buffer: DeviceBuffer, direction: Direction) -> Result<(), NpuError> {
        self.0.sync(buffer, direction)
    }

    fn create_context(&mut self, columns: u32) -> Result<u32, NpuError> {
        self.0.create_context(columns)
    }

    fn configure(&mut self, context: u32, units: &[Unit<'_>]) -> Result<(), NpuError> {
        self.0.configure(context, units)
    }

    fn destroy_context(&mut self, context: u32) -> Result<(), NpuError> {
        self.0.destroy_context(context)
    }

    fn submit(&mut self, context: u32, command: DeviceBuffer, arguments: &[DeviceBuffer]) -> Result<u64, NpuError> {
        self.0.submit(context, command, arguments)
    }

    fn wait(&mut self, context: u32, number: u64, timeout: Duration) -> Result<bool, NpuError> {
        self.0.wait(context, number, timeout)
    }
}

/// An image that the compiler makes starts no core: such a program must not wait on hardware without end.
#[test]
fn hardware_gets_no_program_whose_cores_have_no_code() {
    let view = ArtifactView::parse(artifact()).unwrap();
    let slices: Vec<&[u8]> = view.npu_weights().iter().map(|slice| slice.bytes).collect();
    let loaded = |section: &NpuSection| {
        NpuDevice::load(Box::new(Hardware(Simulator::default().open())), section, &slices, COMMAND_LIMIT).map(drop)
    };
    let mut section = section();
    let text = loaded(&section).unwrap_err().to_string();
    assert!(
        text.contains("a control image without programs for the array's cores") && text.contains("Peano"),
        "{text}"
    );
    section.programs.iter_mut().for_each(|program| program.control = control_image());
    loaded(&section).unwrap();
    section.programs[1].control.clear();
    let text = loaded(&section).unwrap_err().to_string();
    assert!(text.contains(&format!("{} has no control image", section.programs[1].name)), "{text}");
}

/// Deterministic values in -1..1.
fn values(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Through packet, heap, addresses and caches: the product from its definition, bit for bit.
#[test]
fn every_product_of_an_artifact_runs_through_the_drivers_calls() {
    let simulator = Simulator::default();
    let mut device = loaded(&simulator);
    let view = ArtifactView::parse(artifact()).unwrap();
    let section = section();
    for (index, product) in section.products.iter().enumerate() {
        let shape = GemmShape::of_program(&section.programs[product.program as usize]).unwrap();
        let depth = product.depth as usize;
        let activations = Activations::quantize(&shape, &values(40 * depth), depth);
        let packed = activations.pack(&shape);
        let found = device.run(index, |bytes| bytes.copy_from_slice(&packed)).unwrap().to_vec();
        let bytes = &view.npu_weights()[product.slice as usize].bytes[product.offset_bytes as usize..];
        let weights = Weights::unpack(&shape, &bytes[..product.len_bytes as usize]);
        let expected = twin::product(&shape, &activations, &weights);
        let expected: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(found == expected, "{}", product.name);
    }
    assert_eq!((simulator.runs(), simulator.errors()), (section.products.len() as u64, vec![]));
    // Several runs in one command.
    device.run_chain(0, 3).unwrap();
    assert_eq!(simulator.runs(), section.products.len() as u64 + 3);
}

/// A run on pages of the process in the place of its own buffers: what a GPU wrote there, and where it will read.
#[test]
fn runs_read_and_write_memory_that_a_gpu_has_too() {
    let simulator = Simulator::default();
    let mut device = loaded(&simulator);
    let written = |bytes: &mut [u8]| bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8 / 3);
    let expected = device.run(0, written).unwrap().to_vec();
    let section = section();
    let program = &section.programs[section.products[0].program as usize];
    let shared = [ACTIVATIONS, OUTPUTS].map(|argument| {
        let longest = section.programs.iter().map(|program| program.arguments[argument].bytes).max().unwrap();
        let pages = Arc::new(SharedPages::new(longest).unwrap());
        assert!(device.share(0, argument, &SharedMemory::Pages(pages.clone())).unwrap());
        pages
    });
    let mut activations = vec![0; program.arguments[ACTIVATIONS].bytes as usize];
    written(&mut activations);
    shared[0].write(&activations);
    device.begin(0, 0).unwrap();
    assert_eq!(device.end_first().unwrap(), (0, 0));
    let mut found = vec![0; expected.len()];
    shared[1].read(&mut found);
    assert!(found == expected);
    // The host has no view of them by the driver.
    let error = device.activations(0, 0).unwrap_err().to_string();
    assert!(error.contains("is a GPU's, too"), "{error}");
    // Drivers of other systems share nothing, and own buffers stay.
    simulator.refuse_sharing();
    let mut device = loaded(&simulator);
    assert!(!device.share(0, OUTPUTS, &SharedMemory::Pages(shared[1].clone())).unwrap());
    assert!(device.run(0, written).unwrap() == expected);
}

#[test]
fn a_command_that_fails_is_an_error_and_the_next_one_runs() {
    for (fault, part) in [
        (Fault::Hang, "did not finish within 2000 ms; its columns were reset"),
        (Fault::Error, "ended in state error"),
        (Fault::Reset, "ended in state abort"),
    ] {
        let simulator = Simulator::default();
        let mut device = loaded(&simulator);
        let run = |device: &mut NpuDevice| device.run(0, |bytes| bytes.fill(0)).map(<[u8]>::to_vec);
        let before = run(&mut device).unwrap();
        simulator.inject(1, fault);
        let error = run(&mut device).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert!(run(&mut device).unwrap() == before, "{fault:?}");
        // In the middle of a chain, too.
        simulator.inject(simulator.runs() + 1, fault);
        assert!(device.run_chain(0, 3).is_err());
        assert!(run(&mut device).unwrap() == before, "{fault:?}");
    }
}

#[test]
fn other_arrays_and_too_many_contexts_are_refused() {
    let simulator = Simulator::default();
    let refused = |change: &dyn Fn(&mut NpuSection)| {
        let mut section = section();
        change(&mut section);
        NpuDevice::load(simulator.open(), &section, &[&[0; 64]], COMMAND_LIMIT).err().map(|error| error.to_string())
    };
    let error = refused(&|section| section.device = "npu4".into()).unwrap();
    assert!(error.contains("are for npu4, which this version does not drive, found 5 columns and 6 rows"), "{error}");
    let mut driver = simulator.open();
    driver.create_buffer(BufferKind::Heap, HEAP_BYTES).unwrap();
    (0..6).for_each(|_| _ = driver.create_context(4).unwrap());
    let error = driver.create_context(4).unwrap_err();
    assert!(matches!(error, NpuError::Busy { .. }) && error.to_string().contains("end one of them"), "{error}");
}

/// The order of calls, alignment, limits and caches that a driver enforces.
#[test]
fn what_a_driver_refuses_is_refused() {
    let simulator = Simulator::default();
    let section = section();
    let program = &section.programs[0];
    let refused = |result: Result<(), NpuError>, part: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{part} is not in {error}");
    };
    let mut driver = simulator.open();
    refused(driver.create_buffer(BufferKind::Device, 64).map(drop), "before the heap");
    refused(driver.create_context(4).map(drop), "before the heap");
    refused(driver.create_buffer(BufferKind::Heap, 4096).map(drop), "expected 67108864");
    driver.create_buffer(BufferKind::Heap, HEAP_BYTES).unwrap();
    refused(driver.create_buffer(BufferKind::Heap, HEAP_BYTES).map(drop), "a second heap");
    refused(driver.create_buffer(BufferKind::Device, HEAP_BYTES + 1).map(drop), "do not fit");
    refused(driver.create_context(5).map(drop), "expected 1 to 4");
    let context = driver.create_context(4).unwrap();
    let command = driver.create_buffer(BufferKind::Command, 4096).unwrap();
    refused(driver.submit(context, command, &[]).map(drop), "without units");

    let stream = driver.create_buffer(BufferKind::Device, program.instructions.len() as u64).unwrap();
    driver.bytes(stream).unwrap().copy_from_slice(&program.instructions);
    driver.sync(stream, Direction::ToDevice).unwrap();
    let image = driver.create_buffer(BufferKind::Device, 4).unwrap();
    let bytes = |index: usize| program.arguments[index].bytes;
    let tensors = [0, 1, 2].map(|index| driver.create_buffer(BufferKind::Shared, bytes(index)).unwrap());
    refused(driver.configure(context, &[Unit { image: tensors[0], program }]), "which is not of the heap");
    driver.configure(context, &[Unit { image, program }]).unwrap();
    refused(driver.configure(context, &[Unit { image, program }]), "that has some");

    let start = Start {
        unit: 0,
        stream_address: stream.address,
        stream_words: program.instructions.len() as u32 / 4,
        tensors: tensors.map(|tensor| tensor.address).to_vec(),
    };
    let pinned = [stream, tensors[0], tensors[1], tensors[2]];
    let submit = |driver: &mut Box<dyn Driver>, packet: Packet, arguments: &[_]| {
        let packet = packet.encode();
        driver.bytes(command).unwrap()[..packet.len()].copy_from_slice(&packet);
        let number = driver.submit(context, command, arguments)?;
        assert!(driver.wait(context, number, COMMAND_LIMIT).unwrap());
        Ok::<u8, NpuError>(driver.bytes(command).unwrap()[0] & 15)
    };
    let with = |change: &dyn Fn(&mut Start)| {
        let mut start = start.clone();
        change(&mut start);
        Packet::Start(start)
    };
    let same = with(&|_| ());
    refused(submit(&mut driver, same.clone(), &pinned[1..]).map(drop), "none of the command's arguments");
    refused(submit(&mut driver, same.clone(), &pinned[..3]).map(drop), "none of the command's arguments");
    refused(submit(&mut driver, with(&|start| start.unit = 1), &pinned).map(drop), "was not configured");
    refused(submit(&mut driver, with(&|start| start.tensors[1] += 2), &pinned).map(drop), "expected a multiple of 4");
    refused(submit(&mut driver, with(&|start| start.tensors[1] += 4), &pinned).map(drop), "bytes at 4 of buffer");
    refused(submit(&mut driver, with(&|start| start.tensors[0] = 64), &pinned).map(drop), "is in no Shared buffer");
    refused(submit(&mut driver, with(&|start| _ = start.tensors.pop()), &pinned).map(drop), "2 tensors, expected 3");
    refused(submit(&mut driver, Packet::Chain(vec![99]), &pinned).map(drop), "none of its arguments");
    refused(driver.wait(context, 9, COMMAND_LIMIT).map(drop), "was not submitted");

    // A stream that is cut is an error of the command; a sound one completes.
    let errors = simulator.errors().len();
    assert_eq!(submit(&mut driver, with(&|start| start.stream_words -= 1), &pinned).unwrap(), 5);
    assert_eq!(simulator.errors().len(), errors + 1);
    assert_eq!(submit(&mut driver, same, &pinned).unwrap(), 4);
    // What the array wrote is visible after a synchronisation, not before.
    assert!(driver.bytes(tensors[2]).unwrap().iter().all(|byte| *byte == 0));
    driver.sync(tensors[2], Direction::FromDevice).unwrap();
    assert!(driver.bytes(tensors[2]).unwrap().iter().any(|byte| *byte != 0));
}
