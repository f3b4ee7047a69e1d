//! Registers a model with Dynamo and serves it until SIGTERM.

use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let served = unicorn_dynamo::from_args(std::env::args_os()).map_err(|error| error.to_string()).and_then(
        |(engine, config)| dynamo_backend_common::run(Arc::new(engine), config).map_err(|error| format!("{error:#}")),
    );
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("unicorn-dynamo: {error}");
            ExitCode::FAILURE
        }
    }
}
