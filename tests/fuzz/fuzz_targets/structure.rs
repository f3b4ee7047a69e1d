//! A grammar, a schema, an expression or texts that a client requests for a reply.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::oracles::structure(bytes));
