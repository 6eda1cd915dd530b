//! What a client hears when a request is not passed on. Nothing of a secret or a server's answer is in it.

use bytes::Bytes;
use cove_model::ApprovalId;
use cove_model::approval::APPROVALS_PENDING_MAX;
use cove_model::secret::BudgetUnit;
use http_body_util::Full;
use hyper::{Response, StatusCode, header};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::table::now_ms;

/// Has the approval's id, for programs.
const APPROVAL_HEADER: &str = "cove-approval";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the request is for another host than the connection")]
    OtherHost,
    #[error("this method cannot be used with hosts that secrets are bound to")]
    Method,
    #[error(
        "the placeholder is not one of this sandbox's for this host: it is another's, or was revoked"
    )]
    Unknown,
    #[error("the request cannot be rewritten")]
    Unwritable,
    #[error(
        "the body is too long: 1 MiB for a form with a secret, 8 MiB for one that is hashed and signed"
    )]
    TooLarge,
    #[error("the body did not arrive in time")]
    Slow,
    #[error("this sandbox sends too many bodies at once that must be held; try again")]
    Busy,
    #[error(
        "the request is signed for another region or service than the secret is bound to (sigv4:REGION/SERVICE)"
    )]
    Scope,
    #[error(
        "SigV4a (AWS4-ECDSA-P256-SHA256) is not supported; configure the client to sign with SigV4 (AWS4-HMAC-SHA256)"
    )]
    Asymmetric,
    #[error("the request's AWS signature is malformed or of an unknown kind")]
    Signature,
    #[error("the presigned request has expired, or is of another time")]
    Expired,
    #[error("the server answered in an encoding that cannot be checked for secrets")]
    Encoded,
    #[error(
        "the secrets of this sandbox for this host are too many or too long to be looked for in answers"
    )]
    Unsearchable,
    #[error("the server cannot be reached")]
    Server,
    #[error(
        "this request needs an approval, {0}; once it is approved (`cove approvals approve {0}`), send the request again"
    )]
    Asked(ApprovalId),
    #[error(
        "this request needs an approval, {0}, for a time: its body is longer than 1 MiB, or it is an upgrade; approve it with `cove approvals approve {0} --for 1h` and send it again"
    )]
    AskedForTime(ApprovalId),
    #[error("this request was denied, {0}")]
    Denied(ApprovalId),
    #[error(
        "{APPROVALS_PENDING_MAX} requests of this sandbox wait for an approval, or too many of its organisation; see `cove approvals ls`"
    )]
    TooManyAsked,
    #[error(
        "a request that needs an approval may have no header that changes its method, and only a short method and path of printable ASCII"
    )]
    Unshowable,
    #[error(
        "the server ended the connection while the request waited for its approval; send the request again on a new connection"
    )]
    Left,
    #[error("{0}")]
    OverBudget(Box<Over>),
    #[error("a budget of a secret cannot be checked now; try again")]
    Unchecked,
    #[error(
        "a secret with a limit on bytes cannot be used with upgrades such as WebSocket, whose frames are not counted"
    )]
    Uncountable,
}

/// What a request would have taken, and what there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Over {
    pub secret: String,
    pub of: BudgetUnit,
    /// The sandbox's own, not shared with others.
    pub own: bool,
    pub need: u64,
    pub left: u64,
    /// Milliseconds since 1970.
    pub renews_ms: Option<u64>,
}

impl Over {
    /// Whole seconds from now until the budget renews.
    fn renews_in(&self) -> Option<u64> {
        let renews = self.renews_ms?;
        Some(renews.saturating_sub(now_ms()).div_ceil(1000))
    }
}

impl std::fmt::Display for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = self.of.as_str();
        let own = if self.own { " of this sandbox" } else { "" };
        write!(
            f,
            "over the budget of secret '{}'{own}: {} {of} left, and this request may take {}; ",
            self.secret, self.left, self.need
        )?;
        let renews = self.renews_ms.and_then(|ms| i64::try_from(ms / 1000).ok());
        let renews = renews.and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
        match renews.and_then(|at| at.format(&Rfc3339).ok()) {
            Some(at) => write!(f, "it renews at {at}"),
            None => write!(
                f,
                "it does not renew; `cove secret set --limit` can raise it"
            ),
        }
    }
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::OtherHost => StatusCode::MISDIRECTED_REQUEST,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unknown | Self::Scope | Self::Asymmetric | Self::Expired => StatusCode::FORBIDDEN,
            Self::Asked(_) | Self::AskedForTime(_) | Self::Denied(_) => StatusCode::FORBIDDEN,
            Self::TooManyAsked | Self::OverBudget(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Left | Self::Unchecked => StatusCode::SERVICE_UNAVAILABLE,
            Self::Uncountable => StatusCode::FORBIDDEN,
            Self::Unshowable | Self::Unwritable | Self::Signature => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Encoded | Self::Unsearchable | Self::Server => StatusCode::BAD_GATEWAY,
        }
    }

    pub fn response(self) -> Response<Full<Bytes>> {
        let text = format!("cove: {self}\n");
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = self.status();
        let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, plain);
        if let Self::Asked(id) | Self::AskedForTime(id) | Self::Denied(id) = &self
            && let Ok(id) = header::HeaderValue::from_str(id.as_str())
        {
            response.headers_mut().insert(APPROVAL_HEADER, id);
        }
        if let Self::OverBudget(over) = &self
            && let Some(seconds) = over.renews_in()
        {
            let seconds = header::HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}
