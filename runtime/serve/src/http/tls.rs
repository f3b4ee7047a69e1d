//! The certificate that a server shows.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Certificate and private key of a server, for [`HttpListener::with_tls`](crate::HttpListener::with_tls).
#[derive(Clone)]
pub struct TlsIdentity {
    pub(super) config: ServerConfig,
}

impl TlsIdentity {
    /// Reads PEM files: the server's certificate with those that lead to its authority, and its private key. Clients use TLS 1.2 or 1.3.
    ///
    /// # Errors
    /// When a file cannot be read or holds something else, or the key does not belong to the certificate.
    pub fn read(certificates: &Path, key: &Path) -> Result<TlsIdentity, String> {
        let problem = |file: &Path, error: &dyn Error| format!("{}: {error}", file.display());
        let chain: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_file_iter(certificates).and_then(Iterator::collect);
        let chain = chain.map_err(|error| problem(certificates, &error))?;
        if chain.is_empty() {
            return Err(format!("{}: expected a certificate in PEM, found none", certificates.display()));
        }
        let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| problem(key, &error))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key_der))
            .map_err(|error| problem(key, &error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsIdentity { config })
    }
}
