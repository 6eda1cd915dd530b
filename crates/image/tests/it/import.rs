//! Tarballs and directories become images.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use cove_image::{ImageError, Source};
use cove_pool::{Kind, PoolError};
use tokio::io::AsyncReadExt;

use crate::registry::exists;
use crate::world::{World, chain, sh, silent};

fn tree(world: &World) -> std::path::PathBuf {
    let script =
        "mkdir -p tree/a/b; echo data > tree/a/f; ln tree/a/f tree/a/hard; ln -s ../f tree/a/b/soft
        chmod 4755 tree/a/f; chown 12:34 tree/a/b; truncate -s 5M tree/holes; mkfifo tree/pipe
        setcap cap_net_raw+ep tree/a/f 2>/dev/null || true; touch -d @123456789 tree/a";
    sh(script, world.dir.path());
    world.dir.path().join("tree")
}

fn check(root: &Path) {
    let stat = |name: &str| fs::symlink_metadata(root.join(name)).unwrap();
    assert_eq!(fs::read_to_string(root.join("a/f")).unwrap(), "data\n");
    assert_eq!(stat("a/f").ino(), stat("a/hard").ino());
    assert_eq!(stat("a/f").mode() & 0o7777, 0o4755);
    assert_eq!(
        (stat("a/b").uid(), stat("a/b").gid(), stat("a").mtime()),
        (12, 34, 123_456_789)
    );
    assert_eq!(
        fs::read_link(root.join("a/b/soft")).unwrap(),
        Path::new("../f")
    );
    assert_eq!(stat("holes").len(), 5 << 20);
    assert!(!exists(root, "pipe"));
}

#[tokio::test]
async fn a_tarball_becomes_an_image_however_it_is_compressed() {
    let world = World::new();
    tree(&world);
    for (command, name) in [("cat", "plain"), ("gzip", "gzip"), ("zstd", "zstd")] {
        sh(
            &format!("tar -C tree -c . | {command} > {name}.tar"),
            world.dir.path(),
        );
        let file = tokio::fs::File::open(world.dir.path().join(format!("{name}.tar")))
            .await
            .unwrap();
        let image = world.store.import_tar(name, file, silent()).await.unwrap();
        assert_eq!(
            (image.source, &image.names[..]),
            (Source::Import, &[name.to_owned()][..])
        );
        check(&world.store.root(&image));
    }
    assert_eq!(
        (world.volumes(Kind::Image), world.volumes(Kind::Staging)),
        (3, 0)
    );
}

#[tokio::test]
async fn a_directory_becomes_an_image() {
    let world = World::new();
    let path = tree(&world);
    let image = world
        .store
        .import_dir("mine", &path, silent())
        .await
        .unwrap();
    let root = world.store.root(&image);
    check(&root);
    assert!(
        fs::metadata(root.join("holes")).unwrap().blocks() < 100,
        "holes must stay holes"
    );
    let capability =
        |path: &Path| sh(&format!("getcap {}", path.join("a/f").display()), path).replace("=", " ");
    assert_eq!(
        capability(&root).split(' ').next_back(),
        capability(&path).split(' ').next_back()
    );
    let error = world
        .store
        .import_dir("none", &path.join("missing"), silent())
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ImageError::Pack { .. } | ImageError::Unpack(_)),
        "{}",
        chain(&error)
    );
    assert_eq!(world.volumes(Kind::Staging), 0);
}

#[tokio::test]
async fn the_same_tarball_under_two_names_is_one_image() {
    let world = World::new();
    tree(&world);
    sh("tar -C tree -cf t.tar .", world.dir.path());
    let bytes = fs::read(world.dir.path().join("t.tar")).unwrap();
    let one = world
        .store
        .import_tar("one", &bytes[..], silent())
        .await
        .unwrap();
    let two = world
        .store
        .import_tar("two", &bytes[..], silent())
        .await
        .unwrap();
    assert_eq!(
        (&one.id, two.names.len(), world.volumes(Kind::Image)),
        (&two.id, 2, 1)
    );
}

