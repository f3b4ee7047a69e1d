//! Errors of pushes, pulls and the store.

use std::io;
use std::path::{Path, PathBuf};

use oci_client::errors::{OciDistributionError, OciErrorCode};
use unicorn_artifact::ParseError;

/// Why an artifact was not pushed, pulled or stored. Messages begin with the fault and end with a remedy, if there is one; none
/// names an option or a program of a command line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A name that is not a reference to an artifact.
    #[error("{text}: {what}, expected oci://REGISTRY/NAME:TAG, as in oci://registry.example/models/smol:1")]
    Reference {
        /// The text that was given.
        text: String,
        /// The fault.
        what: String,
    },
    /// A field of the options has an invalid value.
    #[error("{what}")]
    Option {
        /// The field, such as `chunk_bytes`.
        option: &'static str,
        /// What it is, and what was expected.
        what: String,
    },
    /// An error of the file system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// A file that is not an artifact, or that cannot be cut into layers.
    #[error("{}: {what}", path.display())]
    Artifact {
        /// The file or folder.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// An answer of a registry that does not match the request.
    #[error("{reference}: {what}")]
    Content {
        /// Reference that was requested.
        reference: String,
        /// Expected and found.
        what: String,
    },
    /// A registry whose answer is not TLS.
    #[error("{reference}: {what}; it may have no TLS")]
    NoTls {
        /// Reference that was requested.
        reference: String,
        /// The error of the connection.
        what: String,
    },
    /// A registry that does not answer, or refuses the request.
    #[error("{reference}: {what}")]
    Registry {
        /// Reference that was requested.
        reference: String,
        /// Its message, and a possible remedy.
        what: String,
    },
    /// A name that is not a reference to a model on the hub.
    #[error(
        "{text}: {what}, expected hf:OWNER/NAME, hf:OWNER/NAME@REVISION or hf:OWNER/NAME:PART-OF-A-FILE, as in hf:HuggingFaceTB/SmolLM2-135M-Instruct"
    )]
    HubReference {
        /// The text that was given.
        text: String,
        /// The fault.
        what: String,
    },
    /// A hub that does not answer, refuses the request, or has other content.
    #[error("{reference}: {what}")]
    Hub {
        /// Reference that was requested.
        reference: String,
        /// Its message, and a possible remedy.
        what: String,
    },
    /// The file system has no room for a model of the hub.
    #[error("model takes {needed}, and {} has {free} free; free some space, or set HF_HUB_CACHE to a folder on another disk", folder.display())]
    HubSpace {
        /// Folder of the cache.
        folder: PathBuf,
        /// Bytes that are needed, as text.
        needed: String,
        /// Bytes that are free, as text.
        free: String,
    },
    /// The artifact has none of the requested targets.
    #[error("{reference} has no kernels for {wanted}, only for {found}")]
    Target {
        /// Reference of the artifact.
        reference: String,
        /// Targets that were requested.
        wanted: String,
        /// Targets that it has.
        found: String,
    },
    /// Nothing of this name is in the store.
    #[error("{0} is not in the store")]
    NotStored(String),
    /// The file system has no room for the artifact.
    #[error("artifact takes {needed}, and {} has {free} free; free some space, or set XDG_DATA_HOME to a folder on another disk", folder.display())]
    Space {
        /// Folder of the store.
        folder: PathBuf,
        /// Bytes of the artifact, as text.
        needed: String,
        /// Bytes that are free, as text.
        free: String,
    },
}

impl RegistryError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
        move |source| RegistryError::Io { path: path.to_owned(), source }
    }

    pub(crate) fn content(reference: impl ToString, what: impl ToString) -> RegistryError {
        RegistryError::Content { reference: reference.to_string(), what: what.to_string() }
    }

    pub(crate) fn hub(reference: impl ToString, what: impl ToString) -> RegistryError {
        RegistryError::Hub { reference: reference.to_string(), what: what.to_string() }
    }

    /// An error of the client, as a message that helps the user.
    pub(crate) fn registry(reference: impl ToString, error: &OciDistributionError) -> RegistryError {
        let (reference, what) = (reference.to_string(), in_words(error));
        // A registry without TLS answers a TLS handshake with other bytes.
        let is_other = what.contains("InvalidContentType") || what.contains("corrupt message");
        match error {
            OciDistributionError::RequestError(_) if is_other => RegistryError::NoTls { reference, what },
            _ => RegistryError::Registry { reference, what },
        }
    }
}

/// Whether the same request may succeed a moment later.
pub(crate) fn is_transient(error: &OciDistributionError) -> bool {
    match error {
        // A refusal would be repeated; a missing answer is a fault of the network.
        OciDistributionError::RequestError(error) => error.status().is_none_or(|status| status.is_server_error()),
        OciDistributionError::IoError(_) => true,
        OciDistributionError::ServerError { code, .. } => *code >= 500 || *code == 429,
        _ => false,
    }
}

/// Error of a registry that requires authentication.
const LOGIN: &str =
    "registry requires a user name and a password; docker login or podman login stores them in config.json";

fn in_words(error: &OciDistributionError) -> String {
    match error {
        OciDistributionError::RegistryError { envelope, .. } => {
            let missing = envelope.errors.iter().any(|error| {
                matches!(error.code, OciErrorCode::ManifestUnknown | OciErrorCode::NameUnknown | OciErrorCode::NotFound)
            });
            let said: Vec<&str> = envelope.errors.iter().map(|error| &error.message[..]).collect();
            match missing {
                true => "registry has no such name or tag".into(),
                false => format!("registry refuses: {}", said.join("; ")),
            }
        }
        OciDistributionError::ImageManifestNotFoundError(_) => "registry has no such name or tag".into(),
        OciDistributionError::UnauthorizedError { .. } | OciDistributionError::AuthenticationFailure(_) => LOGIN.into(),
        OciDistributionError::RequestError(error) if error.status().is_some_and(|status| status == 401) => LOGIN.into(),
        OciDistributionError::RequestError(error) => {
            let mut what = String::from("registry does not answer");
            let mut source: Option<&dyn std::error::Error> = Some(error);
            while let Some(error) = source {
                what += &format!(": {error}");
                source = error.source();
            }
            what
        }
        error => error.to_string(),
    }
}

impl From<(&Path, ParseError)> for RegistryError {
    fn from((path, error): (&Path, ParseError)) -> RegistryError {
        RegistryError::Artifact { path: path.to_owned(), what: error.to_string() }
    }
}
