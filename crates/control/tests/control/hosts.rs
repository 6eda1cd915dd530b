//! Two hosts under one control plane: what is on one is asked of that one only, and what one says or lacks
//! means nothing for the other.

use std::sync::Arc;
use std::time::Duration;

use cove_control::testing::{Call, ManualClock, MemoryRunner};
use cove_control::{
    ApiToken, Control, ControlConfig, CreateSandbox, ErrorCode, ForkRequest, FromSnapshot, HostId,
    Hosts, ImageSource, JobState, Origin, Principal, Sandbox, SandboxPatch, TakeSnapshot,
};
use cove_model::{ResourcesPatch, SandboxSpec, State};
use cove_runner_api::{CreateRequest, RunnerApi};
use cove_store::Store;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{DEADLINE, Plane, idle, named, open_store, quick, wait};

/// Two hosts, a database, and as many control planes as a test asks for.
struct Two {
    a: Arc<MemoryRunner>,
    b: Arc<MemoryRunner>,
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    config: ControlConfig,
    token: ApiToken,
    _folder: TempDir,
}

/// A control plane whose new sandboxes go to one of them.
struct On {
    control: Control,
    root: Principal,
}

impl Two {
    async fn new() -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let clock = Arc::new(ManualClock::default());
        let mut config = quick();
        config.audit_journal = Some(folder.path().join("audit"));
        let path = folder.path().join("store.db");
        Self {
            a: MemoryRunner::new(clock.clone()),
            b: MemoryRunner::new(clock.clone()),
            store: open_store(&path).await,
            clock,
            config,
            token: ApiToken::random(),
            _folder: folder,
        }
    }

    async fn begin(&self, first: &Arc<MemoryRunner>, second: &Arc<MemoryRunner>) -> On {
        let hosts = [first, second].map(|runner| {
            let api: Arc<dyn RunnerApi> = runner.clone();
            (runner.id().clone(), api)
        });
        self.over(Hosts::new(hosts)).await
    }

    async fn over(&self, hosts: Hosts) -> On {
        let control = Control::new(
            self.config.clone(),
            self.store.clone(),
            hosts,
            self.clock.clone(),
        );
        control.prepare().await.unwrap();
        control
            .bootstrap_root_key(&self.token.hash())
            .await
            .unwrap();
        let root = control.authenticate(self.token.reveal(), Origin::default());
        let root = root.await.unwrap();
        On { control, root }
    }

    async fn on_a(&self) -> On {
        self.begin(&self.a, &self.b).await
    }

    async fn on_b(&self) -> On {
        self.begin(&self.b, &self.a).await
    }

    /// Both hosts were reconciled and metered several times after this moment.
    async fn rounds(&self) {
        let counts = |runner: &MemoryRunner| {
            [Call::List, Call::Samples].map(|call| runner.count(call, None))
        };
        let before = [counts(&self.a), counts(&self.b)];
        wait(|| async {
            let now = [counts(&self.a), counts(&self.b)];
            let on = |(now, before): (usize, usize)| now >= before + 3;
            let all = now.into_iter().flatten().zip(before.into_iter().flatten());
            all.into_iter().all(on).then_some(())
        })
        .await;
    }
}

impl On {
    async fn sandbox(&self, spec: SandboxSpec) -> Sandbox {
        let request = CreateSandbox {
            spec,
            ..CreateSandbox::default()
        };
        let made = self.control.create_sandbox(&self.root, request).await;
        made.unwrap().sandbox
    }

    async fn state(&self, id: &str) -> State {
        let found = self.control.get_sandbox(&self.root, id).await;
        found.unwrap().state
    }

    async fn wait_for(&self, id: &str, state: State) {
        wait(|| async { (self.state(id).await == state).then_some(()) }).await;
    }

    fn go(&self) -> Background {
        let (control, token) = (self.control.clone(), CancellationToken::new());
        let shutdown = token.clone();
        let task = tokio::spawn(async move { control.run(shutdown).await });
        Background(token, Some(task))
    }
}

