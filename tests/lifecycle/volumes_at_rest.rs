//! Captured memory of processes that have files of a volume open: what became of the files meanwhile decides whether
//! they go on.

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

/// Keeps a file of the volume open for writing and for reading, and goes on when told.
const APPENDER: &str = "exec 3>>/data/log 4</data/log; echo begun >&3; touch /data/ready; \
     while [ ! -e /data/go ]; do sleep 0.05; done; echo resumed >&3; touch /data/done; sleep 1000";

#[tokio::test(flavor = "multi_thread")]
async fn processes_go_on_with_files_that_others_changed_meanwhile() {
    for (change, wanted) in [
        ("true", "begun resumed"),
        ("echo grown >> /data/log", "begun grown resumed"),
        (": > /data/log", "resumed"),
        (
            "echo quite another > /data/new; mv /data/new /data/log",
            "quite another resumed",
        ),
    ] {
        let Some(pair) = Pair::start().await else {
            return;
        };
        pair.elsewhere("touch /data/log").await;
        pair.work(APPENDER).await;
        pair.pause().await;
        pair.elsewhere(change).await;
        pair.resume()
            .await
            .unwrap_or_else(|error| panic!("{change}: {error}"));
        pair.elsewhere("touch /data/go").await;
        eventually("it goes on", || async {
            let done = exec(&pair.world.guest(&pair.worker), "test -e /data/done").await;
            (done.exit.code == 0).then_some(())
        })
        .await;
        assert_eq!(
            pair.inside("cat /data/log | xargs").await,
            wanted,
            "{change}"
        );
        pair.is_tidy().await;
        pair.world.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_gone_is_named_and_a_start_without_memory_works() {
    let Some(pair) = Pair::start().await else {
        return;
    };
    pair.elsewhere("touch /data/log").await;
    pair.work(APPENDER).await;
    pair.pause().await;
    pair.elsewhere("rm /data/log").await;
    let error = pair.resume().await.unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, RunnerError::Unfit { .. }), "{error:?}");
    assert!(
        message.contains("data/log") && message.contains("process "),
        "{message}"
    );
    let client = pair.world.client();
    assert_eq!(client.get(&pair.worker).await.unwrap().state, State::Paused);
    client.stop(&pair.worker, 0).await.unwrap();
    client.start(&pair.worker).await.unwrap();
    assert_eq!(pair.inside("ls -A /data").await, "");
    pair.world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_files_that_are_open_leave_nothing_in_the_volume() {
    let Some(pair) = Pair::start().await else {
        return;
    };
    let work = "exec 3<>/data/gone; echo kept >&3; rm /data/gone; touch /data/ready; \
         while [ ! -e /data/go ]; do sleep 0.05; done; cat /proc/self/fd/3 > /data/found; sleep 1000";
    pair.work(work).await;
    let child = pair.fork().await.unwrap();
    pair.pause().await;
    pair.resume().await.unwrap();
    assert_eq!(pair.inside("ls -A /data").await, "");
    pair.elsewhere("touch /data/go").await;
    eventually("it goes on", || async {
        let found = exec(&pair.world.guest(&pair.worker), "grep -q kept /data/found").await;
        (found.exit.code == 0).then_some(())
    })
    .await;
    pair.world.client().delete(&child).await.unwrap();
    pair.is_tidy().await;
    pair.world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_on_a_file_of_a_volume_is_never_copied() {
    for kind in ["flock", "fcntl"] {
        let Some(pair) = Pair::start().await else {
            return;
        };
        for id in [&pair.worker, &pair.other] {
            put_program(&pair.world, id).await;
        }
        pair.work(&format!("exec /root/program {kind}")).await;
        let free = format!("/root/program {kind} ask");
        let other = pair.world.guest(&pair.other);
        assert_ne!(exec(&other, &free).await.exit.code, 0, "the lock is held");
        let client = pair.world.client();
        for refused in [
            pair.fork().await.map(drop),
            client.pause(&pair.worker).await.map(drop),
        ] {
            let error = refused.expect_err("it holds a lock");
            let message = error.to_string();
            assert!(
                matches!(error, RunnerError::Uncapturable { .. }),
                "{error:?}"
            );
            assert!(
                message.contains("program") && message.contains("/data/lock"),
                "{message}"
            );
        }
        // It goes on, and has its lock still. Without it a capture succeeds.
        assert_eq!(
            client.get(&pair.worker).await.unwrap().state,
            State::Running
        );
        assert_ne!(exec(&other, &free).await.exit.code, 0, "the lock is held");
        succeed(&pair.world.guest(&pair.worker), "killall program").await;
        eventually("the lock is free", || async {
            let asked = exec(&other, &free).await;
            (asked.exit.code == 0).then_some(())
        })
        .await;
        pair.pause().await;
        pair.resume().await.unwrap();
        pair.world.finish();
    }
}
