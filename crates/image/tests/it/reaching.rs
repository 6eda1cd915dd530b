//! Attacks on the host's networks through a tenant's own registry. Loopback stands for the world:
//! 127.0.1.0/24 is opened to tenants as if it were public, 127.0.2.0/24 is the operator's own.

use std::path::Path;
use std::time::Duration;

use cove_image::{FetchConfig, ImageError, Owner, RegistryAuth, RegistryError};
use cove_model::OrgId;
use cove_pool::Kind;

use crate::registry::{BUSYBOX, Layout, Registry};
use crate::stub::{Reply, Stub, name_server, ok, redirect};
use crate::world::{World, chain, silent};

fn world(change: impl FnOnce(&mut FetchConfig)) -> World {
    World::with(Path::new("/nonexistent"), |config| {
        config.fetch.open_ranges = vec!["127.0.1.0/24".parse().unwrap()];
        change(&mut config.fetch);
    })
}

fn tenant() -> Owner {
    Owner::Tenant {
        org: OrgId::random(),
        room_bytes: 1 << 30,
    }
}

async fn refused(world: &World, owner: &Owner, reference: &str) -> RegistryError {
    let auth = RegistryAuth {
        username: "me".into(),
        password: "hunter2".into(),
    };
    let pulled = world.store.pull_for(owner, reference, Some(auth), silent());
    match pulled.await.unwrap_err() {
        ImageError::Registry(error) => error,
        other => panic!("{}", chain(&other)),
    }
}

/// The operator's own: nobody may come.
async fn internal() -> Stub {
    Stub::start("127.0.2.1:0", |_| ok("{\"token\":\"internal\"}")).await
}

#[tokio::test]
async fn a_registry_cannot_send_the_host_into_the_operators_networks() {
    let (world, internal) = (world(|_| {}), internal().await);
    let port = internal.address.port();
    let places = [
        format!("https://127.0.2.1:{port}/v2/"),
        format!("http://127.0.2.1:{port}/v2/"),
        format!("https://[::ffff:127.0.2.1]:{port}/"),
        format!("https://[::ffff:7f00:201]:{port}/"),
        // 127.0.2.1 as one number, with octal and with hexadecimal digits, and shortened.
        format!("https://2130706945:{port}/"),
        format!("https://0177.0.2.1:{port}/"),
        format!("https://0x7f000201:{port}/"),
        format!("https://127.513:{port}/"),
        format!("https://me@127.0.2.1:{port}/"),
        format!("//127.0.2.1:{port}/"),
        "https://169.254.169.254/latest/meta-data".to_owned(),
        "file:///etc/shadow".to_owned(),
        format!("ftp://127.0.2.1:{port}/"),
        format!("gopher://127.0.2.1:{port}/"),
    ];
    let mut said = Vec::new();
    for place in &places {
        let to = place.clone();
        let evil = Stub::start("127.0.1.1:0", move |_| redirect(&to)).await;
        let reference = format!("{}/app:1", evil.address);
        said.push(
            refused(&world, &tenant(), &reference)
                .await
                .to_string()
                .replace(&evil.address.to_string(), "it"),
        );
        assert_eq!(evil.connections(), 1, "{place}");
        // The same as where its tokens are.
        let challenge = format!("WWW-Authenticate: Bearer realm=\"{place}\"\r\n");
        let evil = Stub::start("127.0.1.1:0", move |_| {
            Reply::Whole("401 Unauthorized", challenge.clone(), Vec::new())
        })
        .await;
        let reference = format!("{}/app:1", evil.address);
        said.push(
            refused(&world, &tenant(), &reference)
                .await
                .to_string()
                .replace(&evil.address.to_string(), "it"),
        );
        assert_eq!(internal.connections(), 0, "{place}");
    }
    said.dedup();
    assert_eq!(
        said.len(),
        1,
        "an error tells one place from another: {said:#?}"
    );
    // Somebody is there, and the operator may go.
    let to = places[1].clone();
    let evil = Stub::start("127.0.1.1:0", move |_| redirect(&to)).await;
    refused(&world, &Owner::Operator, &format!("{}/app:1", evil.address)).await;
    assert!(internal.connections() > 0);
}

