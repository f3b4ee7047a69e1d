//! `unicorn-run serve`: unicorn-serve until Ctrl-C or SIGTERM.

use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use unicorn_serve::{Activity, HttpLimits, HttpListener, ServeError, ServeOptions, Server, Stopper};

use crate::args::ServeArgs;
use crate::error::CliError;
use crate::load::{load_to_serve, note_recoveries, read};
use crate::monitor::status::{self, State, StatusWriter};
use crate::report::text::printable;
use crate::sandbox::{self, Files};
use crate::terminal::interrupt;
use crate::terminal::output::note;

/// Serves until Ctrl-C or SIGTERM.
pub fn run(args: &ServeArgs) -> Result<(), CliError> {
    // Errors that can be found before a minute of loading.
    refuse_synthetic(args)?;
    let refused =
        |error: io::Error| CliError::new(format!("cannot serve at {} port {}: {error}", args.host, args.port));
    let listener = HttpListener::bind((args.host.as_str(), args.port)).map_err(refused)?;
    let address = listener.address();

    let model = load_to_serve(&args.artifact, &args.load, args.ctx, args.parallel)?;
    let mut options = ServeOptions::default();
    options.sampling = args.sampling.resolve();
    options.seed = args.sampling.seed;
    options.template_arguments = args.chat_template_kwargs.clone().unwrap_or_default();
    let mut limits = HttpLimits::default();
    (limits.max_connections, limits.timeout) = (args.max_connections, Duration::from_secs(args.timeout));
    (options.max_queue, options.timeout) = (args.max_queue, limits.timeout);
    options.address = Some(address);
    // Where --host is a name.
    options.allowed_hosts = args.allowed_host.iter().chain([&args.host]).cloned().collect();
    options.cors.clone_from(&args.cors);
    let server = Server::new(&model, options)?;

    let stopper = server.stopper();
    interrupt::catch_with(move || stopper.stop())?;
    stop_at_sigterm(server.stopper());
    let mut status = StatusWriter::new(&model);
    if args.sandbox {
        enter_sandbox(&args.artifact)?;
    }
    listener.serve("http", server.router(), limits).map_err(refused)?;
    note(format_args!(
        "serving {} at http://{address}/v1: {} sequences of {} tokens",
        printable(&model.meta().model.name),
        args.parallel,
        model.context_tokens()
    ));
    server.run(&mut |activity| {
        status.set(state(activity), activity.waiting, &model);
        if activity.new_tokens > 0 {
            status.add_tokens(activity.new_tokens.into(), &model);
        }
        note_recoveries(&model);
    });
    Ok(())
}

fn enter_sandbox(artifact: &Path) -> Result<(), CliError> {
    let refused =
        |error| CliError::new(format!("--sandbox: kernel refuses {error}; without the option, nothing is restricted"));
    match sandbox::enter(artifact, Some(&status::location().folder)).map_err(refused)? {
        Files::Restricted => {}
        Files::Unrestricted => note(format_args!("sandbox: kernel has no Landlock, so files are not restricted")),
    }
    Ok(())
}

fn state(activity: &Activity) -> State {
    match (activity.in_prefill + activity.waiting, activity.decoding) {
        (0, 0) => State::Idle,
        (_, 0) => State::Prefill,
        _ => State::Decode,
    }
}

/// SIGTERM, which service managers and containers send, stops as Ctrl-C does. Where it cannot be caught, it ends the process.
fn stop_at_sigterm(stopper: Stopper) {
    if !interrupt::has_thread() {
        return;
    }
    if let Ok(mut signals) = Signals::new([SIGTERM]) {
        let waiting = thread::Builder::new().name("signals".into()).spawn(move || {
            if signals.forever().next().is_some() {
                stopper.stop();
            }
        });
        drop(waiting);
    }
}

/// Synthetic weights are not served: the note about them goes to stderr, which clients do not see.
fn refuse_synthetic(args: &ServeArgs) -> Result<(), CliError> {
    let model = read(&args.artifact, |view| view.meta.model.synthetic.then(|| view.meta.model.name.clone()))?;
    match model {
        None => Ok(()),
        Some(model) => {
            let error = ServeError::SyntheticWeights { model };
            Err(CliError::at(&args.artifact, format!("{error}; `bench` and `profile` take these")))
        }
    }
}
