//! Bodies of requests: read whole within bounds, or taken piece by piece.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use cove_control::ControlError;
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::{Front, Tab};

/// How often a body that did not come with its request is looked for before the wait for it begins.
const LOOKS: usize = 4;
/// A body is held as it came, and as what was read from it.
pub const BODY_COPIES: usize = 2;

#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is over this route's limit of {0} bytes")]
    TooLarge(u64),
    #[error("the body did not arrive in time")]
    TooSlow,
    #[error("the body ended too early")]
    Broken(#[source] axum::Error),
    #[error("{}", .0.message)]
    NoRoom(ControlError),
}

impl Front {
    /// The whole body, at most `max` bytes of it, paid for by `tab`. Before a body is waited for that did
    /// not come together with its request, `known` tells whether it would be of any use.
    pub async fn whole<E: From<BodyError>>(
        &self,
        tab: &Tab,
        body: Body,
        max: usize,
        known: impl Future<Output = Result<(), E>>,
    ) -> Result<Bytes, E> {
        let reading = read(tab, body, max);
        tokio::pin!(reading);
        tokio::select! {
            biased;
            read = &mut reading => return Ok(read?),
            () = looks() => {}
        }
        known.await?;
        let read = timeout(self.body_timeout, reading).await;
        Ok(read.map_err(|_| BodyError::TooSlow)??)
    }

    /// The body as it comes, at most `max` bytes of it.
    pub fn pieces(&self, body: Body, max: u64) -> Pieces {
        Pieces {
            stream: body.into_data_stream(),
            idle: self.upload_idle,
            left: max,
            max,
        }
    }
}

/// Lets the connection hand over what has arrived.
async fn looks() {
    for _ in 0..LOOKS {
        tokio::task::yield_now().await;
    }
}

async fn read(tab: &Tab, body: Body, max: usize) -> Result<Bytes, BodyError> {
    let mut stream = body.into_data_stream();
    let mut all = BytesMut::new();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(BodyError::Broken)?;
        if all.len() + piece.len() > max {
            return Err(BodyError::TooLarge(max as u64));
        }
        tab.take(BODY_COPIES * piece.len())
            .map_err(BodyError::NoRoom)?;
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}

/// A body, piece by piece at the pace of whoever takes the pieces.
pub struct Pieces {
    stream: BodyDataStream,
    idle: Duration,
    left: u64,
    max: u64,
}

impl Pieces {
    pub async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        let piece = timeout(self.idle, self.stream.next()).await;
        match piece.map_err(|_| BodyError::TooSlow)? {
            None => Ok(None),
            Some(Err(error)) => Err(BodyError::Broken(error)),
            Some(Ok(bytes)) => {
                let left = self.left.checked_sub(bytes.len() as u64);
                self.left = left.ok_or(BodyError::TooLarge(self.max))?;
                Ok(Some(bytes))
            }
        }
    }
}
