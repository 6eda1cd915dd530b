//! Layers on their way: each is one file named by its digest and its owner, continued where it broke
//! off, and handed out only when its whole content has been hashed here and fits. Nobody continues what
//! another has begun: bytes count for whom they were delivered to.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use cove_fetcher::{BlobEvent, Digest, Layer, RegistryError};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::Session;
use crate::error::ImageError;
use crate::layer::blocking;
use crate::owner::Owner;

/// Bytes gathered before they are hashed and written.
const WRITE_BYTES: usize = 1 << 20;
/// A layer nobody came back for is dropped by the sweep after so long.
const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// What broken pulls may leave, in all, to be continued; nobody pays for it. The oldest goes first.
const KEPT_MAX_BYTES: u64 = 4 << 30;
/// What of it one organisation's may be.
const OWNER_KEPT_MAX_BYTES: u64 = 1 << 30;

/// The folder of layers on their way.
pub(crate) struct Blobs {
    dir: PathBuf,
    leases: Arc<Mutex<Leases>>,
}

/// By file name.
type Leases = HashMap<String, Leased>;

#[derive(Default)]
struct Leased {
    count: usize,
    /// The file goes with the last lease.
    of_no_use: bool,
}

/// Keeps a layer's file; the last one to go takes the file along if it is of no use any more.
pub(crate) struct BlobLease {
    path: PathBuf,
    name: String,
    leases: Arc<Mutex<Leases>>,
    used: bool,
}

impl Blobs {
    pub fn open(dir: PathBuf) -> Result<Self, ImageError> {
        fs::create_dir_all(&dir).map_err(ImageError::file("creating", &dir))?;
        Ok(Self {
            dir,
            leases: Arc::default(),
        })
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock()
    }

    pub fn lease(&self, owner: &Owner, digest: &Digest) -> BlobLease {
        let name = file_name(owner, digest);
        self.leases().entry(name.clone()).or_default().count += 1;
        BlobLease {
            path: self.dir.join(&name),
            name,
            leases: Arc::clone(&self.leases),
            used: false,
        }
    }

    /// Removes the file of a layer, now or with the last pull that uses it.
    pub fn discard(&self, owner: &Owner, digest: &Digest) {
        let name = file_name(owner, digest);
        match self.leases().get_mut(&name) {
            Some(leased) => leased.of_no_use = true,
            None => {
                let _ = fs::remove_file(self.dir.join(name));
            }
        }
    }

    /// What lies here of an owner, to be continued or on its way.
    pub fn kept_bytes(&self, owner: &Owner) -> u64 {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries
            .filter(|entry| owner_of(&entry.file_name().to_string_lossy()) == owner.key())
            .filter_map(|entry| Some(entry.metadata().ok()?.len()))
            .sum()
    }

    /// Removes files that no pull uses: those nobody has continued for a long time, and the oldest of
    /// what is more than may be kept.
    pub fn sweep(&self) -> usize {
        let leases = self.leases();
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return 0;
        };
        let idle = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let metadata = entry.metadata().ok()?;
            let age = metadata.modified().ok()?.elapsed().unwrap_or_default();
            (!leases.contains_key(&name)).then_some((age, metadata.len(), name))
        });
        let mut idle: Vec<_> = idle.collect();
        idle.sort();
        let mut kept_bytes = 0u64;
        let mut kept_of: HashMap<String, u64> = HashMap::new();
        idle.into_iter()
            .filter(|(age, bytes, name)| {
                let with_it = kept_bytes.saturating_add(*bytes);
                let owner = owner_of(name);
                let of_owner = kept_of.entry(owner.to_owned()).or_default();
                let owners_with_it = of_owner.saturating_add(*bytes);
                if *age <= MAX_AGE
                    && !owner.is_empty()
                    && with_it <= KEPT_MAX_BYTES
                    && owners_with_it <= OWNER_KEPT_MAX_BYTES
                {
                    kept_bytes = with_it;
                    *of_owner = owners_with_it;
                    return false;
                }
                fs::remove_file(self.dir.join(name)).is_ok()
            })
            .count()
    }
}

fn file_name(owner: &Owner, digest: &Digest) -> String {
    format!("{}.{}", digest.to_string().replace(':', "-"), owner.key())
}

/// Empty for a file that nobody's pull would continue.
fn owner_of(name: &str) -> &str {
    name.split_once('.').map_or("", |(_, owner)| owner)
}

impl BlobLease {
    /// Says that the layer is unpacked and the file of no use to this pull any more.
    pub fn mark_used(&mut self) {
        self.used = true;
    }

    /// For what goes on when the pull is given up.
    fn another(&self) -> Self {
        let mut leases = self.leases.lock();
        leases.entry(self.name.clone()).or_default().count += 1;
        Self {
            path: self.path.clone(),
            name: self.name.clone(),
            leases: Arc::clone(&self.leases),
            used: false,
        }
    }
}

impl Drop for BlobLease {
    fn drop(&mut self) {
        let mut leases = self.leases.lock();
        let Some(leased) = leases.get_mut(&self.name) else {
            return;
        };
        leased.count -= 1;
        leased.of_no_use |= self.used;
        if leased.count == 0 {
            if leased.of_no_use {
                let _ = fs::remove_file(&self.path);
            }
            leases.remove(&self.name);
        }
    }
}

