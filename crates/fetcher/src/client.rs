//! Requests to one registry: TLS, authentication, redirects, time limits.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, AUTHORIZATION, HeaderValue, LOCATION, RANGE, USER_AGENT, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::auth::{Challenge, TokenAnswer, basic, percent_encode};
use crate::connector::{Connector, DialError};
use crate::error::RegistryError;
use crate::names::Names;
use crate::wire::{Login, Order};

/// Until the answer's first line. Registries may be slow to find a layer.
pub(crate) const ANSWER_SECONDS: u64 = 60;
const MAX_REDIRECTS: usize = 5;
const MAX_TOKEN_BYTES: usize = 64 << 10;

type Http = hyper_util::client::legacy::Client<HttpsConnector<Connector>, Empty<Bytes>>;

/// One repository of one registry, for the length of one pull.
pub struct Client {
    http: Http,
    /// As references name it.
    registry: String,
    /// Who answers for it.
    server: String,
    repository: String,
    /// Registries spoken to without TLS, besides those on loopback.
    plain: Vec<String>,
    login: Option<Login>,
    /// The header that worked last.
    authorization: Mutex<Option<HeaderValue>>,
}

/// One GET.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ask<'a> {
    /// Below the repository: `manifests/latest`, `blobs/sha256:…`.
    pub path: &'a str,
    pub accept: Option<&'a str>,
    /// First byte wanted.
    pub from: u64,
}

impl Client {
    pub fn new(order: &Order) -> Result<Self, RegistryError> {
        let names = Names::new(&order.hosts, &order.resolv, &order.resolvers);
        let connector = Connector::new(names, order.reachable.clone());
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(&order.trust)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        Ok(Self {
            http: hyper_util::client::legacy::Client::builder(TokioExecutor::new())
                .build(connector),
            registry: order.registry.clone(),
            server: order.server.clone(),
            repository: order.repository.clone(),
            plain: order.plain.clone(),
            login: order.login.clone(),
            authorization: Mutex::default(),
        })
    }

    /// Whether a host (with its port, where one is given) is spoken to without TLS.
    fn is_plain(&self, authority: &str) -> bool {
        is_loopback(authority) || self.plain.iter().any(|one| one == authority)
    }

