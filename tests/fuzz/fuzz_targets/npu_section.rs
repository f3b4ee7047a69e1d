//! NPU sections of artifacts.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::npu_section(bytes));
