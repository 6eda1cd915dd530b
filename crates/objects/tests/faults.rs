//! Uploads and downloads against a store that fails, stalls, cuts off, damages and exchanges what it has: a clear
//! error each, and nothing is taken for durable that is not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use cove_model::OrgId;
use cove_objects::{
    Bucket, Catalog, Claimed, Digest, Download, ObjectsError, OrgKey, Outcome, Pace, Upload,
    UploadLimits, Wanted,
};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use proptest::prelude::*;

/// What the store does to its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Every write after so many fails.
    FailAfter(usize),
    Stall,
}

#[derive(Debug)]
struct Broken {
    inside: InMemory,
    fault: Mutex<Fault>,
    writes: AtomicUsize,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken")
    }
}

#[async_trait]
impl ObjectStore for Broken {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let before = self.writes.fetch_add(1, SeqCst);
        let fault = *self.fault.lock();
        match fault {
            Fault::FailAfter(count) if before >= count => Err(object_store::Error::Generic {
                store: "broken",
                source: "503 slow down".into(),
            }),
            Fault::Stall => std::future::pending().await,
            _ => self.inside.put_opts(at, payload, options).await,
        }
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inside.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        if *self.fault.lock() == Fault::Stall {
            std::future::pending::<()>().await;
        }
        self.inside.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        names: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inside.delete_stream(names)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inside.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inside.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inside.copy_opts(from, to, options).await
    }
}

/// The tables of one organisation.
#[derive(Default)]
struct Tables(Mutex<HashMap<Digest, (u64, bool)>>, Mutex<Option<Outcome>>);

#[async_trait]
impl Catalog for Tables {
    async fn claim(&self, chunks: &[Wanted]) -> Result<Vec<Claimed>, ObjectsError> {
        let mut table = self.0.lock();
        let claimed = chunks.iter().map(|chunk| {
            let (suffix, stored) = *table.entry(chunk.digest).or_insert((chunk.suffix, false));
            Claimed { suffix, stored }
        });
        Ok(claimed.collect())
    }

    async fn stored(&self, chunks: &[(Digest, u64)]) -> Result<(), ObjectsError> {
        let mut table = self.0.lock();
        for (digest, _) in chunks {
            table.get_mut(digest).unwrap().1 = true;
        }
        Ok(())
    }

    async fn renew(&self) -> Result<(), ObjectsError> {
        Ok(())
    }

    async fn commit(&self, outcome: &Outcome) -> Result<(), ObjectsError> {
        *self.1.lock() = Some(outcome.clone());
        Ok(())
    }
}

struct World {
    store: Arc<Broken>,
    bucket: Bucket,
    tables: Arc<Tables>,
    key: Arc<OrgKey>,
    org: OrgId,
}

impl World {
    fn new() -> Self {
        let store = Arc::new(Broken {
            inside: InMemory::new(),
            fault: Mutex::new(Fault::None),
            writes: AtomicUsize::new(0),
        });
        let shared: Arc<dyn ObjectStore> = Arc::clone(&store) as _;
        Self {
            // What stalls waits for it, and nothing else may: a busy machine takes its time over each chunk.
            bucket: Bucket::over(shared, "prefix", Duration::from_secs(5)),
            store,
            tables: Arc::default(),
            key: Arc::new(OrgKey::new(&OrgKey::random()).unwrap()),
            org: OrgId::random(),
        }
    }

    /// Another organisation in the same bucket.
    fn neighbour(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            bucket: self.bucket.clone(),
            tables: Arc::default(),
            key: Arc::new(OrgKey::new(&OrgKey::random()).unwrap()),
            org: OrgId::random(),
        }
    }

    async fn upload(&self, parts: &[(u8, &[u8])]) -> Result<Outcome, ObjectsError> {
        self.upload_within(UploadLimits::default(), parts).await
    }

    async fn upload_within(
        &self,
        limits: UploadLimits,
        parts: &[(u8, &[u8])],
    ) -> Result<Outcome, ObjectsError> {
        let mut upload = Upload::new(
            self.bucket.clone(),
            Arc::clone(&self.key),
            self.org.clone(),
            Arc::new(Pace::new(0)),
            Arc::clone(&self.tables) as _,
            Upload::manifest_name(&self.org, "snap"),
            limits,
        );
        for (kind, bytes) in parts {
            upload.begin_part(*kind)?;
            for piece in bytes.chunks(100_000) {
                upload.write(piece).await?;
            }
            upload.end_part(vec![*kind; 32]).await?;
        }
        upload.finish().await
    }

    async fn download(&self, manifest: &str) -> Result<Vec<(u8, Vec<u8>)>, ObjectsError> {
        let key = Arc::clone(&self.key);
        let download = Download::open(self.bucket.clone(), key, self.org.clone(), manifest).await?;
        let mut out = Vec::new();
        for part in download.parts() {
            assert_eq!(part.trailer, [part.kind; 32]);
            let pieces: Vec<_> = download.read(part).try_collect().await?;
            out.push((part.kind, pieces.concat()));
        }
        Ok(out)
    }

    async fn names(&self) -> Vec<Path> {
        let listed = self.store.inside.list(None);
        let mut names: Vec<_> = listed.map(|found| found.unwrap().location).collect().await;
        names.sort();
        names
    }

    async fn size(&self) -> u64 {
        let listed = self.store.inside.list(None);
        listed
            .map(|found| found.unwrap().size)
            .collect::<Vec<_>>()
            .await
            .iter()
            .sum()
    }
}

