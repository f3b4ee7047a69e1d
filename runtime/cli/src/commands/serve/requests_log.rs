//! A line on stderr for each request, from unicorn-serve's events.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::args::LogFormat;

/// Logs requests from now on. Events of other libraries are left out.
pub fn begin(format: LogFormat) {
    let ours = Targets::new().with_target("unicorn_serve", LevelFilter::INFO);
    let lines = fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal()).with_target(false);
    let registry = registry().with(ours);
    match format {
        LogFormat::Text => registry.with(lines).init(),
        LogFormat::Json => registry.with(lines.json().with_span_list(false)).init(),
    }
}
