//! Trust for https: the given certificates, or the system's bundle.

use async_recursion::async_recursion as boxed;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

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

/// Trusts what the roots vouch for. A certificate that was itself given is trusted too, for its names and in its
/// time: self-signed ones are usually marked as an authority, and the check by roots refuses those for a server.
#[derive(Debug)]
struct Trust {
    given: Vec<CertificateDer<'static>>,
    roots: Arc<WebPkiServerVerifier>,
}

/// How the check by roots names such a certificate. It looks at the dates before.
const AUTHORITY_AS_SERVER: &str = "CaUsedAsEndEntity";

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let by_roots = self.roots.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match &by_roots {
            Err(Error::InvalidCertificate(CertificateError::Other(reason)))
                if reason.to_string() == AUTHORITY_AS_SERVER && self.given.contains(end_entity) =>
            {
                let certificate = ParsedCertificate::try_from(end_entity)?;
                verify_server_name(&certificate, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            _ => by_roots,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.roots
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.roots
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.roots.supported_verify_schemes()
    }
}

pub(crate) fn connector(host: &str, ca_pem: Option<Vec<u8>>) -> Result<Tls, ClientError> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| ClientError::Config(format!("'{host}' is not a host name")))?;
    let is_explicit = ca_pem.is_some();
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
    let mut given = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| {
            ClientError::Config(format!("a trusted certificate is invalid: {error}"))
        })?;
        if is_explicit {
            given.push(certificate.clone());
        }
        // Bundles of old systems hold certificates that no longer count; the others still do.
        roots.add(certificate).ok();
    }
    if roots.is_empty() {
        return Err(ClientError::Config(
            "no trusted certificate could be read".into(),
        ));
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let failed = |error: &dyn std::error::Error| {
        ClientError::Config(format!("TLS cannot be set up: {error}"))
    };
    let roots = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| failed(&error))?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trust { given, roots }))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Tls {
        connector: TlsConnector::from(Arc::new(config)),
        name,
    })
}
