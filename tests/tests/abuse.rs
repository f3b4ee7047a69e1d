//! A minute of abuse of `unicorn-run serve`: `cargo xtask abuse` does the same for longer.

use std::time::Duration;

use tests::abuse::{
    SoakOptions, connections_permitted, cut_artifacts, disconnects, foreign_pages, has_leases, huge_bodies,
    huge_prompts, idle_connections, kills, malformed_requests, slow_bodies, soak,
};
use tests::server::Server;
use tests::skip;
use tests::typed::{artifact, run};

#[test]
fn malformed_idle_and_disconnecting_clients_leave_nothing_behind() {
    let options = ["--parallel", "2", "--ctx", "128", "--timeout", "1", "--max-connections", "50"];
    let server = Server::start(run(&[]), &artifact(), &options);
    malformed_requests(&server).assert_clean();
    foreign_pages(&server, 1).assert_clean();
    huge_prompts(&server, 2).assert_clean();
    slow_bodies(&server, 20, Duration::from_secs(1)).assert_clean();
    idle_connections(&server, 150, Duration::from_secs(1)).assert_clean();
    disconnects(&server, 40).assert_clean();
}

/// All of them are open at the same time, beside requests that are answered.
#[test]
fn a_thousand_idle_connections_are_held_and_closed() {
    const CONNECTIONS: usize = 1000;
    let permitted = connections_permitted(CONNECTIONS);
    if permitted < CONNECTIONS {
        return skip::skip("a thousand connections", format!("the limit of open files permits {permitted}"));
    }
    let options = ["--parallel", "1", "--ctx", "128", "--timeout", "3", "--max-connections", "1100"];
    let server = Server::start(run(&[]), &artifact(), &options);
    idle_connections(&server, CONNECTIONS, Duration::from_secs(3)).assert_clean();
}

/// The longest body that is read is a hundredth of these.
#[test]
fn bodies_of_100_megabytes_are_refused_and_take_no_memory() {
    let options = ["--parallel", "1", "--ctx", "128", "--timeout", "5"];
    let server = Server::start(run(&[]), &artifact(), &options);
    huge_bodies(&server, 3).assert_clean();
}

#[test]
fn a_killed_server_starts_again_and_answers_the_same() {
    kills(|| run(&[]), &artifact(), 2).assert_clean();
}

#[test]
fn a_server_whose_artifact_is_cut_names_it_and_goes_on() {
    if !has_leases(&artifact()) {
        return skip::skip("cut artifacts", "the file system has no leases");
    }
    cut_artifacts(run(&[]), &artifact(), 20).assert_clean();
}

#[test]
fn answers_under_load_are_the_expected_ones_and_memory_does_not_grow() {
    let duration = Duration::from_secs(5);
    let options = SoakOptions { clients: 6, parallel: 3, duration, tokens: 12, report_every: duration };
    let soaked = soak(run(&[]), &artifact(), &options);
    soaked.row.assert_clean();
}
