//! The text that a model replies with, in any format.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::reply(bytes));
