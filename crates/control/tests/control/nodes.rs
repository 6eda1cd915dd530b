//! A node that lies: it speaks for its own sandboxes and for nobody else's.

use std::sync::Arc;
use std::time::Duration;

use cove_control::testing::{GuestKind, ManualClock, MemoryRunner, ScriptedGuest};
use cove_control::{
    ApiToken, CommandRequest, Control, ControlError, ErrorCode, GuestAccess, GuestAction, Hosts,
    Origin, PageRequest, Principal, RELAYED,
};
use cove_model::SandboxId;
use cove_runner_api::{CreateRequest, RunnerApi, SecretUseReport};
use cove_store::SandboxRecord;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::support::{Plane, idle, quick, wait};

/// One more sandbox on the node, of this caller's organisation.
async fn place(
    plane: &Plane,
    node: &MemoryRunner,
    like: &SandboxRecord,
    whose: &Principal,
) -> SandboxRecord {
    let mut placed = SandboxRecord {
        id: SandboxId::random(),
        org: whose.org.clone(),
        host: node.id().clone(),
        ..like.clone()
    };
    placed.spec.name = None;
    plane.store.create_sandbox(&placed, None).await.unwrap();
    let request = CreateRequest {
        owner: None,
        id: placed.id.clone(),
        spec: placed.spec.clone(),
        from: None,
    };
    node.create(request).await.unwrap();
    placed
}

/// The host of the control plane with one sandbox, and a node with another one.
struct Pair {
    plane: Plane,
    control: Control,
    root: Principal,
    node: Arc<MemoryRunner>,
    ours: SandboxRecord,
    theirs: SandboxRecord,
    _journal: TempDir,
}

impl Pair {
    async fn new() -> Self {
        let plane = Plane::new().await;
        let spec = idle("ours", Some(600), None, None);
        let made = plane.create(&plane.root, spec).await.unwrap().sandbox;
        let ours = plane.store.any_sandbox(&made.id).await.unwrap().unwrap();
        let node = MemoryRunner::new(plane.clock.clone());
        let theirs = place(&plane, &node, &ours, &plane.root).await;
        let journal = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut config = quick();
        config.audit_journal = Some(journal.path().join("audit"));
        let hosts = Hosts::from(plane.runner.clone()).with_node(node.id().clone(), node.clone());
        let clock: Arc<ManualClock> = plane.clock.clone();
        let control = Control::new(config, plane.store.clone(), hosts, clock);
        control.prepare().await.unwrap();
        let token = ApiToken::random();
        control.bootstrap_root_key(&token.hash()).await.unwrap();
        let root = control.authenticate(token.reveal(), Origin::default());
        let root = root.await.unwrap();
        Self {
            plane,
            control,
            root,
            node,
            ours,
            theirs,
            _journal: journal,
        }
    }
}

#[tokio::test]
async fn a_node_brings_visitors_from_its_own_sandboxes_only() {
    let pair = Pair::new().await;
    let (say, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let (control, shutdown) = (pair.control.clone(), CancellationToken::new());
    let until = shutdown.clone();
    let served = tokio::spawn(async move {
        let serve = move |id: SandboxId, _stream| {
            say.send(id).ok();
            async {}
        };
        control.receive_visitors(until, serve).await;
    });
    // The control plane's own host first, so that what it is remembered by helps nobody.
    pair.plane.runner.bring_visitor(&pair.ours.id);
    assert_eq!(heard.recv().await.unwrap(), pair.ours.id);
    pair.node.bring_visitor(&pair.ours.id);
    pair.node.bring_visitor(&SandboxId::random());
    pair.node.bring_visitor(&pair.theirs.id);
    assert_eq!(heard.recv().await.unwrap(), pair.theirs.id);
    // The others are cut off, and not left to be asked about for ever.
    wait(|| async { (pair.node.visitors_waiting() == 0).then_some(()) }).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(heard.try_recv().is_err());
    shutdown.cancel();
    served.await.unwrap();
}

#[tokio::test]
async fn a_node_reports_uses_of_secrets_by_its_own_sandboxes_only() {
    let pair = Pair::new().await;
    let other = pair.plane.tenant("other", None).await;
    let used = |org: &cove_model::OrgId, sandbox: &SandboxId, secret: &str| SecretUseReport {
        org: org.clone(),
        secret: secret.into(),
        sandbox: sandbox.clone(),
        count: 3,
        last_used_ms: 1,
    };
    let (ours, theirs) = (&pair.ours, &pair.theirs);
    pair.node.report_use(used(&ours.org, &ours.id, "forged"));
    pair.node.report_use(used(&other.org, &theirs.id, "forged"));
    pair.node.report_use(used(&theirs.org, &theirs.id, "true"));
    let (control, shutdown) = (pair.control.clone(), CancellationToken::new());
    let until = shutdown.clone();
    let run = tokio::spawn(async move { control.run(until).await });
    let uses = async |principal: &Principal| {
        let page = PageRequest::default();
        let found = pair.control.audit(principal, &page).await.unwrap().items;
        let uses = found.into_iter().filter(|one| one.action == "secret.use");
        uses.filter_map(|one| one.target).collect::<Vec<_>>()
    };
    wait(|| async { (!uses(&pair.root).await.is_empty()).then_some(()) }).await;
    assert_eq!(uses(&pair.root).await, ["true"]);
    assert!(uses(&other).await.is_empty());
    shutdown.cancel();
    run.await.unwrap();
}

#[tokio::test]
async fn an_organisation_that_fills_the_relay_of_a_node_leaves_room_for_others() {
    let pair = Pair::new().await;
    let other = pair.plane.tenant("other", None).await;
    let elsewhere = place(&pair.plane, &pair.node, &pair.ours, &other).await;
    for runner in [&pair.node, &pair.plane.runner] {
        let guest = ScriptedGuest {
            lasting: true,
            ..ScriptedGuest::default()
        };
        runner.set_guest(GuestKind::Scripted(guest));
    }
    let open = async |whose: &Principal, which: &SandboxRecord| -> GuestAccess {
        let action = GuestAction::ProcessRead;
        let opened = pair.control.guest(whose, which.id.as_str(), action).await;
        opened.unwrap()
    };
    // A connection for as long as its command is followed.
    let follow = async |access: &GuestAccess| {
        let start = access.command(CommandRequest::shell("sleep 1000")).unwrap();
        access
            .start_following(start)
            .await
            .map_err(ControlError::from)
    };
    let greedy = open(&pair.root, &pair.theirs).await;
    let mut held = Vec::new();
    let refused = loop {
        match follow(&greedy).await {
            Ok(one) => held.push(one),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code, ErrorCode::LimitReached, "{refused:?}");
    assert_eq!(held.len(), RELAYED.most());
    let beside = open(&other, &elsewhere).await;
    let _theirs = follow(&beside).await.unwrap();
    // Its sandboxes on other hosts are its own affair.
    let at_home = open(&pair.root, &pair.ours).await;
    let _ours = follow(&at_home).await.unwrap();
    // What the other holds is less for it, and what it closes is there again.
    held.truncate(held.len() - 2);
    follow(&greedy).await.unwrap();
}
