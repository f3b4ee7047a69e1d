//! `--npu`: NPU programs of a model as MLIR, instead of an artifact.

use std::path::PathBuf;

use unicorn_compiler::{CompileError, CompileOptions, NpuOptions, Source, npu_programs, plan, write_bytes, write_text};

use crate::args::Args;
use crate::progress::Bars;
use crate::say;

/// Writes three files for each shape beside the output, or prints the readable texts if there is no output.
pub fn write_programs(
    args: &Args,
    source: Source,
    options: &CompileOptions,
    bars: &mut Bars,
) -> Result<(), CompileError> {
    let planned = plan(source, options, bars)?;
    let (rows, columns) = (usize::from(args.npu_rows), usize::from(args.npu_columns));
    let wanted = NpuOptions { rows, columns, dialect: args.npu_dialect.clone() };
    let programs = npu_programs(&planned, &wanted)?;
    bars.finish();
    for program in &programs {
        let Some(output) = &args.output else {
            say(&program.readable)?;
            continue;
        };
        let named = |extension: &str| -> PathBuf { output.with_extension(format!("{}.{extension}", program.name)) };
        let (readable, generic, instructions) = (named("mlir"), named("generic.mlir"), named("insts.bin"));
        write_text(&readable, &program.readable)?;
        write_text(&generic, &program.generic)?;
        write_bytes(&instructions, &program.instructions)?;
        if !args.quiet {
            say(&format!(
                "{}\n  written            {}, {}, {}\n",
                program.explanation,
                readable.display(),
                generic.display(),
                instructions.display()
            ))?;
        }
    }
    Ok(())
}
