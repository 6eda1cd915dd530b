//! Captured memory and volumes: nothing is captured that has anything of a volume open, and what is captured goes on
//! with the volume as it is then.

use cove_model::{SandboxId, SandboxSpec, SnapshotId, State, VolumeId, VolumeMount};
use cove_runner_api::{
    CreateRequest, FromSnapshot, RunnerApi, RunnerError, SnapshotRequest, VolumeRequest,
};
use cove_tests::engine_host::{World, eventually, exec, output, shell, small_spec, succeed};

use crate::PROGRAM;
use crate::volumes::put_program;

/// Nothing where memory cannot be captured and the tests opted out of it.
async fn world() -> Option<World> {
    let world = World::start(PROGRAM).await;
    let tiers = world.client().host().await.unwrap().tiers;
    let captures = tiers[0].capabilities.contains(&"memory".to_owned());
    if cove_tests::needs::has("criu", captures) {
        return Some(world);
    }
    world.finish();
    None
}

/// A volume, a sandbox that works on it at /data, and another one at the same place.
struct Pair {
    world: World,
    volume: VolumeId,
    worker: SandboxId,
    other: SandboxId,
}

fn mounting(volume: &VolumeId) -> SandboxSpec {
    SandboxSpec {
        volumes: vec![VolumeMount {
            volume: volume.clone(),
            path: "/data".into(),
            read_only: false,
        }],
        ..small_spec()
    }
}

impl Pair {
    async fn start() -> Option<Self> {
        let world = world().await?;
        let request = VolumeRequest {
            id: VolumeId::random(),
            owner: String::new(),
            size_mb: 64,
            from: None,
            read_only: false,
        };
        let volume = world.client().create_volume(request).await.unwrap().id;
        let create = || world.create_with(|spec| *spec = mounting(&volume));
        let (worker, other) = (create().await.id, create().await.id);
        Some(Self {
            worker,
            other,
            volume,
            world,
        })
    }

    /// Starts a process in the worker and waits until it has made /data/ready.
    async fn work(&self, command: &str) {
        let guest = self.world.guest(&self.worker);
        guest.start(shell(command)).await.unwrap();
        eventually("the process is ready", || async {
            let ready = exec(&guest, "test -e /data/ready").await;
            (ready.exit.code == 0).then_some(())
        })
        .await;
        succeed(&guest, "rm /data/ready").await;
    }

    async fn elsewhere(&self, command: &str) {
        succeed(&self.world.guest(&self.other), command).await;
    }

    async fn inside(&self, command: &str) -> String {
        output(&self.world.guest(&self.worker), command).await
    }

    async fn pause(&self) {
        let paused = self.world.client().pause(&self.worker).await.unwrap();
        assert_eq!(paused.state, State::Paused);
    }

    async fn resume(&self) -> Result<(), RunnerError> {
        self.world.client().resume(&self.worker).await.map(drop)
    }

    async fn fork(&self) -> Result<SandboxId, RunnerError> {
        let client = self.world.client();
        let request = SnapshotRequest {
            id: SnapshotId::random(),
            sandbox: self.worker.clone(),
            memory: true,
            unless_unchanged: false,
        };
        let taken = client.snapshot(request).await?;
        let made = client
            .create(CreateRequest {
                owner: None,
                id: SandboxId::random(),
                spec: mounting(&self.volume),
                from: Some(FromSnapshot {
                    snapshot: taken.id,
                    memory: true,
                }),
            })
            .await?;
        Ok(made.id)
    }

    /// Nothing that a capture or a restore made is left among the files.
    async fn is_tidy(&self) {
        let stray = "ls -A /data | grep -E 'link_remap|cr\\.|ghost|criu' || true";
        let guest = self.world.guest(&self.other);
        assert_eq!(output(&guest, stray).await, "");
    }
}

