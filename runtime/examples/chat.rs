//! A chat on standard input and output, a line a message, with the most tokens of an answer:
//!
//! ```text
//! UNICORN_DEVICE=llvmpipe cargo run --release -p unicorn-runtime --example chat -- model.unicorn 100
//! ```

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::path::Path;

use unicorn_text::unicorn_runtime::{LoadOptions, Model};
use unicorn_text::{Chat, ChatOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let artifact = arguments.next().ok_or("usage: chat ARTIFACT [MOST TOKENS]")?;
    let max_tokens = arguments.next().map(|number| number.parse()).transpose()?;
    // A number or a part of a name; without it, the best GPU.
    let device = std::env::var("UNICORN_DEVICE").unwrap_or_default().parse()?;
    let options = LoadOptions::default().with(|options| options.device = device);
    let model = Model::load(Path::new(&artifact), &options)?;

    let mut options = ChatOptions::default();
    options.max_tokens = max_tokens;
    let mut chat = Chat::new(&model, options)?;
    let mut stdout = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let mut answer = chat.ask(&line?)?;
        for piece in &mut answer {
            stdout.write_all(piece?.as_bytes())?;
            stdout.flush()?;
        }
        if let Some(reason) = answer.end_reason() {
            writeln!(stdout, "\n({})", reason.name())?;
        }
    }
    Ok(())
}
