//! Pulling from a real registry.

use std::fs;
use std::os::unix::fs::FileExt;

use cove_image::{ImageError, Progress, RegistryAuth, RegistryError, Source};
use cove_pool::Kind;

use crate::proxy::{Options, Proxy};
use crate::registry::{BUSYBOX, Layout, Registry, exists};
use crate::world::{Log, World, chain, silent};

fn registry_error(error: ImageError) -> RegistryError {
    match error {
        ImageError::Registry(error) => error,
        other => panic!("expected the registry's fault, not {}", chain(&other)),
    }
}

fn digests(log: &Log) -> Vec<String> {
    let mut found: Vec<String> = log
        .all()
        .into_iter()
        .filter_map(|event| match event {
            Progress::Layer { digest, .. } => Some(digest),
            _ => None,
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Digests of the layers of an image, as its manifest lists them.
fn layers(registry: &Registry, repository: &str, tag: &str) -> Vec<(String, u64)> {
    let manifest: serde_json::Value =
        serde_json::from_str(&registry.manifest(repository, tag)).unwrap();
    let layers = manifest["layers"].as_array().unwrap();
    layers
        .iter()
        .map(|layer| {
            (
                layer["digest"].as_str().unwrap().to_owned(),
                layer["size"].as_u64().unwrap(),
            )
        })
        .collect()
}

#[tokio::test]
async fn an_image_arrives_with_its_layers_stacked_and_its_configuration() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image(
        "app",
        &[
            BUSYBOX,
            "mkdir -p d etc; echo one > d/a; echo one > d/b; echo one > etc/gone; ln d/a d/hard",
            "mkdir -p d etc; : > d/.wh.b; : > etc/.wh.gone; echo two > d/c; mkdir -p new; echo x > new/x",
            "mkdir -p new; : > new/.wh..wh..opq; echo y > new/y",
        ],
    );
    layout.configure(
        "app",
        "--config.env A=1 --config.env B=x=y --config.user 7:8 --config.workingdir /srv --config.entrypoint /bin/sh --config.cmd -c --config.cmd id",
    );
    registry.push(&layout, "app", "team/app:1", "");
    let reference = registry.reference("team/app:1");
    let log = Log::default();
    let image = world
        .store
        .pull(&reference, None, log.sink())
        .await
        .unwrap();

    let root = world.store.root(&image);
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    assert_eq!(
        (read("etc/base"), read("d/a"), read("d/c"), read("new/y")),
        (
            "base\n".into(),
            "one\n".into(),
            "two\n".into(),
            "y\n".into()
        )
    );
    for gone in ["d/b", "etc/gone", "new/x", "d/.wh.b", "new/.wh..wh..opq"] {
        assert!(!exists(&root, gone), "{gone}");
    }
    assert!(
        fs::write(root.join("x"), "").is_err(),
        "the image must be read-only"
    );
    assert_eq!(image.source, Source::Registry);
    assert_eq!(
        image
            .config
            .env
            .iter()
            .filter(|(name, _)| name == "B")
            .map(|(_, value)| value.as_str())
            .collect::<Vec<_>>(),
        ["x=y"]
    );
    assert_eq!(image.config.user.as_deref(), Some("7:8"));
    assert_eq!(image.config.workdir.as_deref(), Some("/srv"));
    assert_eq!(
        (image.config.entrypoint.len(), image.config.cmd.len()),
        (1, 2)
    );
    assert!(image.size_bytes > 500_000, "{}", image.size_bytes);
    assert_eq!(
        (world.volumes(Kind::Image), world.volumes(Kind::Staging)),
        (4, 0)
    );
    assert_eq!(digests(&log).len(), 4);
    assert_eq!(log.all().first(), Some(&Progress::Resolving));
    assert_eq!(log.all().last(), Some(&Progress::Done));
    assert_eq!(
        fs::read_dir(world.config.dir.join("blobs"))
            .unwrap()
            .count(),
        0,
        "layers are not kept twice"
    );

    let digest = image.digest.clone().unwrap();
    let pinned = registry.reference(&format!("team/app@{digest}"));
    for name in [&reference, &pinned, &image.id.to_string()] {
        assert_eq!(world.store.resolve(name).as_ref(), Some(&image), "{name}");
    }
    assert_eq!(world.store.resolve(&registry.reference("team/app:2")), None);
    let again = Log::default();
    assert_eq!(
        world.store.pull(&pinned, None, again.sink()).await.unwrap(),
        image
    );
    assert_eq!(
        digests(&again),
        Vec::<String>::new(),
        "nothing is fetched twice"
    );
}

#[tokio::test]
async fn every_form_of_layer_and_manifest_is_read() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("app", &[BUSYBOX, "mkdir etc; echo top > etc/top"]);
    for (name, options) in [
        ("gzip", "--dest-compress-format gzip"),
        ("zstd", "--dest-compress-format zstd --dest-compress"),
        ("docker", "--format v2s2"),
    ] {
        registry.push(&layout, "app", &format!("forms:{name}"), options);
        let image = world
            .store
            .pull(
                &registry.reference(&format!("forms:{name}")),
                None,
                silent(),
            )
            .await
            .unwrap();
        assert_eq!(
            fs::read_to_string(world.store.root(&image).join("etc/top")).unwrap(),
            "top\n",
            "{name}"
        );
    }
    // Uncompressed, put together by hand.
    let tar = crate::world::sh(
        "mkdir -p t/etc; echo plain > t/etc/top; tar -C t -cf plain.tar . ; echo plain.tar",
        world.dir.path(),
    );
    let tar = fs::read(world.dir.path().join(tar)).unwrap();
    let digest = registry.put_blob("forms", &tar);
    put_image(
        &registry,
        "forms",
        "plain",
        &[(&digest, tar.len(), &digest)],
        "",
    );
    let image = world
        .store
        .pull(&registry.reference("forms:plain"), None, silent())
        .await
        .unwrap();
    assert_eq!(
        fs::read_to_string(world.store.root(&image).join("etc/top")).unwrap(),
        "plain\n"
    );
}

/// Uploads a configuration and a manifest for layers (digest, size, diff id) that are there.
pub fn put_image(
    registry: &Registry,
    repository: &str,
    tag: &str,
    layers: &[(&str, usize, &str)],
    extra: &str,
) -> String {
    let arch = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let diff_ids: Vec<_> = layers
        .iter()
        .map(|(_, _, diff_id)| format!("\"{diff_id}\""))
        .collect();
    let config = format!(
        "{{\"architecture\":\"{arch}\",\"os\":\"linux\"{extra},\"rootfs\":{{\"type\":\"layers\",\"diff_ids\":[{}]}}}}",
        diff_ids.join(",")
    );
    let config_digest = registry.put_blob(repository, config.as_bytes());
    let list: Vec<_> = layers
        .iter()
        .map(|(digest, size, _)| {
            format!("{{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\",\"digest\":\"{digest}\",\"size\":{size}}}")
        })
        .collect();
    let manifest = format!(
        "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\
         \"config\":{{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\"digest\":\"{config_digest}\",\"size\":{}}},\
         \"layers\":[{}]}}",
        config.len(),
        list.join(",")
    );
    registry.put_manifest(
        repository,
        tag,
        "application/vnd.oci.image.manifest.v1+json",
        &manifest,
    )
}

#[tokio::test]
async fn the_variant_for_this_machine_is_taken_from_an_index() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("app", &["echo here > here"]);
    registry.push(&layout, "app", "multi:here", "");
    let manifest = registry.manifest("multi", "here");
    let digest = registry.put_manifest(
        "multi",
        "here",
        "application/vnd.oci.image.manifest.v1+json",
        &manifest,
    );
    let arch = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let index = |arch: &str| {
        format!(
            "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"manifests\":[\
             {{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"{digest}\",\"size\":{},\
             \"platform\":{{\"os\":\"linux\",\"architecture\":\"{arch}\"}}}}]}}",
            manifest.len()
        )
    };
    let media_type = "application/vnd.oci.image.index.v1+json";
    let index_digest = registry.put_manifest("multi", "index", media_type, &index(arch));
    let image = world
        .store
        .pull(&registry.reference("multi:index"), None, silent())
        .await
        .unwrap();
    assert_eq!(
        image.digest,
        Some(index_digest),
        "the digest is the one that can be pinned"
    );
    assert!(exists(&world.store.root(&image), "here"));

    // An index that does not say what its only entry is for, behind another index.
    let untold = |digest: &str, size: usize, kind: &str| {
        format!(
            "{{\"schemaVersion\":2,\"manifests\":[{{\"mediaType\":\"application/vnd.oci.image.{kind}.v1+json\",\
             \"digest\":\"{digest}\",\"size\":{size}}}]}}"
        )
    };
    let inner = untold(&digest, manifest.len(), "manifest");
    let inner_digest = registry.put_manifest("multi", "inner", media_type, &inner);
    let outer = untold(&inner_digest, inner.len(), "index");
    registry.put_manifest("multi", "outer", media_type, &outer);
    let image = world
        .store
        .pull(&registry.reference("multi:outer"), None, silent())
        .await
        .unwrap();
    assert!(exists(&world.store.root(&image), "here"));

    registry.put_manifest("multi", "foreign", media_type, &index("s390x"));
    let error = world
        .store
        .pull(&registry.reference("multi:foreign"), None, silent())
        .await
        .unwrap_err();
    assert!(
        matches!(registry_error(error), RegistryError::NoPlatform { available, .. } if available == "linux/s390x")
    );
}

