//! Without the feature `otlp` no request becomes a span.

use std::sync::Arc;

use unicorn_serve::RequestObserver;

use crate::args::ServeArgs;
use crate::error::CliError;

/// There is none.
pub enum Traces {}

impl Traces {
    /// Nothing, unless it was asked for.
    ///
    /// # Errors
    /// When it was asked for, with how a program is built that can do it.
    pub fn begin(args: &ServeArgs) -> Result<Option<Traces>, CliError> {
        match args.traces_endpoint() {
            None => Ok(None),
            Some(_) => Err(CliError::new(
                "--otlp-traces-endpoint: this program was built without it: cargo build --release -p unicorn-run --features otlp",
            )),
        }
    }

    /// What makes a span of each request.
    pub fn observer(&self) -> Arc<dyn RequestObserver> {
        match *self {}
    }
}
