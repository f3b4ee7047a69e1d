//! Logits of given tokens: for each position the most likely next token, and the log-likelihood of the one that follows:
//!
//! ```text
//! UNICORN_DEVICE=llvmpipe cargo run --release -p unicorn-runtime --example logits -- model.unicorn 1 42 7
//! ```

use std::error::Error;
use std::path::Path;

use unicorn_runtime::{LoadOptions, Model};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let artifact = arguments.next().ok_or("usage: logits ARTIFACT TOKEN…")?;
    let tokens = arguments.map(|token| token.parse()).collect::<Result<Vec<u32>, _>>()?;
    let device = std::env::var("UNICORN_DEVICE").unwrap_or_default().parse()?;
    let options = LoadOptions::default().with(|options| options.device = device);
    let model = Model::load(Path::new(&artifact), &options)?;

    // Called once a position, in order, with one f32 for each entry of the vocabulary.
    model.session()?.feed_with_logits(&tokens, &mut |position, logits| {
        let likeliest = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or_default();
        let largest = logits[likeliest];
        let log_sum = logits.iter().map(|logit| (logit - largest).exp()).sum::<f32>().ln();
        match tokens.get(position as usize + 1) {
            Some(&next) => {
                let log_likelihood = logits[next as usize] - largest - log_sum;
                println!("{position}: likeliest {likeliest}, log-likelihood of {next} {log_likelihood:.4}");
            }
            None => println!("{position}: likeliest {likeliest}"),
        }
    })?;
    Ok(())
}
