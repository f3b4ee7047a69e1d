//! The connection to a registry.

use std::sync::Once;
use std::time::Duration;

use oci_client::Client;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use tokio::runtime::Runtime;

use crate::credentials;
use crate::error::RegistryError;
use crate::reference::OciReference;

/// Time without received bytes after which a connection is given up.
pub const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for connecting to a registry or a hub.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Layers that are transferred at the same time: enough for the bandwidth of a network, few enough for a small registry.
pub const PARALLEL: usize = 4;

/// A client for the registry of a reference, with the user's credentials for it.
pub struct Connection {
    pub client: Client,
    pub auth: RegistryAuth,
}

impl Connection {
    pub async fn open(reference: &OciReference, plain_http: bool) -> Result<Connection, RegistryError> {
        install_tls();
        let config = ClientConfig {
            protocol: if plain_http { ClientProtocol::Http } else { ClientProtocol::Https },
            // A chunk of weights is one request.
            use_monolithic_push: true,
            read_timeout: Some(READ_TIMEOUT),
            connect_timeout: Some(CONNECT_TIMEOUT),
            user_agent: concat!("unicorn/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        let client = Client::try_from(config).map_err(|error| RegistryError::registry(reference, &error))?;
        let registry = reference.inner().resolve_registry();
        let auth = credentials::of(registry);
        client.store_auth_if_needed(registry, &auth).await;
        Ok(Connection { client, auth })
    }
}

/// The threads of a transfer.
pub fn runtime() -> Result<Runtime, RegistryError> {
    let built = tokio::runtime::Builder::new_multi_thread().worker_threads(PARALLEL).enable_all().build();
    built.map_err(|source| RegistryError::Io { path: "threads of the transfer".into(), source })
}

/// Makes ring the TLS provider of this process.
pub fn install_tls() {
    static ONCE: Once = Once::new();
    // An error means that a provider is there already.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}
