//! What E2B's clients believe runs inside each sandbox: processes, files, and code in contexts.
//!
//! A request names its sandbox by a header and shows a token that making or connecting to the sandbox
//! gave. Where it asks for a port of the sandbox, the port is one of two that stand for these services.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cove_control::{Account, GuestAccess, GuestAction, Principal};
use cove_dialect::{Front, Kind as Held, Slot, Tab};
use cove_model::{SandboxId, State as Life};

use crate::plane::one;
use crate::refusal::{Api, Kind, NOT_RUNNING, Refusal, entry};
use crate::{Dialect, naming};

pub mod code;
pub mod files;
pub mod filesystem;
pub mod paths;
pub mod process;
pub mod watch;
mod wire;

pub use watch::Watchers;

/// What tokens of each kind are good for.
pub const ACCESS: &str = "e2b-access";
pub use cove_control::PORT_VISITS as TRAFFIC;

const SANDBOX_ID: &str = "e2b-sandbox-id";
const SANDBOX_PORT: &str = "e2b-sandbox-port";
const ACCESS_TOKEN: &str = "x-access-token";
const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";
/// The name E2B gives to the user everything is run by.
const DEFAULT_USER: &str = "user";

/// Which of the two services a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    Envd,
    Code,
}

impl Service {
    fn port(self) -> &'static str {
        match self {
            Self::Envd => "49983",
            Self::Code => "49999",
        }
    }
}

/// One sandbox, opened for one request.
pub struct Door {
    dialect: Dialect,
    principal: Principal,
    /// What is held of the request.
    pub tab: Tab,
    pub id: SandboxId,
    pub headers: HeaderMap,
}

impl Door {
    /// The door and what is left of the request.
    pub async fn open(
        dialect: &Dialect,
        request: Request,
        service: Service,
    ) -> Result<(Self, Body), Refusal> {
        let (parts, body) = request.into_parts();
        Ok((Self::knock(dialect, parts, service).await?, body))
    }

    async fn knock(dialect: &Dialect, parts: Parts, service: Service) -> Result<Self, Refusal> {
        let headers = &parts.headers;
        let id = named(headers)?;
        if let Some(port) = one(headers, SANDBOX_PORT)
            && port != service.port()
        {
            return Err(Refusal::invalid(
                "ports inside are not reached this way; get_host returns their address",
            ));
        }
        let shown = [
            (one(headers, ACCESS_TOKEN), ACCESS, true),
            // Some clients have nothing else to show when they ask about code.
            (
                one(headers, TRAFFIC_TOKEN),
                TRAFFIC,
                service == Service::Code,
            ),
        ];
        let token = shown
            .into_iter()
            .find_map(|(token, purpose, fits)| Some((token.filter(|_| fits)?, purpose)));
        let (token, purpose) = token.ok_or_else(|| {
            Refusal::new(
                Kind::Unauthenticated,
                "the sandbox's access token is missing",
            )
        })?;
        let origin = Front::origin(&parts.extensions);
        let control = &dialect.front.control;
        let principal = control.token_holder(&id, token, purpose, origin).await;
        let principal = principal.map_err(entry)?;
        dialect.front.note(&parts.extensions, &principal)?;
        Ok(Self::shown_in(dialect, principal, id, parts))
    }

    /// For whoever has shown something else than a token in a header.
    pub fn shown_in(dialect: &Dialect, principal: Principal, id: SandboxId, parts: Parts) -> Self {
        Self {
            dialect: dialect.clone(),
            principal,
            tab: parts.extensions.get::<Tab>().cloned().unwrap_or_default(),
            id,
            headers: parts.headers,
        }
    }

    /// A place among the uploads and downloads of the caller's organisation.
    pub fn transfer(&self) -> Result<Slot, Refusal> {
        let org = &self.principal.org;
        Ok(self.dialect.front.streams.enter(org, Held::Transfer)?)
    }

    /// A place among the streams of the caller's organisation.
    pub fn slot(&self) -> Result<Slot, Refusal> {
        let org = &self.principal.org;
        Ok(self.dialect.front.streams.enter(org, Held::Live)?)
    }

    /// The door was opened by the sandbox's own token: nothing more has to be known before a body is read.
    pub async fn known(&self) -> Result<(), Refusal> {
        Ok(())
    }

    pub fn account(&self) -> Account {
        self.dialect.front.control.budget().account(&self.principal)
    }

    pub fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    pub async fn inside(&self, action: GuestAction) -> Result<GuestAccess, Refusal> {
        let control = &self.dialect.front.control;
        let access = control.guest(&self.principal, self.id.as_str(), action);
        access.await.map_err(entry)
    }

    /// Whose rights the request wants to act with; empty for the sandbox's default user.
    pub fn user(&self, access: &GuestAccess) -> Result<String, Refusal> {
        let Some(header) = self.headers.get(header::AUTHORIZATION) else {
            return acting(access, None);
        };
        let named = header
            .to_str()
            .ok()
            .and_then(|text| text.strip_prefix("Basic "))
            .and_then(|text| BASE64.decode(text.trim()).ok())
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .and_then(|text| Some(text.split_once(':')?.0.to_owned()));
        let named = named.ok_or_else(|| {
            Refusal::new(
                Kind::Unauthenticated,
                "the Authorization header names no user",
            )
        })?;
        acting(access, Some(&named))
    }
}

/// The user a name stands for. Older clients send E2B's default user whoever it is; in a sandbox that says nothing of
/// its user, its image's one is meant.
pub fn acting(access: &GuestAccess, named: Option<&str>) -> Result<String, Refusal> {
    match named {
        None | Some("") => Ok(access.default_user().to_owned()),
        Some(DEFAULT_USER) if access.sandbox().spec.user.is_none() => {
            Ok(access.default_user().to_owned())
        }
        Some(name) if name.len() <= 64 && !name.chars().any(char::is_control) => {
            Ok(name.to_owned())
        }
        Some(_) => Err(Refusal::invalid("the user name is invalid")),
    }
}

fn named(headers: &HeaderMap) -> Result<SandboxId, Refusal> {
    let text = one(headers, SANDBOX_ID).ok_or_else(|| {
        Refusal::invalid("the request names no sandbox: E2b-Sandbox-Id is missing")
    })?;
    naming::meant(text).ok_or_else(|| Refusal::new(Kind::NotRunning, NOT_RUNNING))
}

/// With a sandbox named: whether that one runs; it is not woken for this. Else whether the server does.
pub async fn health(State(dialect): State<Dialect>, request: Request) -> Result<Response, Api> {
    if !request.headers().contains_key(SANDBOX_ID) {
        return Ok(StatusCode::OK.into_response());
    }
    let service = match one(request.headers(), SANDBOX_PORT) {
        Some(port) if port == Service::Code.port() => Service::Code,
        _ => Service::Envd,
    };
    let (door, _) = Door::open(&dialect, request, service).await?;
    let control = &dialect.front.control;
    let mut reader = door.principal.clone();
    reader.scopes.push(cove_control::Scope::Read);
    let sandbox = control.get_sandbox(&reader, door.id.as_str()).await;
    match sandbox.map_err(entry)?.state {
        Life::Running | Life::Frozen => Ok(StatusCode::NO_CONTENT.into_response()),
        state => {
            let message = format!("{NOT_RUNNING}: it is {state}");
            Err(Refusal::new(Kind::NotRunning, message).into())
        }
    }
}
