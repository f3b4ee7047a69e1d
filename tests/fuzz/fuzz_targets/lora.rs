//! A LoRA adapter: its config.json and weights.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::lora(bytes));
