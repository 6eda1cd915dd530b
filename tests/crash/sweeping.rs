//! Leftovers of a crash, made by hand: the sweep takes them and only them.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Stdio};

use cove_model::{SandboxId, State};
use cove_runner_api::RunnerApi;
use cove_tests::engine_host::{World, eventually, output, signal, succeed};

use crate::PROGRAM;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeper() -> Killed {
    Killed(
        Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_sandbox_owns_is_removed_and_what_one_owns_stays() {
    let mut world = World::start(PROGRAM).await;
    let running = world.create().await.id;
    let stopped = world.create().await.id;
    succeed(&world.guest(&stopped), "echo kept > /root/file; sync").await;
    world.client().stop(&stopped, 0).await.unwrap();
    let before = world.traces();
    world.kill();

    let data = world.setup.data_dir();
    // A group as a half-made sandbox leaves it, with a process, under a number of ours.
    let ours: u32 = before.groups.keys().next().unwrap()["sandbox-".len()..]
        .parse()
        .unwrap();
    let mut orphan = sleeper();
    for parent in &before.parents {
        let group = parent.join(format!("sandbox-{}", ours + 100));
        fs::create_dir(&group).unwrap();
        fs::write(group.join("cgroup.procs"), orphan.0.id().to_string()).unwrap();
    }
    // Volumes nobody has a record of, as subvolumes and as a plain directory.
    let lost = SandboxId::random();
    for path in [
        data.join("pool/sandboxes").join(lost.as_str()),
        data.join("pool/staging/half-an-import"),
    ] {
        let made = Command::new("btrfs")
            .args(["subvolume", "create"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        fs::write(path.join("file"), "data").unwrap();
    }
    // A record that never got its name, and one of a create that was never answered.
    let draft = data
        .join("records")
        .join(format!("{}.json.new", SandboxId::random()));
    fs::write(&draft, "{\"id\":").unwrap();
    let draft = data
        .join("records")
        .join(format!("{}.new", SandboxId::random()));
    fs::write(&draft, "{\"id\":").unwrap();
    let half = SandboxId::random();
    let mut record: serde_json::Value = serde_json::from_slice(
        &fs::read(data.join("records").join(format!("{running}.json"))).unwrap(),
    )
    .unwrap();
    record["id"] = half.as_str().into();
    record["state"] = "creating".into();
    record["started_at"] = serde_json::Value::Null;
    record["machine"] = serde_json::Value::Null;
    fs::write(
        data.join("records").join(format!("{half}.json")),
        record.to_string(),
    )
    .unwrap();
    // A bystander of another name in the same hierarchy.
    let mut bystander = sleeper();
    let strange = before.parents[0]
        .parent()
        .unwrap()
        .join(format!("cove-test-bystander-{}", std::process::id()));
    let _remove = RemoveGroup(strange.clone());
    fs::create_dir(&strange).unwrap();
    // A cpuset takes no process before it has CPUs; any other hierarchy does.
    let entered = fs::write(strange.join("cgroup.procs"), bystander.0.id().to_string());

    world.launch();
    let after = world.traces();
    assert_eq!(after.groups, before.groups);
    assert_eq!(after.volumes, before.volumes);
    assert_eq!(after.records, before.records);
    assert_eq!(after.unfinished, BTreeSet::new());
    assert_eq!(after.processes, before.processes);
    // It leaves its group a moment before its parent can see its end.
    eventually("the orphan has ended", || {
        let ended = orphan.0.try_wait().unwrap();
        async move { ended.map(drop) }
    })
    .await;
    assert!(
        bystander.0.try_wait().unwrap().is_none(),
        "a stranger was killed"
    );
    drop(entered);
    assert_eq!(output(&world.guest(&running), "echo alive").await, "alive");
    assert_eq!(world.client().list().await.unwrap().len(), 2);
    world.client().start(&stopped).await.unwrap();
    assert_eq!(
        output(&world.guest(&stopped), "cat /root/file").await,
        "kept"
    );
    drop(bystander);
    world.finish();
}

struct RemoveGroup(std::path::PathBuf);

impl Drop for RemoveGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Children of a process are listed without holding them still, so that one may be left out while others end.
async fn spawner_of(world: &World) -> u32 {
    eventually("the engine has a spawner", || async { find_spawner(world) }).await
}

fn find_spawner(world: &World) -> Option<u32> {
    // Any thread may have started it.
    let tasks = fs::read_dir(format!("/proc/{}/task", world.engine_pid())).unwrap();
    for task in tasks.flatten() {
        let listed = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for pid in listed.split_whitespace() {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if command.starts_with(b"cove-spawner") {
                return pid.parse().ok();
            }
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_spawner_is_replaced_and_running_sandboxes_do_not_notice() {
    let world = World::start(PROGRAM).await;
    let before = world.create().await.id;
    let old = spawner_of(&world).await;
    for _ in 0..3 {
        signal(spawner_of(&world).await, rustix::process::Signal::KILL);
        let made = world.create().await.id;
        succeed(&world.guest(&made), "true").await;
        world.client().delete(&made).await.unwrap();
    }
    assert_ne!(spawner_of(&world).await, old);
    assert_eq!(output(&world.guest(&before), "echo alive").await, "alive");
    let traces = world.traces();
    assert_eq!(traces.groups.len(), 1, "{traces:#?}");
    assert_eq!(traces.volumes.len(), 1, "{traces:#?}");
    world.client().stop(&before, 0).await.unwrap();
    assert_eq!(
        world.client().get(&before).await.unwrap().state,
        State::Stopped
    );
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_parked_seats_are_passed_over_and_removed() {
    let world = World::with(PROGRAM, |setup| setup.warm = 2).await;
    let parked = world.traces();
    assert_eq!(parked.groups.len(), 2, "{parked:#?}");
    for pid in &parked.processes {
        signal(*pid as u32, rustix::process::Signal::KILL);
    }
    eventually("the parked children are dead", || async {
        let now = world.traces().processes;
        now.is_disjoint(&parked.processes).then_some(())
    })
    .await;
    let id = world.create().await.id;
    succeed(&world.guest(&id), "true").await;
    eventually("one sandbox and two new seats are there", || async {
        let now = world.traces();
        (now.groups.len() == 3 && now.processes.len() == 3).then_some(())
    })
    .await;
    world.finish();
}
