//! Bodies of requests: read whole within bounds, or taken piece by piece.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::Front;
use crate::front::BUFFER_UNIT;

#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is over this route's limit of {0} bytes")]
    TooLarge(u64),
    #[error("the body did not arrive in time")]
    TooSlow,
    #[error("the body broke off")]
    Broken(#[source] axum::Error),
    #[error("the server holds as many large requests as it can")]
    NoRoom,
}

/// A whole body, and the room it takes until this is dropped.
#[derive(Debug)]
pub struct Held {
    pub bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl Front {
    /// The whole body, at most `max` bytes of it.
    pub async fn whole(&self, body: Body, max: usize) -> Result<Held, BodyError> {
        let read = async {
            let mut stream = body.into_data_stream();
            let mut all = BytesMut::new();
            let mut room: Option<OwnedSemaphorePermit> = None;
            while let Some(piece) = stream.next().await {
                let piece = piece.map_err(BodyError::Broken)?;
                if all.len() + piece.len() > max {
                    return Err(BodyError::TooLarge(max as u64));
                }
                // The first unit is free: most bodies are small.
                let units = (all.len() + piece.len()) / BUFFER_UNIT;
                let taken = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
                if let Some(more @ 1..) = units.checked_sub(taken) {
                    let more = u32::try_from(more).map_err(|_| BodyError::NoRoom)?;
                    let permit = self.buffers.clone().try_acquire_many_owned(more);
                    let permit = permit.map_err(|_| BodyError::NoRoom)?;
                    match &mut room {
                        None => room = Some(permit),
                        Some(held) => held.merge(permit),
                    }
                }
                all.extend_from_slice(&piece);
            }
            let bytes = all.freeze();
            Ok(Held { bytes, _room: room })
        };
        timeout(self.body_timeout, read)
            .await
            .map_err(|_| BodyError::TooSlow)?
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
