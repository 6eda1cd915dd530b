//! Pulling an image: what it consists of, its layers side by side, and one volume over the other.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cove_fetcher::{Configuration, Digest, Layer, Manifest};
use cove_unpack::Content;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::chain::ChainId;
use crate::error::ImageError;
use crate::image::{Image, OciConfig, Source, host_arch};
use crate::layer::{self, Archive, blocking};
use crate::owner::Owner;
use crate::progress::{Progress, Report};
use crate::reference::Reference;
use crate::registry::{self, BlobLease, RegistryAuth, RegistryError, Session};
use crate::store::{Description, ImageStore, Inner, Names};

/// Layers of one pull on their way at once.
const PARALLEL_DOWNLOADS: usize = 4;

/// A layer's bytes, checked, and what keeps its file.
type Fetched = Result<(OwnedFd, BlobLease), ImageError>;

impl ImageStore {
    /// Fetches an image from a registry for the operator.
    pub async fn pull(
        &self,
        reference: &str,
        auth: Option<RegistryAuth>,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        self.pull_for(&Owner::Operator, reference, auth, progress)
            .await
    }

    /// Fetches an image from a registry. Layers that were delivered to the same owner before and are
    /// still here are not fetched again; a pull that broke off is continued.
    pub async fn pull_for(
        &self,
        owner: &Owner,
        reference: &str,
        auth: Option<RegistryAuth>,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        let default = self.inner.config.default_registry.as_deref();
        let reference = Reference::parse(reference, default)?;
        let pulled = self.pull_parsed(owner, &reference, auth, progress).await;
        pulled.map_err(|error| match (error, owner) {
            (ImageError::Registry(error), Owner::Tenant { org, .. }) => {
                let shown = error.clone().for_tenant(&reference.registry);
                if shown != error {
                    tracing::warn!(%org, image = %reference, cause = %error, "an image pull failed");
                }
                shown.into()
            }
            (error, _) => error,
        })
    }

    async fn pull_parsed(
        &self,
        owner: &Owner,
        reference: &Reference,
        auth: Option<RegistryAuth>,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        let inner = &self.inner;
        let report = Report::new(progress);
        report.send(Progress::Resolving);
        let number = inner.pulls.fetch_add(1, Ordering::Relaxed);
        let started = registry::start(&inner.config, number, owner, reference, auth);
        let (session, resolved) = started.await?;
        let session = Arc::new(session);
        let digest = resolved.digest.to_string();
        // Who pulls the same image at the same time waits here and then finds it all done. Others do
        // not wait for a registry that is not theirs.
        let same = format!("{} {digest}", owner.key());
        let _same_image = inner.building.lock(&same).await;
        let chains = chains(&resolved.layers);
        let digests: Vec<Digest> = resolved.layers.iter().map(|layer| layer.digest).collect();
        let pin = inner.pin(&chains);
        let built = self
            .build_layers(owner, session, &resolved, &chains, &report)
            .await;
        let made = match built {
            Ok(()) => {
                let description = Description {
                    names: reference.names(&digest),
                    digest: Some(digest),
                    source: Source::Registry,
                    config: oci_config(resolved.configuration),
                    layers: chains.clone(),
                    arch: host_arch().to_owned(),
                };
                let names = match owner {
                    Owner::Operator => Names::Taken,
                    Owner::Tenant { .. } => Names::IfFree,
                };
                inner.register_with(description, names).await
            }
            Err(error) => Err(error),
        };
        let image = match made {
            Ok(image) => image,
            Err(error) => {
                drop(pin);
                inner.clear_up(owner, chains, digests, &error).await;
                return Err(error);
            }
        };
        report.send(Progress::Done);
        Ok(image)
    }

    async fn build_layers(
        &self,
        owner: &Owner,
        session: Arc<Session>,
        resolved: &Manifest,
        chains: &[ChainId],
        report: &Report,
    ) -> Result<(), ImageError> {
        let inner = &self.inner;
        let missing_from = inner.first_missing(owner, chains.to_vec()).await?;
        let missing = &resolved.layers[missing_from..];
        let limit = inner.config.limits.total_bytes;
        let need: u64 = missing
            .iter()
            .fold(0, |sum, layer| sum.saturating_add(layer.size));
        if need > limit {
            let error = RegistryError::TooLarge {
                what: "the image".into(),
                size: need,
                limit,
            };
            return Err(error.into());
        }
        let kept = inner.blobs.kept_bytes(owner);
        let _reserved = inner.in_flight.reserve(owner, need, kept)?;
        let pool = inner.pool.clone();
        blocking(move || Ok(pool.check_room(need)?)).await?;
        // Dropping the set, also with this future, ends the downloads.
        let mut downloads = JoinSet::new();
        let arrivals = self.start_downloads(&mut downloads, owner, session, missing, report);
        let built = self.stack_layers(owner, &mut downloads, arrivals, resolved, chains, report);
        let built = built.await;
        // Those still under way keep their files until they have ended.
        downloads.shutdown().await;
        built?;
        // All of it was delivered now or before, so from now on it counts for this owner.
        let (inner, owner) = (Arc::clone(inner), owner.clone());
        let chains = chains.to_vec();
        blocking(move || inner.claims.add(&owner, &chains)).await
    }

