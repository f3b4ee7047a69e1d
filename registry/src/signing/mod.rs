//! Signatures of artifacts, in the OpenSSF model-signing format: a sigstore bundle that `model_signing verify` also reads.
//!
//! ```text
//! bundle ── verification material: the hash of a public key, or a chain of certificates
//!        └─ DSSE envelope: payload, and its ECDSA signature
//!              └─ in-toto statement: SHA-256 of the artifact's file, and of all such hashes
//! ```
//!
//! A signature covers the file with the kernels of all targets. Keys are on the curves P-256 and P-384; the cryptography is that of
//! the TLS library.

mod bundle;
mod keys;
mod statement;
mod trust;

pub use bundle::{BUNDLE_TYPE, MAX_BUNDLE_BYTES};
pub use keys::SigningKey;
pub use trust::{Signed, Trust};
