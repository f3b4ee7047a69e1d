//! An artifact with right hashes whose plan has changed numbers, loaded and run on llvmpipe.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::plan(bytes));