    /// Unpacks the uppermost layers as they arrive, one over the other.
    async fn stack_layers(
        &self,
        owner: &Owner,
        downloads: &mut JoinSet<()>,
        arrivals: Vec<oneshot::Receiver<Fetched>>,
        resolved: &Manifest,
        chains: &[ChainId],
        report: &Report,
    ) -> Result<(), ImageError> {
        let missing_from = chains.len() - arrivals.len();
        for (offset, arrival) in arrivals.into_iter().enumerate() {
            let index = missing_from + offset;
            let parent = index.checked_sub(1).map(|below| &chains[below]);
            let Ok(fetched) = arrival.await else {
                // The task ended without an answer: it panicked, or the runtime is going down.
                return Err(match downloads.join_next().await {
                    Some(Err(error)) => ImageError::Task(error),
                    _ => RegistryError::Malformed {
                        reason: "a download vanished".to_owned(),
                    }
                    .into(),
                });
            };
            let (input, mut lease) = fetched?;
            let layer = &resolved.layers[index];
            self.inner
                .build_layer(owner, parent, &chains[index], layer, input, report)
                .await?;
            lease.mark_used();
        }
        Ok(())
    }

    /// One task per layer, in order; each answers once.
    fn start_downloads(
        &self,
        downloads: &mut JoinSet<()>,
        owner: &Owner,
        session: Arc<Session>,
        layers: &[Layer],
        report: &Report,
    ) -> Vec<oneshot::Receiver<Fetched>> {
        let slots = Arc::new(Semaphore::new(PARALLEL_DOWNLOADS));
        let start = |layer: &Layer| {
            let (answer, arrival) = oneshot::channel();
            let lease = self.inner.blobs.lease(owner, &layer.digest);
            let (inner, session, slots) = (
                Arc::clone(&self.inner),
                Arc::clone(&session),
                Arc::clone(&slots),
            );
            let (layer, owner, report) = (*layer, owner.clone(), report.clone());
            downloads.spawn(async move {
                let _slot = slots.acquire_owned().await;
                let fetched = inner
                    .download(&owner, &session, lease, &layer, &report)
                    .await;
                // Nobody listens when an earlier layer has failed.
                let _ = answer.send(fetched);
            });
            arrival
        };
        layers.iter().map(start).collect()
    }
}

impl Inner {
    /// Takes away what a failed pull has made and nothing else needs. Of what it has fetched only that
    /// of a broken connection is kept for the next try; a refused image leaves nothing.
    async fn clear_up(
        self: &Arc<Self>,
        owner: &Owner,
        chains: Vec<ChainId>,
        digests: Vec<Digest>,
        error: &ImageError,
    ) {
        let keep = matches!(error, ImageError::Registry(error) if error.is_passing());
        let (inner, owner) = (Arc::clone(self), owner.clone());
        let cleared = blocking(move || {
            if !keep {
                digests
                    .iter()
                    .for_each(|digest| inner.blobs.discard(&owner, digest));
            }
            inner.blobs.sweep();
            inner.delete_unneeded_layers(&chains)
        });
        // What could not be deleted now is deleted by the next sweep.
        let _ = cleared.await;
    }

    /// How many layers, from the bottom, need not be fetched because the owner has fetched them before
    /// and they are still here.
    async fn first_missing(
        self: &Arc<Self>,
        owner: &Owner,
        chains: Vec<ChainId>,
    ) -> Result<usize, ImageError> {
        let (inner, owner) = (Arc::clone(self), owner.clone());
        blocking(move || {
            for index in (0..chains.len()).rev() {
                if inner.claims.has(&owner, &chains[index])
                    && layer::is_ready(&inner.pool, &chains[index])?
                {
                    return Ok(index + 1);
                }
            }
            Ok(0)
        })
        .await
    }

    async fn download(
        &self,
        owner: &Owner,
        session: &Session,
        lease: BlobLease,
        layer: &Layer,
        report: &Report,
    ) -> Fetched {
        // Another pull of the same owner may be writing the same file.
        let file = format!("blob {} {}", owner.key(), layer.digest);
        let _one_writer = self.building.lock(&file).await;
        let tell = |done_bytes| {
            let (digest, total_bytes) = (layer.digest.to_string(), layer.size);
            report.send(Progress::Layer {
                digest,
                done_bytes,
                total_bytes,
            });
        };
        let file = session.download(&lease, layer, &tell).await?;
        Ok((file.into(), lease))
    }

    async fn build_layer(
        &self,
        owner: &Owner,
        parent: Option<&ChainId>,
        chain: &ChainId,
        layer: &Layer,
        input: OwnedFd,
        report: &Report,
    ) -> Result<(), ImageError> {
        // Another image with the same layers may be at it.
        let _one_builder = self.building.lock(chain.as_str()).await;
        let (pool, wanted) = (self.pool.clone(), chain.clone());
        if blocking(move || Ok(layer::is_ready(&pool, &wanted)?)).await? {
            return Ok(());
        }
        let archive = Archive {
            input,
            content: Content::Layer,
            hash: true,
            digest: Some(layer.digest.to_string()),
            room_bytes: owner.room_bytes(),
        };
        let filled = layer::fill(&self.pool, &self.config, parent, archive, report).await?;
        let actual = filled.summary.diff_id.clone().unwrap_or_default();
        if actual != layer.diff_id.to_string() {
            let (layer, expected) = (layer.digest.to_string(), layer.diff_id.to_string());
            return Err(RegistryError::DiffIdMismatch {
                layer,
                expected,
                actual,
            }
            .into());
        }
        filled.publish(chain.clone()).await
    }
}

fn chains(layers: &[Layer]) -> Vec<ChainId> {
    let mut chains: Vec<ChainId> = Vec::with_capacity(layers.len());
    for layer in layers {
        let chain = ChainId::over(chains.last(), Content::Layer, &layer.digest.to_string());
        chains.push(chain);
    }
    chains
}

/// The program has sent these texts; their number and length were checked when they were read.
fn oci_config(told: Configuration) -> OciConfig {
    let some = |text: String| (!text.is_empty()).then_some(text);
    OciConfig {
        env: told.env,
        user: some(told.user),
        workdir: some(told.workdir),
        entrypoint: told.entrypoint,
        cmd: told.cmd,
    }
}
