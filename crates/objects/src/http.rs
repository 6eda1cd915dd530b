//! HTTP to the object storage, with the TLS library that the rest of the program has.

use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::ObjectsError;

const CONNECT_MAX: Duration = Duration::from_secs(10);
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Connections that are kept for the next request.
const IDLE_CONNECTIONS: usize = 32;
/// Where distributions keep the certificates they trust.
const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

type Inner = Client<HttpsConnector<TcpConnector>, HttpRequestBody>;

/// Makes the one client of a bucket.
#[derive(Debug, Clone)]
pub struct Connector(Inner);

impl Connector {
    /// With the system's authorities, and those in `more` (PEM).
    pub fn new(more: Option<&[u8]>) -> Result<Self, ObjectsError> {
        let wrong = |what: String| ObjectsError::Address(what);
        let mut roots = RootCertStore::empty();
        let bundle = SYSTEM_BUNDLES.iter().find(|path| Path::new(path).exists());
        if let Some(bundle) = bundle
            && let Ok(found) = CertificateDer::pem_file_iter(bundle)
        {
            roots.add_parsable_certificates(found.flatten());
        }
        for certificate in more.into_iter().flat_map(CertificateDer::pem_slice_iter) {
            let certificate =
                certificate.map_err(|error| wrong(format!("its authorities: {error}")))?;
            let added = roots.add(certificate);
            added.map_err(|error| wrong(format!("its authorities: {error}")))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        tcp.set_nodelay(true);
        // Whether a server without TLS is spoken to is decided where its address is read.
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(https);
        Ok(Self(client))
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service(self.0.clone())))
    }
}

#[derive(Debug)]
struct Service(Inner);

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.0.request(request).await.map_err(|error| {
            let kind = match error.is_connect() {
                true => HttpErrorKind::Connect,
                false => HttpErrorKind::Request,
            };
            match error.source().map(ToString::to_string) {
                // What a person needs is below: refused, no such host, an unknown authority.
                Some(below) => HttpError::new_boxed(kind, below.into()),
                None => HttpError::new(kind, error),
            }
        })?;
        let broken = |error| HttpError::new(HttpErrorKind::Interrupted, error);
        Ok(answer.map(|body| HttpResponseBody::new(body.map_err(broken))))
    }
}
