//! Why a kernel did not become code.

/// Both variants name what was expected and what was found.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    #[error("WGSL is not valid: {message}")]
    Wgsl { message: String },
    #[error("SPIR-V {what}: expected {expected}, found {found}")]
    Check { what: String, expected: String, found: String },
}
