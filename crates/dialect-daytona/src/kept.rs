//! Output that is held in memory until it is answered, as much of it as one answer may have and the
//! server has room for.

use bytes::BytesMut;
use cove_dialect::{BUFFER_UNIT, Front};
use tokio::sync::OwnedSemaphorePermit;

/// Bytes of one answer.
pub const ANSWER_MAX: usize = 16 * 1024 * 1024;

pub struct Kept {
    front: Front,
    bytes: BytesMut,
    room: Vec<OwnedSemaphorePermit>,
    /// Nothing more is taken in.
    full: bool,
}

impl Kept {
    pub fn new(front: &Front) -> Self {
        Self {
            front: front.clone(),
            bytes: BytesMut::new(),
            room: Vec::new(),
            full: false,
        }
    }

    /// Takes what fits. The first unit is free: most answers are small.
    pub fn take(&mut self, data: &[u8]) {
        let left = ANSWER_MAX.saturating_sub(self.bytes.len());
        let fitting = &data[..data.len().min(left)];
        let units = (self.bytes.len() + fitting.len()) / BUFFER_UNIT;
        while self.room.len() < units && !self.full {
            match self.front.buffers.clone().try_acquire_owned() {
                Ok(permit) => self.room.push(permit),
                Err(_) => self.full = true,
            }
        }
        if !self.full {
            self.bytes.extend_from_slice(fitting);
            self.full = fitting.len() < data.len();
        }
    }

    /// Whether something is missing.
    pub fn is_cut(&self) -> bool {
        self.full
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
