//! Several hosts with zones, labels and taints: where sandboxes go, and how nobody gets onto a host that is kept for
//! somebody else.

use std::collections::BTreeMap;
use std::sync::Arc;

use cove_control::testing::{Call, JoinToken, ManualClock, MemoryRunner, NodeKey};
use cove_control::{
    ApiToken, Control, ControlError, CreateKey, CreateSandbox, CreateVolume, ErrorCode,
    ForkRequest, FromSnapshot, HostKeys, Hosts, JoinNode, MountRequest, Origin, Principal, Sandbox,
    Scope, TakeSnapshot,
};
use cove_model::placement::Strategy;
use cove_model::{HostId, HostTraits, Placement, SandboxSpec, TraitsChange};
use cove_runner_api::RunnerApi;
use cove_store::Store;
use tempfile::TempDir;

use crate::support::{Plane, open_store, quick};

fn traits(zone: &str, gpu: Option<&str>, taint: Option<&str>) -> HostTraits {
    HostTraits {
        zone: zone.into(),
        labels: gpu
            .map(|gpu| ("gpu".into(), gpu.into()))
            .into_iter()
            .collect(),
        taints: taint.map(Into::into).into_iter().collect(),
    }
}

fn asked(zone: Option<&str>, gpu: Option<&str>, tolerate: Option<&str>) -> Placement {
    let traits = traits("", gpu, tolerate);
    Placement {
        labels: traits.labels,
        zone: zone.map(Into::into),
        tolerate: traits.taints,
        strategy: Strategy::Spread,
    }
}

fn on(placement: Placement) -> SandboxSpec {
    SandboxSpec {
        placement,
        ..SandboxSpec::default()
    }
}

/// A control plane without a host of its own, and nodes.
struct Fleet {
    control: Control,
    root: Principal,
    nodes: Vec<Arc<MemoryRunner>>,
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    folder: TempDir,
}

impl Fleet {
    async fn new(traits: &[HostTraits]) -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let clock = Arc::new(ManualClock::default());
        let nodes = traits.iter().map(|_| MemoryRunner::new(clock.clone()));
        let nodes: Vec<_> = nodes.collect();
        let path = folder.path().join("store.db");
        let store = open_store(&path).await;
        let control = begin(&folder, &store, &clock, &nodes, traits).await;
        let token = ApiToken::random();
        control.bootstrap_root_key(&token.hash()).await.unwrap();
        let root = control.authenticate(token.reveal(), Origin::default());
        Self {
            root: root.await.unwrap(),
            control,
            nodes,
            store,
            clock,
            folder,
        }
    }

    /// The operator changed what the nodes are.
    async fn change(&mut self, traits: &[HostTraits]) {
        self.control = begin(&self.folder, &self.store, &self.clock, &self.nodes, traits).await;
    }

    /// A key of a new organisation.
    async fn tenant(&self, name: &str) -> Principal {
        let org = self.control.create_organisation(&self.root, name, None);
        let request = CreateKey {
            name: name.into(),
            scopes: vec![Scope::Admin],
            expires_at: None,
            org: Some(org.await.unwrap().id),
            sandbox: None,
        };
        let key = self.control.create_key(&self.root, request).await.unwrap();
        let whose = self
            .control
            .authenticate(key.token.reveal(), Origin::default());
        whose.await.unwrap()
    }

    async fn make(&self, who: &Principal, spec: SandboxSpec) -> Result<Sandbox, ControlError> {
        self.control.learn_inventories().await;
        let request = CreateSandbox {
            spec,
            ..CreateSandbox::default()
        };
        let made = self.control.create_sandbox(who, request).await;
        made.map(|made| made.sandbox)
    }

    /// Which node it went to.
    async fn placed(&self, who: &Principal, placement: Placement) -> usize {
        let made = self.make(who, on(placement)).await.unwrap();
        self.index(&made.host)
    }

    fn index(&self, host: &HostId) -> usize {
        let found = self.nodes.iter().position(|node| node.id() == host);
        found.unwrap()
    }

    async fn refused(&self, who: &Principal, placement: Placement) -> ControlError {
        self.make(who, on(placement)).await.unwrap_err()
    }

    async fn allow(&self, who: &Principal, taint: &str, may: bool) {
        let change = BTreeMap::from([(taint.to_owned(), may)]);
        let allowed = self.control.tolerate(&self.root, &who.org, change);
        allowed.await.unwrap();
    }
}