#[tokio::test]
async fn a_layer_that_does_not_have_its_digest_is_refused() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("app", &[BUSYBOX]);
    registry.push(&layout, "app", "app:1", "");
    let (digest, size) = layers(&registry, "app", "1").remove(0);
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(registry.blob_file(&digest))
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, size / 2).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], size / 2).unwrap();
    let error = world
        .store
        .pull(&registry.reference("app:1"), None, silent())
        .await
        .unwrap_err();
    assert!(
        matches!(registry_error(error), RegistryError::DigestMismatch { expected, .. } if expected == digest)
    );
    assert_eq!(
        (world.volumes(Kind::Image), world.volumes(Kind::Staging)),
        (0, 0)
    );
    assert!(world.store.list().is_empty());
    // Nothing of the bad bytes is kept, so that a repaired registry is enough.
    file.write_all_at(&byte, size / 2).unwrap();
    world
        .store
        .pull(&registry.reference("app:1"), None, silent())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_manifest_that_does_not_have_the_pinned_digest_is_refused() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("app", &["echo x > x"]);
    registry.push(&layout, "app", "app:1", "");
    let image = world
        .store
        .pull(&registry.reference("app:1"), None, silent())
        .await
        .unwrap();
    let digest = image.digest.unwrap();
    let file = registry.blob_file(&digest);
    let manifest = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{manifest} ")).unwrap();
    let pinned = registry.reference(&format!("app@{digest}"));
    let error = world.store.pull(&pinned, None, silent()).await.unwrap_err();
    let refused = matches!(
        registry_error(error),
        // The registry checks what it serves itself, by its version in one way or the other.
        RegistryError::DigestMismatch { .. }
            | RegistryError::Status { .. }
            | RegistryError::NotFound { .. }
    );
    assert!(refused);
    let unknown = registry.reference(&format!("app@sha256:{}", "0".repeat(64)));
    let error = world
        .store
        .pull(&unknown, None, silent())
        .await
        .unwrap_err();
    assert!(matches!(
        registry_error(error),
        RegistryError::NotFound { .. }
    ));
}

