//! `unicorn-run serve`: unicorn-serve until Ctrl-C, or until SIGTERM and the end of the answers that are being generated then.

mod requests_log;
mod several;
#[cfg_attr(not(feature = "otlp"), path = "traces_disabled.rs")]
mod traces;
mod vertex;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use unicorn_runtime::{DraftUse, Model};
use unicorn_serve::axum::Router;
use unicorn_serve::{
    Activity, HttpAddress, HttpLimits, HttpListener, HttpServing, KvCacheOptions, ServeError, ServeOptions, Server,
    TlsIdentity,
};

use crate::args::{ReasoningFormatOption, ReasoningOption, ServeArgs};
use crate::error::CliError;
use crate::explain;
use crate::load::{Serving, load_speculation, load_to_serve, note_recoveries, packed_draft_use, read, sequences};
use crate::models::{self, Input};
use crate::monitor::status::{self, State, StatusWriter};
use crate::report::text::printable;
use crate::sandbox::{self, Files};
use crate::terminal::interrupt;
use crate::terminal::output::{Verbosity, note, verbosity};
use traces::Traces;

/// Serves until Ctrl-C, or until SIGTERM and the end of answers.
pub fn run(args: &ServeArgs) -> Result<(), CliError> {
    match args.artifact.as_deref() {
        Some(model) if args.sleep_idle_seconds.is_some() => several::run_one(args, model),
        Some(model) => one_model(args, model),
        None => several::run(args),
    }
}

fn one_model(args: &ServeArgs, model: &Path) -> Result<(), CliError> {
    let artifact = &models::artifact(model, &args.load, Input::Text)?;
    // Errors that can be found before a minute of loading.
    refuse_synthetic(artifact)?;
    let Prepared { mut options, listeners, traces: _traces } = prepare(args)?;
    options.model_path = Some(model.display().to_string());
    let serving = serving_of(args);
    let model = load_to_serve(artifact, &serving)?;
    options.model_name = args.model_name().cloned();
    options.aliases.clone_from(&args.alias);
    options.tags.clone_from(&args.tags);
    if !args.deterministic {
        options.speculation = load_speculation(&args.speculation, artifact, &args.load, &model)?;
    }
    let server = Server::new(&model, options)?;

    let stopper = server.stopper();
    let serving = stop_by_signals(args, move || stopper.stop())?;
    // Its folder is created before files are restricted.
    let status = StatusWriter::new(&model);
    if args.sandbox {
        enter_sandbox(args, &[artifact])?;
    }
    serve_at(listeners, args, &serving, &server.router(), |address| {
        format!(
            "serving {} at {address}/v1: {}",
            printable(args.model_name().unwrap_or(&model.meta().model.name)),
            sequences(&model)
        )
    })?;
    run_with_status(&model, server, status);
    Ok(())
}

fn serving_of(args: &ServeArgs) -> Serving {
    Serving {
        load: args.load.clone(),
        slots: args.parallel,
        context_tokens: args.context_tokens(),
        min_context_tokens: None,
        kv_capacity: args.kv_capacity(),
        draft: if args.deterministic { DraftUse::Unused } else { packed_draft_use(&args.speculation) },
    }
}

/// Generates until the server is stopped, and shows what it does to `top`.
fn run_with_status(model: &Model, server: Server, mut status: StatusWriter) {
    server.run(&mut |activity| {
        status.set(state(activity), activity.waiting, model);
        if activity.new_tokens > 0 {
            status.add_tokens(activity.new_tokens.into(), model);
        }
        note_recoveries(model);
    });
}

/// What does not depend on the model.
struct Prepared {
    options: ServeOptions,
    /// Sockets at the addresses, which are taken before anything is loaded.
    listeners: Vec<HttpListener>,
    /// Kept until the server has ended.
    traces: Option<Traces>,
}