struct Background(CancellationToken, Option<JoinHandle<()>>);

impl Background {
    async fn halt(mut self) {
        self.0.cancel();
        let task = self.1.take().unwrap();
        tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(task) = &self.1 {
            task.abort();
        }
    }
}

/// A sandbox with this id on a host whose database knows it elsewhere.
async fn plant(runner: &MemoryRunner, one: &Sandbox) {
    let request = CreateRequest {
        id: one.id.clone(),
        owner: None,
        spec: one.spec.clone(),
        from: None,
    };
    runner.create(request).await.unwrap();
}

#[tokio::test]
async fn a_sandbox_is_asked_of_its_own_host_only() {
    let two = Two::new().await;
    let on_a = two.on_a().await;
    let first = on_a.sandbox(idle("first", Some(3600), None, None)).await;
    let on_b = two.on_b().await;
    let second = on_b.sandbox(idle("second", Some(3600), None, None)).await;
    assert_eq!((&first.host, &second.host), (two.a.id(), two.b.id()));
    drop(on_b);
    let work = on_a.go();
    two.rounds().await;
    let (control, root) = (&on_a.control, &on_a.root);
    for one in ["first", "second"] {
        control.sample_sandbox(root, one).await.unwrap();
        let patch = SandboxPatch {
            resources: Some(ResourcesPatch {
                pids: Some(77),
                ..ResourcesPatch::default()
            }),
            ..SandboxPatch::default()
        };
        control.update_sandbox(root, one, patch).await.unwrap();
        control.freeze_sandbox(root, one).await.unwrap();
        control.resume_sandbox(root, one).await.unwrap();
        control.pause_sandbox(root, one).await.unwrap();
        control.resume_sandbox(root, one).await.unwrap();
        let taken = control.take_snapshot(root, one, TakeSnapshot::default());
        let taken = taken.await.unwrap().snapshot;
        let back = control.rollback_sandbox(root, one, taken.id.as_str(), false);
        back.await.unwrap();
        control.stop_sandbox(root, one, None).await.unwrap();
        control.start_sandbox(root, one).await.unwrap();
        control.list_events(root, Some(one), 0, 10).await.unwrap();
        control
            .egress(root, one, 0, Default::default())
            .await
            .unwrap();
    }
    two.rounds().await;
    for one in ["first", "second"] {
        assert_eq!(on_a.state(one).await, State::Running);
        control.delete_sandbox(root, one).await.unwrap();
    }
    work.halt().await;
    assert!(two.a.ids().is_empty() && two.b.ids().is_empty());
    for (runner, own, other) in [(&two.a, &first, &second), (&two.b, &second, &first)] {
        assert!(!runner.asked_about(&own.id).is_empty());
        let asked = runner.asked_about(&other.id);
        assert!(asked.is_empty(), "the wrong host was asked for {asked:?}");
    }
}

#[tokio::test]
async fn what_one_host_lacks_or_loses_says_nothing_about_the_other() {
    let two = Two::new().await;
    let on_b = two.on_b().await;
    let lost = on_b.sandbox(named("lost")).await;
    drop(on_b);
    let on_a = two.on_a().await;
    let kept = on_a.sandbox(named("kept")).await;
    let work = on_a.go();
    two.rounds().await;
    two.b.lose(&lost.id);
    // Another start of the host's process, so that everything on it is looked at.
    two.b.restart();
    on_a.wait_for("lost", State::Failed).await;
    two.rounds().await;
    assert_eq!(on_a.state("kept").await, State::Running);
    assert_eq!(two.a.state(&kept.id), Some(State::Running));
    work.halt().await;
    let again = two.on_b().await;
    assert_eq!(again.state("kept").await, State::Running);
    assert_eq!(again.state("lost").await, State::Failed);
}