/// Bytes that do not compress and repeat nowhere.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    use rand::{RngCore, SeedableRng};
    let mut bytes = vec![0; length];
    rand::rngs::StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn whatever_goes_in_comes_out(
        lengths in proptest::collection::vec(0_usize..1_000_000, 1..4),
        seed in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new();
            let parts: Vec<_> = lengths.iter().map(|length| noise(seed, *length)).collect();
            let parts: Vec<(u8, &[u8])> =
                parts.iter().enumerate().map(|(at, bytes)| (at as u8, &bytes[..])).collect();
            let outcome = world.upload(&parts).await.unwrap();
            let back = world.download(&outcome.manifest).await.unwrap();
            let back: Vec<_> = back.iter().map(|(kind, bytes)| (*kind, &bytes[..])).collect();
            assert_eq!(back, parts);
        });
    }
}

#[tokio::test]
async fn twenty_snapshots_with_small_changes_cost_little_more_than_what_is_unique() {
    let world = World::new();
    let mut disk = noise(1, 16 << 20);
    let mut unique = disk.len();
    for change in 0..20_usize {
        // A byte in the middle changes, and something is put in: everything after it moves.
        disk[(change + 1) * 700_000] ^= 0xff;
        let fresh = noise(100 + change as u64, 50_000);
        unique += fresh.len() + 1;
        let at = disk.len() / 20 * change;
        disk.splice(at..at, fresh);
        world.upload(&[(1, &disk)]).await.unwrap();
    }
    let size = world.size().await as usize;
    let ratio = size as f64 / unique as f64;
    println!("{size} bytes for {unique} unique ones: {ratio:.3}");
    assert!(ratio <= 1.3, "{ratio}");
}

/// Nothing is sent for zeros that are there already, so neither a quota nor a pace ends such an upload.
#[tokio::test]
async fn zeros_without_an_end_are_given_up_while_they_are_read() {
    let world = World::new();
    let zeros = vec![0; 4 << 20];
    for limits in [
        UploadLimits {
            chunks_max: 100,
            ..UploadLimits::default()
        },
        UploadLimits {
            bytes_max: 20 << 20,
            ..UploadLimits::default()
        },
    ] {
        let mut upload = Upload::new(
            world.bucket.clone(),
            Arc::clone(&world.key),
            world.org.clone(),
            Arc::new(Pace::new(0)),
            Arc::clone(&world.tables) as _,
            Upload::manifest_name(&world.org, "snap"),
            limits,
        );
        upload.begin_part(1).unwrap();
        let mut taken = 0;
        let error = loop {
            match upload.write(&zeros).await {
                Ok(()) => taken += zeros.len(),
                Err(error) => break error,
            }
            assert!(taken < 64 << 20, "{limits:?}");
        };
        assert!(matches!(error, ObjectsError::TooLarge), "{error:?}");
    }
    // What is just as large as it may be goes in.
    let limits = UploadLimits {
        bytes_max: zeros.len() as u64,
        ..UploadLimits::default()
    };
    world.upload_within(limits, &[(1, &zeros)]).await.unwrap();
}

#[tokio::test]
async fn what_fails_in_the_middle_is_not_durable_and_a_repeat_sends_only_the_rest() {
    let world = World::new();
    let disk = noise(2, 16 << 20);
    *world.store.fault.lock() = Fault::FailAfter(100);
    let error = world.upload(&[(1, &disk)]).await.unwrap_err();
    assert!(error.passes(), "{error:?}");
    assert!(world.tables.1.lock().is_none());
    let before = world.names().await.len();
    assert!(before >= 64, "{before}");
    *world.store.fault.lock() = Fault::None;
    let writes = world.store.writes.load(SeqCst);
    let outcome = world.upload(&[(1, &disk)]).await.unwrap();
    let again = world.store.writes.load(SeqCst) - writes;
    // What was written and not yet noted is written again, under the same name.
    assert!(
        again < outcome.chunks as usize + 1,
        "{again} of {}",
        outcome.chunks
    );
    assert_eq!(world.names().await.len(), outcome.chunks as usize + 1);
    assert_eq!(world.download(&outcome.manifest).await.unwrap()[0].1, disk);
}

