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
            Self::Unknown => StatusCode::FORBIDDEN,
            Self::Unwritable => StatusCode::BAD_REQUEST,
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
