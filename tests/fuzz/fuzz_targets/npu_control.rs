//! Control images of NPU programs.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::npu_control(bytes));
