//! What can go wrong between here and an answer.

use std::io;
use std::time::Duration;

use cove_api::{ErrorCode, ErrorDetail};
use http::StatusCode;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{0}")]
    Config(String),
    #[error("cannot connect to {url}")]
    Connect {
        url: String,
        #[source]
        source: io::Error,
    },
    /// The server understood and said no.
    #[error("{}", detail.message)]
    Refused {
        status: StatusCode,
        detail: Box<ErrorDetail>,
        retry_after_s: Option<u64>,
    },
    /// Something else than a Cove server answered.
    #[error("the answer ({status}) does not come from a Cove server")]
    NotCove { status: StatusCode },
    #[error("lost the connection to the server")]
    Http(#[source] hyper::Error),
    #[error("cannot read the whole answer")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer has an unexpected form")]
    Answer(#[source] serde_json::Error),
    #[error("the server violated the protocol: {0}")]
    Protocol(&'static str),
    #[error("the WebSocket failed")]
    WebSocket(#[source] Box<tokio_tungstenite::tungstenite::Error>),
    #[error("cannot read the data to send")]
    Source(#[source] io::Error),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

impl ClientError {
    /// The server's code, when it was the server that refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { detail, .. } => Some(detail.code),
            _ => None,
        }
    }
}