#[tokio::test]
async fn a_configuration_that_lies_about_a_layer_is_refused() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("app", &["echo x > x"]);
    registry.push(&layout, "app", "app:1", "");
    let (digest, size) = layers(&registry, "app", "1").remove(0);
    let wrong = format!("sha256:{}", "a".repeat(64));
    put_image(
        &registry,
        "app",
        "liar",
        &[(&digest, size as usize, &wrong)],
        "",
    );
    let error = world
        .store
        .pull(&registry.reference("app:liar"), None, silent())
        .await
        .unwrap_err();
    assert!(
        matches!(registry_error(error), RegistryError::DiffIdMismatch { expected, .. } if expected == wrong)
    );
    assert_eq!(
        (world.volumes(Kind::Image), world.volumes(Kind::Staging)),
        (0, 0)
    );
}

#[tokio::test]
async fn a_hostile_layer_is_refused_with_the_unpackers_reason() {
    let (world, registry) = (World::new(), Registry::start());
    crate::world::sh(
        "mkdir d; echo x > d/x; cd d; tar --absolute-names --create --transform 's#.*#../../escaped#' --file ../bad.tar x",
        world.dir.path(),
    );
    let tar = fs::read(world.dir.path().join("bad.tar")).unwrap();
    let digest = registry.put_blob("bad", &tar);
    put_image(&registry, "bad", "1", &[(&digest, tar.len(), &digest)], "");
    let error = world
        .store
        .pull(&registry.reference("bad:1"), None, silent())
        .await
        .unwrap_err();
    assert!(
        chain(&error).contains("leaves the root"),
        "{}",
        chain(&error)
    );
    assert_eq!(
        (world.volumes(Kind::Image), world.volumes(Kind::Staging)),
        (0, 0)
    );
}

