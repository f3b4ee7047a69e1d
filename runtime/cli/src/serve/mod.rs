//! `unicorn-run serve`: an OpenAI-compatible server, whose sequences share each step.
//!
//! ```text
//!              thread "http"                                        main thread
//! client ──► routes ── request ──► prepare: tokens ──── Order ────► worker ──► Scheduler ──► Model
//!        ◄── reply (whole, or streamed) ◄──────────── Event ◄────── choice: tokens → text, until it stops
//! ```

mod answer;
mod desk;
mod refusal;
mod reply;
pub mod request;
mod routes;

mod choice;
mod stop_strings;
mod worker;

use std::path::Path;
use std::sync::{Arc, mpsc};

use tokio::signal::unix::{SignalKind, signal};

use super::args::ServeArgs;
use super::error::CliError;
use super::http::Place;
use super::interrupt;
use super::load::{load_to_serve, read};
use super::output::note;
use super::status::{self, StatusWriter};
use super::template::ChatTemplate;
use super::text::Text;
use desk::Desk;
use unicorn_runtime::scheduler::Scheduler;
use worker::{Order, Worker};

/// Answers until Ctrl-C, or until whoever started it asks it to end.
pub fn run(args: &ServeArgs) -> Result<(), CliError> {
    // What can be known before a minute of loading is.
    refuse_synthetic(&args.artifact)?;
    let at = (args.host.as_str(), args.port);
    let refused = |error| CliError::new(format!("nothing can be served at {} port {}: {error}", at.0, at.1));
    let place = Place::take(at).map_err(refused)?;
    let address = place.address();

    let model = load_to_serve(&args.artifact, &args.load, args.ctx, args.parallel)?;
    let section = model.tokenizer_section();
    let text = Arc::new(Text::open(section)?);
    let template = section.chat_template.is_some().then(|| ChatTemplate::open(section)).transpose()?;
    let scheduler = Scheduler::new(&model)?;
    let (orders, inbox) = mpsc::channel();

    let stop = orders.clone();
    interrupt::catch_with(move || drop(stop.send(Order::Stop)))?;
    let terminated = terminated(orders.clone());
    let desk = Desk::new(&model, text.clone(), template, args.sampling.clone(), orders);
    place.answer_beside("http", routes::routes(desk), terminated).map_err(refused)?;
    note(format_args!(
        "serving {} at http://{address}/v1: {} sequences of {} tokens",
        model.meta().model.name,
        args.parallel,
        model.context_tokens()
    ));
    let status = StatusWriter::new(status::folder(), &model);
    Worker { model: &model, text: &text, scheduler, status, inbox }.run();
    Ok(())
}

/// SIGTERM, which service managers and containers send, stops as Ctrl-C does. Where it cannot be caught, it ends the program.
async fn terminated(orders: mpsc::Sender<Order>) {
    if let Ok(mut signals) = signal(SignalKind::terminate()) {
        signals.recv().await;
        let _ = orders.send(Order::Stop);
    }
}

/// Random weights say nothing, and nobody who asks a server sees what `unicorn-run` says of them on stderr.
fn refuse_synthetic(artifact: &Path) -> Result<(), CliError> {
    match read(artifact, |view| view.meta.model.synthetic)? {
        false => Ok(()),
        true => Err(CliError::at(
            artifact,
            "weights are synthetic, good for timing and not for text: serve expects those of a trained model; `bench` and \
             `profile` take these",
        )),
    }
}