async fn begin(
    folder: &TempDir,
    store: &Arc<dyn Store>,
    clock: &Arc<ManualClock>,
    nodes: &[Arc<MemoryRunner>],
    traits: &[HostTraits],
) -> Control {
    let nodes = nodes.iter().zip(traits).map(|(node, traits)| {
        let api: Arc<dyn RunnerApi> = node.clone();
        (node.id().clone(), api, traits.clone())
    });
    let mut config = quick();
    config.audit_journal = Some(folder.path().join("audit"));
    let hosts = Hosts::none().with_nodes(nodes);
    let control = Control::new(config, store.clone(), hosts, clock.clone());
    control.prepare().await.unwrap();
    control
}

#[tokio::test]
async fn a_sandbox_goes_to_a_host_with_its_labels_and_zone() {
    let fleet = Fleet::new(&[
        traits("a", Some("h100"), None),
        traits("b", None, None),
        traits("b", Some("h100"), None),
    ])
    .await;
    let root = &fleet.root;
    for _ in 0..5 {
        let wanted = asked(Some("b"), Some("h100"), None);
        assert_eq!(fleet.placed(root, wanted).await, 2);
        assert_eq!(fleet.placed(root, asked(Some("a"), None, None)).await, 0);
    }
    for (wanted, said) in [
        (
            asked(None, Some("a100"), None),
            "no host has label gpu=a100",
        ),
        (asked(Some("c"), None, None), "no host has zone c"),
    ] {
        let refused = fleet.refused(root, wanted).await;
        assert_eq!(refused.code, ErrorCode::UnfitHost);
        assert_eq!(refused.message, said);
        assert_eq!(refused.retry_after_s, None, "waiting does not help");
    }
    let mut both = asked(Some("b"), Some("h100"), None);
    both.labels.insert("disk".into(), "ssd".into());
    let refused = fleet.refused(root, both).await;
    assert_eq!(refused.message, "no host has label disk=ssd");
    let nonsense = fleet.refused(root, asked(Some("a b"), None, None)).await;
    assert_eq!(nonsense.code, ErrorCode::InvalidRequest, "{nonsense}");
    // The host does not hear what was asked of it.
    let made = fleet.make(root, on(asked(Some("a"), None, None))).await;
    let made = made.unwrap();
    assert_eq!(made.spec.placement.zone.as_deref(), Some("a"));
    let view = fleet.nodes[0].get(&made.id).await.unwrap();
    assert!(view.spec.placement.is_empty());
}

#[tokio::test]
async fn sandboxes_spread_over_zones_and_are_packed_where_that_is_asked_for() {
    let zones = [
        traits("a", None, None),
        traits("a", None, None),
        traits("b", None, None),
    ];
    let fleet = Fleet::new(&zones).await;
    let root = &fleet.root;
    let mut counts = [0; 3];
    for _ in 0..6 {
        counts[fleet.placed(root, Placement::default()).await] += 1;
    }
    assert_eq!(counts, [2, 2, 2], "zones have the same mean load");
    let fleet = Fleet::new(&zones).await;
    let root = &fleet.root;
    let pack = Placement {
        strategy: Strategy::Pack,
        ..Placement::default()
    };
    let first = fleet.placed(root, pack.clone()).await;
    for _ in 0..5 {
        assert_eq!(fleet.placed(root, pack.clone()).await, first);
    }
}

#[tokio::test]
async fn the_only_host_of_a_server_refuses_what_it_does_not_have() {
    let plane = Plane::new().await;
    for (wanted, said) in [
        (
            asked(None, Some("h100"), None),
            "no host has label gpu=h100",
        ),
        (asked(Some("a"), None, None), "no host has zone a"),
    ] {
        let refused = plane.create(&plane.root, on(wanted)).await.unwrap_err();
        assert_eq!(refused.message, said);
        assert_eq!(refused.code, ErrorCode::UnfitHost);
    }
    // Also the operator's organisation needs the permission.
    let wanted = asked(None, None, Some("team"));
    let refused = plane.create(&plane.root, on(wanted.clone())).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);
    assert!(plane.runner.ids().is_empty());
    let change = BTreeMap::from([("team".to_owned(), true)]);
    let allowed = plane.control.tolerate(&plane.root, &plane.root.org, change);
    allowed.await.unwrap();
    plane.create(&plane.root, on(wanted)).await.unwrap();
    let pack = Placement {
        strategy: Strategy::Pack,
        ..Placement::default()
    };
    plane.create(&plane.root, on(pack)).await.unwrap();
}

