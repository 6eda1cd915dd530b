//! Layers on their way: each is one file named by its digest, continued where it broke off, and
//! handed out only when its whole content has been hashed and fits.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::StatusCode;
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::client::{Ask, Client};
use super::manifest::check_digest;
use super::{Layer, RegistryError};
use crate::chain::hex;
use crate::error::ImageError;
use crate::layer::blocking;

/// Tries in a row that bring not one byte.
const MAX_FRUITLESS_ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest silence within a transfer.
const SILENCE_SECONDS: u64 = 60;
/// Bytes gathered before they are hashed and written.
const WRITE_BYTES: usize = 1 << 20;
/// A layer nobody came back for is dropped by the sweep after so long.
const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// What broken pulls may leave, in all, to be continued; nobody pays for it. The oldest goes first.
const KEPT_MAX_BYTES: u64 = 4 << 30;

/// The folder of layers on their way.
pub(crate) struct Blobs {
    dir: PathBuf,
    leases: Arc<Mutex<Leases>>,
}

/// By digest.
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
    digest: String,
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
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.dir.join(digest.replace(':', "-"))
    }

    /// The digest must have been checked to be one.
    pub fn lease(&self, digest: &str) -> BlobLease {
        self.leases().entry(digest.to_owned()).or_default().count += 1;
        BlobLease {
            path: self.path(digest),
            digest: digest.to_owned(),
            leases: Arc::clone(&self.leases),
            used: false,
        }
    }

    /// Removes the file of a layer, now or with the last pull that uses it.
    pub fn discard(&self, digest: &str) {
        match self.leases().get_mut(digest) {
            Some(leased) => leased.of_no_use = true,
            None => {
                let _ = fs::remove_file(self.path(digest));
            }
        }
    }

    /// Removes files that no pull uses: those nobody has continued for a long time, and the oldest of
    /// what is more than may be kept.
    pub fn sweep(&self) -> usize {
        let leases = self.leases();
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return 0;
        };
        let idle = entries.flatten().filter_map(|entry| {
            let digest = entry.file_name().to_string_lossy().replacen('-', ":", 1);
            let metadata = entry.metadata().ok()?;
            let age = metadata.modified().ok()?.elapsed().unwrap_or_default();
            let known = leases.contains_key(&digest);
            (!known).then(|| (age, metadata.len(), entry.path()))
        });
        let mut idle: Vec<_> = idle.collect();
        idle.sort();
        let mut kept_bytes = 0u64;
        idle.into_iter()
            .filter(|(age, bytes, path)| {
                let with_it = kept_bytes.saturating_add(*bytes);
                if *age <= MAX_AGE && with_it <= KEPT_MAX_BYTES {
                    kept_bytes = with_it;
                    return false;
                }
                fs::remove_file(path).is_ok()
            })
            .count()
    }
}

impl BlobLease {
    /// Says that the layer is unpacked and the file of no use to this pull any more.
    pub fn mark_used(&mut self) {
        self.used = true;
    }

    /// For what goes on when the pull is given up.
    fn another(&self) -> Self {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.entry(self.digest.clone()).or_default().count += 1;
        Self {
            path: self.path.clone(),
            digest: self.digest.clone(),
            leases: Arc::clone(&self.leases),
            used: false,
        }
    }
}

impl Drop for BlobLease {
    fn drop(&mut self) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(leased) = leases.get_mut(&self.digest) else {
            return;
        };
        leased.count -= 1;
        leased.of_no_use |= self.used;
        if leased.count == 0 {
            if leased.of_no_use {
                let _ = fs::remove_file(&self.path);
            }
            leases.remove(&self.digest);
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

/// How one try ended, when it did not fail for good.
enum Try {
    Complete,
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl Client {
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
        let mut fruitless = 0;
        while partial.length < layer.size {
            progress(partial.length);
            let before = partial.length;
            let (returned, result) = self.attempt(partial, layer, &path, progress).await;
            partial = returned;
            let source: Box<dyn std::error::Error + Send + Sync> = match result {
                Ok(Try::Complete) => break,
                Ok(Try::Broken(source)) => source,
                Err(ImageError::Registry(error)) if is_passing(&error) => Box::new(error),
                Err(error) => return Err(error),
            };
            fruitless = if partial.length > before {
                0
            } else {
                fruitless + 1
            };
            if fruitless >= MAX_FRUITLESS_ATTEMPTS {
                return Err(RegistryError::BrokenOff {
                    attempts: fruitless,
                    source,
                }
                .into());
            }
            tokio::time::sleep(FIRST_PAUSE * 2u32.pow(fruitless)).await;
        }
        progress(partial.length);
        let Partial { mut file, hash, .. } = partial;
        let actual = format!("sha256:{}", hex(&hash.finalize()));
        if let Err(error) = check_digest(&layer.digest, &actual) {
            // Nothing of it can be continued.
            let _ = fs::remove_file(&path);
            return Err(error.into());
        }
        file.seek(SeekFrom::Start(0)).map_err(file_error(path))?;
        Ok(file)
    }

    async fn attempt(
        &self,
        mut partial: Partial,
        layer: &Layer,
        path: &PathBuf,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> (Partial, Result<Try, ImageError>) {
        let failed = || ImageError::file("writing", path);
        let ask_path = format!("blobs/{}", layer.digest);
        let ask = Ask {
            path: &ask_path,
            accept: None,
            from: partial.length,
        };
        let answer = match self.get(ask).await {
            Ok(answer) => answer,
            // The server cannot continue there, so from the beginning.
            Err(RegistryError::Status { status: 416, .. }) => {
                let result = partial.restart().map_err(failed());
                return (
                    partial,
                    result.map(|()| Try::Broken("the range was refused".into())),
                );
            }
            Err(error) => return (partial, Err(error.into())),
        };
        if partial.length > 0
            && answer.status() != StatusCode::PARTIAL_CONTENT
            && let Err(error) = partial.restart()
        {
            return (partial, Err(failed()(error)));
        }
        let mut body = answer.into_body();
        let mut gathered = Vec::with_capacity(WRITE_BYTES + (64 << 10));
        loop {
            let frame = timeout(Duration::from_secs(SILENCE_SECONDS), body.frame()).await;
            let ended: Option<Result<Try, ImageError>> = match frame {
                Err(_) => Some(Ok(Try::Broken("the registry fell silent".into()))),
                Ok(Some(Err(error))) => Some(Ok(Try::Broken(error.into()))),
                Ok(None) => Some(Ok(Try::Complete)),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        gathered.extend_from_slice(&data);
                    }
                    None
                }
            };
            if partial.length + gathered.len() as u64 > layer.size {
                let size = partial.length + gathered.len() as u64;
                let error = RegistryError::TooLarge {
                    what: "a layer",
                    size,
                    limit: layer.size,
                };
                return (partial, Err(error.into()));
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
            (partial, gathered, result) = written.await.expect("writing does not panic");
            if let Err(error) = result {
                return (partial, Err(failed()(error)));
            }
            progress(partial.length);
            match ended {
                None => {}
                // An answer that ends early without saying so is continued like a broken one.
                Some(Ok(Try::Complete)) if partial.length < layer.size => {
                    return (partial, Ok(Try::Broken("the answer was short".into())));
                }
                Some(result) => return (partial, result),
            }
        }
    }
}

/// Whether trying again may help, so that what has arrived is worth keeping.
pub(crate) fn is_passing(error: &RegistryError) -> bool {
    match error {
        RegistryError::BrokenOff { .. } => true,
        RegistryError::Unreachable { .. } | RegistryError::Timeout { .. } => true,
        RegistryError::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
        _ => false,
    }
}
