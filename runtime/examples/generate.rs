//! Token ids in, token ids out:
//!
//! ```text
//! UNICORN_DEVICE=llvmpipe cargo run --release -p unicorn-runtime --example generate -- model.unicorn 1 42 7
//! ```

use std::error::Error;
use std::path::Path;

use unicorn_runtime::{LoadOptions, Model, Sampling};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let artifact = arguments.next().ok_or("usage: generate ARTIFACT TOKEN…")?;
    let prompt = arguments.map(|token| token.parse()).collect::<Result<Vec<u32>, _>>()?;
    // A number or a part of a name; without it, the best GPU.
    let device = std::env::var("UNICORN_DEVICE").unwrap_or_default().parse()?;
    let options = LoadOptions::default().with(|options| options.device = device);
    let model = Model::load(Path::new(&artifact), &options)?;

    let mut session = model.session()?;
    let greedy = Sampling::default();
    let first = session.feed_and_sample(&prompt, &greedy)?.token;
    let mut tokens = vec![first];
    for sampled in session.generate(first, &greedy, 15) {
        tokens.push(sampled?.token);
    }
    println!("{tokens:?}");
    Ok(())
}