fn prepare(args: &ServeArgs) -> Result<Prepared, CliError> {
    if let Some(format) = args.log {
        requests_log::begin(format);
    }
    let traces = Traces::begin(args)?;
    let api_keys = api_keys(args)?;
    let listeners = bind(args)?;
    let mut addresses = listeners.iter().filter_map(|listener| listener.address().tcp());
    let mut options = ServeOptions::default();
    options.sampling = args.sampling.resolve();
    (options.seed, options.max_tokens) = (args.sampling.seed, args.max_tokens());
    options.speculation = args.speculation.resolve(None)?;
    options.template_arguments = args.chat_template_kwargs.clone().unwrap_or_default();
    let file = args.chat_template_file.as_deref().unwrap_or(Path::new(""));
    options.chat_template = args.template().map_err(|error| CliError::at(file, error))?;
    options.reasoning_budget = u32::try_from(args.reasoning_budget).ok();
    options.reasoning_budget_message = args.reasoning_budget_message.clone().unwrap_or_default();
    options.reasoning = args.reasoning != ReasoningOption::Off && options.reasoning_budget != Some(0);
    options.splits_reasoning = args.reasoning_format != ReasoningFormatOption::None;
    (options.verbose, options.batch_tokens) = (verbosity() == Verbosity::Verbose, args.batch_size);
    (options.deterministic, options.checkpoints) = (args.deterministic, args.ctx_checkpoints);
    if args.deterministic && args.speculation.is_requested() {
        return Err(CliError::new(
            "--deterministic cannot be used with speculation: leave out --spec-type and --model-draft",
        ));
    }
    if let Some(folder) = &args.kv_cache {
        std::fs::create_dir_all(folder).map_err(|error| {
            CliError::at(folder, format_args!("{error}; expected a folder that can be made: --kv-cache DIR"))
        })?;
    }
    let max_bytes = args.kv_cache_size;
    options.kv_cache = args.kv_cache.clone().map(|folder| KvCacheOptions { folder, max_bytes });
    options.vertex = vertex::paths();
    (options.max_queue, options.timeout) = (args.max_queue, Duration::from_secs(args.timeout));
    // An address that means all addresses of the machine includes the others.
    options.address = addresses.clone().find(|address| address.ip().is_unspecified()).or(addresses.next());
    // Where --host is a name, or there are several.
    options.allowed_hosts = args.allowed_host.iter().chain(&args.host).cloned().collect();
    options.cors.clone_from(&args.cors);
    (options.api_keys, options.metrics) = (api_keys, args.metrics);
    options.embeddings = args.embeddings.then(|| args.pooling.pooling());
    options.reranking = args.reranking;
    (options.slots, options.page) = (args.slots || !args.no_slots, !args.no_webui);
    options.observer = traces.as_ref().map(Traces::observer);
    options.how_to_enable = explain::how_to_enable;
    Ok(Prepared { options, listeners, traces })
}

/// The sockets that are being served, which SIGTERM drains.
type Listening = Arc<Mutex<Vec<HttpServing>>>;

/// Ctrl-C stops at once, SIGTERM after the answers that are being generated.
fn stop_by_signals(args: &ServeArgs, stop: impl Fn() + Clone + Send + 'static) -> Result<Listening, CliError> {
    let stop_now = stop.clone();
    interrupt::catch_with(stop_now)?;
    let serving = Listening::default();
    drain_at_sigterm(stop, serving.clone(), Duration::from_secs(args.drain));
    Ok(serving)
}

/// Begins to answer, and notes it for each address.
fn serve_at(
    listeners: Vec<HttpListener>,
    args: &ServeArgs,
    serving: &Listening,
    routes: &Router,
    note_of: impl Fn(&str) -> String,
) -> Result<(), CliError> {
    let mut limits = HttpLimits::default();
    (limits.max_connections, limits.timeout) = (args.max_connections, Duration::from_secs(args.timeout));
    for listener in listeners {
        let scheme = if args.ssl_cert_file.is_some() { "https" } else { "http" };
        let address = match listener.address() {
            HttpAddress::Tcp(address) => format!("{scheme}://{address}"),
            HttpAddress::Unix(path) => format!("{scheme}+unix://{}", path.display()),
            _ => unreachable!("there are no others"),
        };
        let refused = |error| CliError::new(format!("cannot serve at {address}: {error}"));
        let begun = listener.serve("http", routes.clone(), limits).map_err(refused)?;
        serving.lock().unwrap_or_else(PoisonError::into_inner).push(begun);
        note(format_args!("{}", note_of(&address)));
    }
    Ok(())
}

