//! How the wire to PostgreSQL is protected. The address says it, as other clients of PostgreSQL
//! understand it:
//!
//! | `sslmode`     | encrypted          | the server is checked                            |
//! |---------------|--------------------|--------------------------------------------------|
//! | `disable`     | never              | no                                               |
//! | `prefer`      | if the server can  | no (what is meant when nothing is said)          |
//! | `require`     | always             | no                                               |
//! | `verify-full` | always             | its name, against `sslrootcert` or the system's  |

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::client::TlsStream as RustlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error as RustlsError, RootCertStore, SignatureScheme,
};
use tokio_rustls::{Connect, TlsConnector};

use crate::StoreError;

/// Where distributions keep the certificates they trust.
const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];
/// More than any bundle of certificates has.
const BUNDLE_MAX: u64 = 16 * 1024 * 1024;

/// Makes protected connections, for the driver.
#[derive(Clone)]
pub struct Tls(TlsConnector);

/// Takes out of an address what is ours to understand; the rest is the driver's.
pub fn parse(address: &str) -> Result<(Config, Tls), StoreError> {
    let wrong = |message: String| StoreError::Address(message);
    let (front, query) = address.split_once('?').unwrap_or((address, ""));
    let (mut mode, mut roots) = ("prefer".to_owned(), None);
    let mut others = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", value)) => mode = value.to_owned(),
            Some(("sslrootcert", value)) => roots = Some(decoded(value)?),
            _ => others.push(pair),
        }
    }
    let plain = match others.is_empty() {
        true => front.to_owned(),
        false => format!("{front}?{}", others.join("&")),
    };
    let mut config: Config = plain
        .parse()
        .map_err(|error: tokio_postgres::Error| wrong(super::full_text(&error)))?;
    let verify = match mode.as_str() {
        "disable" => {
            config.ssl_mode(SslMode::Disable);
            false
        }
        "prefer" => {
            config.ssl_mode(SslMode::Prefer);
            false
        }
        "require" => {
            config.ssl_mode(SslMode::Require);
            false
        }
        "verify-full" => {
            config.ssl_mode(SslMode::Require);
            true
        }
        other => {
            return Err(wrong(format!(
                "sslmode={other} is not known; there are disable, prefer, require and verify-full"
            )));
        }
    };
    if roots.is_some() && !verify {
        return Err(wrong(
            "sslrootcert goes with sslmode=verify-full; nothing else looks at certificates".into(),
        ));
    }
    let is_socket = |host: &Host| matches!(host, Host::Unix(_));
    if config.get_ssl_mode() == SslMode::Require && config.get_hosts().iter().any(is_socket) {
        return Err(wrong(format!(
            "sslmode={mode} needs a network host: a unix socket has no TLS and needs none"
        )));
    }
    Ok((config, Tls(connector(verify, roots.as_deref())?)))
}

fn decoded(text: &str) -> Result<String, StoreError> {
    let broken = || StoreError::Address("sslrootcert is not a path".into());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || {
            rest.next()
                .and_then(|digit| char::from(digit).to_digit(16))
                .and_then(|digit| u8::try_from(digit).ok())
                .ok_or_else(broken)
        };
        bytes.push(digit()? * 16 + digit()?);
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

fn connector(verify: bool, roots: Option<&str>) -> Result<TlsConnector, StoreError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Address(format!("TLS cannot be set up: {error}")))?;
    let config = if verify {
        builder
            .with_root_certificates(trusted(roots)?)
            .with_no_client_auth()
    } else {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_no_client_auth()
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn trusted(path: Option<&str>) -> Result<RootCertStore, StoreError> {
    let read = |path: &str| -> io::Result<Vec<u8>> {
        if std::fs::metadata(path)?.len() > BUNDLE_MAX {
            return Err(io::Error::other("it is too large for certificates"));
        }
        std::fs::read(path)
    };
    let pem = match path {
        Some(path) => read(path).map_err(|error| {
            StoreError::Address(format!("sslrootcert {path} cannot be read: {error}"))
        })?,
        None => SYSTEM_BUNDLES
            .iter()
            .find_map(|path| read(path).ok())
            .ok_or_else(|| {
                StoreError::Address(
                    "sslmode=verify-full finds no trusted certificates on this system; \
                     name a file with sslrootcert"
                        .into(),
                )
            })?,
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate
            .map_err(|error| StoreError::Address(format!("sslrootcert is broken: {error}")))?;
        // Bundles of old systems hold certificates that no longer count; the others still do.
        roots.add(certificate).ok();
    }
    if roots.is_empty() {
        return Err(StoreError::Address(
            "sslrootcert holds no certificate".into(),
        ));
    }
    Ok(roots)
}

/// Believes every certificate: keeps listeners out, not somebody in between.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Protected<S>;
    type TlsConnect = Dialler;
    type Error = Failure;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Dialler, Failure> {
        // A unix socket is asked for with no name; the driver then never gets to the handshake.
        let name = match domain {
            "" => None,
            domain => Some(ServerName::try_from(domain.to_owned())?),
        };
        Ok(Dialler(self.0.clone(), name))
    }
}

/// One connection about to be protected.
pub struct Dialler(TlsConnector, Option<ServerName<'static>>);

impl<S> TlsConnect<S> for Dialler
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Protected<S>;
    type Error = Failure;
    type Future = Handshake<S>;

    fn connect(self, stream: S) -> Handshake<S> {
        Handshake(self.1.map(|name| self.0.connect(name, stream)))
    }
}

pub struct Handshake<S>(Option<Connect<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Handshake<S> {
    type Output = Result<Protected<S>, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Some(connect) => Pin::new(connect)
                .poll(cx)
                .map(|done| Ok(Protected(Box::new(done?)))),
            None => Poll::Ready(Err("the database's host has no name".into())),
        }
    }
}

/// An encrypted stream to the database.
pub struct Protected<S>(Box<RustlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Protected<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Protected<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Protected<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
