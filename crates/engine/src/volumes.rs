//! Volumes that vanish when an operation fails.

use cove_pool::{Pool, VolumeId};

use crate::offload;

/// A volume that is deleted when this is dropped, unless it is kept.
pub struct Draft {
    pool: Pool,
    id: Option<VolumeId>,
}

impl Draft {
    pub fn new(pool: &Pool, id: VolumeId) -> Self {
        Self {
            pool: pool.clone(),
            id: Some(id),
        }
    }

    pub fn id(&self) -> &VolumeId {
        self.id.as_ref().expect("set until it is kept or dropped")
    }

    pub fn keep(mut self) {
        self.id = None;
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            // What cannot be deleted now is deleted by the next sweep.
            if let Err(error) = offload::blocking(|| self.pool.delete(&id)) {
                tracing::warn!(volume = %id, %error, "cannot remove a draft; the next sweep retries");
            }
        }
    }
}
