//! Checks the record against the sections, and its streams against the buffers of their commands.

use super::control::check_control;
use super::tile::Direction;
use super::{
    ACTIVATIONS, ARGUMENTS, Instruction, MAX_RUNS, NpuCommand, NpuProduct, NpuProgram, NpuSection, NpuSteps, OUTPUTS,
    ShimCommand, ShimTask, WEIGHTS, decode, shim_commands,
};
use crate::error::ParseError;
use crate::plan::BUFFER_ALIGN;

/// Bounds on the work that a malformed record causes.
const MAX_PROGRAMS: usize = 1 << 10;
const MAX_PRODUCTS: usize = 1 << 16;
const MAX_DECISIONS: usize = 64;
const MAX_TARGETS: usize = 64;
/// Largest size of a shape: no product of shape and element size overflows.
const MAX_SIZE: u32 = 1 << 22;
const MAX_COLUMNS: u32 = 4;
const CORE_ROWS: u32 = 4;
/// Rows of a core's tile in a GEMV.
const GEMV_ROWS: u32 = 8;
/// A descriptor's base address and offset have 32 bits.
const MAX_ARGUMENT_BYTES: u64 = 1 << 32;

/// Checks everything that a reader relies on; `slices` are the lengths of the sections of NPU weights.
pub(crate) fn check(section: &NpuSection, slices: &[u64]) -> Result<(), ParseError> {
    at_most("number of NPU programs", MAX_PROGRAMS, section.programs.len())?;
    at_most("number of NPU products", MAX_PRODUCTS, section.products.len())?;
    at_most("number of NPU decisions", MAX_DECISIONS, section.decisions.len())?;
    at_most("number of targets with steps on the NPU", MAX_TARGETS, section.steps.len())?;
    if section.slices != slices {
        let what = "bytes of the sections of NPU weights";
        return Err(ParseError::invalid(what, format!("{slices:?}"), format!("{:?}", section.slices)));
    }
    for program in &section.programs {
        check_program(program)?;
    }
    let mut end = (0, 0);
    for product in &section.products {
        end = check_product(product, section, end)?;
    }
    Ok(())
}

fn check_program(program: &NpuProgram) -> Result<(), ParseError> {
    let of = |what: &str| format!("{what} of NPU program {}", program.name);
    let shape = &program.shape;
    let sizes = [shape.rows, shape.cols, shape.depth, shape.core_rows, shape.core_cols, shape.core_depth];
    if !sizes.iter().all(|size| (1..=MAX_SIZE).contains(size)) || !(1..=MAX_COLUMNS).contains(&shape.columns) {
        let expected = format!("sizes of 1 to {MAX_SIZE} on 1 to {MAX_COLUMNS} columns");
        return Err(ParseError::invalid(of("shape"), expected, format!("{shape:?}")));
    }
    // Each core of a GEMV has weights of its own, each row of cores of a GEMM activations of its own.
    let (cores_down, cores_across) = match shape.core_rows {
        GEMV_ROWS => (1, 2 * shape.columns - 1),
        _ => (CORE_ROWS, shape.columns),
    };
    for (what, size, step) in [
        ("rows", shape.rows, cores_down * shape.core_rows),
        ("columns", shape.cols, cores_across * shape.core_cols),
        ("depth", shape.depth, shape.core_depth),
    ] {
        if !size.is_multiple_of(step) {
            return Err(ParseError::invalid(of(what), format!("a multiple of {step}"), size));
        }
    }
    if program.arguments.len() != ARGUMENTS {
        return Err(ParseError::invalid(of("number of arguments"), ARGUMENTS, program.arguments.len()));
    }
    for argument in &program.arguments {
        if argument.bytes == 0 || argument.bytes >= MAX_ARGUMENT_BYTES || !argument.bytes.is_multiple_of(4) {
            let what = of(&format!("bytes of argument {}", argument.name));
            let expected = format!("a multiple of 4, from 4 to {MAX_ARGUMENT_BYTES}");
            return Err(ParseError::invalid(what, expected, argument.bytes));
        }
    }
    for rate in program.estimate.clock_hz {
        if rate == 0 {
            return Err(ParseError::invalid(of("clock rate"), "more than 0", rate));
        }
    }
    if !program.control.is_empty() {
        let checked = check_control(&program.control, shape.columns);
        checked.map_err(|what| ParseError::invalid(of("control image"), "a device image for its columns", what))?;
    }
    check_stream(program).map_err(|what| ParseError::invalid(of("instruction stream"), "one of its design", what))
}

/// Allows only the transfers of a stream that the compiler makes: by the program's columns, inside its buffers, activations and
/// weights in, outputs out.
fn check_stream(program: &NpuProgram) -> Result<(), String> {
    let instructions: Vec<Instruction> = decode(&program.instructions).map_err(|error| error.to_string())?;
    let commands = shim_commands(&instructions, program.shape.columns).map_err(|error| error.to_string())?;
    for (index, command) in commands {
        let ShimCommand::Start { channel, task } = command else { continue };
        let ShimTask { argument, .. } = task;
        let expected: &[usize] = match channel.direction {
            Direction::In => &[OUTPUTS],
            Direction::Out => &[ACTIVATIONS, WEIGHTS],
        };
        if !expected.contains(&argument) {
            return Err(format!("instruction {index}: transfer of buffer {argument}, expected one of {expected:?}"));
        }
        let bytes = program.arguments[argument].bytes;
        if task.words == 0 || task.runs == 0 || task.end() as u64 > bytes {
            return Err(format!("instruction {index}: transfer of {task:?}, expected a part of {bytes} bytes"));
        }
    }
    Ok(())
}

