//! What can go wrong between an artifact, a registry and the store.

use std::io;
use std::path::{Path, PathBuf};

use oci_client::errors::{OciDistributionError, OciErrorCode};
use unicorn_artifact::ParseError;

/// Why an artifact was not pushed, pulled or stored. Messages lead with what is wrong and end with what to do, where there is
/// something; none names an option or a program of a command line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A name that is no reference to an artifact.
    #[error("{text}: {what}, expected oci://REGISTRY/NAME:TAG, as in oci://registry.example/models/smol:1")]
    Reference {
        /// As given.
        text: String,
        /// What is wrong with it.
        what: String,
    },
    /// A field of the options has a value that nothing can be sent or fetched with.
    #[error("{what}")]
    Option {
        /// The field, such as `chunk_bytes`.
        option: &'static str,
        /// What it is, and what was expected.
        what: String,
    },
    /// A file or folder.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// A file that is no artifact, or one that cannot be cut into layers.
    #[error("{}: {what}", path.display())]
    Artifact {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// An answer of a registry that is not what was asked for.
    #[error("{reference}: {what}")]
    Content {
        /// Reference that was requested.
        reference: String,
        /// Expected and found.
        what: String,
    },
    /// A registry that answers otherwise than in TLS.
    #[error("{reference}: {what}; it may have no TLS")]
    NoTls {
        /// Reference that was requested.
        reference: String,
        /// What came of it.
        what: String,
    },
    /// A registry that does not answer, or refuses.
    #[error("{reference}: {what}")]
    Registry {
        /// Reference that was requested.
        reference: String,
        /// Its message, and what may help.
        what: String,
    },
    /// A name that is no model's on the hub.
    #[error(
        "{text}: {what}, expected hf:OWNER/NAME, hf:OWNER/NAME@REVISION or hf:OWNER/NAME:PART-OF-A-FILE, as in hf:HuggingFaceTB/SmolLM2-135M-Instruct"
    )]
    HubReference {
        /// As given.
        text: String,
        /// What is wrong with it.
        what: String,
    },
    /// A hub that does not answer, refuses, or has something else.
    #[error("{reference}: {what}")]
    Hub {
        /// Reference that was requested.
        reference: String,
        /// Its message, and what may help.
        what: String,
    },
    /// The file system has no room for a model of the hub.
    #[error("model takes {needed}, and {} has {free} free; free some space, or set HF_HUB_CACHE to a folder on another disk", folder.display())]
    HubSpace {
        /// Folder of the cache.
        folder: PathBuf,
        /// Bytes that are missing, in words.
        needed: String,
        /// Bytes that are free, in words.
        free: String,
    },
    /// None of the artifact's targets is requested.
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
        /// Bytes of the artifact, in words.
        needed: String,
        /// Bytes that are free, in words.
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

    /// An error of the client, in words that a user can act on.
    pub(crate) fn registry(reference: impl ToString, error: &OciDistributionError) -> RegistryError {
        let (reference, what) = (reference.to_string(), in_words(error));
        // A registry without TLS answers a greeting in TLS with something else.
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
        // An answer that refuses stays one; without an answer, the line was at fault.
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
