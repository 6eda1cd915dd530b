//! Layers belong to who fetched them: bytes are shared on disk, access never.

use std::fs;
use std::path::Path;

use cove_image::{ImageError, Owner};
use cove_model::OrgId;
use cove_pool::Kind;

use crate::proxy::{Options, Proxy};
use crate::registry::{BUSYBOX, Layout, Registry, exists};
use crate::stub::{Stub, not_found, ok};
use crate::world::{World, chain, sh, silent};

fn world() -> World {
    World::with(Path::new("/nonexistent"), |config| {
        config.fetch.open_ranges = vec!["127.0.0.0/8".parse().unwrap()];
    })
}

fn tenant() -> Owner {
    with_room(1 << 30)
}

fn with_room(room_bytes: u64) -> Owner {
    Owner::Tenant {
        org: OrgId::random(),
        room_bytes,
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    format!("sha256:{}", hex::encode(sha2::Sha256::digest(bytes)))
}

/// The attack: B's own registry lists A's private layer, whose digest B has learnt somewhere.
#[tokio::test]
async fn naming_anothers_layer_does_not_give_it() {
    let (world, registry, layout) = (world(), Registry::start(), Layout::new());
    layout.image("secret", &["echo password > secret"]);
    registry.push(&layout, "secret", "a/secret:1", "");
    let ours = world
        .store
        .pull_for(&tenant(), &registry.reference("a/secret:1"), None, silent())
        .await
        .unwrap();
    let manifest = registry.manifest("a/secret", "1");
    let told: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let digest = |value: &serde_json::Value| value["digest"].as_str().unwrap().to_owned();
    let (config, layer) = (digest(&told["config"]), digest(&told["layers"][0]));
    let size = told["layers"][0]["size"].as_u64().unwrap() as usize;
    let config_bytes = fs::read(registry.blob_file(&config)).unwrap();
    let theirs = tenant();
    // It says it has the layer, sends other bytes of the same length, or says nothing of it.
    for (kind, bytes) in [
        ("none", None),
        ("other", Some(vec![0; size])),
        ("none", None),
        ("short", Some(Vec::new())),
    ] {
        let (manifest, config, config_bytes) =
            (manifest.clone(), config.clone(), config_bytes.clone());
        let evil = Stub::start("127.0.0.1:0", move |path| match (path, &bytes) {
            (path, _) if path.contains("/manifests/") => ok(manifest.clone()),
            (path, _) if path.ends_with(&config) => ok(config_bytes.clone()),
            (_, Some(bytes)) => ok(bytes.clone()),
            (_, None) => not_found(),
        })
        .await;
        let reference = format!("{}/mine:1", evil.address);
        let pulled = world.store.pull_for(&theirs, &reference, None, silent());
        let error = pulled.await.unwrap_err();
        assert!(
            matches!(error, ImageError::Registry(_)),
            "{kind}: {}",
            chain(&error)
        );
        assert_eq!(world.store.resolve(&reference), None, "{kind}");
        assert!(
            evil.heads().iter().any(|head| head.contains(&layer)),
            "{kind}"
        );
    }
    assert!(exists(&world.store.root(&ours), "secret"), "A's own stays");
    assert_eq!(world.store.list().len(), 1);
}

#[tokio::test]
async fn each_organisation_has_the_bytes_delivered_once_and_they_are_kept_once() {
    let (mut world, registry, layout) = (world(), Registry::start(), Layout::new());
    layout.image("app", &[BUSYBOX, "echo x > x"]);
    registry.push(&layout, "app", "app:1", "");
    let (ours, theirs) = (tenant(), tenant());
    let fetched = async |world: &World, owner: &Owner| {
        let proxy = Proxy::start(registry.port, Options::default()).await;
        let reference = proxy.reference("app:1");
        let image = world
            .store
            .pull_for(owner, &reference, None, silent())
            .await
            .unwrap();
        let manifest: serde_json::Value =
            serde_json::from_str(&registry.manifest("app", "1")).unwrap();
        let layers = manifest["layers"].as_array().unwrap().clone();
        let asked = |layer: &&serde_json::Value| {
            !proxy.requests(layer["digest"].as_str().unwrap()).is_empty()
        };
        (image, layers.iter().filter(asked).count())
    };
    let (image, layers) = fetched(&world, &ours).await;
    assert_eq!(layers, 2);
    let (same, layers) = fetched(&world, &theirs).await;
    assert_eq!((layers, &same.id), (2, &image.id), "delivered to each");
    assert_eq!(fetched(&world, &theirs).await.1, 0, "but once");
    assert_eq!(world.volumes(Kind::Image), 2, "and kept once");
    world.reopen();
    world.store.sweep().await.unwrap();
    assert_eq!(fetched(&world, &ours).await.1, 0, "also after a restart");
    assert_eq!(fetched(&world, &tenant()).await.1, 2);

    // With the layers everything that was known about them goes.
    world.store.remove(&image.id, |_| None).await.unwrap();
    assert_eq!(world.volumes(Kind::Image), 0);
    world.store.sweep().await.unwrap();
    let left = fs::read_dir(world.config.dir.join("owners")).unwrap();
    assert_eq!(left.count(), 0);
    assert_eq!(fetched(&world, &ours).await.1, 2);
}

/// What the operator calls an image does not change because a tenant pulls something of that name.
#[tokio::test]
async fn a_tenants_pull_does_not_move_the_operators_names() {
    let (world, registry, layout) = (world(), Registry::start(), Layout::new());
    layout.image("one", &["echo 1 > x"]);
    layout.image("two", &["echo 2 > x"]);
    registry.push(&layout, "one", "app:1", "");
    let reference = registry.reference("app:1");
    let one = world.store.pull(&reference, None, silent()).await.unwrap();
    registry.push(&layout, "two", "app:1", "");
    let two = world
        .store
        .pull_for(&tenant(), &reference, None, silent())
        .await
        .unwrap();
    assert_ne!(one.id, two.id);
    assert_eq!(world.store.resolve(&reference).unwrap().id, one.id);
    world.store.pull(&reference, None, silent()).await.unwrap();
    assert_eq!(world.store.resolve(&reference).unwrap().id, two.id);
}

#[tokio::test]
async fn a_pull_brings_no_more_than_the_quota_has_room_for() {
    let (world, registry, layout) = (world(), Registry::start(), Layout::new());
    layout.image("big", &["head -c 6000000 /dev/urandom > big"]);
    registry.push(&layout, "big", "big:1", "");
    let reference = registry.reference("big:1");
    let pull = |owner: Owner| {
        let (store, reference) = (world.store.clone(), reference.clone());
        async move { store.pull_for(&owner, &reference, None, silent()).await }
    };
    let error = pull(with_room(4 << 20)).await.unwrap_err();
    assert!(
        matches!(error, ImageError::BeyondQuota { .. }),
        "{}",
        chain(&error)
    );
    pull(with_room(64 << 20)).await.unwrap();

    // Small on its way, large once it is unpacked.
    let script = "mkdir t; head -c 1000000 /dev/urandom > t/0; for i in $(seq 60); do cp t/0 t/$i; done
         tar -C t -c . > b.tar; zstd -q --ultra -22 b.tar -o b.zst; sha256sum b.tar | cut -d' ' -f1";
    let diff_id = format!("sha256:{}", sh(script, world.dir.path()));
    let bomb = fs::read(world.dir.path().join("b.zst")).unwrap();
    assert!(bomb.len() < 2_000_000, "{}", bomb.len());
    let digest = registry.put_blob("bomb", &bomb);
    crate::pull::put_image(
        &registry,
        "bomb",
        "1",
        &[(&digest, bomb.len(), &diff_id)],
        "",
    );
    let reference = registry.reference("bomb:1");
    let small = with_room(20 << 20);
    let pulled = world.store.pull_for(&small, &reference, None, silent());
    let error = pulled.await.unwrap_err();
    assert!(
        matches!(error, ImageError::QuotaFull { .. }),
        "{}",
        chain(&error)
    );
    assert_eq!(world.volumes(Kind::Staging), 0);
    let large = with_room(200 << 20);
    let pulled = world.store.pull_for(&large, &reference, None, silent());
    pulled.await.unwrap();
}

/// What one organisation's broken pull left is not for another to continue: it was not delivered to it.
#[tokio::test]
async fn nobody_continues_anothers_download() {
    let (world, registry, layout) = (world(), Registry::start(), Layout::new());
    layout.image("app", &["head -c 3000000 /dev/urandom > big"]);
    registry.push(&layout, "app", "app:1", "");
    let manifest: serde_json::Value = serde_json::from_str(&registry.manifest("app", "1")).unwrap();
    let digest = manifest["layers"][0]["digest"].as_str().unwrap().to_owned();
    let whole = fs::read(registry.blob_file(&digest)).unwrap();
    let Owner::Tenant { org, .. } = tenant() else {
        panic!("a tenant");
    };
    let name = format!("blobs/{}.{org}", digest.replace(':', "-"));
    fs::write(world.config.dir.join(name), &whole).unwrap();
    let proxy = Proxy::start(registry.port, Options::default()).await;
    let reference = proxy.reference("app:1");
    world
        .store
        .pull_for(&tenant(), &reference, None, silent())
        .await
        .unwrap();
    let requests = proxy.requests(&digest);
    assert!(
        requests.len() == 1 && !requests[0].contains("range:"),
        "{requests:?}"
    );
}
