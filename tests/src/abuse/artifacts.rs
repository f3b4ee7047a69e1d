//! Artifacts with right hashes and changed plans or kernels, loaded and run on the device in this process.

use std::panic::catch_unwind;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Row;
use crate::mutated_plan::Refused;
use crate::{mutated_module, mutated_plan};

/// Loads `count` artifacts with up to four changed numbers of a plan.
pub fn mutated_plans(count: u64) -> Row {
    load_each("mutated plans loaded and run", count, 12, mutated_plan::load_and_run)
}

/// Loads `count` artifacts with three changed words of SPIR-V.
pub fn mutated_modules(count: u64) -> Row {
    load_each("mutated SPIR-V loaded and run", count, 13, mutated_module::load_and_run)
}

fn load_each(what: &'static str, count: u64, bytes: usize, load_and_run: fn(&[u8]) -> Result<(), Refused>) -> Row {
    Row::of(what, |row| {
        for number in 0..count {
            let mut mutation = vec![0; bytes];
            StdRng::seed_from_u64(number).fill(&mut mutation[..]);
            row.inputs += 1;
            if catch_unwind(|| drop(load_and_run(&mutation))).is_err() {
                row.findings.push(format!("mutation {number} panics"));
            }
        }
    })
}
