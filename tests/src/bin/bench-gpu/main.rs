//! What `bench-gpu.sh` runs on a machine with a GPU, out of the bundle that `cargo xtask bench-gpu` makes: correctness
//! first, then Unicorn and llama.cpp on the same shapes in the same run, then one table.
//!
//! ```text
//! options ─► checks: differential, e2e ─► perplexity with real weights ─► each shape: ours, llama.cpp ─► report: Markdown and JSON, rewritten as it grows
//! ```

mod options;

mod checks;
mod clock;
mod llama;
mod ours;
mod perplexity;
mod scratch;

mod report;

use std::process::ExitCode;

use clock::Clock;
use options::Options;
use report::Report;

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything that ran went well. What went wrong is in the report, beside what did not. Where text is wrong, nothing is
/// timed.
fn run(options: &Options) -> Result<bool, String> {
    std::fs::create_dir_all(&options.output).map_err(|error| format!("{}: {error}", options.output.display()))?;
    let clock = Clock::start(options);
    let mut report = Report::default();
    if options.check {
        report.checks = checks::run(options, &clock);
        report.write(&options.output)?;
    }
    match perplexity::measure(options, &clock) {
        Ok(found) => report.perplexity = Some(found),
        Err(problem) => report.problem("perplexity", "ours", problem),
    }
    report.write(&options.output)?;
    // Nothing is timed, and no table printed, on a device that does not compute what others do.
    let shapes = if report.text_is_right() { &options.shapes[..] } else { &[] };
    for shape in shapes {
        if let Err(problem) = ours::measure(options, &clock, shape, &mut report) {
            report.problem(shape, "ours", problem);
        }
        report.write(&options.output)?;
        if let Some(llama) = &options.llama {
            if let Err(problem) = llama::measure(options, &clock, llama, shape, &mut report) {
                report.problem(shape, "llama.cpp", problem);
            }
            report.write(&options.output)?;
        }
    }
    print!("{}", report.markdown());
    Ok(report.is_sound())
}