/// `end` is the end of the product before, in bytes; returns the end of this one.
fn check_product(product: &NpuProduct, section: &NpuSection, end: (u32, u64)) -> Result<(u32, u64), ParseError> {
    let of = |what: &str| format!("{what} of NPU product {}", product.name);
    let Some(program) = section.programs.get(product.program as usize) else {
        return Err(ParseError::invalid(of("program"), format!("below {}", section.programs.len()), product.program));
    };
    for (what, size, most) in
        [("columns", product.cols, program.shape.cols), ("depth", product.depth, program.shape.depth)]
    {
        if !(1..=most).contains(&size) {
            return Err(ParseError::invalid(of(what), format!("1 to {most}"), size));
        }
    }
    let bytes = program.arguments[WEIGHTS].bytes;
    if product.len_bytes != bytes {
        return Err(ParseError::invalid(of("bytes"), bytes, product.len_bytes));
    }
    let Some(slice_bytes) = section.slices.get(product.slice as usize) else {
        return Err(ParseError::invalid(of("slice"), format!("below {}", section.slices.len()), product.slice));
    };
    if (product.slice, product.offset_bytes) < end || !product.offset_bytes.is_multiple_of(BUFFER_ALIGN) {
        let (slice, least) = end;
        let expected = format!("a multiple of {BUFFER_ALIGN}, from {least} of slice {slice} on");
        return Err(ParseError::invalid(
            of("offset"),
            expected,
            format!("{} of slice {}", product.offset_bytes, product.slice),
        ));
    }
    match product.offset_bytes.checked_add(bytes).filter(|end| end <= slice_bytes) {
        Some(end) => Ok((product.slice, end)),
        None => Err(ParseError::invalid(of("end"), format!("within {slice_bytes} bytes"), product.offset_bytes)),
    }
}

/// Checks the commands of the steps: in order, of existing products, on parts of an arena of `arena_bytes`. Their dispatches are
/// checked as those of other programs.
pub(crate) fn check_steps(section: &NpuSection, arena_bytes: u64) -> Result<(), ParseError> {
    for NpuSteps { kernels, commands, schedules } in &section.steps {
        let of = |what: &str| format!("{what} of the NPU's steps of target {}", kernels.name);
        if commands.len() != kernels.programs.len() {
            return Err(ParseError::invalid(of("lists of commands"), kernels.programs.len(), commands.len()));
        }
        if !schedules.is_empty() && schedules.len() != kernels.programs.len() {
            return Err(ParseError::invalid(of("schedules"), kernels.programs.len(), schedules.len()));
        }
        for (program, commands) in kernels.programs.iter().zip(commands) {
            let mut least = 1;
            for command in commands {
                let NpuCommand { before_dispatch, product, activations_offset_bytes, outputs_offset_bytes } = *command;
                let places = least..program.dispatches.len() as u32;
                if !places.contains(&before_dispatch) {
                    return Err(ParseError::invalid(of("dispatch"), format!("in {places:?}"), before_dispatch));
                }
                least = before_dispatch + 1;
                let Some(product) = section.products.get(product as usize) else {
                    return Err(ParseError::invalid(
                        of("product"),
                        format!("below {}", section.products.len()),
                        product,
                    ));
                };
                let npu_program = &section.programs[product.program as usize];
                let Some(runs) = npu_program.runs_of(program.rows) else {
                    let rows = npu_program.shape.rows;
                    let expected = format!("at most {rows}, or a multiple of it up to {MAX_RUNS} times");
                    return Err(ParseError::invalid(of("rows"), expected, program.rows));
                };
                for (offset, argument) in [(activations_offset_bytes, ACTIVATIONS), (outputs_offset_bytes, OUTPUTS)] {
                    let bytes = npu_program.arguments[argument].bytes.checked_mul(runs.into());
                    let end = bytes.and_then(|bytes| offset.checked_add(bytes));
                    if !offset.is_multiple_of(BUFFER_ALIGN) || end.is_none_or(|end| end > arena_bytes) {
                        let expected = format!("a multiple of {BUFFER_ALIGN}, and an end within {arena_bytes} bytes");
                        return Err(ParseError::invalid(of("offset"), expected, offset));
                    }
                }
            }
        }
        for ((program, commands), schedule) in kernels.programs.iter().zip(commands).zip(schedules) {
            schedule.check(program, commands, &section.runs(program.rows, commands))?;
        }
    }
    Ok(())
}

fn at_most(what: &str, most: usize, found: usize) -> Result<(), ParseError> {
    if found <= most { Ok(()) } else { Err(ParseError::invalid(what, format!("at most {most}"), found)) }
}
