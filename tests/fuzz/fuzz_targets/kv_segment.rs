//! Segments of KV caches.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::kv_segment(bytes));
