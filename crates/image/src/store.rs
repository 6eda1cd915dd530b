//! The images of one data directory: what there is, what it is called, and what may go.
//!
//! The state lock is held for look-ups, for writing a record and for deleting volumes, never
//! while something is downloaded or unpacked. Volumes that an operation counts on without a
//! record naming them yet are *pinned*, so that nobody deletes them from under it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::{Mutex, MutexGuard};

use cove_model::ImageId;
use cove_parser::Parser;
use cove_pool::{Kind, Pool};
use cove_unpack::{UnpackLimits, UnpackProgram};
use time::OffsetDateTime;

use crate::chain::ChainId;
use crate::error::ImageError;
use crate::image::{Image, OciConfig, Source};
use crate::keyed::Keyed;
use crate::layer::{self, STAGING_PREFIX, blocking};
use crate::owner::{Claims, InFlight};
use crate::records::Records;
use crate::reference::Reference;
use crate::registry::{Blobs, FetchConfig};

const MAX_NAME_BYTES: usize = 512;

#[derive(Debug, Clone)]
pub struct ImageConfig {
    /// Holds records and half-downloaded layers; belongs to one data directory.
    pub dir: PathBuf,
    /// Shared by every data directory on the host.
    pub host_cache: PathBuf,
    /// First of 65,536 uids and gids that nothing else uses.
    pub unpack_uid_base: u32,
    pub limits: UnpackLimits,
    pub unpack_program: Arc<UnpackProgram>,
    /// Packs directories that images are made of.
    pub parser: Arc<Parser>,
    pub fetch: FetchConfig,
    /// Put before references that name no registry; without it they are refused.
    pub default_registry: Option<String>,
    /// Registries (`host` or `host:port`) spoken to without TLS, besides those on loopback.
    pub plain_registries: Vec<String>,
}

/// Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct ImageStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub pool: Pool,
    pub config: ImageConfig,
    pub building: Keyed,
    pub blobs: Blobs,
    pub claims: Claims,
    pub in_flight: InFlight,
    /// Pulls begun so far.
    pub pulls: AtomicU32,
    records: Records,
    damaged: Vec<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    images: BTreeMap<ImageId, Image>,
    pins: HashMap<ChainId, usize>,
    holds: HashMap<ImageId, usize>,
    /// Operations that may be filling a volume.
    operations: usize,
}

/// What a new image is, before it has an id.
pub(crate) struct Description {
    pub names: Vec<String>,
    pub digest: Option<String>,
    pub source: Source,
    pub config: OciConfig,
    pub layers: Vec<ChainId>,
    pub arch: String,
}

impl Description {
    /// Whether it describes this image, names aside.
    fn fits(&self, image: &Image) -> bool {
        image.layers == self.layers
            && image.config == self.config
            && image.source == self.source
            && image.digest == self.digest
    }
}

/// What becomes of a name that leads to another image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// It leads here from now on.
    Taken,
    /// It goes on leading there: what the operator calls an image is not for others to change.
    IfFree,
}

/// What [`ImageStore::sweep`] removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    pub staging_volumes: usize,
    pub layer_volumes: usize,
    pub files: usize,
}

impl ImageStore {
    /// Reads the records. Those whose volume is gone are forgotten. Blocks for a moment.
    pub fn open(pool: Pool, config: ImageConfig) -> Result<Self, ImageError> {
        let records = Records::open(config.dir.join("records"))?;
        let mut images = BTreeMap::new();
        let (found, damaged) = records.load()?;
        for image in found {
            if layer::is_ready(&pool, image.top())? {
                images.insert(image.id.clone(), image);
            } else {
                records.delete(&image.id)?;
            }
        }
        let state = Mutex::new(State {
            images,
            ..State::default()
        });
        let blobs = Blobs::open(config.dir.join("blobs"))?;
        let claims = Claims::open(config.dir.join("owners"))?;
        Ok(Self {
            inner: Arc::new(Inner {
                pool,
                config,
                building: Keyed::default(),
                blobs,
                claims,
                in_flight: InFlight::default(),
                pulls: AtomicU32::default(),
                records,
                damaged,
                state,
            }),
        })
    }

    /// Images whose record cannot be read. As long as there are some no layer is deleted: which ones they
    /// need is not known.
    pub fn damaged(&self) -> &[String] {
        &self.inner.damaged
    }

