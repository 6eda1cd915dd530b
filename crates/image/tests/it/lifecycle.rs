//! What becomes of images over time: restarts, names that move, removal, leftovers.

use std::fs;
use std::time::{Duration, Instant};

use cove_image::{ImageError, SweepReport};
use cove_pool::{Kind, VolumeId};
use tokio::io::AsyncReadExt;

use crate::world::{World, sh, silent};

fn tarball(world: &World, content: &str) -> Vec<u8> {
    sh(
        &format!("rm -rf t; mkdir t; echo {content} > t/f; tar -C t -cf t.tar ."),
        world.dir.path(),
    );
    fs::read(world.dir.path().join("t.tar")).unwrap()
}

#[tokio::test]
async fn images_survive_a_restart_unless_their_volume_is_gone() {
    let mut world = World::new();
    let (one, two) = (tarball(&world, "one"), tarball(&world, "two"));
    let one = world
        .store
        .import_tar("one", &one[..], silent())
        .await
        .unwrap();
    let two = world
        .store
        .import_tar("two", &two[..], silent())
        .await
        .unwrap();
    world.reopen();
    assert_eq!(world.store.list(), [one.clone(), two.clone()]);
    let volume = VolumeId::new(Kind::Image, one.layers[0].as_str()).unwrap();
    world.pool.delete(&volume).unwrap();
    fs::write(
        world
            .config
            .dir
            .join("records/img_aaaaaaaaaaaaaaaaaaaa.json"),
        "{broken",
    )
    .unwrap();
    world.reopen();
    assert_eq!(world.store.list(), [two]);
    assert_eq!(world.store.resolve("one"), None);
}

#[tokio::test]
async fn a_name_leads_to_the_image_that_took_it_last() {
    let mut world = World::new();
    let (old, new) = (tarball(&world, "old"), tarball(&world, "new"));
    let old = world
        .store
        .import_tar("app", &old[..], silent())
        .await
        .unwrap();
    let new = world
        .store
        .import_tar("app", &new[..], silent())
        .await
        .unwrap();
    assert_ne!(old.id, new.id);
    world.reopen();
    assert_eq!(world.store.resolve("app").unwrap().id, new.id);
    assert!(world.store.get(&old.id).unwrap().names.is_empty());
}

#[tokio::test]
async fn an_image_in_use_is_not_removed() {
    let world = World::new();
    let bytes = tarball(&world, "x");
    let image = world
        .store
        .import_tar("app", &bytes[..], silent())
        .await
        .unwrap();
    let error = world
        .store
        .remove(&image.id, |_| Some("sbx_1".to_owned()))
        .await
        .unwrap_err();
    assert!(matches!(error, ImageError::InUse { by, .. } if by == "sbx_1"));
    let hold = world.store.hold(&image.id).unwrap();
    let error = world.store.remove(&image.id, |_| None).await.unwrap_err();
    assert!(matches!(error, ImageError::InUse { .. }));
    assert!(world.store.root(&image).join("f").exists());
    drop(hold);
    world.store.remove(&image.id, |_| None).await.unwrap();
    assert_eq!(
        (world.store.list().len(), world.volumes(Kind::Image)),
        (0, 0)
    );
    assert!(world.store.hold(&image.id).is_none());
    let error = world.store.remove(&image.id, |_| None).await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound { .. }));
}

#[tokio::test]
async fn leftovers_of_a_crash_are_swept_and_nothing_else() {
    let world = World::new();
    let bytes = tarball(&world, "x");
    let image = world
        .store
        .import_tar("app", &bytes[..], silent())
        .await
        .unwrap();
    let volume = |kind, name: String| VolumeId::new(kind, name).unwrap();
    world
        .pool
        .create(&volume(Kind::Staging, "layer-img_x".to_owned()))
        .unwrap();
    world
        .pool
        .create(&volume(Kind::Staging, "of-somebody-else".to_owned()))
        .unwrap();
    world
        .pool
        .create(&volume(Kind::Image, format!("sha256-{}", "0".repeat(64))))
        .unwrap();
    fs::write(world.config.dir.join("records/.tmpabc"), "").unwrap();
    let fresh = world
        .config
        .dir
        .join(format!("blobs/sha256-{}.operator", "1".repeat(64)));
    fs::write(&fresh, "").unwrap();
    let stale = world
        .config
        .dir
        .join(format!("blobs/sha256-{}.operator", "2".repeat(64)));
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(30 * 24 * 3600);
    fs::File::create(&stale)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
    let report = world.store.sweep().await.unwrap();
    assert_eq!(
        report,
        SweepReport {
            staging_volumes: 1,
            layer_volumes: 1,
            files: 2
        }
    );
    assert!(fresh.exists() && !stale.exists());
    assert_eq!(
        (world.volumes(Kind::Image), world.volumes(Kind::Staging)),
        (1, 1)
    );
    assert!(world.store.root(&image).join("f").exists());
}

#[tokio::test]
async fn the_oldest_of_what_broken_pulls_left_goes_when_it_is_too_much() {
    let world = World::new();
    let hours_old = |hours: u64, owner: &str, bytes: u64| {
        let name = format!("blobs/sha256-{}.{owner}", "1".repeat(64));
        let path = world.config.dir.join(name);
        let file = fs::File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        let when = std::time::SystemTime::now() - Duration::from_secs(hours * 3600);
        file.set_modified(when).unwrap();
        path
    };
    let oldest = hours_old(9, "org_oldest", 900 << 20);
    let others = [1, 2, 3, 4].map(|hours| hours_old(hours, &format!("org_{hours}"), 900 << 20));
    let small = hours_old(5, "org_small", 1 << 20);
    // More than one may leave, and what nobody would come back for.
    let large = hours_old(1, "org_large", 2 << 30);
    let nobodys = world.config.dir.join("blobs").join("2".repeat(64));
    fs::write(&nobodys, "").unwrap();
    assert_eq!(world.store.sweep().await.unwrap().files, 3);
    assert!(!oldest.exists() && !large.exists() && !nobodys.exists());
    assert!(others.iter().all(|path| path.exists()) && small.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_given_up_stops_at_once_and_leaves_nothing() {
    let world = World::new();
    let bytes = tarball(&world, "x");
    // An archive whose end never comes.
    let (mut feed, reader) = tokio::io::duplex(64 << 10);
    let endless = std::io::Cursor::new(bytes).take(1024).chain(reader);
    let store = world.store.clone();
    let import =
        tokio::spawn(async move { store.import_tar("app", endless, silent()).await.map(drop) });
    wait_until(|| world.volumes(Kind::Staging) == 1).await;
    // While it runs, a sweep takes nothing from it.
    assert_eq!(world.store.sweep().await.unwrap(), SweepReport::default());
    assert_eq!(world.volumes(Kind::Staging), 1);
    import.abort();
    wait_until(|| world.volumes(Kind::Staging) == 0).await;
    assert!(world.store.list().is_empty());
    let _ = tokio::io::AsyncWriteExt::shutdown(&mut feed).await;
}

pub async fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "it did not happen in time");
        tokio::task::yield_now().await;
    }
}