#[tokio::test]
async fn what_is_there_cannot_be_told_from_what_is_not() {
    let world = world(|fetch| fetch.hosts_file = "/nonexistent".into());
    let internal = internal().await;
    let closed = std::net::TcpListener::bind("127.0.2.1:0").unwrap();
    let closed = closed.local_addr().unwrap().port();
    let mut said = Vec::new();
    for registry in [
        internal.address.to_string(),
        format!("127.0.2.1:{closed}"),
        "10.255.255.1:443".to_owned(),
        "[fd00::1]:5000".to_owned(),
        "nobody.invalid".to_owned(),
        format!("127.0.1.9:{closed}"),
    ] {
        let error = refused(&world, &tenant(), &format!("{registry}/app:1")).await;
        said.push(error.to_string().replace(&registry, "it"));
    }
    said.dedup();
    assert_eq!(said.len(), 1, "{said:#?}");
    assert_eq!(internal.connections(), 0);
}

#[tokio::test]
async fn redirects_that_go_round_end() {
    let world = world(|_| {});
    let evil = Stub::start("127.0.1.1:0", redirect).await;
    let error = refused(&world, &tenant(), &format!("{}/app:1", evil.address)).await;
    assert!(matches!(error, RegistryError::Withheld { .. }), "{error}");
    assert!(evil.connections() <= 10, "{}", evil.connections());
}

/// A registry with a login sends the host on to somebody else, who must not see the password.
#[tokio::test]
async fn a_login_is_not_carried_to_another_host() {
    let world = world(|_| {});
    let other = Stub::start("127.0.1.2:0", |_| ok("nothing")).await;
    let to = format!("http://{}/elsewhere", other.address);
    let asked = std::sync::atomic::AtomicBool::new(false);
    let registry = Stub::start("127.0.1.1:0", move |_| {
        match asked.swap(true, std::sync::atomic::Ordering::SeqCst) {
            false => Reply::Whole(
                "401 Unauthorized",
                "WWW-Authenticate: Basic realm=\"x\"\r\n".into(),
                Vec::new(),
            ),
            true => redirect(&to),
        }
    })
    .await;
    refused(&world, &tenant(), &format!("{}/app:1", registry.address)).await;
    let heads = |stub: &Stub| stub.heads().join("").to_ascii_lowercase();
    assert!(heads(&registry).contains("authorization: basic"));
    assert!(other.connections() > 0 && !heads(&other).contains("authorization"));
}

/// The name is the tenant's: it leads to a fine address while it is looked at and elsewhere afterwards.
#[tokio::test]
async fn a_name_that_changes_its_address_is_checked_at_every_dial() {
    let manifest = "{\"schemaVersion\":2,\"config\":{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\
        \"digest\":\"sha256:0000000000000000000000000000000000000000000000000000000000000000\",\"size\":1},\"layers\":[]}";
    let fine = Stub::start("127.0.1.1:0", move |_| ok(manifest)).await;
    let port = fine.address.port();
    let internal = Stub::start(&format!("127.0.2.1:{port}"), |_| ok("{}")).await;
    let mapped = std::net::Ipv4Addr::new(127, 0, 2, 1)
        .to_ipv6_mapped()
        .octets();
    for (four, six, dials) in [
        (vec![[127, 0, 1, 1], [127, 0, 2, 1]], None, 1),
        // One address of several is enough.
        (vec![[127, 0, 1, 1]], Some(mapped), 0),
        (vec![], Some(mapped), 0),
        (vec![[127, 0, 2, 1]], None, 0),
    ] {
        let (resolver, task) = name_server(four.clone(), six).await;
        let mut world = world(|fetch| fetch.resolvers = vec![resolver]);
        world.config.plain_registries = vec![format!("rebind.example:{port}")];
        world.reopen();
        let before = fine.connections();
        let reference = format!("rebind.example:{port}/app:1");
        let error = refused(&world, &tenant(), &reference).await;
        assert!(
            matches!(error, RegistryError::Withheld { .. }),
            "{four:?}: {error}"
        );
        assert_eq!(fine.connections() - before, dials, "{four:?}");
        assert_eq!(internal.connections(), 0, "{four:?}");
        task.abort();
    }
}

