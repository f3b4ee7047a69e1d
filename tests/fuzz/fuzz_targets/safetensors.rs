//! A folder's model.safetensors.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::safetensors(bytes));