fn blobs(world: &World) -> Vec<fs::Metadata> {
    let entries = fs::read_dir(world.config.dir.join("blobs")).unwrap();
    entries
        .map(|entry| entry.unwrap().metadata().unwrap())
        .collect()
}

/// The attack: an image of many good layers and one bad one, again and again, fills a disk that nobody
/// pays for.
#[tokio::test]
async fn a_refused_image_leaves_no_layers_and_no_files() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("app", &[BUSYBOX]);
    registry.push(&layout, "app", "bad:good", "");
    let good = registry.reference("bad:good");
    let kept = world.store.pull(&good, None, silent()).await.unwrap();
    let script = "mkdir d e f; echo x > d/x; head -c 3000000 /dev/urandom > e/e; cp e/e f/f
         tar -C e -cf below.tar e; tar -C f -cf above.tar f
         cd d; tar --absolute-names --create --transform 's#.*#../../escaped#' --file ../bad.tar x";
    crate::world::sh(script, world.dir.path());
    let put = |name: &str| {
        let tar = fs::read(world.dir.path().join(name)).unwrap();
        (registry.put_blob("bad", &tar), tar.len())
    };
    let [below, bad, above] = ["below.tar", "bad.tar", "above.tar"].map(put);
    let listed =
        [&below, &bad, &above].map(|(digest, size)| (digest.as_str(), *size, digest.as_str()));
    put_image(&registry, "bad", "1", &listed, "");
    let reference = registry.reference("bad:1");
    let error = world
        .store
        .pull(&reference, None, silent())
        .await
        .unwrap_err();
    assert!(
        chain(&error).contains("leaves the root"),
        "{}",
        chain(&error)
    );
    let volumes = (world.volumes(Kind::Image), world.volumes(Kind::Staging));
    assert_eq!(volumes, (1, 0), "only those of the other image");
    crate::lifecycle::wait_until(|| blobs(&world).is_empty()).await;
    assert!(exists(&world.store.root(&kept), "bin/busybox"));
}

#[tokio::test]
async fn a_pull_that_breaks_off_keeps_only_what_arrived_for_the_next_try() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    let big = "head -c 6000000 /dev/urandom > big";
    layout.image("app", &[BUSYBOX, big]);
    registry.push(&layout, "app", "app:1", "");
    let options = Options {
        cut_after: Some(3_000_000),
        cut_for_good: true,
        ..Options::default()
    };
    let proxy = Proxy::start(registry.port, options).await;
    let reference = proxy.reference("app:1");
    let error = world
        .store
        .pull(&reference, None, silent())
        .await
        .unwrap_err();
    assert!(matches!(
        registry_error(error),
        RegistryError::BrokenOff { .. }
    ));
    assert_eq!(world.volumes(Kind::Image), 0, "the layer below has no user");
    let left = blobs(&world);
    assert!(left.len() == 1 && left[0].len() > 2_000_000, "{left:?}");
    let direct = Proxy::start(registry.port, Options::default()).await;
    let reference = direct.reference("app:1");
    world.store.pull(&reference, None, silent()).await.unwrap();
    let (digest, _) = layers(&registry, "app", "1").remove(1);
    let requests = direct.requests(&digest);
    assert!(requests[0].contains("range: bytes="), "{requests:?}");
    assert!(blobs(&world).is_empty());
}