#[tokio::test]
async fn a_copy_on_another_host_is_kept_apart_and_neither_charged_nor_believed() {
    let two = Two::new().await;
    let on_a = two.on_a().await;
    let one = on_a.sandbox(named("agent")).await;
    plant(&two.b, &one).await;
    two.a.use_up(&one.id, |sample| sample.cpu_usec = 1_000);
    two.b.use_up(&one.id, |sample| sample.cpu_usec = 9_000_000);
    let work = on_a.go();
    wait(|| async { (two.b.state(&one.id) == Some(State::Frozen)).then_some(()) }).await;
    // It says that the sandbox has ended, which only its own host can say.
    two.b.exit(&one.id, "a lie");
    two.clock.advance(Duration::from_secs(1));
    two.rounds().await;
    assert_eq!(on_a.state("agent").await, State::Running);
    assert_eq!(two.a.state(&one.id), Some(State::Running));
    let used = two.store.usage_of(&one.id).await.unwrap();
    assert_eq!(used.cpu_usec, 1_000);
    let (control, root) = (&on_a.control, &on_a.root);
    let events = control
        .list_events(root, Some("agent"), 0, 100)
        .await
        .unwrap();
    let told = serde_json::to_string(&events).unwrap();
    assert!(
        !told.contains("a lie") && !told.contains("frozen"),
        "{told}"
    );
    let quarantined = control.list_quarantine(root).await.unwrap();
    assert_eq!(quarantined.len(), 1);
    assert_eq!(quarantined[0].org, None);
    assert!(quarantined[0].reason.contains("another host"));
    // It can be removed there, and only there.
    let id = one.id.as_str();
    let refused = control.adopt_quarantined(root, id, None).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    control.delete_quarantined(root, id).await.unwrap();
    assert!(two.b.ids().is_empty());
    let refused = control.delete_quarantined(root, id).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    two.rounds().await;
    assert_eq!(two.a.state(&one.id), Some(State::Running));
    // A tombstone is the end of the sandbox on its own host, and of nothing elsewhere.
    plant(&two.b, &one).await;
    control.delete_sandbox(root, "agent").await.unwrap();
    two.rounds().await;
    assert!(two.a.ids().is_empty());
    assert_eq!(two.b.ids(), std::slice::from_ref(&one.id));
    work.halt().await;
}

#[tokio::test]
async fn events_and_positions_of_two_hosts_do_not_mix() {
    let two = Two::new().await;
    let position = async |host: &HostId| two.store.host_position(host).await.unwrap();
    let on_b = two.on_b().await;
    let second = on_b.sandbox(named("second")).await;
    drop(on_b);
    let on_a = two.on_a().await;
    let first = on_a.sandbox(named("first")).await;
    let work = on_a.go();
    // Both give out the same numbers.
    wait(|| async {
        let (a, b) = (position(two.a.id()).await?, position(two.b.id()).await?);
        (a.sequence == 2 && b.sequence == 2).then_some(())
    })
    .await;
    two.a.exit(&first.id, "one");
    on_a.wait_for("first", State::Stopped).await;
    assert_eq!(position(two.b.id()).await.unwrap().sequence, 2);
    let life = position(two.b.id()).await.unwrap().life;
    // Another life of one host is none of the other.
    two.a.restart();
    two.b.exit(&second.id, "two");
    on_a.wait_for("second", State::Stopped).await;
    two.rounds().await;
    let (a, b) = (position(two.a.id()).await, position(two.b.id()).await);
    assert_eq!(b.as_ref().unwrap().sequence, 3);
    assert_eq!(b.unwrap().life, life);
    assert!(a.unwrap().sequence > 1000, "numbers of its new life");
    work.halt().await;
    let (control, root) = (&on_a.control, &on_a.root);
    for (one, reason) in [("first", "one"), ("second", "two")] {
        let events = control.list_events(root, Some(one), 0, 100).await.unwrap();
        let told = serde_json::to_string(&events).unwrap();
        assert_eq!(told.matches(&format!("\"{reason}\"")).count(), 1, "{told}");
    }
}

