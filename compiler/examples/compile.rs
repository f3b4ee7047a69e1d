//! Compiles a model from code, with progress: `cargo run --release -p unicorn-compiler --example compile -- MODEL OUT`.
//!
//! Ends early, and leaves nothing behind, when a file named `stop` appears in the current folder: a stand-in for a Cancel button.

use std::ops::ControlFlow;
use std::path::Path;

use unicorn_compiler::{CompileError, CompileOptions, Progress, Source, Stage, compile, targets};

/// Prints each stage, and how far it is in tenths.
#[derive(Default)]
struct Tenths {
    total: u64,
    done: u64,
}

impl Progress for Tenths {
    fn stage(&mut self, stage: Stage, total: u64) -> ControlFlow<()> {
        println!("{stage}");
        *self = Tenths { total: total.max(1), done: 0 };
        if Path::new("stop").exists() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn advance(&mut self, amount: u64) -> ControlFlow<()> {
        let tenth = |done: u64| 10 * done / self.total;
        if tenth(self.done + amount) > tenth(self.done) {
            println!("  {} %", 10 * tenth(self.done + amount));
        }
        self.done += amount;
        ControlFlow::Continue(())
    }
}

fn main() -> Result<(), CompileError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, output] = &arguments[..] else {
        eprintln!("usage: compile MODEL OUT");
        std::process::exit(2);
    };
    let mut options = CompileOptions::default();
    // Kernels for one kind of device are made sooner than for all.
    options.targets = targets().into_iter().filter(|target| target.name == "generic").collect();
    match compile(Source::Model(model.as_ref()), output.as_ref(), &options, &mut Tenths::default()) {
        Err(CompileError::Cancelled) => println!("cancelled"),
        result => {
            let report = result?;
            let seconds: f64 = report.seconds.iter().map(|(_, seconds)| seconds).sum();
            println!(
                "{}: {} bytes, {:.2} bits per weight, in {seconds:.1} s",
                report.architecture, report.artifact_bytes, report.bits_per_weight
            );
        }
    }
    Ok(())
}