/// The sockets of systemd, if it passed some; else those at all hosts. Where any port will do, all have the first one's.
fn bind(args: &ServeArgs) -> Result<Vec<HttpListener>, CliError> {
    let passed = HttpListener::inherited();
    let mut listeners = passed.map_err(|error| CliError::new(format!("sockets of LISTEN_FDS: {error}")))?;
    let hosts = if listeners.is_empty() { &args.host[..] } else { &[] };
    for host in hosts {
        let first = listeners.iter().find_map(|listener| listener.address().tcp());
        let port = first.map_or_else(|| vertex::port().unwrap_or(args.port), |first| first.port());
        let is_file = host.ends_with(".sock");
        let bound =
            if is_file { HttpListener::bind_unix(Path::new(host)) } else { HttpListener::bind((host.as_str(), port)) };
        let place = if is_file { host.clone() } else { format!("{host} port {port}") };
        listeners.push(bound.map_err(|error: io::Error| CliError::new(format!("cannot serve at {place}: {error}")))?);
    }
    let (Some(certificate), Some(key)) = (&args.ssl_cert_file, &args.ssl_key_file) else { return Ok(listeners) };
    let identity = TlsIdentity::read(certificate, key).map_err(CliError::new)?;
    Ok(listeners.into_iter().map(|listener| listener.with_tls(identity.clone())).collect())
}

/// Keys of the command line and of the file. A file without keys is an error: the server would be open.
fn api_keys(args: &ServeArgs) -> Result<Vec<String>, CliError> {
    let mut keys: Vec<String> = args.api_key.iter().filter(|key| !key.is_empty()).cloned().collect();
    if let Some(path) = &args.api_key_file {
        let text = std::fs::read_to_string(path).map_err(|error| CliError::at(path, error))?;
        let before = keys.len();
        keys.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        if keys.len() == before {
            return Err(CliError::at(path, "expected a key in each line, found none"));
        }
    }
    Ok(keys)
}

fn enter_sandbox(args: &ServeArgs, artifacts: &[&Path]) -> Result<(), CliError> {
    let refused =
        |error| CliError::new(format!("--sandbox: kernel refuses {error}; without the option, nothing is restricted"));
    let status = status::location().folder;
    let written: Vec<&Path> = [status.as_path()].into_iter().chain(args.kv_cache.as_deref()).collect();
    match sandbox::enter(artifacts, &written).map_err(refused)? {
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

/// SIGTERM, which service managers and containers send: new connections are refused, answers that are being generated have
/// `time` to end, and then the server stops; a second one stops it at once. Where it cannot be caught, it ends the process.
fn drain_at_sigterm(stop: impl Fn() + Clone + Send + 'static, serving: Listening, time: Duration) {
    if !interrupt::has_thread() {
        return;
    }
    if let Ok(mut signals) = Signals::new([SIGTERM]) {
        let waiting = thread::Builder::new().name("signals".into()).spawn(move || {
            let mut received = signals.forever();
            if received.next().is_none() {
                return;
            }
            note(format_args!("SIGTERM: answers that are being generated have {} s to end", time.as_secs()));
            let until_drained = stop.clone();
            let drain = move || {
                let until = Instant::now() + time;
                for one in serving.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                    one.drain(until.saturating_duration_since(Instant::now()));
                }
                until_drained();
            };
            if thread::Builder::new().name("drain".into()).spawn(drain).is_err() || received.next().is_some() {
                stop();
            }
        });
        drop(waiting);
    }
}

/// Synthetic weights are not served: the note about them goes to stderr, which clients do not get.
fn refuse_synthetic(artifact: &Path) -> Result<(), CliError> {
    let model = read(artifact, |view| view.meta.model.synthetic.then(|| view.meta.model.name.clone()))?;
    match model {
        None => Ok(()),
        Some(model) => {
            let error = ServeError::SyntheticWeights { model };
            Err(CliError::at(artifact, format!("{error}; `bench` and `profile` take these")))
        }
    }
}