#[tokio::test]
async fn a_registry_with_passwords_lets_in_who_has_one() {
    let (world, registry, layout) = (
        World::new(),
        Registry::with_password("alice", "secret"),
        Layout::new(),
    );
    layout.image("app", &["echo x > x"]);
    registry.push(&layout, "app", "app:1", "");
    let pull = |auth: Option<(&str, &str)>| {
        let auth = auth.map(|(username, password)| RegistryAuth {
            username: username.into(),
            password: password.into(),
        });
        let (store, reference) = (world.store.clone(), registry.reference("app:1"));
        async move { store.pull(&reference, auth, silent()).await }
    };
    assert!(matches!(
        registry_error(pull(None).await.unwrap_err()),
        RegistryError::CredentialsNeeded
    ));
    let wrong = pull(Some(("alice", "wrong"))).await.unwrap_err();
    assert!(matches!(
        registry_error(wrong),
        RegistryError::CredentialsRefused
    ));
    pull(Some(("alice", "secret"))).await.unwrap();
}

#[tokio::test]
async fn a_token_is_fetched_where_the_registry_asks_for_one() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("app", &["echo x > x"]);
    registry.push(&layout, "app", "app:1", "");
    let options = Options {
        token_for: Some(("bob", "pass")),
        ..Options::default()
    };
    let proxy = Proxy::start(registry.port, options).await;
    let reference = proxy.reference("app:1");
    let auth = |password: &str| {
        Some(RegistryAuth {
            username: "bob".into(),
            password: password.into(),
        })
    };
    let none = world
        .store
        .pull(&reference, None, silent())
        .await
        .unwrap_err();
    assert!(matches!(
        registry_error(none),
        RegistryError::CredentialsNeeded
    ));
    let wrong = world
        .store
        .pull(&reference, auth("wrong"), silent())
        .await
        .unwrap_err();
    assert!(matches!(
        registry_error(wrong),
        RegistryError::CredentialsRefused
    ));
    let before = proxy.requests("/token").len();
    world
        .store
        .pull(&reference, auth("pass"), silent())
        .await
        .unwrap();
    assert_eq!(
        proxy.requests("/token").len(),
        before + 1,
        "one token serves the whole pull"
    );
    assert!(
        proxy
            .requests("/v2/")
            .iter()
            .all(|head| !head.contains("Basic ")),
        "the password goes to the token service only"
    );
}

#[tokio::test]
async fn images_share_the_layers_they_have_in_common() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("base", &[BUSYBOX]);
    for tag in ["one", "two"] {
        layout.tag("base", tag);
        layout.add_layer(tag, &format!("echo {tag} > name"));
        registry.push(&layout, tag, &format!("app:{tag}"), "");
    }
    let one = world
        .store
        .pull(&registry.reference("app:one"), None, silent())
        .await
        .unwrap();
    let log = Log::default();
    let two = world
        .store
        .pull(&registry.reference("app:two"), None, log.sink())
        .await
        .unwrap();
    assert_eq!(world.volumes(Kind::Image), 3);
    assert_eq!(one.layers[0], two.layers[0]);
    assert_eq!(
        digests(&log),
        [layers(&registry, "app", "two")[1].0.clone()],
        "only the new layer is fetched"
    );

    world.store.remove(&one.id, |_| None).await.unwrap();
    assert_eq!(world.volumes(Kind::Image), 2, "the shared layer stays");
    assert!(exists(&world.store.root(&two), "bin/busybox"));
    world.store.remove(&two.id, |_| None).await.unwrap();
    assert_eq!(world.volumes(Kind::Image), 0);
}

#[tokio::test]
async fn a_broken_download_is_continued_where_it_ended() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("app", &["head -c 6000000 /dev/urandom > big"]);
    registry.push(&layout, "app", "app:1", "");
    let proxy = Proxy::start(
        registry.port,
        Options {
            cut_after: Some(3_000_000),
            ..Options::default()
        },
    )
    .await;
    let image = world
        .store
        .pull(&proxy.reference("app:1"), None, silent())
        .await
        .unwrap();
    assert_eq!(
        fs::metadata(world.store.root(&image).join("big"))
            .unwrap()
            .len(),
        6_000_000
    );
    let (digest, _) = layers(&registry, "app", "1").remove(0);
    let requests = proxy.requests(&digest);
    assert_eq!(requests.len(), 2, "{requests:?}");
    let range = requests[1]
        .lines()
        .find_map(|line| line.strip_prefix("range: bytes="))
        .unwrap();
    let from: u64 = range.trim_end_matches('-').parse().unwrap();
    assert!(from > 2_000_000 && from < 3_000_000, "{from}");
}