    fn scheme(&self) -> &'static str {
        match self.is_plain(&self.registry) || self.is_plain(&self.server) {
            true => "http",
            false => "https",
        }
    }

    /// Whether a request may go there, coming from `from`: never from TLS to none, and without TLS only
    /// to places that are spoken to so.
    fn may_go(&self, from: Option<&Uri>, to: &Uri) -> bool {
        match to.scheme_str() {
            Some("https") => true,
            Some("http") => {
                let host = to.authority().map(|authority| authority.as_str());
                let secure = from.is_some_and(|from| from.scheme_str() == Some("https"));
                !secure && host.is_some_and(|host| self.is_plain(host))
            }
            _ => false,
        }
    }

    /// Asks, with credentials if the registry wants some, and follows redirects. The answer is a success.
    pub(crate) async fn get(&self, ask: Ask<'_>) -> Result<Response<Incoming>, RegistryError> {
        let url = format!(
            "{}://{}/v2/{}/{}",
            self.scheme(),
            self.server,
            self.repository,
            ask.path
        );
        let mut tried = false;
        loop {
            let authorization = self.authorization.lock().clone();
            let answer = self.follow(&url, ask, authorization).await?;
            match answer.status() {
                StatusCode::UNAUTHORIZED if tried => return Err(RegistryError::CredentialsRefused),
                StatusCode::UNAUTHORIZED => {
                    tried = true;
                    let header = self.authenticate(&answer).await?;
                    *self.authorization.lock() = Some(header);
                }
                StatusCode::FORBIDDEN => return Err(RegistryError::CredentialsRefused),
                StatusCode::NOT_FOUND => {
                    let what = format!("{} {}", self.repository, ask.path.replace('/', " "));
                    return Err(RegistryError::NotFound { what });
                }
                status if status.is_success() => return Ok(answer),
                status => {
                    return Err(RegistryError::Status {
                        status: status.as_u16(),
                        url,
                    });
                }
            }
        }
    }

    /// A whole answer of at most `limit` bytes.
    pub(crate) async fn get_small(
        &self,
        ask: Ask<'_>,
        what: &'static str,
        limit: usize,
    ) -> Result<Bytes, RegistryError> {
        let answer = self.get(ask).await?;
        self.small_body(answer, what, limit).await
    }

    async fn small_body(
        &self,
        answer: Response<Incoming>,
        what: &'static str,
        limit: usize,
    ) -> Result<Bytes, RegistryError> {
        let body = Limited::new(answer.into_body(), limit).collect();
        let collected = timeout(Duration::from_secs(ANSWER_SECONDS), body)
            .await
            .map_err(|_| RegistryError::Timeout {
                seconds: ANSWER_SECONDS,
            })?;
        match collected {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                Err(RegistryError::TooLarge {
                    what: what.to_owned(),
                    size: limit as u64 + 1,
                    limit: limit as u64,
                })
            }
            Err(error) => Err(RegistryError::Unreachable {
                registry: self.registry.clone(),
                detail: error.to_string(),
            }),
        }
    }

    async fn follow(
        &self,
        url: &str,
        ask: Ask<'_>,
        mut authorization: Option<HeaderValue>,
    ) -> Result<Response<Incoming>, RegistryError> {
        let refuse = |url: &str| RegistryError::Redirect { url: shown(url) };
        let mut uri: Uri = url.parse().map_err(|_| refuse(url))?;
        if !self.may_go(None, &uri) || has_userinfo(&uri) {
            return Err(refuse(url));
        }
        for _ in 0..=MAX_REDIRECTS {
            let answer = self.send(&uri, ask, authorization.as_ref()).await?;
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            let location = answer
                .headers()
                .get(LOCATION)
                .and_then(|value| value.to_str().ok());
            let next = resolve(&uri, location.unwrap_or_default()).ok_or_else(|| refuse(url))?;
            if !self.may_go(Some(&uri), &next) {
                return Err(refuse(&next.to_string()));
            }
            // Storage behind a registry has its own signed links; the registry's token is not for it.
            if next.authority() != uri.authority() || next.scheme() != uri.scheme() {
                authorization = None;
            }
            uri = next;
        }
        Err(refuse(url))
    }

    async fn send(
        &self,
        uri: &Uri,
        ask: Ask<'_>,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, RegistryError> {
        let mut request = Request::builder()
            .method(Method::GET)
            .uri(uri)
            .header(USER_AGENT, concat!("cove/", env!("CARGO_PKG_VERSION")));
        if let Some(accept) = ask.accept {
            request = request.header(ACCEPT, accept);
        }
        if ask.from > 0 {
            request = request.header(RANGE, format!("bytes={}-", ask.from));
        }
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(Empty::new())
            .map_err(|error| RegistryError::Malformed {
                reason: error.to_string(),
            })?;
        timeout(
            Duration::from_secs(ANSWER_SECONDS),
            self.http.request(request),
        )
        .await
        .map_err(|_| RegistryError::Timeout {
            seconds: ANSWER_SECONDS,
        })?
        .map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &hyper_util::client::legacy::Error) -> RegistryError {
        let mut detail = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(error) = source {
            if let Some(DialError::OffLimits { place, address }) = error.downcast_ref() {
                let place = format!("{place} ({address})");
                return RegistryError::OffLimits { place };
            }
            detail.push_str(&format!(": {error}"));
            source = error.source();
        }
        RegistryError::Unreachable {
            registry: self.registry.clone(),
            detail,
        }
    }

    async fn authenticate(
        &self,
        answer: &Response<Incoming>,
    ) -> Result<HeaderValue, RegistryError> {
        let offered = answer.headers().get_all(WWW_AUTHENTICATE).iter();
        let text = match Challenge::choose(offered.filter_map(|value| value.to_str().ok()))? {
            Challenge::Basic => self
                .login
                .as_ref()
                .map(basic)
                .ok_or(RegistryError::CredentialsNeeded)?,
            Challenge::Bearer {
                realm,
                service,
                scope,
            } => self.token(&realm, service, scope).await?,
        };
        let mut value =
            HeaderValue::from_str(&text).map_err(|_| RegistryError::CredentialsRefused)?;
        value.set_sensitive(true);
        Ok(value)
    }

    async fn token(
        &self,
        realm: &str,
        service: Option<String>,
        scope: Option<String>,
    ) -> Result<String, RegistryError> {
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
        let separator = if realm.contains('?') { '&' } else { '?' };
        let mut url = format!("{realm}{separator}scope={}", percent_encode(&scope));
        if let Some(service) = service {
            url.push_str(&format!("&service={}", percent_encode(&service)));
        }
        // A password must not travel in the clear because a registry says so.
        let registry: Uri = format!("{}://{}/", self.scheme(), self.server)
            .parse()
            .map_err(|_| RegistryError::Redirect { url: shown(&url) })?;
        let place: Option<Uri> = url.parse().ok();
        if !place.is_some_and(|place| self.may_go(Some(&registry), &place)) {
            return Err(RegistryError::Redirect { url: shown(realm) });
        }
        let basic = self.login.as_ref().map(basic);
        let basic = basic.and_then(|text| HeaderValue::from_str(&text).ok());
        let answer = self.follow(&url, Ask::default(), basic).await?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.login.is_none() => {
                return Err(RegistryError::CredentialsNeeded);
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(RegistryError::CredentialsRefused);
            }
            status => {
                return Err(RegistryError::Status {
                    status: status.as_u16(),
                    url: realm.to_owned(),
                });
            }
        }
        let body = self
            .small_body(answer, "the token", MAX_TOKEN_BYTES)
            .await?;
        let malformed = || RegistryError::Malformed {
            reason: "the token is unreadable".to_owned(),
        };
        let answer: TokenAnswer = serde_json::from_slice(&body).map_err(|_| malformed())?;
        answer.bearer().ok_or_else(malformed)
    }
}