/// Each writes its pid to /root/pid, has something of the volume open and makes /data/ready; and what the refusal names.
const HOLDERS: &[(&str, &str)] = &[
    (
        "exec 3>>/data/log; touch /data/ready; exec sleep 1000",
        "/data/log",
    ),
    ("cd /data; touch ready; exec sleep 1000", "/data"),
    (
        "cp /bin/busybox /data/busybox; touch /data/ready; exec /data/busybox sleep 1000",
        "/data/busybox",
    ),
    // Its name is gone, or only its other name is there.
    (
        "exec 3<>/data/gone; rm /data/gone; touch /data/ready; exec sleep 1000",
        "/data/gone",
    ),
    (
        "exec 3<>/data/a; ln /data/a /data/b; rm /data/a; touch /data/ready; exec sleep 1000",
        "/data/a",
    ),
    // A mapping without a descriptor.
    ("exec /root/program mmap", "/data/mapped"),
    ("exec /root/program flock", "/data/lock"),
    ("exec /root/program fcntl", "/data/lock"),
    ("exec /root/program listen", "/data/socket"),
    ("exec /root/program watch", "inotify"),
    ("exec /root/program flight", "wait in a socket"),
];

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_has_something_of_a_volume_open_is_captured() {
    let Some(pair) = Pair::start().await else {
        return;
    };
    put_program(&pair.world, &pair.worker).await;
    let client = pair.world.client();
    for (command, named) in HOLDERS {
        pair.work(&format!("echo $$ > /root/pid; {command}")).await;
        for refused in [
            pair.fork().await.map(drop),
            client.pause(&pair.worker).await.map(drop),
        ] {
            let error = refused.expect_err(command);
            let message = error.to_string();
            assert!(
                matches!(error, RunnerError::Uncapturable { .. }),
                "{command}: {error:?}"
            );
            assert!(message.contains(named), "{command}: {message}");
        }
        // It goes on as before, and nothing of the attempt is left.
        let view = client.get(&pair.worker).await.unwrap();
        assert_eq!(view.state, State::Running, "{command}");
        pair.is_tidy().await;
        pair.inside("kill $(cat /root/pid)").await;
        eventually("the process is gone", || async {
            let alive = "kill -0 $(cat /root/pid)";
            let gone = exec(&pair.world.guest(&pair.worker), alive).await;
            (gone.exit.code != 0).then_some(())
        })
        .await;
        pair.elsewhere("rm -rf /data/*").await;
    }
    // Without them a capture succeeds.
    pair.fork().await.unwrap();
    pair.pause().await;
    pair.resume().await.unwrap();
    pair.world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn captured_processes_find_the_volume_as_it_is_then() {
    let Some(pair) = Pair::start().await else {
        return;
    };
    // Looks at the volume by name only.
    pair.work(
        "touch /data/ready; while [ ! -e /data/go ]; do sleep 0.05; done; cat /data/log > /root/found; touch /data/done; sleep 1000",
    )
    .await;
    pair.elsewhere("echo before > /data/log").await;
    pair.pause().await;
    pair.elsewhere("echo after > /data/log; touch /data/go")
        .await;
    pair.resume().await.unwrap();
    eventually("it goes on", || async {
        let done = exec(&pair.world.guest(&pair.worker), "test -e /data/done").await;
        (done.exit.code == 0).then_some(())
    })
    .await;
    assert_eq!(pair.inside("cat /root/found").await, "after");
    pair.is_tidy().await;
    pair.world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_comes_back_with_the_rights_that_it_had() {
    let Some(pair) = Pair::start().await else {
        return;
    };
    let client = pair.world.client();
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: pair.worker.clone(),
        memory: true,
        unless_unchanged: false,
    };
    let taken = client.snapshot(request).await.unwrap();
    let mut spec = mounting(&pair.volume);
    spec.volumes[0].read_only = true;
    let made = client
        .create(CreateRequest {
            owner: None,
            id: SandboxId::random(),
            spec,
            from: Some(FromSnapshot {
                snapshot: taken.id,
                memory: true,
            }),
        })
        .await;
    let error = made.expect_err("captured read-write");
    assert!(matches!(error, RunnerError::Unfit { .. }), "{error:?}");
    pair.world.finish();
}