/// A file being written, with the hash of what it holds.
struct Partial {
    file: File,
    hash: Sha256,
    length: u64,
}

impl Partial {
    /// Takes up what an earlier try left.
    fn open(path: &PathBuf) -> std::io::Result<Self> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; WRITE_BYTES];
        let mut length = 0;
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(Self { file, hash, length }),
                count => {
                    hash.update(&buffer[..count]);
                    length += count as u64;
                }
            }
        }
    }

    fn restart(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.hash = Sha256::new();
        self.length = 0;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }
}

impl Session {
    /// Brings a layer's file to completion and returns it, checked, at its beginning. One at a
    /// time per file. `progress` gets the bytes that are there.
    pub async fn download(
        &self,
        lease: &BlobLease,
        layer: &Layer,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<File, ImageError> {
        let path = lease.path.clone();
        let file_error = |path: PathBuf| ImageError::file("writing", path);
        let (place, failed) = (path.clone(), file_error(path.clone()));
        let lease = lease.another();
        let mut partial = blocking(move || {
            // The file must not come back when it was discarded meanwhile.
            let _lease = lease;
            Partial::open(&place).map_err(failed)
        })
        .await?;
        if partial.length > layer.size {
            partial.restart().map_err(file_error(path.clone()))?;
        }
        if partial.length < layer.size {
            progress(partial.length);
            partial = self.receive(partial, layer, &path, progress).await?;
        }
        progress(partial.length);
        let Partial { mut file, hash, .. } = partial;
        let actual = Digest(hash.finalize().into());
        if actual != layer.digest {
            // Nothing of it can be continued.
            let _ = fs::remove_file(&path);
            return Err(RegistryError::DigestMismatch {
                expected: layer.digest.to_string(),
                actual: actual.to_string(),
            }
            .into());
        }
        file.seek(SeekFrom::Start(0)).map_err(file_error(path))?;
        Ok(file)
    }

    async fn receive(
        &self,
        mut partial: Partial,
        layer: &Layer,
        path: &PathBuf,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Partial, ImageError> {
        let failed = || ImageError::file("writing", path);
        let mut events = self.fetch.blob(layer, partial.length).await?;
        let mut pace = Pace::new(self);
        let mut gathered = Vec::with_capacity(WRITE_BYTES + (64 << 10));
        loop {
            let ended = match pace.next(&mut events).await {
                Ok(BlobEvent::Data(bytes)) => {
                    gathered.extend_from_slice(&bytes);
                    None
                }
                Ok(BlobEvent::Restart) => {
                    gathered.clear();
                    partial.restart().map_err(failed())?;
                    None
                }
                Ok(BlobEvent::End(result)) => Some(result),
                // What has arrived is worth keeping.
                Err(error) => Some(Err(error)),
            };
            let size = partial.length + gathered.len() as u64;
            if size > layer.size {
                return Err(RegistryError::TooLarge {
                    what: "a layer".into(),
                    size,
                    limit: layer.size,
                }
                .into());
            }
            if gathered.len() < WRITE_BYTES && ended.is_none() {
                continue;
            }
            let written = tokio::task::spawn_blocking(move || {
                let result = partial.append(&gathered);
                gathered.clear();
                (partial, gathered, result)
            });
            let result;
            (partial, gathered, result) = written.await.map_err(ImageError::Task)?;
            result.map_err(failed())?;
            progress(partial.length);
            match ended {
                None => {}
                Some(Ok(())) if partial.length < layer.size => {
                    let detail = "it ended a layer early".to_owned();
                    return Err(RegistryError::Helper { detail }.into());
                }
                Some(Ok(())) => return Ok(partial),
                Some(Err(error)) => return Err(error.into()),
            }
        }
    }
}

/// Ends a pull that brings too little for too long, however many layers it has on their way.
struct Pace<'a> {
    session: &'a Session,
    until: Instant,
    before: u64,
}

impl<'a> Pace<'a> {
    fn new(session: &'a Session) -> Self {
        Self {
            session,
            until: Instant::now() + session.slowest_window,
            before: session.received.load(Ordering::Relaxed),
        }
    }

    async fn next(
        &mut self,
        events: &mut mpsc::Receiver<BlobEvent>,
    ) -> Result<BlobEvent, RegistryError> {
        loop {
            let event = match timeout_at(self.until, events.recv()).await {
                Ok(Some(event)) => Some(event),
                Ok(None) => {
                    let detail = "it ended".to_owned();
                    return Err(RegistryError::Helper { detail });
                }
                Err(_) => None,
            };
            if let Some(BlobEvent::Data(bytes)) = &event {
                let count = bytes.len() as u64;
                self.session.received.fetch_add(count, Ordering::Relaxed);
            }
            let now = self.session.received.load(Ordering::Relaxed);
            if Instant::now() >= self.until {
                if now - self.before < self.session.slowest_bytes
                    && !matches!(event, Some(BlobEvent::End(_)))
                {
                    return Err(RegistryError::TooSlow {
                        bytes: self.session.slowest_bytes,
                        seconds: self.session.slowest_window.as_secs(),
                    });
                }
                self.until = Instant::now() + self.session.slowest_window;
                self.before = now;
            }
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }
}
