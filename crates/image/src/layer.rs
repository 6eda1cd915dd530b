//! Fills volumes: a copy of the volume below, an archive unpacked over it by the confined program,
//! and only then the name under which others find it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cove_model::ImageId;
use cove_pool::{Access, FullDisk, Kind, Pool, PoolError, VolumeId};
use cove_unpack::driver::{Event, Job};
use cove_unpack::{Content, Failure, Summary, UnpackError, UnpackProgram};

use crate::chain::ChainId;
use crate::error::ImageError;
use crate::progress::{Progress, Report};
use crate::store::ImageConfig;

/// How often the room on the disk is looked at while a volume is filled. Guests are held by their
/// limits when it runs short; an archive is given up.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// With less than this beyond the reserve, a failed write had no room.
const FULL_MARGIN_BYTES: i64 = 32 << 20;

/// Names of volumes being filled begin like this.
pub(crate) const STAGING_PREFIX: &str = "layer-";

/// One archive to unpack.
pub(crate) struct Archive {
    pub input: OwnedFd,
    pub content: Content,
    /// Whether to compute the hash of the uncompressed bytes.
    pub hash: bool,
    /// Shown in progress.
    pub digest: Option<String>,
    /// What its owner's quota has room for, the volume below included.
    pub room_bytes: Option<u64>,
}

/// A volume being filled; deleted when dropped before [`Staged::publish`].
pub(crate) struct Staged {
    pool: Pool,
    volume: VolumeId,
    published: bool,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            // What cannot be deleted now is deleted by the next sweep.
            let _ = self.pool.delete(&self.volume);
        }
    }
}

impl Staged {
    fn new(pool: &Pool, parent: Option<&ChainId>) -> Result<Self, PoolError> {
        // Image ids are as unique as any; this one only names the volume for a while.
        let unique = ImageId::random();
        let name = format!("{STAGING_PREFIX}{unique}");
        let volume = VolumeId::new(Kind::Staging, name)?;
        match parent {
            Some(parent) => pool.snapshot(&parent.volume(), &volume, Access::Writable)?,
            None => pool.create(&volume)?,
        }
        Ok(Self {
            pool: pool.clone(),
            volume,
            published: false,
        })
    }

    /// Lets what is written from now on take what there is beyond the reserve, and no more than the
    /// owner has room for, where that can be said.
    fn limit(&self, owners_room: Option<u64>) -> Result<(), PoolError> {
        if self.pool.limits().is_err() {
            return Ok(());
        }
        let room = u64::try_from(self.pool.headroom()?.beyond_reserve).unwrap_or(0);
        let used = self.pool.usage(&self.volume)?.referenced_bytes;
        let most = used
            .saturating_add(room)
            .min(owners_room.unwrap_or(u64::MAX));
        self.pool.set_limit(&self.volume, Some(most))
    }

    /// Gives the volume its name, on disk and read-only. Fine when another got there first.
    fn publish(mut self, chain: &ChainId) -> Result<(), PoolError> {
        self.pool.sync(&self.volume)?;
        let volume = chain.volume();
        match self.pool.rename(&self.volume, &volume) {
            Err(PoolError::Exists { .. }) => return Ok(()),
            result => result?,
        }
        self.published = true;
        self.pool.set_read_only(&volume)
    }
}

/// Whether the chain's volume is there. A crash between naming and freezing leaves it writable
/// though complete, so freezing is made up for here.
pub(crate) fn is_ready(pool: &Pool, chain: &ChainId) -> Result<bool, PoolError> {
    let volume = chain.volume();
    if !pool.exists(&volume)? {
        return Ok(false);
    }
    if !pool.info(&volume)?.read_only {
        pool.set_read_only(&volume)?;
    }
    Ok(true)
}

/// Sets its flag when the future that waits for a blocking task is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A filled volume that has no name yet.
pub(crate) struct Filled {
    staged: Staged,
    pub summary: Summary,
}

impl Filled {
    /// The directory it was unpacked to; what lies there is untrusted.
    pub fn root(&self) -> PathBuf {
        self.staged.pool.path(&self.staged.volume)
    }

    pub async fn publish(self, chain: ChainId) -> Result<(), ImageError> {
        blocking(move || Ok(self.staged.publish(&chain)?)).await
    }
}

/// Unpacks an archive over the parent's content. Stops, and leaves nothing, when dropped.
pub(crate) async fn fill(
    pool: &Pool,
    config: &ImageConfig,
    parent: Option<&ChainId>,
    archive: Archive,
    report: &Report,
) -> Result<Filled, ImageError> {
    let stop = StopOnDrop(Arc::default());
    let stopped = Arc::clone(&stop.0);
    let (pool, parent, report) = (pool.clone(), parent.cloned(), report.clone());
    let program: Arc<UnpackProgram> = Arc::clone(&config.unpack_program);
    let (uid_base, limits) = (config.unpack_uid_base, config.limits);
    let room_bytes = archive.room_bytes;
    let watched = pool.clone();
    let filling = blocking(move || {
        let staged = Staged::new(&pool, parent.as_ref())?;
        staged.limit(room_bytes)?;
        let target = pool.path(&staged.volume);
        let job = Job {
            program: &program,
            target: &target,
            input: archive.input,
            uid_base,
            content: archive.content,
            hash: archive.hash,
            limits,
        };
        let summary = cove_unpack::unpack(job, &stopped, &mut |event| match event {
            Event::Progress { bytes, entries } => report.send(Progress::Unpacking {
                digest: archive.digest.clone(),
                done_bytes: bytes,
                entries,
            }),
            Event::Warning(warning) => report.send(Progress::Warning(warning.to_string())),
        })?;
        Ok(Filled { staged, summary })
    });
    tokio::pin!(filling);
    loop {
        tokio::select! {
            filled = &mut filling => return match filled {
                Err(error @ ImageError::Unpack(UnpackError::Refused(_))) => {
                    let full = short_of(&watched, FULL_MARGIN_BYTES).await;
                    let disk_full = matches!(
                        &error,
                        ImageError::Unpack(UnpackError::Refused(Failure::DiskFull))
                    );
                    Err(match (full, room_bytes) {
                        (Some(full), _) => ImageError::Pool(full),
                        (None, Some(room)) if disk_full => ImageError::QuotaFull { room },
                        (None, _) => error,
                    })
                }
                filled => filled,
            },
            () = tokio::time::sleep(LOOK_EVERY) => {
                if let Some(full) = short_of(&watched, 0).await {
                    stop.0.store(true, Ordering::Relaxed);
                    // What it has made by now goes as it is dropped.
                    let _ = filling.await;
                    return Err(full.into());
                }
            }
        }
    }
}

/// The error to give when less than `least` bytes are left beyond the reserve.
async fn short_of(pool: &Pool, least: i64) -> Option<PoolError> {
    let pool = pool.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let room = pool.headroom().ok()?;
        (room.beyond_reserve < least).then(|| PoolError::Full {
            place: FullDisk::Host,
            need: FULL_MARGIN_BYTES.unsigned_abs(),
            free: room.bytes,
            reserve: pool.space().map_or(0, |space| space.reserve),
        })
    });
    looked.await.ok().flatten()
}

/// Runs a closure on a blocking thread of the caller's runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(ImageError::Task)?
}
