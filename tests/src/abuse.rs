//! What the programs must survive: broken, deep and cut files, malformed, huge and slow requests, those of foreign pages, idle and
//! disconnecting clients, kills, and hours of load. The test `abuse` runs a minute of it, the program `abuse` as much as it is given.

mod artifacts;
mod compile;
mod cut;
mod greedy;
mod http;
mod kills;
mod limits;
mod soak;

use std::fmt;
use std::time::{Duration, Instant};

pub use artifacts::{mutated_modules, mutated_plans};
pub use compile::{compiler_kills, deep_models, mutated_ggufs};
pub use cut::{cut_artifacts, has_leases};
pub use http::{connections_permitted, disconnects, idle_connections, malformed_requests};
pub use kills::kills;
pub use limits::{foreign_pages, huge_bodies, huge_prompts, slow_bodies};
pub use soak::{Soak, SoakOptions, soak};

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was done.
    pub what: &'static str,
    /// How often.
    pub inputs: u64,
    /// What should not have happened, each in a line.
    pub findings: Vec<String>,
    /// How long all of it took.
    pub taken: Duration,
}

impl Row {
    /// Runs `work`, which counts inputs and adds findings.
    pub(crate) fn of(what: &'static str, work: impl FnOnce(&mut Row)) -> Row {
        let begun = Instant::now();
        let mut row = Row { what, inputs: 0, findings: Vec::new(), taken: Duration::ZERO };
        work(&mut row);
        row.taken = begun.elapsed();
        row
    }

    /// # Panics
    /// With the findings, if there are any.
    pub fn assert_clean(&self) {
        assert!(self.findings.is_empty() && self.inputs > 0, "{self}");
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { what, inputs, findings, taken } = self;
        write!(f, "| {what} | {inputs} | {} | {:.0} s |", findings.len(), taken.as_secs_f64())?;
        findings.iter().try_for_each(|finding| write!(f, "\n  {finding}"))
    }
}
