//! A tokenizer.json.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: tests::oracles::leave_out_panics_of_trials(),
    |bytes: &[u8]| tests::oracles::tokenizer_json(bytes)
);
