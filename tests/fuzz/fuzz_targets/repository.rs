//! A hub's list of a repository's files.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::repository(bytes));
