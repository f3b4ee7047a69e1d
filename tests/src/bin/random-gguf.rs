//! `random-gguf CONFIG.json OUT.gguf`: random weights of a shape, to time llama.cpp on: Q4_0, and MXFP4 in gpt-oss's experts.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use tests::random_gguf::Shape;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [config, out] = &arguments[..] else {
        eprintln!("error: arguments must be CONFIG.json OUT.gguf, found {arguments:?}");
        return ExitCode::FAILURE;
    };
    match write(config, out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn write(config: &str, out: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(config).map_err(|error| format!("{config}: {error}"))?;
    let json = serde_json::from_str(&text).map_err(|error| format!("{config}: {error}"))?;
    let shape = Shape::of_config(&json).map_err(|error| format!("{config}: {error}"))?;
    let written = std::fs::File::create(out).and_then(|file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        shape.write(&mut file)?;
        file.flush()
    });
    written.map_err(|error| format!("{out}: {error}"))
}