    /// Finds an image by id, name or reference.
    pub fn resolve(&self, text: &str) -> Option<Image> {
        let state = self.inner.state();
        if let Some(image) = text
            .parse()
            .ok()
            .and_then(|id: ImageId| state.images.get(&id))
        {
            return Some(image.clone());
        }
        let by_name = |wanted: &str| {
            // A crash while a name moved may have left it with two images; the newer one has it.
            let named = state
                .images
                .values()
                .filter(|image| image.names.iter().any(|name| name == wanted));
            named.max_by_key(|image| image.created).cloned()
        };
        by_name(text).or_else(|| {
            let default = self.inner.config.default_registry.as_deref();
            by_name(&Reference::parse(text, default).ok()?.to_string())
        })
    }

    pub fn get(&self, id: &ImageId) -> Option<Image> {
        self.inner.state().images.get(id).cloned()
    }

    /// All images, oldest first.
    pub fn list(&self) -> Vec<Image> {
        let mut images: Vec<_> = self.inner.state().images.values().cloned().collect();
        images.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        images
    }

    /// The read-only directory that holds the image's files.
    pub fn root(&self, image: &Image) -> PathBuf {
        self.inner.pool.path(&image.top().volume())
    }

    /// Keeps the image from being removed until the hold is dropped, for the time between
    /// choosing an image and being counted as its user.
    pub fn hold(&self, id: &ImageId) -> Option<ImageHold> {
        let mut state = self.inner.state();
        state.images.contains_key(id).then(|| {
            *state.holds.entry(id.clone()).or_default() += 1;
            ImageHold {
                inner: Arc::clone(&self.inner),
                id: id.clone(),
            }
        })
    }

    /// Removes an image and the layers no other image needs. `in_use` names the user, if there is one.
    pub async fn remove(
        &self,
        id: &ImageId,
        in_use: impl FnOnce(&Image) -> Option<String> + Send + 'static,
    ) -> Result<(), ImageError> {
        let (inner, id) = (Arc::clone(&self.inner), id.clone());
        blocking(move || {
            let mut state = inner.state();
            let Some(image) = state.images.get(&id) else {
                return Err(ImageError::NotFound {
                    name: id.to_string(),
                });
            };
            let user = match state.holds.contains_key(&id) {
                true => Some("an operation in progress".to_owned()),
                false => in_use(image),
            };
            if let Some(by) = user {
                return Err(ImageError::InUse { id, by });
            }
            // The record goes first: volumes without one are swept, a record without volumes lies.
            inner.records.delete(&id)?;
            let layers = state
                .images
                .remove(&id)
                .map(|image| image.layers)
                .unwrap_or_default();
            for chain in layers.iter().rev() {
                inner.delete_unneeded(&state, chain)?;
            }
            Ok(())
        })
        .await
    }

