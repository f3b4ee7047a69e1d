//! One configured array: an instruction stream on the command's buffers.

use unicorn_artifact::{NpuProgram, NpuShape};
use unicorn_kernels::Activation;
use unicorn_kernels::npu::tile::{CoreTile, Epilogue, GemmShape};
use unicorn_npu::lower::{Lowered, lower};
use unicorn_npu::{Design, gemm, interpret, stream};

/// An array with a design.
pub struct Array {
    design: Design,
    lowered: Lowered,
}

impl Array {
    /// Configured for a program, by its record.
    pub fn of(program: &NpuProgram) -> Result<Array, String> {
        let design = gemm::design(&shape_of(program)?);
        let lowered = lower(&design);
        Ok(Array { design, lowered })
    }

    /// Bytes of each of the command's buffers.
    pub fn argument_bytes(&self) -> Vec<usize> {
        self.design.arguments.iter().map(|argument| argument.len * argument.element.bytes()).collect()
    }

    /// Runs an encoded stream; `arguments` are the command's buffers.
    pub fn run(&self, instructions: &[u8], arguments: &mut [Vec<u8>]) -> Result<(), String> {
        let instructions = stream::decode(instructions).map_err(|error| error.to_string())?;
        let commands = stream::commands(&instructions, &self.lowered).map_err(|error| error.to_string())?;
        interpret::run(&self.design, &self.lowered, &commands, arguments).map_err(|error| error.to_string())
    }
}

/// The shape of a program, from its record.
fn shape_of(program: &NpuProgram) -> Result<GemmShape, String> {
    let epilogue = match program.activation.as_deref() {
        None => Epilogue::Scale,
        Some("silu") => Epilogue::ActMul(Activation::Silu),
        Some("gelutanh") => Epilogue::ActMul(Activation::GeluTanh),
        Some(other) => return Err(format!("activation {other} of {}, expected silu or gelutanh", program.name)),
    };
    let NpuShape { rows, cols, depth, columns, core_rows, core_cols, core_depth } = program.shape;
    let [rows, cols, depth, columns] = [rows, cols, depth, columns].map(|size| size as usize);
    let core = CoreTile { rows: core_rows as usize, cols: core_cols as usize, depth: core_depth as usize, epilogue };
    Ok(GemmShape { rows, cols, depth, columns, core })
}
