//! A program that copies bytes through the array, to check an NPU by: it needs no machine code of cores.

use unicorn_artifact::{NpuArgument, NpuEstimate, NpuProduct, NpuProgram, NpuSection, NpuShape};
use unicorn_npu::device::CLOCK_HZ;
use unicorn_npu::lower::lower;
use unicorn_npu::stream::encode;
use unicorn_npu::{legal, passthrough};

use super::DEVICE;
use super::control::control_part;

/// Columns of the array that it uses: all that have DMA.
const COLUMNS: usize = 4;
/// Objects of a column: with them a command copies 1 MiB.
const OBJECTS: usize = 16;

/// A section with the passthrough as its only program, and one product of it, whose weights are four bytes that nothing reads.
///
/// # Panics
/// Never: the design is legal.
pub fn npu_passthrough() -> NpuSection {
    let design = passthrough::design(COLUMNS, OBJECTS);
    let lowered = lower(&design);
    legal::check(&design, &lowered).expect("the design is legal");
    let arguments: Vec<NpuArgument> = design.arguments.iter().map(super::argument).collect();
    let [bytes, weight_bytes] = [passthrough::ACTIVATIONS, passthrough::WEIGHTS].map(|index| arguments[index].bytes);
    let name = "passthrough";
    let program = NpuProgram {
        name: name.into(),
        // It has no cores: no product of an artifact has such a shape.
        shape: NpuShape {
            rows: 1,
            cols: bytes as u32,
            depth: 1,
            columns: COLUMNS as u32,
            core_rows: 0,
            core_cols: 0,
            core_depth: 0,
        },
        activation: None,
        arguments,
        instructions: encode(&design, &lowered),
        control: control_part(&design, &lowered).image(),
        uses: Vec::new(),
        estimate: NpuEstimate {
            // A stream moves 4 bytes a cycle, in and out at the same time.
            cycles: bytes / COLUMNS as u64 / 4,
            clock_hz: CLOCK_HZ.map(|hz| hz as u64),
            busy: 0.0,
            shim_bytes: 2 * bytes,
        },
    };
    let product = NpuProduct {
        name: name.into(),
        layer: None,
        program: 0,
        cols: bytes as u32,
        depth: 1,
        slice: 0,
        offset_bytes: 0,
        len_bytes: weight_bytes,
    };
    NpuSection {
        device: DEVICE.into(),
        decisions: Vec::new(),
        programs: vec![program],
        products: vec![product],
        slices: vec![weight_bytes],
        steps: Vec::new(),
    }
}
