//! What a client hears when a request is not passed on. Nothing of a secret or a server's answer is in it.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Response, StatusCode, header};

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
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
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Self::OtherHost => StatusCode::MISDIRECTED_REQUEST,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unknown | Self::Scope | Self::Asymmetric | Self::Expired => StatusCode::FORBIDDEN,
            Self::Unwritable | Self::Signature => StatusCode::BAD_REQUEST,
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
        response
    }
}
