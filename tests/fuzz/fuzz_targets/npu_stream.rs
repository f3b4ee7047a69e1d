//! Instruction streams of the NPU.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::npu_stream(bytes));
