//! TLS between control and relays: version 1.3, a certificate of the fleet's authority on both sides, no resumption.

use std::sync::Arc;

use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::time_provider::TimeProvider;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::NodeError;

const PROTOCOL: &[u8] = b"cove-node/1";

fn unusable(error: impl std::fmt::Display) -> NodeError {
    NodeError::Tls(error.to_string())
}

pub(crate) fn certificate(pem: &str) -> Result<CertificateDer<'static>, NodeError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(unusable)
}

fn roots(authority: &str) -> Result<Arc<RootCertStore>, NodeError> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate(authority)?).map_err(unusable)?;
    Ok(Arc::new(roots))
}

fn private(key: &[u8]) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(key.to_vec()).into()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// What a relay listens with. Only control processes of the fleet have a certificate for callers.
pub fn relay(
    authority: &str,
    own: &str,
    key: &[u8],
    clock: Arc<dyn TimeProvider>,
) -> Result<Arc<ServerConfig>, NodeError> {
    let callers = WebPkiClientVerifier::builder_with_provider(roots(authority)?, provider());
    let callers = callers.build().map_err(unusable)?;
    let mut config = ServerConfig::builder_with_details(provider(), clock)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(callers)
        .with_single_cert(vec![certificate(own)?], private(key))
        .map_err(unusable)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // A resumed session would not look at certificates again.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// What control dials with.
pub fn control(
    authority: &str,
    own: &str,
    key: &[u8],
    clock: Arc<dyn TimeProvider>,
) -> Result<Arc<ClientConfig>, NodeError> {
    let mut config = ClientConfig::builder_with_details(provider(), clock)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_root_certificates(roots(authority)?)
        .with_client_auth_cert(vec![certificate(own)?], private(key))
        .map_err(unusable)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
