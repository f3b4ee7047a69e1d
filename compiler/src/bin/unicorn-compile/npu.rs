//! `--npu`: what the NPU does, and its programs as MLIR.

use std::path::PathBuf;

use unicorn_compiler::{
    CompileError, CompileOptions, NpuOptions, NpuWork, Source, npu_mlir, plan, write_bytes, write_text,
};

use crate::args::Args;
use crate::progress::{Bars, note};
use crate::say;

/// What was requested of the NPU; `None`: it is not used.
pub fn requested(args: &Args) -> Result<Option<NpuOptions>, CompileError> {
    if args.npu.is_none() {
        return Ok(None);
    }
    let refused = |what: String| Err(CompileError::Option { option: "npu_for", what });
    let has = |name: &str| args.npu_for.iter().any(|one| one == name);
    for alone in ["none", "draft"] {
        if has(alone) && args.npu_for.len() > 1 {
            return refused(format!("{alone} is given together with work, expected {alone} alone"));
        }
    }
    let requested = NpuOptions::default().with(|npu| npu.peano.clone_from(&args.npu_peano));
    if has("draft") && args.draft.is_some() {
        // Of the draft that is packed into the artifact; the model's own are the GPU's.
        let columns = usize::from(args.npu_columns);
        let rows = usize::from(args.npu_rows);
        return Ok(Some(requested.with(|npu| {
            (npu.rows, npu.columns, npu.work, npu.draft) = (rows, columns, Some(Vec::new()), true);
        })));
    }
    if has("draft") {
        // All products of a token's step: those of a GEMV.
        let columns = usize::from(args.npu_columns);
        let work = Some(NpuWork::ALL.to_vec());
        return Ok(Some(requested.with(|npu| (npu.rows, npu.columns, npu.work) = (1, columns, work))));
    }
    let work = NpuWork::ALL.into_iter().filter(|work| has(work.name())).collect();
    Ok(Some(requested.with(|npu| {
        npu.rows = usize::from(args.npu_rows);
        npu.columns = usize::from(args.npu_columns);
        npu.work = (!args.npu_for.is_empty()).then_some(work);
    })))
}

/// Prints the reasons for each shape's program and place. The decisions themselves are lines of every report.
pub fn explain(programs: &[String]) -> Result<(), CompileError> {
    say(&programs.iter().map(|program| format!("{program}\n\n")).collect::<String>())
}

/// Writes the files of each shape beside the output, or prints the readable texts if there is no output.
pub fn write_programs(
    args: &Args,
    source: Source,
    options: &CompileOptions,
    bars: &mut Bars,
) -> Result<(), CompileError> {
    let Some(wanted) = &options.npu else {
        let what = "form mlir is of NPU programs, expected --npu phoenix with it".into();
        return Err(CompileError::Option { option: "emit", what });
    };
    if args.npu_peano.is_some() {
        let what =
            "form mlir has no machine code of the cores, expected an artifact for it: -o FILE without --emit mlir"
                .into();
        return Err(CompileError::Option { option: "npu_peano", what });
    }
    let planned = plan(source, options, bars)?;
    let texts = npu_mlir(&planned, wanted, &args.npu_dialect)?;
    bars.finish();
    for program in &texts.programs {
        let Some(output) = &args.output else {
            say(&program.readable)?;
            // Beside printed texts, which something may read.
            if args.explain {
                note(&program.explanation);
            }
            continue;
        };
        let named = |extension: &str| -> PathBuf { output.with_extension(format!("{}.{extension}", program.name)) };
        let (readable, generic, instructions) = (named("mlir"), named("generic.mlir"), named("insts.bin"));
        write_text(&readable, &program.readable)?;
        write_text(&generic, &program.generic)?;
        write_bytes(&instructions, &program.instructions)?;
        let mut written = vec![readable, generic, instructions];
        for (extension, bytes) in &program.control {
            let file = named(extension);
            write_bytes(&file, bytes)?;
            written.push(file);
        }
        if !args.quiet {
            let written: Vec<String> = written.iter().map(|file| file.display().to_string()).collect();
            say(&format!(
                "{}\n  written            {}\n  control part       without machine code of the cores, which needs Peano\n",
                program.explanation,
                written.join(", ")
            ))?;
        }
    }
    if !args.quiet {
        texts.without.iter().for_each(|what| note(&format!("without an NPU program: {what}")));
    }
    Ok(())
}
