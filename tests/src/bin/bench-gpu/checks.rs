//! Correctness before speed: kernels against their twins, and whole models against transformers, on this device.

use std::process::Command;
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use crate::clock::Clock;
use crate::options::Options;

#[derive(Serialize)]
pub struct Check {
    pub name: &'static str,
    pub passed: bool,
    pub seconds: f64,
    /// The last output of the test program.
    pub words: String,
}

pub fn run(options: &Options, clock: &Clock) -> Vec<Check> {
    let device = options.device.clone().or_else(|| first_gpu(options, clock));
    let names = if options.quick { &["differential"][..] } else { &["differential", "e2e"] };
    names.iter().map(|name| check(options, clock, device.as_deref(), name)).collect()
}

/// Name of the first GPU: without a name, tests take the software device.
fn first_gpu(options: &Options, clock: &Clock) -> Option<String> {
    let listed = clock.run(Command::new(options.program("unicorn-run")).args(["devices", "--json"])).ok()?;
    let devices: Value = serde_json::from_str(&listed).ok()?;
    let gpu = devices.as_array()?.iter().find(|device| device["software"] == false)?;
    Some(gpu["name"].as_str()?.to_owned())
}

fn check(options: &Options, clock: &Clock, device: Option<&str>, name: &'static str) -> Check {
    let mut command = Command::new(options.program(name));
    command.env("UNICORN_TEST_MODELS", options.bundle.join("models"));
    if let Some(device) = device {
        command.env("UNICORN_DEVICE", device);
    }
    let begin = Instant::now();
    let result = clock.run(&mut command);
    let passed = result.is_ok();
    let output = result.unwrap_or_else(|problem| problem);
    let words = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let words = if passed { words.trim().to_owned() } else { output };
    Check { name, passed, seconds: begin.elapsed().as_secs_f64(), words }
}