    /// Removes what crashes left: volumes being filled, layers no image needs, half-written files.
    /// What running operations of this store use stays.
    pub async fn sweep(&self) -> Result<SweepReport, ImageError> {
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.sweep()).await
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change below is complete before anything can panic.
        self.state.lock()
    }

    /// Deletes a layer's volume unless an image or an operation needs it; true when it went.
    fn delete_unneeded(&self, state: &State, chain: &ChainId) -> Result<bool, ImageError> {
        let needed = !self.damaged.is_empty()
            || state.pins.contains_key(chain)
            || state
                .images
                .values()
                .any(|image| image.layers.contains(chain));
        if needed {
            return Ok(false);
        }
        self.pool.delete(&chain.volume())?;
        Ok(true)
    }

    /// Deletes those of an image's layers, bottom first in the list, that nothing needs.
    pub fn delete_unneeded_layers(&self, chains: &[ChainId]) -> Result<(), ImageError> {
        let state = self.state();
        for chain in chains.iter().rev() {
            self.delete_unneeded(&state, chain)?;
        }
        Ok(())
    }

    fn sweep(&self) -> Result<SweepReport, ImageError> {
        let mut report = SweepReport {
            files: self.records.sweep() + self.blobs.sweep(),
            ..SweepReport::default()
        };
        let state = self.state();
        for volume in self.pool.list(Kind::Image)? {
            let name = volume.id.name().to_owned();
            if let Ok(chain) = ChainId::try_from(name)
                && self.delete_unneeded(&state, &chain)?
            {
                report.layer_volumes += 1;
            }
        }
        // One that cannot be asked about counts as there.
        report.files += self
            .claims
            .sweep(|chain| self.pool.exists(&chain.volume()).unwrap_or(true));
        if state.operations == 0 {
            for volume in self.pool.list(Kind::Staging)? {
                if volume.id.name().starts_with(STAGING_PREFIX) {
                    self.pool.delete(&volume.id)?;
                    report.staging_volumes += 1;
                }
            }
        }
        Ok(report)
    }

    /// Keeps these layers and every volume being filled from being deleted while the pin lives.
    /// An operation that does not know its layers yet pins none.
    pub fn pin(self: &Arc<Self>, chains: &[ChainId]) -> Pin {
        let mut state = self.state();
        state.operations += 1;
        for chain in chains {
            *state.pins.entry(chain.clone()).or_default() += 1;
        }
        Pin {
            inner: Arc::clone(self),
            chains: chains.to_vec(),
        }
    }

    /// Writes the record of an image whose layers are all there and pinned by the caller. An
    /// image that is the same but for its name gets the name added.
    pub async fn register(self: &Arc<Self>, description: Description) -> Result<Image, ImageError> {
        self.register_with(description, Names::Taken).await
    }

    pub async fn register_with(
        self: &Arc<Self>,
        description: Description,
        names: Names,
    ) -> Result<Image, ImageError> {
        let inner = Arc::clone(self);
        blocking(move || {
            let known = inner
                .state()
                .images
                .values()
                .find(|image| description.fits(image))
                .cloned();
            let size_bytes = match known {
                Some(image) => image.size_bytes,
                None => {
                    let top = description
                        .layers
                        .last()
                        .expect("an image has at least one layer");
                    inner.pool.measure(&top.volume())?
                }
            };
            inner.write_record(description, names, size_bytes)
        })
        .await
    }

    fn write_record(
        &self,
        mut description: Description,
        names: Names,
        size_bytes: u64,
    ) -> Result<Image, ImageError> {
        let mut state = self.state();
        if names == Names::IfFree {
            let held = |name: &String| {
                let mut others = state.images.values();
                others.any(|other| !description.fits(other) && other.names.contains(name))
            };
            let free = description.names.iter().filter(|name| !held(name));
            description.names = free.cloned().collect();
        }
        let same = state
            .images
            .values()
            .find(|image| description.fits(image))
            .cloned();
        let Description {
            names,
            digest,
            source,
            config,
            layers,
            arch,
        } = description;
        let mut image = same.unwrap_or_else(|| Image {
            id: ImageId::random(),
            names: Vec::new(),
            digest,
            created: OffsetDateTime::now_utc(),
            size_bytes,
            source,
            config,
            layers,
            arch,
        });
        for name in &names {
            if !image.names.contains(name) {
                image.names.push(name.clone());
            }
        }
        // The new holder of a name first, so that a crash leaves it with two, not with none.
        self.records.save(&image)?;
        let former: Vec<Image> = state
            .images
            .values()
            .filter(|other| other.id != image.id)
            .filter(|other| other.names.iter().any(|name| names.contains(name)))
            .cloned()
            .collect();
        for mut other in former {
            other.names.retain(|held| !names.contains(held));
            self.records.save(&other)?;
            state.images.insert(other.id.clone(), other);
        }
        state.images.insert(image.id.clone(), image.clone());
        Ok(image)
    }
}

/// Keeps an image from being removed. Made by [`ImageStore::hold`].
pub struct ImageHold {
    inner: Arc<Inner>,
    id: ImageId,
}

impl Drop for ImageHold {
    fn drop(&mut self) {
        release(&mut self.inner.state().holds, &self.id);
    }
}

pub(crate) struct Pin {
    inner: Arc<Inner>,
    chains: Vec<ChainId>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        state.operations -= 1;
        for chain in &self.chains {
            release(&mut state.pins, chain);
        }
    }
}

fn release<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// Names are what people type and logs show: printable, without spaces, not shaped like an id.
pub(crate) fn check_name(name: &str) -> Result<(), ImageError> {
    let characters = |b: u8| b.is_ascii_alphanumeric() || b"._-/:@+".contains(&b);
    let valid = name.len() <= MAX_NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(characters)
        && !ImageId::matches(name);
    if valid {
        return Ok(());
    }
    Err(ImageError::InvalidName {
        name: name.chars().take(MAX_NAME_BYTES).collect(),
    })
}
