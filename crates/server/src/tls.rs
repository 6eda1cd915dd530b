//! TLS by certificate and key.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::TlsPem;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the TLS certificate is not PEM")]
    Certificate(#[source] pem::Error),
    #[error("the TLS private key is not PEM")]
    Key(#[source] pem::Error),
    #[error("the TLS certificate and private key cannot be used together")]
    Pair(#[source] tokio_rustls::rustls::Error),
}

pub fn acceptor(pem: &TlsPem) -> Result<TlsAcceptor, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(&pem.certificates)
        .collect::<Result<Vec<_>, _>>()
        .map_err(TlsError::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&pem.key).map_err(TlsError::Key)?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Pair)?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Whether a server could start with these.
pub fn check_tls(pem: &TlsPem) -> Result<(), TlsError> {
    acceptor(pem).map(drop)
}
