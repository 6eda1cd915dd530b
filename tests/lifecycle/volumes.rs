//! Volumes: shared, limited, kept over everything that happens to sandboxes, and out of reach of others.

use std::sync::Arc;

use cove_model::{OrgId, SandboxId, SandboxSpec, SnapshotId, State, VolumeId, VolumeMount};
use cove_protocol::client::{Connect, Guest, Stream};
use cove_protocol::message::{ListDir, PathRequest, ReadFile, WriteFile};
use cove_runner_api::{
    CreateRequest, FromSnapshot, RollbackRequest, RunnerApi, RunnerError, SandboxOwner,
    SnapshotRequest, VOLUME_FILES, VolumeRequest, VolumeView,
};
use cove_tests::engine_host::{World, eventually, exec, output, shell, small_spec, succeed};

use crate::PROGRAM;

const SIZE_MB: u64 = 64;

fn asked(size_mb: u64) -> VolumeRequest {
    VolumeRequest {
        id: VolumeId::random(),
        // Of sandboxes that belong to nobody, as those of these tests do.
        owner: String::new(),
        size_mb,
        from: None,
        read_only: false,
    }
}

async fn volume(world: &World) -> VolumeId {
    let made = world.client().create_volume(asked(SIZE_MB)).await;
    made.unwrap().id
}

fn at(volume: &VolumeId, path: &str) -> VolumeMount {
    VolumeMount {
        volume: volume.clone(),
        path: path.into(),
        read_only: false,
    }
}

fn read_only(volume: &VolumeId, path: &str) -> VolumeMount {
    VolumeMount {
        read_only: true,
        ..at(volume, path)
    }
}

async fn mounting(world: &World, mounts: Vec<VolumeMount>) -> SandboxId {
    world.create_with(|spec| spec.volumes = mounts).await.id
}

async fn view(world: &World, id: &VolumeId) -> Option<VolumeView> {
    let all = world.client().volumes().await.unwrap();
    all.into_iter().find(|view| view.id == *id)
}

async fn refused(world: &World, mounts: Vec<VolumeMount>) -> RunnerError {
    let made = world.try_create(|spec| spec.volumes = mounts).await;
    made.expect_err("it must be refused")
}

/// Puts a program into a sandbox, at /root/program, that does what busybox does not.
pub async fn put_program(world: &World, id: &SandboxId) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (source, program) = (dir.path().join("volume.c"), dir.path().join("program"));
    std::fs::write(&source, include_str!("programs/volume.c")).unwrap();
    let compiled = std::process::Command::new("cc")
        .args(["-static", "-O1", "-o"])
        .args([&program, &source])
        .status();
    assert!(compiled.unwrap().success(), "a C compiler is installed");
    let write = WriteFile {
        path: "/root/program".into(),
        mode: Some(0o755),
        ..WriteFile::default()
    };
    let mut upload = world.guest(id).write_file(write).await.unwrap();
    upload
        .write(std::fs::read(program).unwrap().into())
        .await
        .unwrap();
    upload.finish().await.unwrap();
}

