//! The manifest and the head of an artifact, as a registry gives them.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::manifest(bytes));