#[tokio::test]
async fn a_host_that_is_away_leaves_the_others_at_work() {
    let two = Two::new().await;
    let on_b = two.on_b().await;
    let away = on_b.sandbox(named("away")).await;
    drop(on_b);
    two.b.cut_off(true);
    let on_a = two.on_a().await;
    let work = on_a.go();
    let (control, root) = (&on_a.control, &on_a.root);
    // The time that a host has for this is short.
    wait(|| async { control.ready().await.ok() }).await;
    let here = on_a.sandbox(named("here")).await;
    assert_eq!(here.host, *two.a.id());
    assert_eq!(control.list_images(root).await.unwrap().len(), 1);
    assert!(control.list_quarantine(root).await.unwrap().is_empty());
    control.list_events(root, None, 0, 10).await.unwrap();
    control.stop_sandbox(root, "here", None).await.unwrap();
    control.start_sandbox(root, "here").await.unwrap();
    two.a.exit(&here.id, "by itself");
    on_a.wait_for("here", State::Stopped).await;
    assert_eq!(
        on_a.state("away").await,
        State::Running,
        "nobody knows better"
    );
    for refused in [
        control.stop_sandbox(root, "away", None).await.map(drop),
        control.sample_sandbox(root, "away").await.map(drop),
        control.delete_sandbox(root, "away").await,
    ] {
        assert_eq!(refused.unwrap_err().code, ErrorCode::RunnerUnreachable);
    }
    assert!(two.a.asked_about(&away.id).is_empty());
    // What was asked of it is done when it is back.
    two.b.cut_off(false);
    wait(|| async { two.b.ids().is_empty().then_some(()) }).await;
    two.a.cut_off(true);
    wait(|| async { control.ready().await.ok() }).await;
    two.b.cut_off(true);
    let refused = control.ready().await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::RunnerUnreachable);
    work.halt().await;
}

#[tokio::test]
async fn what_begins_from_a_snapshot_goes_where_the_snapshot_is() {
    let two = Two::new().await;
    let on_b = two.on_b().await;
    on_b.sandbox(named("parent")).await;
    drop(on_b);
    let on_a = two.on_a().await;
    let (control, root) = (&on_a.control, &on_a.root);
    let other = on_a.sandbox(named("other")).await;
    let taken = control.take_snapshot(root, "parent", TakeSnapshot::default());
    let taken = taken.await.unwrap().snapshot;
    assert_eq!(taken.host, *two.b.id());
    let request = CreateSandbox {
        spec: named("child"),
        from: Some(FromSnapshot {
            snapshot: taken.id.clone(),
            memory: false,
        }),
        ..CreateSandbox::default()
    };
    let child = control.create_sandbox(root, request).await.unwrap().sandbox;
    assert_eq!(child.host, *two.b.id());
    let forked = control.fork_sandbox(root, "parent", ForkRequest::default());
    let forked = forked.await.unwrap().remove(0).unwrap();
    assert_eq!(forked.host, *two.b.id());
    assert_eq!(two.a.ids(), [other.id]);
    let refused = control.rollback_sandbox(root, "other", taken.id.as_str(), false);
    let refused = refused.await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert_eq!(on_a.state("other").await, State::Running);
}

#[tokio::test]
async fn an_image_is_removed_from_the_host_that_has_it() {
    let two = Two::new().await;
    let on_a = two.on_a().await;
    let (control, root) = (&on_a.control, &on_a.root);
    let source = ImageSource::Registry {
        reference: "registry.example/app:1".into(),
        username: None,
        password: None,
    };
    let job = control.add_image(root, source).await.unwrap();
    assert_eq!(job.state, JobState::Done);
    let image = job.image.unwrap().id;
    assert_eq!(
        two.store.image_hosts(&image).await.unwrap(),
        [two.a.id().clone()]
    );
    // A reconcile of one host leaves what the other has.
    two.on_b().await;
    assert_eq!(
        two.store.image_hosts(&image).await.unwrap(),
        [two.a.id().clone()]
    );
    two.b.cut_off(true);
    control.remove_image(root, image.as_str()).await.unwrap();
    assert!(two.store.image_hosts(&image).await.unwrap().is_empty());
    assert!(
        two.a
            .images()
            .await
            .unwrap()
            .iter()
            .all(|view| view.id != image)
    );
}

