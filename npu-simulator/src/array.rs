//! One configured array: an instruction stream on the command's buffers.

use unicorn_artifact::NpuProgram;
use unicorn_kernels::npu::tile::GemmShape;
use unicorn_npu::lower::{Lowered, lower};
use unicorn_npu::{Design, gemm, interpret, passthrough, stream};

/// An array with a design.
pub struct Array {
    design: Design,
    lowered: Lowered,
}

impl Array {
    /// An array that is configured for a program, by its record.
    pub fn of(program: &NpuProgram) -> Result<Array, String> {
        let design = match program.shape.core_rows {
            // A program without cores passes bytes through.
            0 => {
                let (columns, bytes) = (program.shape.columns as usize, program.shape.cols as usize);
                let objects = passthrough::objects(columns, bytes);
                passthrough::design(columns, objects.ok_or_else(|| format!("{bytes} bytes are no whole objects"))?)
            }
            _ => {
                let shape = GemmShape::of_program(program);
                gemm::design(&shape.ok_or_else(|| format!("activation of {} is unknown", program.name))?)
            }
        };
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
