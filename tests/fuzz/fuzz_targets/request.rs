//! The body of a request to `unicorn-run serve`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::request(bytes));
