//! Requests to one registry: TLS, authentication, redirects, time limits.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, AUTHORIZATION, HeaderValue, LOCATION, RANGE, USER_AGENT, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use super::RegistryError;
use super::auth::{Challenge, RegistryAuth, TokenAnswer, percent_encode};
use crate::reference::Reference;

/// Until the answer's first line. Registries may be slow to find a layer.
pub(super) const ANSWER_SECONDS: u64 = 60;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const MAX_REDIRECTS: usize = 5;
const MAX_TOKEN_BYTES: usize = 64 << 10;

type Http = hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// One repository of one registry, for the length of one pull.
pub(crate) struct Client {
    http: Http,
    /// As references name it.
    registry: String,
    /// Who answers for it.
    server: String,
    repository: String,
    /// Spoken to without TLS.
    plain: bool,
    credentials: Option<RegistryAuth>,
    /// The header that worked last.
    authorization: Mutex<Option<HeaderValue>>,
}

/// One GET.
#[derive(Clone, Copy, Default)]
pub(super) struct Ask<'a> {
    /// Below the repository: `manifests/latest`, `blobs/sha256:…`.
    pub path: &'a str,
    pub accept: Option<&'a str>,
    /// First byte wanted.
    pub from: u64,
}

impl Client {
    /// Reads the host's trusted certificates, so this blocks for a moment.
    pub fn new(
        reference: &Reference,
        plain_registries: &[String],
        credentials: Option<RegistryAuth>,
    ) -> Result<Self, RegistryError> {
        let plain =
            is_loopback(&reference.registry) || plain_registries.contains(&reference.registry);
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.enforce_http(false);
        let provider = tokio_rustls::rustls::crypto::ring::default_provider();
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(provider)
            .map_err(RegistryError::TrustStore)?
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        Ok(Self {
            http: hyper_util::client::legacy::Client::builder(TokioExecutor::new())
                .build(connector),
            registry: reference.registry.clone(),
            server: reference.server().to_owned(),
            repository: reference.repository.clone(),
            plain,
            credentials,
            authorization: Mutex::default(),
        })
    }

    /// Asks, with credentials if the registry wants some, and follows redirects. The answer is a success.
    pub(super) async fn get(&self, ask: Ask<'_>) -> Result<Response<Incoming>, RegistryError> {
        let scheme = if self.plain { "http" } else { "https" };
        let url = format!(
            "{scheme}://{}/v2/{}/{}",
            self.server, self.repository, ask.path
        );
        let mut tried = false;
        loop {
            let authorization = self
                .authorization
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let answer = self.follow(&url, ask, authorization).await?;
            match answer.status() {
                StatusCode::UNAUTHORIZED if tried => return Err(RegistryError::CredentialsRefused),
                StatusCode::UNAUTHORIZED => {
                    tried = true;
                    let header = self.authenticate(&answer).await?;
                    *self
                        .authorization
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner) = Some(header);
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
    pub(super) async fn get_small(
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
                    what,
                    size: limit as u64 + 1,
                    limit: limit as u64,
                })
            }
            Err(source) => Err(RegistryError::Unreachable {
                registry: self.registry.clone(),
                source,
            }),
        }
    }

    async fn follow(
        &self,
        url: &str,
        ask: Ask<'_>,
        mut authorization: Option<HeaderValue>,
    ) -> Result<Response<Incoming>, RegistryError> {
        let refuse = |url: &str| RegistryError::Redirect {
            url: url.chars().take(300).collect(),
        };
        let mut uri: Uri = url.parse().map_err(|_| refuse(url))?;
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
            let downgrade = next.scheme_str() != Some("https") && !self.plain;
            if downgrade {
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
        .map_err(|error| RegistryError::Unreachable {
            registry: self.registry.clone(),
            source: error.into(),
        })
    }

    async fn authenticate(
        &self,
        answer: &Response<Incoming>,
    ) -> Result<HeaderValue, RegistryError> {
        let offered = answer.headers().get_all(WWW_AUTHENTICATE).iter();
        let text = match Challenge::choose(offered.filter_map(|value| value.to_str().ok()))? {
            Challenge::Basic => self
                .credentials
                .as_ref()
                .ok_or(RegistryError::CredentialsNeeded)?
                .basic(),
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
        if !url.starts_with("https://") && !self.plain {
            return Err(RegistryError::Redirect {
                url: realm.chars().take(300).collect(),
            });
        }
        let basic = self.credentials.as_ref().map(RegistryAuth::basic);
        let basic = basic.and_then(|text| HeaderValue::from_str(&text).ok());
        let answer = self.follow(&url, Ask::default(), basic).await?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.credentials.is_none() => {
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

/// Where a `Location` leads.
fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    if location.starts_with('/') && !location.starts_with("//") {
        let mut parts = base.clone().into_parts();
        parts.path_and_query = Some(location.parse().ok()?);
        return Uri::from_parts(parts).ok();
    }
    let uri: Uri = location.parse().ok()?;
    (matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some()).then_some(uri)
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
        ] {
            assert_eq!(to(bad), None, "{bad:?}");
        }
    }
}
