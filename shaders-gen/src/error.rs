//! [`EmitError`].

/// Why a kernel could not be compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// naga rejected the WGSL.
    #[error("WGSL is not valid: {message}")]
    Wgsl {
        /// naga's message, with the lines that it refers to.
        message: String,
    },
    /// The SPIR-V module does not match the spec or the target.
    #[error("SPIR-V {what}: expected {expected}, found {found}")]
    Check {
        /// The checked property.
        what: String,
        /// The requirement of the spec or the target.
        expected: String,
        /// The module's value.
        found: String,
    },
    /// The module breaks a rule that the runtime checks.
    #[error(transparent)]
    Module(#[from] unicorn_artifact::ParseError),
}
