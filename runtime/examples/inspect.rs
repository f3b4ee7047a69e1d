//! Devices of this machine, and what a model takes of one:
//!
//! ```text
//! UNICORN_DEVICE=llvmpipe cargo run --release -p unicorn-runtime --example inspect -- model.unicorn
//! ```

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use unicorn_runtime::{LoadOptions, Model, devices};

fn main() -> Result<(), Box<dyn Error>> {
    let artifact = std::env::args().nth(1).ok_or("usage: inspect ARTIFACT")?;
    for device in devices()? {
        println!("device {device}");
    }
    let device = std::env::var("UNICORN_DEVICE").unwrap_or_default().parse()?;
    let options = LoadOptions::default().with(|options| options.device = device);
    let model = Model::load_with_progress(Path::new(&artifact), &options, &mut |done_bytes, total_bytes| {
        eprintln!("{done_bytes} of {total_bytes} bytes");
        ControlFlow::Continue(())
    })?;

    let (report, meta) = (model.report(), &model.meta().model);
    println!("{} parameters, vocabulary {}", meta.parameters, meta.vocab_size);
    println!("{} with kernels of {}", model.device(), report.target);
    println!("{} weight bytes, loaded in {:.2} s", report.weight_bytes, report.seconds_total);
    println!("context {} tokens, {} KV pages", model.context_tokens(), model.kv_pages().1);
    Ok(())
}