#[tokio::test]
async fn idle_policies_hold_on_every_host() {
    let two = Two::new().await;
    let on_b = two.on_b().await;
    let second = on_b.sandbox(idle("second", Some(60), None, None)).await;
    drop(on_b);
    let on_a = two.on_a().await;
    let first = on_a.sandbox(idle("first", Some(60), None, None)).await;
    let work = on_a.go();
    two.rounds().await;
    two.clock.advance(Duration::from_secs(30));
    two.rounds().await;
    two.clock.advance(Duration::from_secs(31));
    on_a.wait_for("first", State::Stopped).await;
    on_a.wait_for("second", State::Stopped).await;
    work.halt().await;
    for (runner, one) in [(&two.a, &first), (&two.b, &second)] {
        assert_eq!(runner.count(Call::Stop, Some(&one.id)), 1);
    }
}

#[tokio::test]
async fn a_runner_of_another_host_is_not_believed() {
    let mut plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    // The same socket now leads to an empty host.
    plane.runner.pose_as(Some(HostId::random()));
    plane.runner.lose(&made.id);
    plane.crash().await;
    plane.go();
    let (control, root) = (&plane.control, &plane.root);
    let refused = control.sample_sandbox(root, "agent").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::RunnerUnreachable);
    control.ready().await.unwrap_err();
    let found = control.get_sandbox(root, "agent").await.unwrap();
    assert_eq!(found.state, State::Running, "nothing is known of it");
    let refused = plane.create(&plane.root, named("new")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::RunnerUnreachable);
    assert!(
        plane.runner.ids().is_empty(),
        "nothing was made on the wrong host"
    );
    // A later process of the runner is asked again who it is.
    plane.runner.pose_as(None);
    plane.wait_for("agent", State::Failed).await;
    plane.sandbox("another").await;
    plane.runner.pose_as(Some(HostId::random()));
    plane.runner.restart();
    wait(|| async {
        let asked = plane.control.sample_sandbox(&plane.root, "another").await;
        asked.is_err().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_database_of_another_host_is_refused() {
    let plane = Plane::new().await;
    plane.sandbox("agent").await;
    let other = MemoryRunner::new(plane.clock.clone());
    let ids = [plane.runner.id().to_string(), other.id().to_string()];
    let wrong = Control::new(quick(), plane.store.clone(), other, plane.clock.clone());
    let refused = wrong.prepare().await.unwrap_err();
    for id in &ids {
        assert!(refused.message.contains(id), "{}", refused.message);
    }
    assert!(refused.hint.unwrap().contains("engine/host"));
    let row = plane.control.get_sandbox(&plane.root, "agent").await;
    assert_eq!(row.unwrap().state, State::Running);
}

fn from(snapshot: &cove_store::SnapshotRecord) -> CreateSandbox {
    CreateSandbox {
        from: Some(FromSnapshot {
            snapshot: snapshot.id.clone(),
            memory: false,
        }),
        ..CreateSandbox::default()
    }
}

fn durable(name: &str) -> TakeSnapshot {
    TakeSnapshot {
        name: Some(name.into()),
        durable: true,
        ..TakeSnapshot::default()
    }
}

#[tokio::test]
async fn a_durable_snapshot_is_fetched_by_another_host_when_its_own_is_away() {
    let mut two = Two::new().await;
    two.config.objects = Some(crate::durable::place(two._folder.path()));
    let api: Arc<dyn RunnerApi> = two.b.clone();
    let alone = two.over(Hosts::only(two.b.id().clone(), api.clone())).await;
    alone.sandbox(named("box")).await;
    let taken = alone
        .control
        .take_snapshot(&alone.root, "box", durable("kept"));
    let taken = taken.await.unwrap().snapshot;
    let plain = TakeSnapshot::default();
    let plain = alone.control.take_snapshot(&alone.root, "box", plain);
    let plain = plain.await.unwrap().snapshot;
    drop(alone);
    // As if the node had taken it.
    two.b.lose_snapshot(&taken.id);
    let to_node = cove_store::SnapshotChange {
        host: Some(two.a.id().clone()),
        ..cove_store::SnapshotChange::default()
    };
    two.store
        .change_snapshot(&taken.id, &to_node)
        .await
        .unwrap();
    let stays = two.store.change_snapshot(&plain.id, &to_node).await;
    assert!(matches!(stays, Err(cove_store::StoreError::Stale)));

    let node: Arc<dyn RunnerApi> = two.a.clone();
    let hosts = Hosts::only(two.b.id().clone(), api);
    let hosts = hosts.with_node_away(two.a.id().clone(), node).await;
    let both = two.over(hosts).await;
    let work = both.go();
    let made = wait(|| async {
        let made = both.control.create_sandbox(&both.root, from(&taken)).await;
        match made {
            // Until the host has said what it has.
            Err(error) if error.code == ErrorCode::NoCapacity => None,
            made => Some(made.unwrap()),
        }
    });
    assert_eq!(&made.await.sandbox.host, two.b.id());
    let row = two.store.any_snapshot(&taken.id).await.unwrap().unwrap();
    assert_eq!((&row.host, row.on_host), (two.b.id(), true));
    assert_eq!(two.a.count(Call::Create, None), 0);
    let forks = ForkRequest {
        count: 2,
        ..ForkRequest::default()
    };
    let forks = both.control.fork_snapshot(&both.root, "kept", forks);
    for fork in forks.await.unwrap() {
        assert_eq!(&fork.unwrap().host, two.b.id());
    }
    work.halt().await;
}

#[tokio::test]
async fn a_copy_is_given_up_only_when_another_host_has_its_own() {
    let mut two = Two::new().await;
    two.config.objects = Some(crate::durable::place(two._folder.path()));
    let on_a = two.on_a().await;
    on_a.sandbox(named("box")).await;
    let taken = on_a
        .control
        .take_snapshot(&on_a.root, "box", durable("kept"));
    let taken = taken.await.unwrap().snapshot;
    let change = cove_store::SnapshotChange {
        host: Some(two.b.id().clone()),
        ..cove_store::SnapshotChange::default()
    };
    two.store.change_snapshot(&taken.id, &change).await.unwrap();
    let work = on_a.go();
    two.rounds().await;
    let has = |runner: &MemoryRunner| runner.snapshot_ids().contains(&taken.id);
    assert!(has(&two.a) && !has(&two.b));
    let made = on_a.control.create_sandbox(&on_a.root, from(&taken)).await;
    assert_eq!(&made.unwrap().sandbox.host, two.b.id());
    wait(|| async { (has(&two.b) && !has(&two.a)).then_some(()) }).await;
    let kept = on_a.control.list_quarantine(&on_a.root).await.unwrap();
    assert!(kept.is_empty(), "{kept:?}");
    // A rollback needs it on the sandbox's own host.
    let back = on_a
        .control
        .rollback_sandbox(&on_a.root, "box", "kept", false);
    assert_eq!(&back.await.unwrap().sandbox.host, two.a.id());
    wait(|| async { (has(&two.a) && !has(&two.b)).then_some(()) }).await;
    // Deleted, it goes from both.
    two.store.change_snapshot(&taken.id, &change).await.unwrap();
    let deleted = on_a.control.delete_snapshot(&on_a.root, taken.id.as_str());
    deleted.await.unwrap();
    wait(|| async { (!has(&two.a) && !has(&two.b)).then_some(()) }).await;
    work.halt().await;
}
