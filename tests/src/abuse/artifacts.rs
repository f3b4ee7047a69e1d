//! Artifacts with right hashes and changed plans or kernels, loaded and run on the device in this process.

use std::panic::catch_unwind;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Row;
use crate::mutated_plan::{Reached, Refused};
use crate::{mutated_module, mutated_plan};

/// Loads `count` artifacts with up to four changed parts of a plan.
pub fn mutated_plans(count: u64) -> Row {
    load_each("mutated plans loaded and run", count, mutated_plan::mutation, mutated_plan::load_and_run)
}

/// Loads `count` artifacts with three changed words of SPIR-V.
pub fn mutated_modules(count: u64) -> Row {
    let mutation = |number| {
        let mut mutation = vec![0; 13];
        StdRng::seed_from_u64(number).fill(&mut mutation[..]);
        mutation
    };
    load_each("mutated SPIR-V loaded and run", count, mutation, mutated_module::load_and_run)
}

fn load_each(
    what: &'static str,
    count: u64,
    mutation: fn(u64) -> Vec<u8>,
    load_and_run: fn(&[u8]) -> Result<(), Refused>,
) -> Row {
    Row::of(what, |row| {
        let mut reached = Reached::default();
        for number in 0..count {
            row.inputs += 1;
            match catch_unwind(|| load_and_run(&mutation(number))) {
                Ok(result) => reached.add(&result),
                Err(_) => row.findings.push(format!("mutation {number} panics")),
            }
        }
        println!("{what}: {reached}");
    })
}
