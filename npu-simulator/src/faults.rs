//! Failures on request.

use std::collections::BTreeMap;
use std::str::FromStr;

/// How a run fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The run never ends.
    Hang,
    /// The run ends with an error.
    Error,
    /// The driver resets the array during the run: it is aborted, and its context accepts no more commands.
    Reset,
    /// The run ends as it should, with one bit of its outputs wrong.
    Wrong,
    /// The run ends as it should, and its outputs are not there yet: what was in their memory before is.
    Stale,
}

/// Failures by run.
#[derive(Debug, Default)]
pub struct Faults(BTreeMap<u64, Fault>);

impl Faults {
    pub fn inject(&mut self, run: u64, fault: Fault) {
        self.0.insert(run, fault);
    }

    pub fn of(&mut self, run: u64) -> Option<Fault> {
        self.0.remove(&run)
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        match text {
            "hang" => Ok(Fault::Hang),
            "error" => Ok(Fault::Error),
            "reset" => Ok(Fault::Reset),
            "wrong" => Ok(Fault::Wrong),
            "stale" => Ok(Fault::Stale),
            other => Err(format!("{other} is no fault, expected hang, error, reset, wrong or stale")),
        }
    }
}
