//! Random cases with shrinking: strategies give valid specs only, and of a kernel that fails, the smallest case that was found to
//! fail is shown. Each run has the same cases; `UNICORN_CASES=10` generates ten times as many, and those are others.

use std::fmt::Debug;

use proptest::prelude::{Strategy, any};
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Each try loads a model of one kernel.
const MAX_TRIES_TO_SHRINK: u32 = 200;
const MAX_MS_TO_SHRINK: u32 = 60_000;

/// Generates `count` cases and runs `check` on each, with a generator for its data; `name` seeds both.
///
/// # Panics
/// If a check does.
#[track_caller]
pub fn check_cases<T: Debug>(
    name: &str,
    count: u32,
    cases: &impl Strategy<Value = T>,
    check: impl Fn(&T, &mut StdRng),
) {
    let times = std::env::var("UNICORN_CASES").map_or(1, |times| times.parse().expect("UNICORN_CASES is a number"));
    let config = Config {
        cases: count * times,
        failure_persistence: None,
        max_shrink_iters: MAX_TRIES_TO_SHRINK,
        max_shrink_time: MAX_MS_TO_SHRINK,
        ..Config::default()
    };
    let seed = TestRng::from_seed(RngAlgorithm::ChaCha, blake3::hash(format!("{name}, {times}").as_bytes()).as_bytes());
    let with_data = (cases, any::<u64>().no_shrink());
    let result = TestRunner::new_with_rng(config, seed).run(&with_data, |(case, data_seed)| {
        check(&case, &mut StdRng::seed_from_u64(data_seed));
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, (case, data_seed))) => {
            panic!("{name}: {reason}\nsmallest case found to fail: {case:#?}\nits data has seed {data_seed}")
        }
        Err(error) => panic!("{name}: {error}"),
    }
}
