//! [`EmitError`].

/// Why a kernel could not be compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// naga rejected the WGSL.
    #[error("WGSL is not valid: {message}")]
    Wgsl {
        /// naga's message, with the lines that it is about.
        message: String,
    },
    /// The SPIR-V module is not what the spec and the target say.
    #[error("SPIR-V {what}: expected {expected}, found {found}")]
    Check {
        /// What was checked.
        what: String,
        /// What the spec or the target requires.
        expected: String,
        /// What the module has.
        found: String,
    },
    /// The module breaks a rule that the runtime checks.
    #[error(transparent)]
    Module(#[from] unicorn_artifact::ParseError),
}
