//! Correctness before speed: kernels against their twins, and whole models against transformers, on this device.

use std::process::Command;
use std::time::Instant;

use serde::Serialize;

use crate::clock::Clock;
use crate::options::Options;

#[derive(Serialize)]
pub struct Check {
    pub name: &'static str,
    pub passed: bool,
    pub seconds: f64,
    /// The test program's last words.
    pub words: String,
}

pub fn run(options: &Options, clock: &Clock) -> Vec<Check> {
    let names = if options.quick { &["differential"][..] } else { &["differential", "e2e"] };
    names.iter().map(|name| check(options, clock, name)).collect()
}

fn check(options: &Options, clock: &Clock, name: &'static str) -> Check {
    let mut command = Command::new(options.program(name));
    command.env("UNICORN_TEST_MODELS", options.bundle.join("models"));
    // Without a name, tests take the software device; a GPU is there first.
    command.env("UNICORN_DEVICE", options.device.as_deref().unwrap_or("0"));
    let begin = Instant::now();
    let result = clock.run(&mut command);
    let passed = result.is_ok();
    let said = result.unwrap_or_else(|problem| problem);
    let words = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let words = if passed { words.trim().to_owned() } else { said };
    Check { name, passed, seconds: begin.elapsed().as_secs_f64(), words }
}