#[tokio::test]
async fn nobody_gets_onto_a_host_that_is_kept_for_another_organisation() {
    let fleet = Fleet::new(&[
        traits("private", Some("h100"), Some("team-a")),
        traits("public", None, None),
    ])
    .await;
    let owner = fleet.tenant("owner").await;
    let other = fleet.tenant("other").await;
    fleet.allow(&owner, "team-a", true).await;
    for _ in 0..5 {
        assert_eq!(fleet.placed(&other, Placement::default()).await, 1);
        // Tolerating is a permission; it does not lead there.
        assert_eq!(fleet.placed(&owner, Placement::default()).await, 1);
    }
    // Whether there is such a taint is not shown, and neither is what the host has.
    let there = fleet
        .refused(&other, asked(None, None, Some("team-a")))
        .await;
    let nowhere = fleet
        .refused(&other, asked(None, None, Some("team-x")))
        .await;
    assert_eq!(there.code, ErrorCode::Forbidden);
    assert_eq!(there.message.replace("team-a", "team-x"), nowhere.message);
    for (wanted, said) in [
        (
            asked(Some("private"), None, None),
            "no host has zone private",
        ),
        (
            asked(None, Some("h100"), None),
            "no host has label gpu=h100",
        ),
        (
            asked(None, Some("none"), None),
            "no host has label gpu=none",
        ),
    ] {
        let refused = fleet.refused(&other, wanted).await;
        assert_eq!(
            (refused.code, &*refused.message),
            (ErrorCode::UnfitHost, said)
        );
    }
    assert_eq!(fleet.nodes[0].calls(Call::Create), 0);
    let wanted = asked(None, Some("h100"), Some("team-a"));
    let theirs = fleet.make(&owner, on(wanted.clone())).await.unwrap();
    assert_eq!(fleet.index(&theirs.host), 0);
    // A volume asks for its host in the same way, and sandboxes with it go there.
    let volume = |name: &str, placement: &Placement| CreateVolume {
        name: name.into(),
        placement: placement.clone(),
        ..CreateVolume::default()
    };
    let made = fleet.control.create_volume(&owner, volume("data", &wanted));
    assert_eq!(fleet.index(&made.await.unwrap().volume.host), 0);
    let stolen = fleet.control.create_volume(&other, volume("data", &wanted));
    assert_eq!(stolen.await.unwrap_err().code, ErrorCode::Forbidden);
    let packed = Placement {
        strategy: Strategy::Pack,
        ..Placement::default()
    };
    let odd = fleet.control.create_volume(&owner, volume("odd", &packed));
    assert_eq!(odd.await.unwrap_err().code, ErrorCode::InvalidRequest);
    // Without the permission nothing new comes; what is there stays and works.
    fleet.allow(&owner, "team-a", false).await;
    let refused = fleet.refused(&owner, wanted).await;
    assert_eq!(refused.code, ErrorCode::Forbidden);
    let control = &fleet.control;
    let forks = control.fork_sandbox(&owner, theirs.id.as_str(), ForkRequest::default());
    let fork = forks.await.unwrap().pop().unwrap();
    assert_eq!(fork.unwrap_err().code, ErrorCode::Forbidden);
    let stopped = control.stop_sandbox(&owner, theirs.id.as_str(), None);
    stopped.await.unwrap();
    let started = control.start_sandbox(&owner, theirs.id.as_str());
    started.await.unwrap();
    assert_eq!(fleet.nodes[0].calls(Call::Create), 1);
}

