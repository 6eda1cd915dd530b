//! TLS by certificate files.

use std::io;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::TlsFiles;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read the certificate {path}")]
    Certificate { path: String, source: io::Error },
    #[error("cannot read the private key {path}")]
    Key { path: String, source: io::Error },
    #[error("the certificate and the private key cannot be used")]
    Pair(#[source] tokio_rustls::rustls::Error),
}

pub fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let broken = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let path = files.certificate.display().to_string();
    let certificates = CertificateDer::pem_file_iter(&files.certificate)
        .map_err(broken)
        .and_then(|all| all.collect::<Result<Vec<_>, _>>().map_err(broken))
        .map_err(|source| TlsError::Certificate { path, source })?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| TlsError::Key {
        path: files.key.display().to_string(),
        source: broken(error),
    })?;
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
