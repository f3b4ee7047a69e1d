//! Sections of an artifact whose header and hashes are right.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::artifact(bytes));
