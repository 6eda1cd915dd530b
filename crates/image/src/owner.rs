//! On whose behalf images are fetched, and which layers each has brought.
//!
//! Layers are shared on disk, never by access: an organisation may use a layer that is here only once
//! bytes with its digest were delivered in full to one of its own pulls. What a registry merely says
//! about a digest proves nothing, or anybody could have another's private layer by naming it. A claim
//! is an empty file `owners/<owner>/<chain>`; it goes with the layer's volume.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use cove_model::OrgId;

use crate::chain::ChainId;
use crate::error::ImageError;

/// Whose pull it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The home organisation: whoever owns the host.
    Operator,
    Tenant {
        org: OrgId,
        /// What its quota of disk has room for.
        room_bytes: u64,
    },
}

impl Owner {
    /// Names files; organisations' ids never look like the operator's.
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Operator => "operator",
            Self::Tenant { org, .. } => org.as_str(),
        }
    }

    pub(crate) fn room_bytes(&self) -> Option<u64> {
        match self {
            Self::Operator => None,
            Self::Tenant { room_bytes, .. } => Some(*room_bytes),
        }
    }
}

/// The claims on disk.
pub(crate) struct Claims {
    dir: PathBuf,
}

impl Claims {
    pub fn open(dir: PathBuf) -> Result<Self, ImageError> {
        fs::create_dir_all(&dir).map_err(ImageError::file("creating", &dir))?;
        Ok(Self { dir })
    }

    fn place(&self, owner: &Owner) -> PathBuf {
        self.dir.join(owner.key())
    }

    pub fn has(&self, owner: &Owner, chain: &ChainId) -> bool {
        self.place(owner).join(chain.as_str()).exists()
    }

    /// Writes down that every byte of these layers was delivered to this owner; on disk when this returns.
    pub fn add(&self, owner: &Owner, chains: &[ChainId]) -> Result<(), ImageError> {
        let place = self.place(owner);
        let written = (|| {
            fs::create_dir_all(&place)?;
            for chain in chains {
                File::create(place.join(chain.as_str()))?;
            }
            File::open(&place)?.sync_all()?;
            File::open(&self.dir)?.sync_all()
        })();
        written.map_err(ImageError::file("writing", place))
    }

    /// Removes the claims on layers that are gone.
    pub fn sweep(&self, exists: impl Fn(&ChainId) -> bool) -> usize {
        let mut removed = 0;
        for place in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            for claim in fs::read_dir(place.path()).into_iter().flatten().flatten() {
                let name = claim.file_name().to_string_lossy().into_owned();
                let kept = ChainId::try_from(name).is_ok_and(|chain| exists(&chain));
                if !kept && fs::remove_file(claim.path()).is_ok() {
                    removed += 1;
                }
            }
            // Fails while there is a claim left.
            let _ = fs::remove_dir(place.path());
        }
        removed
    }
}

/// Bytes that pulls under way may bring, by owner.
#[derive(Default)]
pub(crate) struct InFlight(Arc<Mutex<HashMap<String, u64>>>);

/// Gives the bytes back when dropped.
pub(crate) struct Reserved {
    all: Arc<Mutex<HashMap<String, u64>>>,
    owner: String,
    bytes: u64,
}

impl InFlight {
    /// Sets `bytes` aside of what the owner's quota has room for; `kept` lie on disk from earlier tries.
    pub fn reserve(&self, owner: &Owner, bytes: u64, kept: u64) -> Result<Reserved, ImageError> {
        let mut all = self.0.lock();
        let before = all.get(owner.key()).copied().unwrap_or(0);
        let after = before.saturating_add(bytes);
        if let Some(room) = owner.room_bytes()
            && after.saturating_add(kept) > room
        {
            return Err(ImageError::BeyondQuota {
                need: bytes,
                room: room.saturating_sub(before.saturating_add(kept)),
            });
        }
        all.insert(owner.key().to_owned(), after);
        Ok(Reserved {
            all: Arc::clone(&self.0),
            owner: owner.key().to_owned(),
            bytes,
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(bytes) = all.get_mut(&self.owner) {
            *bytes -= self.bytes;
            if *bytes == 0 {
                all.remove(&self.owner);
            }
        }
    }
}