#[tokio::test]
async fn a_store_that_stalls_is_given_up() {
    let world = World::new();
    let disk = noise(3, 1 << 20);
    let outcome = world.upload(&[(1, &disk)]).await.unwrap();
    *world.store.fault.lock() = Fault::Stall;
    let other = noise(4, 1 << 20);
    let error = world.upload(&[(1, &other)]).await.unwrap_err();
    assert!(matches!(error, ObjectsError::Stalled { .. }), "{error:?}");
    let error = world.download(&outcome.manifest).await.unwrap_err();
    assert!(matches!(error, ObjectsError::Stalled { .. }), "{error:?}");
    *world.store.fault.lock() = Fault::None;
    assert_eq!(world.download(&outcome.manifest).await.unwrap()[0].1, disk);
}

#[tokio::test]
async fn what_is_damaged_cut_off_or_missing_is_told_and_never_handed_out() {
    let world = World::new();
    let disk = noise(5, 1 << 20);
    let outcome = world.upload(&[(1, &disk)]).await.unwrap();
    for name in world.names().await {
        let whole = world
            .store
            .inside
            .get(&name)
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        let mut flipped = whole.to_vec();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        let longer = [&whole[..], &[0; 2 << 20]].concat();
        for wrong in [
            flipped,
            whole[..whole.len() / 2].to_vec(),
            Vec::new(),
            longer,
        ] {
            world.store.inside.put(&name, wrong.into()).await.unwrap();
            let error = world.download(&outcome.manifest).await.unwrap_err();
            assert!(
                matches!(error, ObjectsError::Damaged { .. }),
                "{name}: {error:?}"
            );
        }
        world.store.inside.delete(&name).await.unwrap();
        let error = world.download(&outcome.manifest).await.unwrap_err();
        assert!(
            matches!(error, ObjectsError::Missing { .. }),
            "{name}: {error:?}"
        );
        world.store.inside.put(&name, whole.into()).await.unwrap();
    }
    assert_eq!(world.download(&outcome.manifest).await.unwrap()[0].1, disk);
}

#[tokio::test]
async fn chunks_and_manifests_in_each_others_places_are_refused() {
    let ours = World::new();
    let theirs = ours.neighbour();
    let disk = noise(6, 1 << 20);
    let here = ours.upload(&[(1, &disk)]).await.unwrap();
    let there = theirs.upload(&[(1, &disk)]).await.unwrap();
    let names: Vec<Path> = ours.names().await;
    // The same content of two organisations has nothing in common, not even its names.
    let of = |world: &World| -> HashSet<String> {
        let org = world.org.to_string();
        let ours = names.iter().filter(|name| name.as_ref().contains(&org));
        ours.map(|name| name.filename().unwrap().to_owned())
            .collect()
    };
    assert!(of(&ours).is_disjoint(&of(&theirs)));
    let chunks: Vec<&Path> = names
        .iter()
        .filter(|name| name.as_ref().contains("/chunks/"))
        .collect();
    let mine: Vec<_> = chunks
        .iter()
        .filter(|name| name.as_ref().contains(ours.org.as_str()))
        .collect();
    let other: Vec<_> = chunks
        .iter()
        .filter(|name| name.as_ref().contains(theirs.org.as_str()))
        .collect();
    let inside = &ours.store.inside;
    for wrong in [mine[1], other[0]] {
        let kept = inside.get(mine[0]).await.unwrap().bytes().await.unwrap();
        inside.copy(wrong, mine[0]).await.unwrap();
        let error = ours.download(&here.manifest).await.unwrap_err();
        assert!(matches!(error, ObjectsError::Damaged { .. }), "{error:?}");
        inside.put(mine[0], kept.into()).await.unwrap();
    }
    let path = |manifest: &str| Path::from(format!("prefix/{manifest}"));
    inside
        .copy(&path(&there.manifest), &path(&here.manifest))
        .await
        .unwrap();
    let error = ours.download(&here.manifest).await.unwrap_err();
    assert!(matches!(error, ObjectsError::Damaged { .. }), "{error:?}");
    assert!(ours.download(&there.manifest).await.is_err());
}

#[tokio::test]
async fn the_bucket_has_nothing_that_can_be_read() {
    let world = World::new();
    let words = b"a sentence that nobody else should read. ".repeat(5000);
    world.upload(&[(1, &words)]).await.unwrap();
    for name in world.names().await {
        let bytes = world
            .store
            .inside
            .get(&name)
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        assert!(bytes.windows(8).all(|window| window != b"sentence"));
    }
}