#[tokio::test]
async fn an_archive_of_an_image_is_not_taken_for_a_file_system() {
    let world = World::new();
    for (script, is_image) in [
        (
            "mkdir -p t/blobs/sha256; echo {} > t/oci-layout; echo {} > t/index.json",
            true,
        ),
        (
            "mkdir -p t/0a1b; echo [] > t/manifest.json; echo {} > t/repositories",
            true,
        ),
        // A file system may have files of such names.
        ("mkdir -p t/usr/bin; echo [] > t/manifest.json", false),
        ("mkdir -p t/app; ln -s app/x t/manifest.json", false),
    ] {
        let script = format!("rm -rf t; {script}; tar -C t -cf saved.tar .");
        sh(&script, world.dir.path());
        let tar = fs::read(world.dir.path().join("saved.tar")).unwrap();
        let outcome = world.store.import_tar("saved", &tar[..], silent()).await;
        match outcome {
            Err(ImageError::NotAFileSystem) => assert!(is_image, "{script}"),
            Ok(_) => assert!(!is_image, "{script}"),
            Err(error) => panic!("{script}: {error:?}"),
        }
        assert_eq!(world.volumes(Kind::Staging), 0, "{script}");
    }
}

#[tokio::test]
async fn bad_tarballs_and_names_leave_nothing_behind() {
    let world = World::new();
    let junk = world
        .store
        .import_tar("junk", &b"this is no archive"[..], silent())
        .await
        .unwrap_err();
    assert!(matches!(junk, ImageError::Unpack(_)), "{}", chain(&junk));
    for name in ["", "-x", "a b", "img_aaaaaaaaaaaaaaaaaaaa", "a\n"] {
        let error = world
            .store
            .import_tar(name, &b""[..], silent())
            .await
            .unwrap_err();
        assert!(matches!(error, ImageError::InvalidName { .. }), "{name:?}");
    }
    // A reader that fails halfway is the reader's error, not the archive's.
    tree(&world);
    sh("tar -C tree -cf t.tar .", world.dir.path());
    let bytes = fs::read(world.dir.path().join("t.tar")).unwrap();
    let broken = tokio_reader_that_fails(&bytes[..2000]);
    let error = world
        .store
        .import_tar("broken", broken, silent())
        .await
        .unwrap_err();
    assert!(matches!(error, ImageError::Input(_)), "{}", chain(&error));
    assert_eq!(
        (world.volumes(Kind::Image), world.volumes(Kind::Staging)),
        (0, 0)
    );
    assert!(world.store.list().is_empty());
}

struct Failing;

impl tokio::io::AsyncRead for Failing {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into()))
    }
}

fn tokio_reader_that_fails(front: &[u8]) -> impl tokio::io::AsyncRead + Send + Unpin {
    front.chain(Failing)
}

#[tokio::test]
async fn an_archive_larger_than_the_limit_is_refused() {
    let world = World::with(Path::new("/nonexistent"), |config| {
        config.limits.total_bytes = 1 << 20
    });
    sh(
        "mkdir t; head -c 3000000 /dev/zero > t/big; tar -C t -cf big.tar .; gzip -k big.tar",
        world.dir.path(),
    );
    for name in ["big.tar", "big.tar.gz"] {
        let file = tokio::fs::File::open(world.dir.path().join(name))
            .await
            .unwrap();
        let error = world
            .store
            .import_tar("big", file, silent())
            .await
            .unwrap_err();
        let refused = matches!(
            error,
            ImageError::ArchiveTooLarge { .. } | ImageError::Unpack(_)
        );
        assert!(refused, "{name}: {}", chain(&error));
    }
    assert_eq!(
        (world.volumes(Kind::Image), world.volumes(Kind::Staging)),
        (0, 0)
    );
}

#[tokio::test]
async fn an_archive_larger_than_the_room_is_given_up_before_the_reserve_is_touched() {
    const POOL_BYTES: u64 = 512 << 20;
    let world = World::small(POOL_BYTES);
    let script = "truncate -s 700M big; tar --format=ustar -cf - big | head -c 512 > header";
    sh(script, world.dir.path());
    let header = fs::read(world.dir.path().join("header")).unwrap();
    let content = tokio::io::repeat(0xaa).take(700 << 20);
    let archive = std::io::Cursor::new(header).chain(content);
    let error = world.store.import_tar("big", archive, silent()).await;
    let error = error.unwrap_err();
    assert!(
        matches!(error, ImageError::Pool(PoolError::Full { .. })),
        "{}",
        chain(&error)
    );
    assert_eq!(
        (world.volumes(Kind::Image), world.volumes(Kind::Staging)),
        (0, 0)
    );
    let cleared = async {
        while world.pool.headroom().unwrap().beyond_reserve < 100 << 20 {
            world.pool.give_back_all().unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), cleared)
        .await
        .expect("what was given up is cleared away");
}
