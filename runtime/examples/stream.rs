//! Tokens as they are sampled, from a thread of their own, until another thread cancels:
//!
//! ```text
//! UNICORN_DEVICE=llvmpipe cargo run --release -p unicorn-runtime --example stream -- model.unicorn 1 42 7
//! ```

use std::error::Error;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use unicorn_runtime::{CancelToken, LoadOptions, Model, RunError, Sampling};

const TOKENS_BEFORE_CANCEL: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let artifact = arguments.next().ok_or("usage: stream ARTIFACT TOKEN…")?;
    let prompt = arguments.map(|token| token.parse()).collect::<Result<Vec<u32>, _>>()?;
    let device = std::env::var("UNICORN_DEVICE").unwrap_or_default().parse()?;
    let options = LoadOptions::default().with(|options| options.device = device);
    let model = Model::load(Path::new(&artifact), &options)?;

    let cancel = CancelToken::new();
    let mut session = model.session()?;
    session.set_cancel(cancel.clone());
    let (sender, receiver) = mpsc::channel();
    // The session owns its share of the model and moves to the thread.
    let worker = thread::spawn(move || {
        let sampling = Sampling::default().with(|sampling| {
            sampling.temperature = 0.8;
            sampling.top_k = 40;
        });
        let first = session.feed_and_sample(&prompt, &sampling)?.token;
        for sampled in session.generate(first, &sampling, u32::MAX) {
            if sender.send(sampled?.token).is_err() {
                break;
            }
        }
        Ok(())
    });
    for token in receiver.iter().take(TOKENS_BEFORE_CANCEL) {
        println!("{token}");
    }
    cancel.cancel();
    drop(receiver);
    match worker.join().expect("the worker does not panic") {
        Ok(()) | Err(RunError::Cancelled) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
