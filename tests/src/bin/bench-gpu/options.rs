//! The command line of the bundle's script.

use std::path::PathBuf;

pub struct Options {
    /// The unpacked bundle.
    pub bundle: PathBuf,
    /// llama.cpp's folder in it; `None`: there is none, or llama.cpp is not timed.
    pub llama: Option<PathBuf>,
    /// Names of files in the bundle's `shapes`, without their ending.
    pub shapes: Vec<String>,
    /// As `unicorn-run --device` takes it.
    pub device: Option<String>,
    pub repetitions: u32,
    pub prompt_tokens: u32,
    pub generated_tokens: u32,
    /// Cached tokens of the tests that do not begin with an empty cache.
    pub depth_tokens: u32,
    /// As `unicorn-run bench -s` takes it.
    pub sequences: String,
    /// Steps of each batch.
    pub batch_tokens: u32,
    pub check: bool,
    /// Leaves out the longer of the checks.
    pub quick: bool,
    /// Time limits in seconds: of one command, and of all together.
    pub limit_s: u64,
    pub total_s: u64,
    /// Folder for the reports and, while they are needed, models.
    pub output: PathBuf,
}

const USAGE: &str = "\
usage: bench-gpu.sh [--shapes NAME,…] [--device NAME] [-r RUNS] [-p TOKENS] [-n TOKENS] [--depth TOKENS] [-s N,…]
                    [--batch-steps N] [--quick] [--no-check] [--no-llama] [--limit SECONDS] [--total SECONDS] [--output FOLDER]";

impl Options {
    /// # Errors
    /// A message with the first unknown argument and the known ones.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            bundle: PathBuf::new(),
            llama: None,
            shapes: ["smollm2-135m", "llama-3-8b", "gemma-3-27b"].map(String::from).to_vec(),
            device: None,
            repetitions: 3,
            prompt_tokens: 512,
            generated_tokens: 128,
            depth_tokens: 8192,
            sequences: "1,2,4,8,16,32,64".into(),
            batch_tokens: 32,
            check: true,
            quick: false,
            limit_s: 120,
            total_s: 560,
            output: "bench-gpu".into(),
        };
        let mut with_llama = true;
        let arguments: Vec<String> = arguments.collect();
        // First, so that explicit options override it, wherever they stand.
        if arguments.iter().any(|argument| argument == "--quick") {
            options.quick = true;
            options.repetitions = 1;
            options.sequences = "1,8,32".into();
        }
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let mut text = || arguments.next().ok_or(format!("{argument} needs a value\n{USAGE}"));
            match argument.as_str() {
                "--bundle" => options.bundle = text()?.into(),
                "--shapes" => options.shapes = text()?.split(',').map(String::from).collect(),
                "--device" => options.device = Some(text()?),
                "-r" => options.repetitions = number(&argument, &text()?)?,
                "-p" => options.prompt_tokens = number(&argument, &text()?)?,
                "-n" => options.generated_tokens = number(&argument, &text()?)?,
                "--depth" => options.depth_tokens = number(&argument, &text()?)?,
                "-s" => options.sequences = text()?,
                "--batch-steps" => options.batch_tokens = number(&argument, &text()?)?,
                "--limit" => options.limit_s = number(&argument, &text()?)?,
                "--total" => options.total_s = number(&argument, &text()?)?,
                "--output" => options.output = text()?.into(),
                "--no-check" => options.check = false,
                "--no-llama" => with_llama = false,
                "--quick" => {}
                other => return Err(format!("argument is unknown: {other}\n{USAGE}")),
            }
        }
        for shape in &options.shapes {
            let config = options.config(shape);
            if !config.is_file() {
                return Err(format!("shape is unknown: {shape}, expected {}", config.display()));
            }
        }
        let llama = options.bundle.join("llama");
        options.llama = Some(llama).filter(|llama| with_llama && llama.is_dir());
        Ok(options)
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.bundle.join("bin").join(name)
    }

    pub fn config(&self, shape: &str) -> PathBuf {
        self.bundle.join("shapes").join(format!("{shape}.json"))
    }
}

fn number<T: std::str::FromStr>(argument: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{argument} needs a number, found {text}\n{USAGE}"))
}
