//! Load for as long as requested: clients that have the expected answers, some that disconnect. Afterwards memory, descriptors and KV pages are what
//! they were before.

use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Row;
use super::greedy::GreedyPrompt;
use crate::http::begin_post;
use crate::server::Server;

/// How much load, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct SoakOptions {
    /// Clients at a time, each with a request.
    pub clients: usize,
    /// Sequences of the server.
    pub parallel: usize,
    /// How long clients begin requests.
    pub duration: Duration,
    /// Tokens of an answer.
    pub tokens: usize,
    /// How often figures are printed.
    pub report_every: Duration,
}

/// What a soak found.
pub struct Soak {
    /// Right answers, and what went wrong.
    pub row: Row,
    /// Answers that differ from the one known before by a tie of two tokens: right ones, too.
    pub tied_answers: usize,
    /// The server's resources before and after.
    pub figures: [Figures; 2],
}

/// Resources of the server while it has nothing to do and each of its sequences holds a short prompt.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// KV pages in use.
    pub kv_pages: u64,
}

/// Growth of memory that allocators and drivers may keep.
const MAX_GROWTH_BYTES: u64 = 32 << 20;
const TEXT: &str = "/v1/completions";
/// Number of requests after which a client disconnects in the middle of one.
const DISCONNECTS_EVERY: u64 = 8;

/// Starts a server by `command` and loads it. The model's greedy answers are requested before, one at a time.
///
/// # Panics
/// When the server does not start.
pub fn soak(mut command: Command, artifact: &Path, options: &SoakOptions) -> Soak {
    let folder = tempfile::tempdir().expect("a temporary folder");
    command.env("XDG_RUNTIME_DIR", folder.path());
    let parallel = options.parallel.to_string();
    let server = Server::start(command, artifact, &["--parallel", &parallel, "--ctx", "1024"]);
    let status_file = folder.path().join(format!("unicorn/{}.json", server.child.id()));
    let known = known_answers(&server, options);
    let before = settle(&server, options, &status_file);
    let row = Row::of("known answers under load", |row| {
        let findings = Mutex::new(Vec::new());
        let right = AtomicU64::new(0);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for client in 0..options.clients {
                let (server, known, findings, right) = (&server, &known, &findings, &right);
                scope.spawn(move || {
                    for number in 0.. {
                        if begun.elapsed() > options.duration {
                            return;
                        }
                        let prompt = &known[(client * 31 + number as usize * 17) % known.len()];
                        if (client as u64 + number).is_multiple_of(DISCONNECTS_EVERY) {
                            disconnect(server, &prompt.text, number);
                            continue;
                        }
                        match prompt.ask(server) {
                            Ok(()) => drop(right.fetch_add(1, Ordering::Relaxed)),
                            // The time shows whether the server was full.
                            Err(error) => {
                                add(findings, format!("{error} after {:.1} s", begun.elapsed().as_secs_f64()));
                            }
                        }
                    }
                });
            }
            scope.spawn(|| {
                let mut next = options.report_every;
                while begun.elapsed() < options.duration {
                    if begun.elapsed() >= next {
                        next += options.report_every;
                        println!(
                            "{:>6.0} s  {:>8} right  {}",
                            begun.elapsed().as_secs_f64(),
                            right.load(Ordering::Relaxed),
                            figures(&server, &status_file)
                        );
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        });
        row.inputs = right.into_inner();
        row.findings = findings.into_inner().expect("no client panics while it adds");
    });
    let after = settle(&server, options, &status_file);
    let tied_answers = known.iter().map(GreedyPrompt::n_tied).sum();
    let mut soak = Soak { row, tied_answers, figures: [before, after] };
    soak.compare();
    soak
}

impl Soak {
    fn compare(&mut self) {
        let [before, after] = self.figures;
        let findings = &mut self.row.findings;
        if after.resident_bytes > before.resident_bytes + MAX_GROWTH_BYTES {
            findings.push(format!("memory grew from {before} to {after}"));
        }
        if after.descriptors > before.descriptors || after.kv_pages != before.kv_pages {
            findings.push(format!("descriptors or pages changed from {before} to {after}"));
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Figures { resident_bytes, descriptors, kv_pages } = self;
        write!(f, "{} MiB resident, {descriptors} descriptors, {kv_pages} KV pages", resident_bytes >> 20)
    }
}

/// Prompts that repeat a pattern, whose continuation a model is sure of, with their greedy answers.
fn known_answers(server: &Server, options: &SoakOptions) -> Vec<GreedyPrompt> {
    let words = ["sea", "ship", "sun", "tree", "house", "king", "road", "bird", "stone", "river", "cloud", "fire"];
    let patterns = words.iter().zip(words.iter().cycle().skip(1));
    let prompts = patterns.map(|(one, other)| format!("the {one} and the {other}, ").repeat(6));
    let first = |prompt| GreedyPrompt::ask_first(server, prompt, options.tokens);
    prompts.map(|prompt| first(prompt).unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// Gives every sequence a short prompt of its own, and waits until the server has nothing to do. No prompt begins
/// with half of another's tokens: it would go to that one's sequence, and other sequences would keep their earlier prompts.
fn settle(server: &Server, options: &SoakOptions, status_file: &Path) -> Figures {
    for number in 0..2 * options.parallel {
        let letter = char::from_u32('Ā' as u32 + number as u32).expect("a letter");
        let _ = GreedyPrompt::ask_first(server, format!("{letter} is a letter, {letter}{letter} are two"), 1);
    }
    let is_idle = || read_status(status_file).is_some_and(|status| status["doing"] == "idle" && status["queue"] == 0);
    let begun = Instant::now();
    while !is_idle() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(50));
    }
    // The server releases closed connections a moment later.
    std::thread::sleep(Duration::from_millis(500));
    figures(server, status_file)
}

fn figures(server: &Server, status_file: &Path) -> Figures {
    Figures {
        resident_bytes: server.figure("VmRSS"),
        descriptors: server.descriptors(),
        kv_pages: read_status(status_file).and_then(|status| status["kv_pages_used"].as_u64()).unwrap_or(0),
    }
}

fn read_status(file: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// Requests more than it reads, and disconnects after a few bytes.
fn disconnect(server: &Server, prompt: &str, number: u64) {
    let request = json!({"prompt": prompt, "temperature": 0, "stream": true}).to_string();
    let mut some = vec![0; 1 + number as usize * 37 % 1000];
    let _ = begin_post(&server.address, TEXT, &request).read(&mut some);
}

/// Adds a finding once, however often it occurs.
fn add(findings: &Mutex<Vec<String>>, finding: String) {
    let mut findings = findings.lock().expect("no client panics while it adds");
    if !findings.contains(&finding) {
        findings.push(finding);
    }
}
