//! `load MODEL ARRIVALS[,ARRIVALS…] NAME=HOST:PORT… [--requests N] [--max-tokens N] [--first-prompt N] [--common-words N] [--regex REGEX | --json-schema JSON]`:
//! puts the same load on servers of OpenAI's API, one after the other, and prints a table. ARRIVALS is a number of clients, such as `32`, or of requests a second
//! at random, such as `4/s`. Prompts begin with 200 common words unless `--common-words` says otherwise, and go on differently, from number `--first-prompt` (0) on: a
//! number that was sent before may be in a server's cache. Answers match the expression or the schema; one that has no end, such as `[a-z ]*` or a list of a
//! thousand items, leaves them their length.

use std::process::ExitCode;

use serde_json::Value;
use tests::load::{Arrivals, Load, Seen};

const USAGE: &str =
    "usage: load MODEL ARRIVALS[,ARRIVALS…] NAME=HOST:PORT… [--requests N] [--max-tokens N] [--first-prompt N]
                 [--common-words N] [--regex REGEX | --json-schema JSON]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments) {
        Some((model, loads, servers)) => measure(model, &loads, &servers),
        None => {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        }
    }
}

type Servers<'a> = Vec<(&'a str, &'a str)>;

fn parse(arguments: &[String]) -> Option<(&str, Vec<Load>, Servers<'_>)> {
    let [model, arrivals, rest @ ..] = arguments else { return None };
    let (mut requests, mut max_tokens, mut structure) = (None, 128, None);
    let (mut first_prompt, mut common_words) = (0, 200);
    let mut servers = Vec::new();
    let mut rest = rest.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--requests" => requests = Some(rest.next()?.parse().ok()?),
            "--max-tokens" => max_tokens = rest.next()?.parse().ok()?,
            "--first-prompt" => first_prompt = rest.next()?.parse().ok()?,
            "--common-words" => common_words = rest.next()?.parse().ok()?,
            "--regex" => structure = Some(("guided_regex", Value::from(rest.next()?.as_str()))),
            "--json-schema" => structure = Some(("guided_json", rest.next()?.parse().ok()?)),
            server => servers.push(server.split_once('=')?),
        }
    }
    let load = |text: &str| {
        let arrivals = match text.strip_suffix("/s") {
            Some(rate) => Arrivals::PerSecond(rate.parse().ok().filter(|rate: &f64| *rate > 0.0)?),
            None => Arrivals::Clients(text.parse().ok()?),
        };
        let clients = if let Arrivals::Clients(clients) = arrivals { clients as u64 } else { 16 };
        let requests = requests.unwrap_or(4 * clients.max(4));
        let load = Load { arrivals, requests, max_tokens, first_prompt, common_words, structure: structure.clone() };
        // No server has seen the next load's prompts.
        first_prompt += requests;
        Some(load)
    };
    let loads = arrivals.split(',').map(load).collect::<Option<_>>()?;
    (!servers.is_empty()).then_some((model, loads, servers))
}

fn measure(model: &str, loads: &[Load], servers: &[(&str, &str)]) -> ExitCode {
    println!("| server | load | {} |", Seen::COLUMNS);
    println!("|---|---|{}", "---|".repeat(Seen::COLUMNS.split(" | ").count()));
    let mut has_failed = false;
    for load in loads {
        for (name, address) in servers {
            let seen = load.put_on(address, model);
            let arrivals = match load.arrivals {
                Arrivals::Clients(clients) => format!("{clients} clients"),
                Arrivals::PerSecond(rate) => format!("{rate} requests/s"),
            };
            println!("| {name} | {arrivals} | {seen} |");
            for why in seen.failed().iter().take(2) {
                eprintln!("{name}: {why}");
            }
            has_failed |= !seen.failed().is_empty();
        }
    }
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