/// Trusts the given certificates only.
fn tls(trust: &[u8]) -> Result<ClientConfig, RegistryError> {
    let failed = |detail: String| RegistryError::TrustStore { detail };
    let mut roots = RootCertStore::empty();
    // One that cannot be read is left out, as everybody does.
    let certificates = CertificateDer::pem_slice_iter(trust).flatten();
    roots.add_parsable_certificates(certificates);
    let provider = tokio_rustls::rustls::crypto::ring::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn shown(url: &str) -> String {
    url.chars().take(300).collect()
}

/// A name before the host makes a URL read as if it led elsewhere.
fn has_userinfo(uri: &Uri) -> bool {
    uri.authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
}

/// Where a `Location` leads.
fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    if location.starts_with('/') && !location.starts_with("//") {
        let mut parts = base.clone().into_parts();
        parts.path_and_query = Some(location.parse().ok()?);
        return Uri::from_parts(parts).ok();
    }
    let uri: Uri = location.parse().ok()?;
    let web = matches!(uri.scheme_str(), Some("http" | "https"));
    (web && uri.authority().is_some() && !has_userinfo(&uri)).then_some(uri)
}

fn is_loopback(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => registry.split(':').next().unwrap_or_default(),
    };
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_spoken_to_in_the_clear() {
        for registry in [
            "localhost",
            "localhost:5000",
            "127.0.0.1:80",
            "127.9.9.9",
            "[::1]:5000",
        ] {
            assert!(is_loopback(registry), "{registry}");
        }
        for registry in [
            "localhost.example",
            "r.example:5000",
            "10.0.0.1",
            "127.0.0.1.example",
            "[::2]:1",
        ] {
            assert!(!is_loopback(registry), "{registry}");
        }
    }

    #[test]
    fn tls_is_never_given_up_and_none_is_for_places_that_have_none() {
        let order = Order {
            registry: "r.example".into(),
            server: "r.example".into(),
            repository: "app".into(),
            wanted: "1".into(),
            digest: None,
            arch: "amd64".into(),
            login: None,
            plain: vec!["plain.example:5000".into()],
            reachable: crate::reach::Reachable::anywhere(),
            resolvers: Vec::new(),
            resolv: Vec::new(),
            hosts: Vec::new(),
            trust: Vec::new(),
        };
        let client = Client::new(&order).unwrap();
        let may = |from: &str, to: &str| {
            let from: Uri = from.parse().unwrap();
            client.may_go(Some(&from), &to.parse().unwrap())
        };
        assert!(may("https://a.example/", "https://b.example/"));
        assert!(may("http://plain.example:5000/", "https://b.example/"));
        assert!(may("http://127.0.0.1:1/", "http://plain.example:5000/"));
        for (from, to) in [
            ("https://a.example/", "http://plain.example:5000/"),
            ("https://a.example/", "http://127.0.0.1:1/"),
            ("http://plain.example:5000/", "http://b.example/"),
            ("http://plain.example:5000/", "http://plain.example/"),
            ("http://127.0.0.1:1/", "ftp://127.0.0.1:1/"),
        ] {
            assert!(!may(from, to), "{from} {to}");
        }
    }

    #[test]
    fn redirects_lead_to_web_addresses_only() {
        let base: Uri = "https://r.example:1/v2/x".parse().unwrap();
        let to = |location: &str| resolve(&base, location).map(|uri| uri.to_string());
        assert_eq!(to("/y?z=1").as_deref(), Some("https://r.example:1/y?z=1"));
        assert_eq!(
            to("https://s.example/y").as_deref(),
            Some("https://s.example/y")
        );
        for bad in [
            "",
            "file:///etc/passwd",
            "//s.example/y",
            "y",
            "ftp://s.example/",
            "gopher://s.example/",
            "https://user@s.example/",
        ] {
            assert_eq!(to(bad), None, "{bad:?}");
        }
    }
}
