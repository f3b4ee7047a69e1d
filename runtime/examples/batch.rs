//! Several sequences that share each step, so that weights are read once for all of them:
//!
//! ```text
//! UNICORN_DEVICE=llvmpipe cargo run --release -p unicorn-runtime --example batch -- model.unicorn 1 42 7
//! ```
//!
//! Each argument is the first token of a sequence.

use std::error::Error;
use std::path::Path;

use unicorn_runtime::{BatchRow, LoadOptions, Model, Sampling, Session};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let artifact = arguments.next().ok_or("usage: batch ARTIFACT TOKEN…")?;
    let first = arguments.map(|token| token.parse()).collect::<Result<Vec<u32>, _>>()?;
    let device = std::env::var("UNICORN_DEVICE").unwrap_or_default().parse()?;
    // Sequences that can exist at a time, each with room for a context.
    let options = LoadOptions::default().with(|options| {
        options.device = device;
        options.slots = first.len() as u32;
        options.context_tokens = Some(256);
    });
    let model = Model::load(Path::new(&artifact), &options)?;

    let greedy = Sampling::default();
    let mut sessions = first.iter().map(|_| model.session()).collect::<Result<Vec<Session>, _>>()?;
    let rows = sessions.iter_mut().zip(&first).map(|(session, &token)| BatchRow { session, token, sampling: &greedy });
    let mut sequences: Vec<Vec<u32>> = first.iter().map(|&token| vec![token]).collect();
    for step in model.generate_batch(rows, 15) {
        for (sequence, sampled) in sequences.iter_mut().zip(step?) {
            sequence.push(sampled.token);
        }
    }
    for sequence in sequences {
        println!("{sequence:?}");
    }
    Ok(())
}
