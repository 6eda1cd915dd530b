//! From requests to typed values: who asks, the query, the body. Everything refused here is refused
//! in the contract's own form.

use axum::extract::{FromRequest, FromRequestParts, Path, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use cove_api::ErrorCode;
use cove_api::route::{Access, Body as RouteBody, Route};
use cove_control::Principal;
use cove_dialect::{BodyError, RequestId, Seen, Tab};
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::state::App;
use crate::strict;

/// The authenticated caller.
pub struct Caller {
    pub principal: Principal,
    pub request_id: String,
}

impl FromRequestParts<App> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let request_id = match parts.extensions.get::<RequestId>() {
            Some(RequestId(id)) => id.clone(),
            None => return Err(Failure::new(ErrorCode::Internal, "the request has no id")),
        };
        let token = bearer(&parts.headers)?;
        let extensions = &parts.extensions;
        let route = extensions.get::<&'static Route>();
        let principal = match route.is_some_and(|route| route.bound) {
            true => app.front.bound_caller(extensions, token).await?,
            false => app.front.caller(extensions, token).await?,
        };
        Ok(Self {
            principal,
            request_id,
        })
    }
}

pub fn bearer(headers: &HeaderMap) -> Result<&str, Failure> {
    let refuse = |message: &str| {
        Failure::new(ErrorCode::Unauthenticated, message)
            .hint("send `Authorization: Bearer <key>`; the command line takes COVE_API_KEY")
    };
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values
        .next()
        .ok_or_else(|| refuse("this route needs an API key"))?;
    if values.next().is_some() {
        return Err(refuse("there is more than one Authorization header"));
    }
    let text = value
        .to_str()
        .map_err(|_| refuse("the Authorization header is not text"))?;
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err(refuse("the Authorization header is not a bearer token")),
    }
}

/// The query string, every field of it known.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Failure> {
        let query = parts.uri.query().unwrap_or("");
        let pairs = form_urlencoded::parse(query.as_bytes());
        serde_path_to_error::deserialize(serde_urlencoded::Deserializer::new(pairs))
            .map(Self)
            .map_err(|error| {
                let path = error.path().to_string();
                let told = cove_dialect::wording::plain(&path, error.inner());
                Failure::invalid(format!("the query is invalid: {told}"))
            })
    }
}

/// The names in a path. One that is not even text names nothing.
pub struct Names<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Names<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        match Path::<T>::from_request_parts(parts, app).await {
            Ok(Path(names)) => Ok(Self(names)),
            Err(_) => Err(Failure::new(ErrorCode::NotFound, "nothing has that name")),
        }
    }
}

/// A JSON body; nothing at all where the route allows that.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned + Default> FromRequest<App> for JsonOr<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Self, Failure> {
        let headers = request.headers().clone();
        let bytes = whole(request, app).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        is_json(&headers)?;
        parse(&bytes).map(Self)
    }
}

/// A JSON body or its default.
pub struct JsonOr<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Self, Failure> {
        is_json(request.headers())?;
        let bytes = whole(request, app).await?;
        parse(&bytes).map(Self)
    }
}

/// The whole of a raw body.
pub struct Raw(pub Bytes);

impl FromRequest<App> for Raw {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Self, Failure> {
        whole(request, app).await.map(Self)
    }
}

/// A raw body, piece by piece at the pace of the reader.
pub struct Pieces(cove_dialect::Pieces);

impl FromRequest<App> for Pieces {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Self, Failure> {
        let route = table_row(&request)?;
        debug_assert!(matches!(route.body, RouteBody::Raw(_)));
        let max = route.body_max as u64;
        Ok(Self(app.front.pieces(request.into_body(), max)))
    }
}

impl Pieces {
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        Ok(self.0.next().await?)
    }
}

/// The path of everything that is about one sandbox begins so.
const OF_A_SANDBOX: &str = "/v1/sandboxes/{id}";

/// The whole body, paid for by who asks. One that is slow or large is waited for only when the caller may
/// do this at all and the sandbox it is for is there.
async fn whole(request: Request, app: &App) -> Result<Bytes, Failure> {
    let route = table_row(&request)?;
    let (mut parts, body) = request.into_parts();
    let tab = parts.extensions.get::<Tab>().cloned().unwrap_or_default();
    let known = async {
        let Some(principal) = parts
            .extensions
            .get::<Seen>()
            .and_then(|seen| seen.0.get().cloned())
        else {
            return Ok(());
        };
        let Access::Key(scope) = route.access else {
            return Ok(());
        };
        let mut sandbox = None;
        if route.path.starts_with(OF_A_SANDBOX)
            && let Ok(named) = RawPathParams::from_request_parts(&mut parts, app).await
        {
            sandbox = named.iter().next().map(|(_, value)| value.to_owned());
        }
        let expected = app.control.expect(&principal, scope, sandbox.as_deref());
        Ok::<_, Failure>(expected.await?)
    };
    app.front.whole(&tab, body, route.body_max, known).await
}

impl From<BodyError> for Failure {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge(_) => Self::new(ErrorCode::PayloadTooLarge, error.to_string()),
            BodyError::TooSlow => too_slow(),
            BodyError::Broken(error) => broken(&error),
            BodyError::NoRoom(error) => error.into(),
        }
    }
}

fn table_row(request: &Request) -> Result<&'static Route, Failure> {
    request
        .extensions()
        .get::<&'static Route>()
        .copied()
        .ok_or_else(|| Failure::new(ErrorCode::Internal, "the route is not in the table"))
}

fn is_json(headers: &HeaderMap) -> Result<(), Failure> {
    let media_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .map(str::trim);
    match media_type {
        Some(given) if given.eq_ignore_ascii_case("application/json") => Ok(()),
        _ => Err(
            Failure::new(ErrorCode::UnsupportedMediaType, "the body must be JSON")
                .hint("send `Content-Type: application/json`"),
        ),
    }
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    strict::from_slice(bytes).map_err(|(path, error)| match error.classify() {
        serde_json::error::Category::Data => {
            let told = cove_dialect::wording::plain(&path, &error);
            Failure::invalid(format!("the body is invalid: {told}"))
        }
        serde_json::error::Category::Eof => {
            let message = "the body is not JSON: it ends too early";
            Failure::new(ErrorCode::MalformedRequest, message)
        }
        _ => Failure::new(
            ErrorCode::MalformedRequest,
            format!("the body is not JSON: {error}"),
        ),
    })
}

fn too_slow() -> Failure {
    Failure::new(ErrorCode::RequestTimeout, "the body did not arrive in time")
}

fn broken(error: &axum::Error) -> Failure {
    Failure::new(ErrorCode::MalformedRequest, "the body ended too early").because(error)
}

/// Whether `Accept` asks for this media type by name.
pub fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    headers.get_all(header::ACCEPT).iter().any(|value| {
        value.to_str().is_ok_and(|text| {
            text.split(',').any(|part| {
                let name = part.split(';').next().unwrap_or("").trim();
                name.eq_ignore_ascii_case(media_type)
            })
        })
    })
}
