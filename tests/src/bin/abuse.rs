//! `abuse UNICORN_RUN ARTIFACT [CLIENTS [MINUTES [UNICORN_COMPILE MODEL]]]`: abuses `unicorn-run serve`, and the compiler and the
//! loading of artifacts if it is given, prints a table, and ends with 1 if something was found. Needs nothing but the first two files, so
//! that it runs on any machine with a GPU; `UNICORN_DEVICE` names another device.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use tests::abuse::{
    Row, SoakOptions, compiler_kills, connections_permitted, cut_artifacts, deep_models, disconnects, foreign_pages,
    has_leases, huge_bodies, huge_prompts, idle_connections, kills, malformed_requests, mutated_ggufs, mutated_modules,
    mutated_plans, slow_bodies, soak,
};
use tests::server::Server;

const USAGE: &str = "usage: abuse UNICORN_RUN ARTIFACT [CLIENTS [MINUTES [UNICORN_COMPILE MODEL]]]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [program, artifact, numbers @ ..] = &arguments[..] else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let (numbers, compiler) = numbers.split_at(numbers.len().min(2));
    let numbers: Result<Vec<usize>, _> = numbers.iter().map(|number| number.parse()).collect();
    let Ok([clients, minutes]) =
        numbers.map(|given| [given.first().copied().unwrap_or(32), given.get(1).copied().unwrap_or(10)])
    else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let artifact = PathBuf::from(artifact);
    let command = || Command::new(program);
    let mut table = Table::begin();
    if let [compiler, model] = compiler {
        let (compiler, model) = (Path::new(compiler), Path::new(model));
        table.add(mutated_ggufs(compiler, 1000));
        table.add(compiler_kills(compiler, model, 20));
        table.add(deep_models(compiler));
        if has_leases(&artifact) {
            table.add(cut_artifacts(command(), &artifact, 50));
        }
        table.add(mutated_plans(300));
        table.add(mutated_modules(1000));
    }
    let timeout = Duration::from_secs(2);
    let options = ["--parallel", "2", "--ctx", "256", "--timeout", "2", "--max-connections", "200"];
    let server = Server::start(command(), &artifact, &options);
    table.add(malformed_requests(&server));
    table.add(foreign_pages(&server, 20));
    table.add(huge_prompts(&server, 10));
    table.add(huge_bodies(&server, 10));
    table.add(slow_bodies(&server, 100, timeout));
    table.add(idle_connections(&server, connections_permitted(1000), timeout));
    table.add(disconnects(&server, 500));
    drop(server);
    table.add(kills(command, &artifact, 20));
    let duration = Duration::from_secs(60 * minutes as u64);
    let report_every = Duration::from_secs(30);
    let soaked = soak(
        command(),
        &artifact,
        &SoakOptions { clients, parallel: clients.min(64), duration, tokens: 24, report_every },
    );
    table.add(soaked.row);
    let [before, after] = soaked.figures;
    println!("\nbefore: {before}\nafter:  {after}");
    println!("answers that differ from the known one by a tie of two tokens: {}", soaked.tied_answers);
    if table.has_findings { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Prints each row when its abuse ends, so that a run that is cut off leaves the rows before.
struct Table {
    has_findings: bool,
}

impl Table {
    fn begin() -> Table {
        println!("| abuse | inputs | findings | time |\n|---|---|---|---|");
        Table { has_findings: false }
    }

    fn add(&mut self, row: Row) {
        println!("{row}");
        self.has_findings |= !row.findings.is_empty();
    }
}
