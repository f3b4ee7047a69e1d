//! `push`: an artifact into a registry.

use std::fmt::{self, Display};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use unicorn_artifact::account::size;
use unicorn_artifact::printable::printable;
use unicorn_compiler::check_is_artifact;
use unicorn_registry::{OciReference, PushOptions, Pushed, RegistryError, SigningKey};
use unicorn_terminal::shows_bars;

use crate::args::PushArgs;
use crate::explain::explain;
use crate::print;

/// Sends the artifact; an error is a message for people.
pub fn run(args: &PushArgs) -> Result<(), String> {
    check_is_artifact(&args.artifact).map_err(|error| explain(&error))?;
    let reference: OciReference = args.reference.parse().map_err(in_words)?;
    let is_shown = !args.quiet && !args.json && shows_bars();
    let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(None, target);
    let style = ProgressStyle::with_template("pushing {wide_bar} {bytes}/{total_bytes} {eta}");
    bar.set_style(style.expect("a constant template"));
    let progress = |transfer: unicorn_registry::Transfer| {
        bar.set_length(transfer.total_bytes);
        bar.set_position(transfer.done_bytes);
    };
    let key = args.sign.as_ref().map(|key| SigningKey::read(key, &args.certificates)).transpose().map_err(in_words)?;
    let mut options = PushOptions::default();
    (options.plain_http, options.signing_key, options.progress) = (args.plain_http, key.as_ref(), &progress);
    let pushed = unicorn_registry::push(&args.artifact, &reference, &options);
    bar.finish_and_clear();
    let report = Report::new(&reference, pushed.map_err(in_words)?);
    print(args.json, args.quiet, &report).map_err(|error| explain(&error))
}

/// The message, and the option that helps.
fn in_words(error: RegistryError) -> String {
    let next = if matches!(error, RegistryError::NoTls { .. }) { ": --plain-http" } else { "" };
    printable(&error.to_string()).into_owned() + next
}

#[derive(Serialize)]
struct Report {
    reference: String,
    digest: String,
    artifact_bytes: u64,
    pushed_bytes: u64,
}

impl Report {
    fn new(reference: &OciReference, pushed: Pushed) -> Report {
        let Pushed { digest, total_bytes, moved_bytes } = pushed;
        Report { reference: reference.to_string(), digest, artifact_bytes: total_bytes, pushed_bytes: moved_bytes }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  pushed    {} of {}; the registry had the rest",
            size(self.pushed_bytes),
            size(self.artifact_bytes)
        )?;
        writeln!(f, "  manifest  {}", self.digest)?;
        write!(f, "  run it    unicorn-run {}", self.reference)
    }
}
