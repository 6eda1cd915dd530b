//! Trust for https: the given certificates, or the system's bundle.

use async_recursion::async_recursion as boxed;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::ClientError;

/// Where distributions keep the certificates they trust.
const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

pub(crate) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    #[boxed]
    pub async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

pub(crate) fn connector(host: &str, ca_pem: Option<Vec<u8>>) -> Result<Tls, ClientError> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| ClientError::Config(format!("'{host}' is not a host name")))?;
    let pem = match ca_pem {
        Some(pem) => pem,
        None => SYSTEM_BUNDLES
            .iter()
            .find_map(|path| std::fs::read(path).ok())
            .ok_or_else(|| {
                ClientError::Config(
                    "no bundle of trusted certificates was found on this system".into(),
                )
            })?,
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| {
            ClientError::Config(format!("a trusted certificate is broken: {error}"))
        })?;
        // Bundles of old systems hold certificates that no longer count; the others still do.
        roots.add(certificate).ok();
    }
    if roots.is_empty() {
        return Err(ClientError::Config(
            "no trusted certificate could be read".into(),
        ));
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ClientError::Config(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Tls {
        connector: TlsConnector::from(Arc::new(config)),
        name,
    })
}
