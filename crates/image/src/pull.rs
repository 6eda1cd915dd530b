//! Pulling an image: what it consists of, its layers side by side, and one volume over the other.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use cove_unpack::Content;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::chain::ChainId;
use crate::error::ImageError;
use crate::image::{Image, Source};
use crate::layer::{self, Archive, blocking};
use crate::progress::{Progress, Report};
use crate::reference::Reference;
use crate::registry::{
    BlobLease, Client, Layer, RegistryAuth, RegistryError, Resolved, is_passing,
};
use crate::store::{Description, ImageStore, Inner};

/// Layers of one pull on their way at once.
const PARALLEL_DOWNLOADS: usize = 4;

/// A layer's bytes, checked, and what keeps its file.
type Fetched = Result<(OwnedFd, BlobLease), ImageError>;

impl ImageStore {
    /// Fetches an image from a registry. Layers that some image here already has are not fetched
    /// again; a pull that broke off is continued.
    pub async fn pull(
        &self,
        reference: &str,
        auth: Option<RegistryAuth>,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        let inner = &self.inner;
        let report = Report::new(progress);
        report.send(Progress::Resolving);
        let reference = Reference::parse(reference, inner.config.default_registry.as_deref())?;
        let (asked, plain) = (reference.clone(), inner.config.plain_registries.clone());
        let client = Arc::new(blocking(move || Ok(Client::new(&asked, &plain, auth)?)).await?);
        let resolved = client.resolve(&reference).await?;
        // Whoever pulls the same image at the same time waits here and then finds it all done.
        let _same_image = inner.building.lock(&resolved.digest).await;
        let chains = chains(&resolved.layers);
        let digests = resolved.layers.iter().map(|layer| layer.digest.clone());
        let digests: Vec<String> = digests.collect();
        let pin = inner.pin(&chains);
        let built = self.build_layers(client, &resolved, &chains, &report).await;
        let made = match built {
            Ok(()) => {
                let description = Description {
                    names: reference.names(&resolved.digest),
                    digest: Some(resolved.digest),
                    source: Source::Registry,
                    config: resolved.config,
                    layers: chains.clone(),
                    arch: resolved.arch,
                };
                inner.register(description).await
            }
            Err(error) => Err(error),
        };
        let image = match made {
            Ok(image) => image,
            Err(error) => {
                drop(pin);
                inner.clear_up(chains, digests, &error).await;
                return Err(error);
            }
        };
        report.send(Progress::Done);
        Ok(image)
    }

    async fn build_layers(
        &self,
        client: Arc<Client>,
        resolved: &Resolved,
        chains: &[ChainId],
        report: &Report,
    ) -> Result<(), ImageError> {
        let inner = &self.inner;
        let missing_from = inner.first_missing(chains.to_vec()).await?;
        let missing = &resolved.layers[missing_from..];
        let limit = inner.config.limits.total_bytes;
        let need: u64 = missing
            .iter()
            .fold(0, |sum, layer| sum.saturating_add(layer.size));
        if need > limit {
            let error = RegistryError::TooLarge {
                what: "the image",
                size: need,
                limit,
            };
            return Err(error.into());
        }
        let pool = inner.pool.clone();
        blocking(move || Ok(pool.check_room(need)?)).await?;
        // Dropping the set, also with this future, ends the downloads.
        let mut downloads = JoinSet::new();
        let arrivals = self.start_downloads(&mut downloads, client, missing, report);
        let built = self.stack_layers(&mut downloads, arrivals, resolved, chains, report);
        let built = built.await;
        // Those still under way keep their files until they have ended.
        downloads.shutdown().await;
        built
    }

    /// Unpacks the uppermost layers as they arrive, one over the other.
    async fn stack_layers(
        &self,
        downloads: &mut JoinSet<()>,
        arrivals: Vec<oneshot::Receiver<Fetched>>,
        resolved: &Resolved,
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
                .build_layer(parent, &chains[index], layer, input, report)
                .await?;
            lease.mark_used();
        }
        Ok(())
    }

    /// One task per layer, in order; each answers once.
    fn start_downloads(
        &self,
        downloads: &mut JoinSet<()>,
        client: Arc<Client>,
        layers: &[Layer],
        report: &Report,
    ) -> Vec<oneshot::Receiver<Fetched>> {
        let slots = Arc::new(Semaphore::new(PARALLEL_DOWNLOADS));
        let start = |layer: &Layer| {
            let (answer, arrival) = oneshot::channel();
            let lease = self.inner.blobs.lease(&layer.digest);
            let (inner, client, slots) = (
                Arc::clone(&self.inner),
                Arc::clone(&client),
                Arc::clone(&slots),
            );
            let (layer, report) = (layer.clone(), report.clone());
            downloads.spawn(async move {
                let _slot = slots.acquire_owned().await;
                let fetched = inner.download(&client, lease, &layer, &report).await;
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
        chains: Vec<ChainId>,
        digests: Vec<String>,
        error: &ImageError,
    ) {
        let keep = matches!(error, ImageError::Registry(error) if is_passing(error));
        let inner = Arc::clone(self);
        let cleared = blocking(move || {
            if !keep {
                digests
                    .iter()
                    .for_each(|digest| inner.blobs.discard(digest));
            }
            inner.blobs.sweep();
            inner.delete_unneeded_layers(&chains)
        });
        // What could not be deleted now is deleted by the next sweep.
        let _ = cleared.await;
    }

    /// How many layers, from the bottom, need not be made because a higher one is there already.
    async fn first_missing(&self, chains: Vec<ChainId>) -> Result<usize, ImageError> {
        let pool = self.pool.clone();
        blocking(move || {
            for index in (0..chains.len()).rev() {
                if layer::is_ready(&pool, &chains[index])? {
                    return Ok(index + 1);
                }
            }
            Ok(0)
        })
        .await
    }

    async fn download(
        &self,
        client: &Client,
        lease: BlobLease,
        layer: &Layer,
        report: &Report,
    ) -> Fetched {
        // Another pull may be writing the same file.
        let _one_writer = self.building.lock(&format!("blob {}", layer.digest)).await;
        let tell = |done_bytes| {
            let (digest, total_bytes) = (layer.digest.clone(), layer.size);
            report.send(Progress::Layer {
                digest,
                done_bytes,
                total_bytes,
            });
        };
        let file = client.download(&lease, layer, &tell).await?;
        Ok((file.into(), lease))
    }

    async fn build_layer(
        &self,
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
        let digest = Some(layer.digest.clone());
        let archive = Archive {
            input,
            content: Content::Layer,
            hash: true,
            digest,
        };
        let filled = layer::fill(&self.pool, &self.config, parent, archive, report).await?;
        let actual = filled.summary.diff_id.clone().unwrap_or_default();
        if actual != layer.diff_id {
            let (layer, expected) = (layer.digest.clone(), layer.diff_id.clone());
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
        let chain = ChainId::over(chains.last(), Content::Layer, &layer.digest);
        chains.push(chain);
    }
    chains
}