#[tokio::test]
async fn a_pull_that_was_given_up_is_continued_by_the_next_one() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("app", &["head -c 6000000 /dev/urandom > big"]);
    registry.push(&layout, "app", "app:1", "");
    let proxy = Proxy::start(registry.port, Options::default()).await;
    let (digest, size) = layers(&registry, "app", "1").remove(0);
    // What a server that died halfway left.
    let blob = fs::read(registry.blob_file(&digest)).unwrap();
    let half = size as usize / 2;
    fs::write(
        world
            .config
            .dir
            .join("blobs")
            .join(format!("{}.operator", digest.replace(':', "-"))),
        &blob[..half],
    )
    .unwrap();
    world
        .store
        .pull(&proxy.reference("app:1"), None, silent())
        .await
        .unwrap();
    let requests = proxy.requests(&digest);
    assert!(
        requests.len() == 1 && requests[0].contains(&format!("range: bytes={half}-")),
        "{requests:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pulls_of_the_same_image_at_once_do_the_work_once() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("app", &[BUSYBOX, "echo x > x"]);
    registry.push(&layout, "app", "app:1", "");
    let proxy = Proxy::start(registry.port, Options::default()).await;
    let reference = proxy.reference("app:1");
    let pulls: Vec<_> = (0..6)
        .map(|_| {
            let (store, reference) = (world.store.clone(), reference.clone());
            tokio::spawn(async move { store.pull(&reference, None, silent()).await.unwrap() })
        })
        .collect();
    let mut images = Vec::new();
    for pull in pulls {
        images.push(pull.await.unwrap());
    }
    assert!(images.iter().all(|image| *image == images[0]));
    for (digest, _) in layers(&registry, "app", "1") {
        assert_eq!(proxy.requests(&digest).len(), 1);
    }
    assert_eq!(
        (world.volumes(Kind::Image), world.store.list().len()),
        (2, 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_images_with_common_layers_pulled_at_once_both_arrive() {
    let (world, registry, layout) = (World::new(), Registry::start(), Layout::new());
    layout.image("base", &[BUSYBOX, "head -c 2000000 /dev/urandom > shared"]);
    let mut references = Vec::new();
    for index in 0..4 {
        let tag = format!("t{index}");
        layout.tag("base", &tag);
        layout.add_layer(&tag, &format!("echo {index} > name"));
        registry.push(&layout, &tag, &format!("app:{tag}"), "");
        references.push(registry.reference(&format!("app:{tag}")));
    }
    let pulls: Vec<_> = references
        .into_iter()
        .map(|reference| {
            let store = world.store.clone();
            tokio::spawn(async move { store.pull(&reference, None, silent()).await.unwrap() })
        })
        .collect();
    for (index, pull) in pulls.into_iter().enumerate() {
        let root = world.store.root(&pull.await.unwrap());
        assert_eq!(
            fs::read_to_string(root.join("name")).unwrap(),
            format!("{index}\n")
        );
        assert_eq!(fs::metadata(root.join("shared")).unwrap().len(), 2_000_000);
    }
    assert_eq!(
        (world.volumes(Kind::Image), world.volumes(Kind::Staging)),
        (6, 0)
    );
    assert_eq!(
        fs::read_dir(world.config.dir.join("blobs"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn a_registry_that_is_not_there_is_a_clear_error() {
    let world = World::new();
    // Held without listening, so that nobody else is given it.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = held.local_addr().unwrap().port();
    let error = world
        .store
        .pull(&format!("127.0.0.1:{port}/app"), None, silent())
        .await
        .unwrap_err();
    assert!(matches!(
        registry_error(error),
        RegistryError::Unreachable { .. }
    ));
    let registry = Registry::start();
    let error = world
        .store
        .pull(&registry.reference("none:1"), None, silent())
        .await
        .unwrap_err();
    assert!(matches!(
        registry_error(error),
        RegistryError::NotFound { .. }
    ));
    let error = world.store.pull("app", None, silent()).await.unwrap_err();
    assert!(matches!(error, ImageError::Reference(_)));
}
