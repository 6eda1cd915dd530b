//! The bytes of layers: each is asked for from where it broke off, and sent on as it comes.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::StatusCode;
use tokio::time::timeout;

use crate::client::{Ask, Client};
use crate::error::RegistryError;
use crate::wire::{DATA_BYTES_MAX, Digest, Reply};
use crate::work::Parent;

/// Tries in a row that bring not one byte.
const MAX_FRUITLESS_ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest silence within a transfer.
const SILENCE: Duration = Duration::from_secs(60);

/// One layer on its way to the parent.
pub struct Blob {
    pub stream: u8,
    pub digest: Digest,
    pub size: u64,
    /// Bytes the parent has.
    pub length: u64,
}

/// How one try ended, when it did not fail for good.
enum Try {
    Complete,
    Broken(String),
}

impl Client {
    /// Sends the rest of a layer to the parent.
    pub async fn send_blob(&self, mut blob: Blob, parent: &Parent) -> Result<(), RegistryError> {
        let mut fruitless = 0;
        while blob.length < blob.size {
            let before = blob.length;
            let detail = match self.attempt(&mut blob, parent).await {
                Ok(Try::Complete) => break,
                Ok(Try::Broken(detail)) => detail,
                Err(error) if error.is_passing() => error.to_string(),
                Err(error) => return Err(error),
            };
            fruitless = if blob.length > before {
                0
            } else {
                fruitless + 1
            };
            if fruitless >= MAX_FRUITLESS_ATTEMPTS {
                return Err(RegistryError::BrokenOff {
                    attempts: fruitless,
                    detail,
                });
            }
            tokio::time::sleep(FIRST_PAUSE * 2u32.pow(fruitless)).await;
        }
        Ok(())
    }

    async fn attempt(&self, blob: &mut Blob, parent: &Parent) -> Result<Try, RegistryError> {
        let path = format!("blobs/{}", blob.digest);
        let ask = Ask {
            path: &path,
            accept: None,
            from: blob.length,
        };
        let answer = match self.get(ask).await {
            Ok(answer) => answer,
            // The server cannot continue there, so from the beginning.
            Err(RegistryError::Status { status: 416, .. }) => {
                blob.restart(parent).await;
                return Ok(Try::Broken("the range was refused".into()));
            }
            Err(error) => return Err(error),
        };
        if blob.length > 0 && answer.status() != StatusCode::PARTIAL_CONTENT {
            blob.restart(parent).await;
        }
        let mut body = answer.into_body();
        loop {
            let frame = match timeout(SILENCE, body.frame()).await {
                Err(_) => return Ok(Try::Broken("the registry stopped sending".into())),
                Ok(Some(Err(error))) => return Ok(Try::Broken(error.to_string())),
                Ok(None) if blob.length < blob.size => {
                    // An answer that ends early without saying so is continued like a broken one.
                    return Ok(Try::Broken("the answer is too short".into()));
                }
                Ok(None) => return Ok(Try::Complete),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let length = blob.length + data.len() as u64;
            if length > blob.size {
                return Err(RegistryError::TooLarge {
                    what: "a layer".into(),
                    size: length,
                    limit: blob.size,
                });
            }
            for bytes in data.chunks(DATA_BYTES_MAX) {
                let (stream, bytes) = (blob.stream, bytes.to_vec());
                parent.send(&Reply::Data { stream, bytes }).await;
            }
            blob.length = length;
        }
    }
}

impl Blob {
    async fn restart(&mut self, parent: &Parent) {
        self.length = 0;
        let stream = self.stream;
        parent.send(&Reply::Restart { stream }).await;
    }
}