#[tokio::test]
async fn what_a_tenant_left_on_a_host_does_not_let_it_come_back_once_that_is_kept_for_another() {
    let free = [traits("a", None, None), traits("b", None, None)];
    let mut fleet = Fleet::new(&free).await;
    let other = fleet.tenant("other").await;
    let spec = on(asked(Some("a"), None, None));
    let before = fleet.make(&other, spec).await.unwrap();
    assert_eq!(fleet.index(&before.host), 0);
    let id = before.id.as_str();
    let taken = fleet
        .control
        .take_snapshot(&other, id, TakeSnapshot::default());
    let snapshot = taken.await.unwrap().snapshot;
    let named = |name: &str, from: Option<&str>| CreateVolume {
        name: name.into(),
        from: from.map(Into::into),
        ..CreateVolume::default()
    };
    let volume = fleet.control.create_volume(&other, named("data", None));
    let volume = volume.await.unwrap().volume;
    assert_eq!(fleet.index(&volume.host), 0);
    let creates = fleet.nodes[0].calls(Call::Create);

    fleet
        .change(&[traits("a", None, Some("team-a")), traits("b", None, None)])
        .await;
    let control = &fleet.control;
    // Its sandbox goes on.
    control.freeze_sandbox(&other, id).await.unwrap();
    control.resume_sandbox(&other, id).await.unwrap();
    let rolled = control.rollback_sandbox(&other, id, snapshot.id.as_str(), false);
    rolled.await.unwrap();
    // And nothing new comes.
    let from = |spec: SandboxSpec| CreateSandbox {
        spec,
        from: Some(FromSnapshot {
            snapshot: snapshot.id.clone(),
            memory: false,
        }),
        ..CreateSandbox::default()
    };
    let mounts = control.mounts(
        &other,
        vec![MountRequest {
            volume: "data".into(),
            path: "/data".into(),
            read_only: false,
        }],
    );
    let with_volume = SandboxSpec {
        volumes: mounts.await.unwrap(),
        ..SandboxSpec::default()
    };
    let refusals = [
        control
            .create_sandbox(&other, from(SandboxSpec::default()))
            .await
            .err(),
        control
            .create_sandbox(&other, from(on(asked(None, None, Some("team-a")))))
            .await
            .err(),
        fleet.make(&other, with_volume).await.err(),
        fleet
            .make(&other, on(asked(Some("a"), None, None)))
            .await
            .err(),
        control
            .create_volume(&other, named("copy", Some("data")))
            .await
            .err(),
    ];
    for refused in refusals {
        let refused = refused.unwrap();
        assert!(
            matches!(refused.code, ErrorCode::UnfitHost | ErrorCode::Forbidden),
            "{refused}"
        );
        let shown = format!("{refused} {:?}", refused.hint);
        assert!(
            refused.code == ErrorCode::Forbidden || !shown.contains("team-a"),
            "{shown}"
        );
    }
    for forks in [
        control
            .fork_sandbox(&other, id, ForkRequest::default())
            .await,
        control
            .fork_snapshot(&other, snapshot.id.as_str(), ForkRequest::default())
            .await,
    ] {
        let refused = forks.map(|mut children| children.pop().unwrap());
        let refused = refused.and_then(|child| child).unwrap_err();
        assert_eq!(refused.code, ErrorCode::UnfitHost, "{refused}");
    }
    assert_eq!(fleet.nodes[0].calls(Call::Create), creates);
    // New things go elsewhere.
    let volume = control.create_volume(&other, named("new", None)).await;
    assert_eq!(fleet.index(&volume.unwrap().volume.host), 1);
    assert_eq!(fleet.placed(&other, Placement::default()).await, 1);
    let image = control.image_from_snapshot(&other, snapshot.id.as_str(), "mine");
    assert_eq!(image.await.unwrap_err().code, ErrorCode::UnfitHost);
    // What was refused left nothing: one sandbox of before, one of after.
    let page = cove_control::PageRequest::default();
    let all = Default::default();
    let found = control.list_sandboxes(&other, &all, &page).await;
    assert_eq!(found.unwrap().items.len(), 2);
    let kept = control.list_snapshots(&other, None, &page).await.unwrap();
    assert!(kept.items.iter().any(|kept| kept.id == snapshot.id));
    // Where all hosts are kept for others, there is none.
    let taint = |zone| traits(zone, None, Some("team-a"));
    fleet.change(&[taint("a"), taint("b")]).await;
    let refused = fleet.refused(&other, Placement::default()).await;
    assert_eq!(refused.message, "every host is reserved for others");
    let volume = fleet.control.create_volume(&other, named("late", None));
    assert_eq!(volume.await.unwrap_err().code, ErrorCode::UnfitHost);
}

