//! Who is asking, from where, and under which id.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use axum::http::Extensions;
use cove_control::{ControlError, Origin, Principal};

use crate::{Front, Kind, Tab};

/// Given by the server, never taken from a caller.
#[derive(Clone, Debug)]
pub struct RequestId(pub String);

/// Where the connection comes from.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// Who turned out to be asking: named in the request's log line, and let stay only as long as the
/// key is good.
#[derive(Clone, Debug, Default)]
pub struct Seen(pub Arc<OnceLock<Principal>>);

impl Seen {
    /// The organisation and the key, for the log.
    pub fn shown(&self) -> String {
        let Some(principal) = self.0.get() else {
            return String::new();
        };
        let key = principal.key.as_ref().map_or("-", |key| key.as_str());
        format!("{}/{key}", principal.org)
    }
}

impl Front {
    /// What audit records say of where a request came from.
    pub fn origin(extensions: &Extensions) -> Origin {
        let source = extensions.get::<Peer>().map(|peer| peer.0.to_string());
        let request_id = extensions.get::<RequestId>().map(|id| id.0.clone());
        Origin { source, request_id }
    }

    /// Whoever holds this key; counts against its rate limit. Refuses keys that are bound to one sandbox.
    pub async fn caller(
        &self,
        extensions: &Extensions,
        token: &str,
    ) -> Result<Principal, ControlError> {
        let origin = Self::origin(extensions);
        let principal = self.control.authenticate(token, origin).await?;
        self.note(extensions, &principal)?;
        Ok(principal)
    }

    /// The same where keys that are bound to one sandbox are good too.
    pub async fn bound_caller(
        &self,
        extensions: &Extensions,
        token: &str,
    ) -> Result<Principal, ControlError> {
        let origin = Self::origin(extensions);
        let principal = self.control.authenticate_bound(token, origin).await?;
        self.note(extensions, &principal)?;
        Ok(principal)
    }

    /// Tells the server around who the caller is. Refused when their organisation has its share of
    /// requests under way.
    pub fn note(&self, extensions: &Extensions, principal: &Principal) -> Result<(), ControlError> {
        if let Some(seen) = extensions.get::<Seen>() {
            // The first answer stands: a request has one caller.
            seen.0.set(principal.clone()).ok();
        }
        let Some(tab) = extensions.get::<Tab>() else {
            return Ok(());
        };
        let account = self.control.budget().account(principal);
        tab.open(&account, || {
            self.streams.enter(&principal.org, Kind::Request)
        })
    }
}