/// What is shared, what is not, and how long it lasts.
async fn share(world: &World) {
    let client = world.client();
    let data = volume(world).await;
    let first = mounting(world, vec![at(&data, "/data")]).await;
    let second = mounting(world, vec![at(&data, "/srv/deep/data")]).await;
    let reader = mounting(world, vec![read_only(&data, "/data")]).await;
    let (one, two, three) = (
        world.guest(&first),
        world.guest(&second),
        world.guest(&reader),
    );
    succeed(&one, "echo shared > /data/file && chmod 600 /data/file").await;
    assert_eq!(output(&two, "cat /srv/deep/data/file").await, "shared");
    assert_eq!(output(&three, "cat /data/file").await, "shared");
    // Ids are the same numbers in every sandbox, whatever range each has on the host.
    succeed(&one, "chown 1234:1234 /data/file").await;
    assert_eq!(
        output(&two, "stat -c %u:%g /srv/deep/data/file").await,
        "1234:1234"
    );
    for change in [
        "echo x > /data/file",
        "rm /data/file",
        "touch /data/new",
        "chmod 777 /data",
    ] {
        assert_ne!(exec(&three, change).await.exit.code, 0, "{change}");
    }
    assert_ne!(exec(&three, "mount -o remount,rw /data").await.exit.code, 0);
    // Any user may make files at the top of a new volume.
    let start = cove_protocol::message::Start {
        user: "1000:1000".into(),
        ..shell("touch /srv/deep/data/x && stat -c %u /srv/deep/data/x")
    };
    let made = two.exec(start).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&made.stdout), "1000\n");
    assert_eq!(output(&one, "stat -c %a /data").await, "777");

    // A volume outlives stops, and is no part of snapshots and rollbacks.
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: first.clone(),
        memory: false,
        unless_unchanged: false,
    };
    let taken = client.snapshot(request).await.unwrap();
    assert_eq!(taken.spec.volumes, vec![at(&data, "/data")]);
    succeed(&one, "echo later > /data/file; echo later > /root/own").await;
    let rolled = client
        .rollback(RollbackRequest {
            sandbox: first.clone(),
            to: taken.id.clone(),
            keep: SnapshotId::random(),
            memory: false,
        })
        .await
        .unwrap();
    assert_eq!(rolled.sandbox.state, State::Running);
    assert_eq!(output(&one, "cat /data/file; ls /root").await, "later");
    client.stop(&first, 0).await.unwrap();
    client.start(&first).await.unwrap();
    assert_eq!(output(&one, "cat /data/file").await, "later");
    let child = client
        .create(CreateRequest {
            owner: None,
            id: SandboxId::random(),
            spec: SandboxSpec {
                volumes: taken.spec.volumes.clone(),
                ..small_spec()
            },
            from: Some(FromSnapshot {
                snapshot: taken.id.clone(),
                memory: false,
            }),
        })
        .await
        .unwrap();
    succeed(&world.guest(&child.id), "echo child > /data/file").await;
    assert_eq!(output(&one, "cat /data/file").await, "child");

    // Whoever uses it is named, and nothing happens to it.
    let error = client.delete_volume(&data).await.unwrap_err();
    assert!(
        matches!(&error, RunnerError::InUse { message } if message.contains(first.as_str())),
        "{error}"
    );
    for id in [&first, &second, &reader, &child.id] {
        client.delete(id).await.unwrap();
    }
    assert!(view(world, &data).await.unwrap().used_bytes > Some(0));
    client.delete_volume(&data).await.unwrap();
    client.delete_volume(&data).await.unwrap();
    assert_eq!(view(world, &data).await, None);
    assert!(matches!(
        refused(world, vec![at(&data, "/data")]).await,
        RunnerError::NotFound { .. }
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_share_a_volume_that_outlives_them() {
    let world = World::start(PROGRAM).await;
    share(&world).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_share_a_volume_in_plain_directories() {
    let world = World::with(PROGRAM, |setup| setup.directory_backend = true).await;
    share(&world).await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_volume_hurts_only_who_writes_to_it() {
    let world = World::start(PROGRAM).await;
    let (small, other) = (volume(&world).await, volume(&world).await);
    let id = mounting(&world, vec![at(&small, "/small"), at(&other, "/other")]).await;
    let guest = world.guest(&id);
    let filled = exec(
        &guest,
        "dd if=/dev/zero of=/small/big bs=1M count=200 2>&1; sync",
    )
    .await;
    let said = String::from_utf8_lossy(&filled.stdout).into_owned();
    assert!(said.contains("uota"), "{said}");
    succeed(&guest, "dd if=/dev/zero of=/other/file bs=1M count=8; sync").await;
    succeed(&guest, "dd if=/dev/zero of=/root/file bs=1M count=8; sync").await;
    succeed(&guest, "rm /small/big; sync; echo again > /small/file").await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_stay_as_they_were_and_count_what_they_came_with() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let source = volume(&world).await;
    let id = mounting(&world, vec![at(&source, "/data")]).await;
    let guest = world.guest(&id);
    succeed(
        &guest,
        "echo one > /data/file; dd if=/dev/urandom of=/data/big bs=1M count=40; sync",
    )
    .await;
    let copy = |read_only, size_mb| VolumeRequest {
        from: Some(source.clone()),
        read_only,
        ..asked(size_mb)
    };
    let kept = client.create_volume(copy(true, SIZE_MB)).await.unwrap();
    let clone = client.create_volume(copy(false, SIZE_MB)).await.unwrap();
    assert!(clone.used_bytes >= Some(40 << 20), "{clone:?}");
    let error = client.create_volume(copy(false, 16)).await.unwrap_err();
    assert!(matches!(error, RunnerError::Invalid { .. }), "{error}");
    succeed(&guest, "echo two > /data/file").await;

    let error = refused(&world, vec![at(&kept.id, "/kept")]).await;
    assert!(matches!(error, RunnerError::Invalid { .. }), "{error}");
    let mounts = vec![read_only(&kept.id, "/kept"), at(&clone.id, "/clone")];
    let other = world.guest(&mounting(&world, mounts).await);
    assert_eq!(
        output(&other, "cat /kept/file /clone/file").await,
        "one\none"
    );
    assert_ne!(exec(&other, "echo x > /kept/file").await.exit.code, 0);
    succeed(&other, "echo three > /clone/file").await;
    assert_eq!(output(&guest, "cat /data/file").await, "two");
    let filled = exec(
        &other,
        "dd if=/dev/urandom of=/clone/more bs=1M count=40 && sync",
    )
    .await;
    assert_ne!(
        filled.exit.code, 0,
        "40 MB came along and 64 MB are allowed"
    );
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn set_id_programs_and_devices_on_a_volume_are_powerless() {
    let world = World::start(PROGRAM).await;
    let data = volume(&world).await;
    let id = mounting(&world, vec![at(&data, "/data")]).await;
    let guest = world.guest(&id);
    succeed(
        &guest,
        "cp /bin/busybox /data && chmod 4755 /data/busybox && /data/busybox true",
    )
    .await;
    // Run by somebody else it does not become root.
    let start = cove_protocol::message::Start {
        user: "1000:1000".into(),
        ..shell("/data/busybox id -u")
    };
    let result = guest.exec(start).await.unwrap();
    let said = String::from_utf8_lossy(&result.stdout).into_owned();
    assert!(said.starts_with("1000"), "{said}");
    // Devices cannot be made inside; one that was put there from outside cannot be opened.
    assert_ne!(exec(&guest, "mknod /data/null c 1 3").await.exit.code, 0);
    let tree = world
        .setup
        .data_dir()
        .join("pool/volumes")
        .join(data.as_str());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("zero"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o666),
        rustix::fs::makedev(1, 5),
    )
    .unwrap();
    assert_ne!(exec(&guest, "head -c 1 /data/zero").await.exit.code, 0);
    let options = output(&guest, "grep ' /data ' /proc/mounts").await;
    assert!(
        options.contains("nosuid") && options.contains("nodev"),
        "{options}"
    );
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn links_at_a_mount_point_lead_nowhere_but_into_the_sandbox() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let data = volume(&world).await;
    let spec = |mounts: Vec<VolumeMount>| move |spec: &mut SandboxSpec| spec.volumes = mounts;
    // A sandbox prepares its own tree, and the next one of the same disk mounts there.
    let maker = world.create().await.id;
    let guest = world.guest(&maker);
    succeed(
        &guest,
        "mkdir -p /real/place && ln -s /real/place /good && ln -s ../../../../etc /up",
    )
    .await;
    succeed(
        &guest,
        "ln -s /proc /evil-proc; ln -s /dev /evil-dev; ln -s / /evil-root",
    )
    .await;
    succeed(
        &guest,
        "ln -s /.cove /evil-cove; ln -s /nowhere /dangling; ln -s /loop /loop; echo x > /plain",
    )
    .await;
    succeed(&guest, "ln -s /proc/1/root /evil-magic; ln -s /real /inner").await;
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: maker.clone(),
        memory: false,
        unless_unchanged: false,
    };
    let taken = client.snapshot(request).await.unwrap().id;
    let from = |mounts: Vec<VolumeMount>| {
        let mut described = small_spec();
        spec(mounts)(&mut described);
        client.create(CreateRequest {
            owner: None,
            id: SandboxId::random(),
            spec: described,
            from: Some(FromSnapshot {
                snapshot: taken.clone(),
                memory: false,
            }),
        })
    };
    let good = from(vec![at(&data, "/good")]).await.unwrap().id;
    succeed(&world.guest(&good), "echo here > /real/place/file").await;
    let up = from(vec![at(&data, "/up/below")]).await.unwrap().id;
    assert_eq!(
        output(&world.guest(&up), "cat /etc/below/file").await,
        "here"
    );
    for bad in [
        "/evil-proc",
        "/evil-proc/sys",
        "/evil-dev",
        "/evil-dev/shm",
        "/evil-root",
        "/evil-cove",
        "/evil-magic",
        "/evil-magic/x",
        "/dangling",
        "/loop",
        "/plain",
        "/plain/x",
    ] {
        from(vec![at(&data, bad)]).await.expect_err(bad);
    }
    // Two that links lead into each other.
    let twice = vec![at(&data, "/inner"), at(&data, "/real/place")];
    from(twice).await.expect_err("one volume inside the other");
    // Nothing of the failed ones is left to keep the volume in use.
    for id in [&good, &up] {
        client.delete(id).await.unwrap();
    }
    client.delete_volume(&data).await.unwrap();
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_mounts_a_volume_of_another_organisation() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let (ours, others) = (OrgId::random(), OrgId::random());
    let org = |id: &OrgId| SandboxOwner {
        org: id.to_string(),
        home: false,
    };
    let nobody = VolumeRequest {
        owner: "../nobody".into(),
        ..asked(SIZE_MB)
    };
    let error = client.create_volume(nobody).await.unwrap_err();
    assert!(matches!(error, RunnerError::Invalid { .. }), "{error}");
    let theirs = VolumeRequest {
        owner: ours.to_string(),
        ..asked(SIZE_MB)
    };
    let theirs = client.create_volume(theirs).await.unwrap().id;
    let create = |owner: SandboxOwner| {
        let mut spec = small_spec();
        spec.volumes = vec![at(&theirs, "/data")];
        client.create(CreateRequest {
            owner: Some(owner),
            id: SandboxId::random(),
            spec,
            from: None,
        })
    };
    let error = create(org(&others)).await.unwrap_err();
    assert!(matches!(error, RunnerError::NotFound { .. }), "{error}");
    create(org(&ours)).await.unwrap();
    let stolen = VolumeRequest {
        owner: others.to_string(),
        from: Some(theirs.clone()),
        ..asked(SIZE_MB)
    };
    let error = client.create_volume(stolen).await.unwrap_err();
    assert!(matches!(error, RunnerError::NotFound { .. }), "{error}");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_finds_volumes_and_their_users_again() {
    let mut world = World::start(PROGRAM).await;
    let data = volume(&world).await;
    let id = mounting(&world, vec![at(&data, "/data")]).await;
    // Slowly: the volume must not be full before the test is over.
    let writer = "n=0; while :; do n=$((n+1)); echo $n >> /data/log; sleep 0.01; done";
    let guest = world.guest(&id);
    guest.start(shell(writer)).await.unwrap();
    eventually("the first line is written", || async {
        let written = exec(&guest, "test -s /data/log").await;
        (written.exit.code == 0).then_some(())
    })
    .await;
    world.restart();
    let client = world.client();
    assert_eq!(client.get(&id).await.unwrap().state, State::Running);
    let guest = world.guest(&id);
    let before: u64 = output(&guest, "wc -l < /data/log").await.parse().unwrap();
    eventually("writing goes on", || async {
        let now: u64 = output(&guest, "wc -l < /data/log").await.parse().ok()?;
        (now > before).then_some(())
    })
    .await;
    assert!(matches!(
        client.delete_volume(&data).await,
        Err(RunnerError::InUse { .. })
    ));
    let found = view(&world, &data).await.unwrap();
    assert_eq!((found.size_mb, found.owner), (SIZE_MB, Some(String::new())));
    // What is kept on disk is a whole number of whole lines: nothing was lost or repeated.
    client.stop(&id, 0).await.unwrap();
    client.start(&id).await.unwrap();
    let text = output(
        &guest,
        "awk 'NF && $1 != ++n { print \"lost\", n; exit }' /data/log",
    )
    .await;
    assert_eq!(text, "");
    // A directory without a record is nobody's, and is kept.
    client.delete(&id).await.unwrap();
    world.kill();
    std::fs::remove_file(world.setup.data_dir().join(format!("volumes/{data}.json"))).unwrap();
    world.launch();
    let client = world.client();
    let lost = eventually("the engine answers", || async {
        client
            .volumes()
            .await
            .ok()?
            .into_iter()
            .find(|one| one.id == data)
    })
    .await;
    assert_eq!(lost.owner, None);
    refused(&world, vec![at(&data, "/data")]).await;
    let adopted = client.adopt_volume(&data, "").await.unwrap();
    assert_eq!(adopted.size_mb, SIZE_MB);
    let again = mounting(&world, vec![at(&data, "/data")]).await;
    succeed(&world.guest(&again), "test -s /data/log").await;
    world.finish();
}

/// Bytes that volumes shared would be charged to the one that wrote them alone: filling one, sharing with another and
/// deleting the first would keep any amount.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_never_share_bytes_through_a_sandbox() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let kept = volume(&world).await;
    for round in 0..3 {
        let source = volume(&world).await;
        let id = mounting(&world, vec![at(&source, "/source"), at(&kept, "/kept")]).await;
        put_program(&world, &id).await;
        let guest = world.guest(&id);
        succeed(
            &guest,
            "dd if=/dev/urandom of=/source/big bs=1M count=40; sync",
        )
        .await;
        for way in ["clone", "range"] {
            let shared = format!("/root/program {way} /source/big /kept/{round}");
            let said = exec(&guest, &shared).await;
            assert_ne!(said.exit.code, 0, "{way}");
            succeed(&guest, &format!("test ! -s /kept/{round}")).await;
        }
        // A copy of bytes is charged to whom it belongs.
        let copied = format!("cp /source/big /kept/{round} && sync");
        let copied = exec(&guest, &copied).await;
        assert_eq!(copied.exit.code == 0, round == 0, "64 MB are allowed");
        client.delete(&id).await.unwrap();
        client.delete_volume(&source).await.unwrap();
    }
    assert!(view(&world, &kept).await.unwrap().used_bytes <= Some(SIZE_MB << 20));
    world.finish();
}

struct Files {
    client: cove_runner_api::wire::Client,
    id: VolumeId,
}

#[async_trait::async_trait]
impl Connect for Files {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        let stream = self.client.connect_volume(&self.id).await;
        Ok(Box::new(stream.map_err(std::io::Error::other)?))
    }
}

fn files(world: &World, id: &VolumeId) -> Guest {
    Guest::new(Arc::new(Files {
        client: world.client(),
        id: id.clone(),
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_volume_are_served_by_a_guest_that_has_nothing_else() {
    let mut world = World::start(PROGRAM).await;
    let client = world.client();
    let data = volume(&world).await;
    let guest = files(&world, &data);
    let path = |rest: &str| format!("{VOLUME_FILES}{rest}");
    let write = WriteFile {
        path: path("/dir/file"),
        parents: true,
        owner: "1000:1000".into(),
        ..WriteFile::default()
    };
    let mut upload = guest.write_file(write).await.unwrap();
    upload.write(b"from outside".to_vec().into()).await.unwrap();
    upload.finish().await.unwrap();
    let id = mounting(&world, vec![at(&data, "/data")]).await;
    let inside = world.guest(&id);
    assert_eq!(
        output(&inside, "cat /data/dir/file; stat -c %u /data/dir/file").await,
        "from outside1000"
    );
    // Links that a sandbox made lead nowhere but into the guest's own empty tree.
    succeed(
        &inside,
        "echo secret > /root/secret; ln -s /root/secret /data/out; ln -s /etc /data/etc",
    )
    .await;
    for link in ["/out", "/etc/passwd", "/../root/secret"] {
        let read = ReadFile {
            path: path(link),
            ..ReadFile::default()
        };
        assert!(guest.read_file(read).await.is_err(), "{link}");
    }
    let listed = guest
        .list(ListDir {
            path: path("/"),
            depth: 1,
            limit: 100,
            ..ListDir::default()
        })
        .await
        .unwrap();
    let mut names: Vec<String> = listed.entries.into_iter().map(|entry| entry.name).collect();
    names.sort();
    assert_eq!(names, ["dir", "etc", "out"]);
    // There is nothing to run, and nothing to reach.
    guest.exec(shell("true")).await.unwrap_err();
    let root = guest
        .list(ListDir {
            path: "/".into(),
            depth: 1,
            limit: 100,
            ..ListDir::default()
        })
        .await
        .unwrap();
    let expected = [".cove", "dev", "etc", "proc", "sys", "volume"];
    let found: Vec<&str> = root
        .entries
        .iter()
        .map(|entry| entry.name.as_str())
        .collect();
    assert_eq!(found, expected);
    // A killed engine leaves nothing of it, and the next one serves again.
    world.restart();
    let stat = |path: String| PathRequest {
        path,
        user: String::new(),
        follow: false,
    };
    let found = guest.stat(stat(path("/dir/file"))).await.unwrap();
    assert_eq!(found.size, 12);
    // A deleted volume is served to nobody, also on a connection that was open.
    client.delete(&id).await.unwrap();
    client.delete_volume(&data).await.unwrap();
    guest.stat(stat(path("/dir/file"))).await.unwrap_err();
    world.finish();
}

/// Whoever waits for a file server while another ends it must not leave a machine that nobody ends.
#[tokio::test(flavor = "multi_thread")]
async fn file_servers_end_with_their_volumes_whoever_asks_meanwhile() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    for _ in 0..4 {
        let data = volume(&world).await;
        let guest = Arc::new(files(&world, &data));
        let asking: Vec<_> = (0..8)
            .map(|_| {
                let guest = Arc::clone(&guest);
                tokio::spawn(async move {
                    let request = PathRequest {
                        path: VOLUME_FILES.into(),
                        user: String::new(),
                        follow: false,
                    };
                    let _ = guest.stat(request).await;
                })
            })
            .collect();
        client.delete_volume(&data).await.unwrap();
        for asked in asking {
            asked.await.unwrap();
        }
        assert_eq!(view(&world, &data).await, None);
    }
    let staging = world.setup.data_dir().join("pool/staging");
    eventually("no disk of a file server is left", || async {
        let listed = std::fs::read_dir(&staging).ok()?.flatten();
        let mut names = listed.map(|entry| entry.file_name());
        let left = names.any(|name| name.to_string_lossy().starts_with("files-"));
        (!left).then_some(())
    })
    .await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_a_whole_file_system_and_nothing_of_the_pool() {
    let world = World::start(PROGRAM).await;
    let data = volume(&world).await;
    let first = mounting(&world, vec![at(&data, "/data")]).await;
    let second = mounting(&world, vec![at(&data, "/data")]).await;
    for id in [&first, &second] {
        put_program(&world, id).await;
    }
    let (one, two) = (world.guest(&first), world.guest(&second));
    // A subvolume inside would have no limit.
    let refused = exec(&one, "/root/program subvolume").await;
    assert_ne!(refused.exit.code, 0);
    assert_eq!(output(&one, "ls -A /data").await, "");
    let running = |command: &'static str| {
        let (one, two) = (&one, &two);
        async move {
            one.start(shell(command)).await.unwrap();
            eventually("the program is ready", || async {
                let ready = exec(two, "test -e /data/ready").await;
                (ready.exit.code == 0).then_some(())
            })
            .await;
            succeed(two, "rm /data/ready").await;
        }
    };
    running("exec /root/program mmap").await;
    assert_eq!(
        output(&two, "tr -d '\\0' < /data/mapped").await,
        "through memory"
    );
    // As the page says: a socket on a shared volume joins sandboxes, whatever their networks are.
    running("exec /root/program listen").await;
    assert_eq!(output(&two, "/root/program connect").await, "hello");
    // Renames within the volume are one step for everybody.
    succeed(
        &one,
        "mkdir /data/a && echo x > /data/a/f && mv /data/a /data/b",
    )
    .await;
    assert_eq!(output(&two, "cat /data/b/f").await, "x");
    world.finish();
}