#[tokio::test]
async fn a_repeat_gets_what_the_first_request_made_whatever_became_of_hosts_and_permissions() {
    let nodes = [traits("a", None, None), traits("b", None, Some("lab"))];
    let mut fleet = Fleet::new(&nodes).await;
    let tenant = fleet.tenant("tenant").await;
    fleet.allow(&tenant, "lab", true).await;
    let lab = asked(Some("b"), None, Some("lab"));
    let sandbox = |key: &str| CreateSandbox {
        spec: on(lab.clone()),
        idempotency_key: Some(key.into()),
        ..CreateSandbox::default()
    };
    let volume = |key: &str| CreateVolume {
        name: "data".into(),
        placement: lab.clone(),
        idempotency_key: Some(key.into()),
        ..CreateVolume::default()
    };
    fleet.control.learn_inventories().await;
    let made = fleet.control.create_sandbox(&tenant, sandbox("one")).await;
    let made = made.unwrap().sandbox;
    let kept = fleet.control.create_volume(&tenant, volume("two")).await;
    let kept = kept.unwrap().volume;
    let take = TakeSnapshot::default();
    let taken = fleet
        .control
        .take_snapshot(&tenant, made.id.as_str(), take)
        .await;
    let snapshot = taken.unwrap().snapshot;
    let fork = |key: &str| ForkRequest {
        idempotency_key: Some(key.into()),
        ..ForkRequest::default()
    };
    let from = snapshot.id.as_str();
    let first = fleet.control.fork_snapshot(&tenant, from, fork("three"));
    let first = first.await.unwrap().pop().unwrap().unwrap();

    fleet.allow(&tenant, "lab", false).await;
    let only = [traits("a", None, None), traits("c", None, Some("lab"))];
    fleet.change(&only).await;
    let control = &fleet.control;
    control.learn_inventories().await;
    let again = control.create_sandbox(&tenant, sandbox("one")).await;
    let again = again.unwrap();
    assert!(again.replayed && again.sandbox.id == made.id);
    let again = control.create_volume(&tenant, volume("two")).await.unwrap();
    assert!(again.replayed && again.volume.id == kept.id);
    let forks = control.fork_snapshot(&tenant, from, fork("three")).await;
    let again = forks.unwrap().pop().unwrap().unwrap();
    assert_eq!(again.id, first.id);
    // What was not made before is refused.
    let refused = control.create_sandbox(&tenant, sandbox("other")).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);
    let refused = control.create_volume(&tenant, volume("another")).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::UnfitHost);
}

/// A host that joins for real, and that nobody answers for.
async fn join(control: &Control, root: &Principal, name: &str, traits: HostTraits) -> JoinNode {
    let token = control.create_join_token(root, None).await.unwrap();
    let token = JoinToken::parse(&token.token).unwrap();
    let key = NodeKey::generate().unwrap();
    JoinNode::make(&token, &HostId::random(), name, "127.0.0.1:1", traits, &key)
}

#[tokio::test]
async fn traits_come_with_the_join_and_are_the_operators_to_change() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut config = quick();
    let key = HostKeys::load_or_make(&folder.path().join("fleet.key")).unwrap();
    config.fleet_key = Some(Arc::new(key));
    let mut plane = Plane::with(config).await;
    let root = plane.root.clone();
    let given = traits("a", Some("h100"), Some("team-a"));
    let request = join(&plane.control, &root, "n1", given.clone()).await;
    // Somebody on the way takes the taint away.
    let changed = JoinNode {
        traits: HostTraits::default(),
        ..request.clone()
    };
    let refused = plane.control.join_node(changed).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    plane.control.join_node(request).await.unwrap();
    let node = plane.control.get_node(&root, "n1").await.unwrap();
    assert_eq!(node.traits, given);
    let bad = join(&plane.control, &root, "n2", traits("a b", None, None)).await;
    let refused = plane.control.join_node(bad).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidRequest);

    let change = TraitsChange {
        zone: Some("b".into()),
        labels: BTreeMap::from([("gpu".into(), None)]),
        taints: BTreeMap::from([("spot".into(), true)]),
    };
    let tenant = plane.tenant("tenant", None).await;
    let refused = plane.control.change_traits(&tenant, "n1", change.clone());
    assert_eq!(refused.await.unwrap_err().code, ErrorCode::Forbidden);
    let permission = BTreeMap::from([("team-a".to_owned(), true)]);
    let refused = plane.control.tolerate(&tenant, &tenant.org, permission);
    assert_eq!(refused.await.unwrap_err().code, ErrorCode::Forbidden);
    let nonsense = TraitsChange {
        taints: BTreeMap::from([("a b".into(), true)]),
        ..TraitsChange::default()
    };
    let refused = plane.control.change_traits(&root, "n1", nonsense).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidRequest);
    let many = TraitsChange {
        taints: (0..9).map(|number| (format!("t{number}"), true)).collect(),
        ..TraitsChange::default()
    };
    let refused = plane.control.change_traits(&root, "n1", many).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::LimitReached);
    let node = plane.control.get_node(&root, "n1").await.unwrap();
    assert_eq!(node.traits, given);

    let changed = plane.control.change_traits(&root, "n1", change.clone());
    let expected = given.changed(&change);
    assert_eq!(changed.await.unwrap().traits, expected);
    let page = cove_control::PageRequest::default();
    let trail = plane.control.audit(&root, &page).await.unwrap().items;
    let details: Vec<_> = trail
        .into_iter()
        .filter(|one| one.action == "node.traits" && one.result == "ok")
        .filter_map(|one| one.detail)
        .collect();
    assert_eq!(details, ["zone b, no label gpu, taint spot"]);
    plane.crash().await;
    let node = plane.control.get_node(&plane.root, "n1").await.unwrap();
    assert_eq!(node.traits, expected);
}