#[tokio::test]
async fn the_operators_default_registry_is_everybodys_wherever_it_is() {
    let registry = Stub::start("127.0.2.1:0", |_| crate::stub::not_found()).await;
    let default = registry.address.to_string();
    let world = World::with(Path::new("/nonexistent"), |config| {
        config.default_registry = Some(default);
    });
    let error = refused(&world, &tenant(), "app:1").await;
    assert!(matches!(error, RegistryError::NotFound { .. }), "{error}");
    assert!(registry.connections() > 0);
}

/// With TLS, a name and a certificate of the operator's own: the confined program has all it needs.
#[tokio::test]
async fn a_registry_is_trusted_by_the_hosts_certificates_only() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = |name: &str| dir.path().join(name);
    let made = rcgen::generate_simple_self_signed(vec!["registry.example".to_owned()]).unwrap();
    std::fs::write(at("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(at("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(at("hosts"), "127.0.0.1 registry.example\n").unwrap();
    let registry = Registry::with_tls(&at("cert.pem"), &at("key.pem"));
    let layout = Layout::new();
    layout.image("app", &[BUSYBOX]);
    registry.push(&layout, "app", "app:1", "");
    let reference = format!("registry.example:{}/app:1", registry.port);
    let (hosts, trust) = (at("hosts"), at("cert.pem"));
    let trusting = world(|fetch| {
        fetch.hosts_file = hosts.clone();
        fetch.trust_file = Some(trust);
        fetch.open_ranges = vec!["127.0.0.0/24".parse().unwrap()];
    });
    for owner in [Owner::Operator, tenant()] {
        let pulled = trusting
            .store
            .pull_for(&owner, &reference, None, silent())
            .await;
        pulled.unwrap();
    }
    let strange = world(|fetch| fetch.hosts_file = hosts);
    let error = refused(&strange, &Owner::Operator, &reference).await;
    assert!(error.to_string().contains("certificate"), "{error}");
}

/// A registry that has nothing but patience holds nobody up for long.
#[tokio::test]
async fn a_layer_that_does_not_come_ends_the_pull() {
    let world = world(|fetch| {
        fetch.slowest_window = Duration::from_millis(500);
        fetch.slowest_bytes = 1 << 20;
    });
    let arch = cove_image::host_arch();
    let layer = format!("sha256:{}", "a".repeat(64));
    let config = format!(
        "{{\"architecture\":\"{arch}\",\"os\":\"linux\",\"rootfs\":{{\"diff_ids\":[\"{layer}\"]}}}}"
    );
    let digest = crate::owners::sha256(config.as_bytes());
    let manifest = format!(
        "{{\"schemaVersion\":2,\"config\":{{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\
         \"digest\":\"{digest}\",\"size\":1}},\"layers\":[{{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\",\
         \"digest\":\"{layer}\",\"size\":5000000}}]}}"
    );
    let slow = Stub::start("127.0.1.1:0", move |path| match path {
        path if path.contains("/manifests/") => ok(manifest.clone()),
        path if path.ends_with(&digest) => ok(config.clone()),
        _ => Reply::Silent(5_000_000),
    })
    .await;
    let error = refused(&world, &tenant(), &format!("{}/app:1", slow.address)).await;
    assert!(matches!(error, RegistryError::TooSlow { .. }), "{error}");
    assert_eq!(world.volumes(Kind::Staging), 0);
}
