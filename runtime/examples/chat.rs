//! A chat on standard input and output, a line a message:
//!
//! ```text
//! UNICORN_DEVICE=llvmpipe cargo run --release -p unicorn-runtime --example chat -- model.unicorn
//! ```

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::path::Path;

use unicorn_text::unicorn_runtime::{LoadOptions, Model};
use unicorn_text::{Chat, ChatOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let artifact = std::env::args().nth(1).ok_or("usage: chat ARTIFACT")?;
    // A number or a part of a name; without it, the best GPU.
    let device = std::env::var("UNICORN_DEVICE").unwrap_or_default().parse()?;
    let options = LoadOptions::default().with(|options| options.device = device);
    let model = Model::load(Path::new(&artifact), &options)?;

    let mut chat = Chat::new(&model, ChatOptions::default())?;
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
