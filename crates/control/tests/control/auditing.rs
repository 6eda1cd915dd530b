//! Audit records: nobody hears of a success that has none.

use std::time::Duration;

use cove_control::testing::{Call, GuestKind, ScriptedGuest};
use cove_control::{
    AUDIT_WAITING, AddSshKey, AuditRecord, CommandRequest, CreateBuild, CreateKey, CreateTemplate,
    CreateVolume, ErrorCode, ForkRequest, GuestAction, PageRequest, Principal, Quota, RateLimit,
    SandboxPatch, Scope, SetSecret, ShareRequest, SshTokenRequest, TakeSnapshot, Zeroizing,
};
use cove_protocol::message::{MakeDir, Signal};

use crate::support::{DEADLINE, Plane, named, quick, wait};

const PUBLIC_KEY: &str = "ssh-ed25519 \
    AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ test";

/// One call that changes something, and its name.
macro_rules! calls {
    ($($name:literal => $call:expr),* $(,)?) => {
        vec![$(($name, $call.await.map(drop).map_err(|error| error.to_string()))),*]
    };
}

#[tokio::test]
async fn every_change_waits_for_its_record() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    plane.sandbox("agent").await;
    let org = control
        .create_organisation(root, "other", None)
        .await
        .unwrap();
    let key = |name: &str| CreateKey {
        name: name.into(),
        scopes: vec![Scope::Read],
        expires_at: None,
        org: None,
        sandbox: None,
    };
    let kept = control.create_key(root, key("kept")).await.unwrap().key;
    let take = |name: &str| TakeSnapshot {
        name: Some(name.into()),
        ..TakeSnapshot::default()
    };
    control
        .take_snapshot(root, "agent", take("one"))
        .await
        .unwrap();
    control
        .take_snapshot(root, "agent", take("two"))
        .await
        .unwrap();
    let ssh_key = |name: &str| AddSshKey {
        name: name.into(),
        public_key: PUBLIC_KEY.into(),
        expires_at: None,
    };
    let registered = control.add_ssh_key(root, ssh_key("kept")).await.unwrap();

    let volume = |name: &str| CreateVolume {
        name: name.into(),
        size_mb: Some(64),
        ..CreateVolume::default()
    };
    control.create_volume(root, volume("kept")).await.unwrap();
    let template = |snapshot: &str| CreateTemplate {
        name: "tools".into(),
        snapshot: snapshot.into(),
        memory: false,
        tags: Vec::new(),
        config: None,
        idempotency_key: None,
    };
    let made = control.create_template(root, template("one"), Ok).await;
    let version = made.unwrap().template.id.to_string();
    control.tag_template(root, &version, "old").await.unwrap();
    let secret = |name: &str| SetSecret {
        name: name.into(),
        value: Zeroizing::new("a-value-to-keep".into()),
        binding: cove_model::secret::SecretBinding {
            hosts: vec!["api.example".parse().unwrap()],
            usage: "bearer".parse().unwrap(),
            ask: false,
            limits: Vec::new(),
        },
    };
    control.set_secret(root, secret("kept")).await.unwrap();
    let build = || CreateBuild {
        name: "built".into(),
        tags: Vec::new(),
        dockerfile: "FROM scratch\n".into(),
        ignore: String::new(),
        args: std::collections::BTreeMap::new(),
        target: None,
        network: cove_model::NetworkPolicy::default(),
        no_cache: false,
        pull: false,
        start: None,
        over: std::sync::Arc::new(Ok),
    };
    let waiting = control.create_build(root, build()).await.unwrap();
    let waiting = waiting.id.to_string();

    plane.break_audit();
    let patch = SandboxPatch {
        name: Some(Some("agent".into())),
        ..SandboxPatch::default()
    };
    let share = ShareRequest {
        expires_s: None,
        public: false,
    };
    let told = calls![
        "freeze" => control.freeze_sandbox(root, "agent"),
        "resume" => control.resume_sandbox(root, "agent"),
        "pause" => control.pause_sandbox(root, "agent"),
        "wake" => control.resume_sandbox(root, "agent"),
        "stop" => control.stop_sandbox(root, "agent", None),
        "start" => control.start_sandbox(root, "agent"),
        "update" => control.update_sandbox(root, "agent", patch),
        "snapshot" => control.take_snapshot(root, "agent", take("three")),
        "rollback" => control.rollback_sandbox(root, "agent", "one", false),
        "fork" => control.fork_sandbox(root, "agent", ForkRequest { count: 1, ..ForkRequest::default() }),
        "fork of a snapshot" => control.fork_snapshot(root, "one", ForkRequest { count: 1, ..ForkRequest::default() }),
        "delete of a snapshot" => control.delete_snapshot(root, "two"),
        "key" => control.create_key(root, key("new")),
        "revoked key" => control.revoke_key(root, &kept.id),
        "share" => control.share_port(root, "agent", 80, share),
        "unshare" => control.unshare_port(root, "agent", 80),
        "ssh token" => control.ssh_token(root, "agent", SshTokenRequest::default()),
        "revoked ssh tokens" => control.revoke_ssh_tokens(root, "agent"),
        "removed ssh key" => control.remove_ssh_key(root, &registered.id),
        "ssh key" => control.add_ssh_key(root, ssh_key("new")),
        "organisation" => control.create_organisation(root, "third", None),
        "quota" => control.set_quota(root, &org.id, cove_control::Quota::default()),
        "changed quota" => control.change_quota(root, &org.id, Ok),
        "deleted organisation" => control.remove_organisation(root, &org.id),
        "volume" => control.create_volume(root, volume("new")),
        "deleted volume" => control.delete_volume(root, "kept"),
        "template" => control.create_template(root, template("one"), Ok),
        "tag" => control.tag_template(root, &version, "new"),
        "removed tag" => control.untag_template(root, &version, "old"),
        "deleted template" => control.delete_template(root, &version, false),
        "secret" => control.set_secret(root, secret("new")),
        "removed secret" => control.remove_secret(root, "kept"),
        "new keys for secrets" => control.rotate_secret_keys(root),
        "build" => control.create_build(root, build()),
        "context of a build" => control.build_context(root, &waiting),
        "cancelled build" => control.cancel_build(root, &waiting),
        "link for a build" => control.build_file_link(root, &"0".repeat(64)),
        "steps of builds" => control.clear_build_cache(root),
        "lease" => control.take_lease(root, "agent", |_| cove_model::Lease::of("me")),
        "ended lease" => control.end_lease(root, "agent", None),
        "create" => plane.create(root, named("another")),
        "delete" => control.delete_sandbox(root, "agent"),
    ];
    let untold: Vec<_> = told.iter().filter(|(_, told)| told.is_ok()).collect();
    assert!(
        untold.is_empty(),
        "acknowledged without a record: {untold:?}"
    );
    // Each failed for its record alone: everything was done.
    for (name, told) in &told {
        let text = told.as_ref().unwrap_err();
        assert!(text.contains("database"), "{name}: {text}");
    }
}

async fn plane() -> Plane {
    let plane = Plane::new().await;
    let guest = ScriptedGuest::default();
    plane.runner.set_guest(GuestKind::Scripted(guest));
    plane.sandbox("agent").await;
    plane
}

async fn records(plane: &Plane, principal: &Principal) -> Vec<AuditRecord> {
    let page = PageRequest {
        limit: 1000,
        cursor: None,
    };
    plane.control.audit(principal, &page).await.unwrap().items
}

/// Results of one action, oldest first.
async fn results(plane: &Plane, action: &str) -> Vec<String> {
    let mut found = records(plane, &plane.root).await;
    found.reverse();
    let of = found.into_iter().filter(|record| record.action == action);
    of.map(|record| record.result).collect()
}

#[tokio::test]
async fn what_a_guest_refuses_is_not_recorded_as_done() {
    let plane = plane().await;
    let (control, root) = (&plane.control, &plane.root);
    let exec = async || {
        control
            .exec(root, "agent", CommandRequest::shell("true"))
            .await
    };
    exec().await.unwrap();
    // The guest of these tests refuses what it does not know.
    let access = control
        .guest(root, "agent", GuestAction::FileMkdir)
        .await
        .unwrap();
    access.guest().mkdir(MakeDir::default()).await.unwrap_err();
    drop(access);
    plane.runner.set_guest(GuestKind::Unreachable);
    let access = control
        .guest(root, "agent", GuestAction::ProcessSignal)
        .await
        .unwrap();
    access.guest().signal(Signal::default()).await.unwrap_err();
    drop(access);
    assert_eq!(results(&plane, "process.exec").await, ["ok"]);
    let refused = results(&plane, "file.mkdir").await;
    assert!(refused.len() == 1 && refused[0] != "ok", "{refused:?}");
    assert_eq!(
        results(&plane, "process.signal").await,
        ["guest_unreachable"]
    );
}

#[tokio::test]
async fn what_a_crash_cut_off_is_on_record_once_and_as_unknown() {
    let mut plane = plane().await;
    let root = plane.root.clone();
    let exec = CommandRequest::shell("true");
    plane
        .control
        .exec(&root, "agent", exec.clone())
        .await
        .unwrap();
    // Under way when the process ends: nobody lives to drop it.
    let before = plane.control.clone();
    let under_way = before
        .guest(&root, "agent", GuestAction::FileWrite)
        .await
        .unwrap();
    for _ in 0..3 {
        plane.crash().await;
        assert_eq!(results(&plane, "process.exec").await, ["ok"]);
        assert_eq!(results(&plane, "file.write").await, ["unknown"]);
    }
    drop(under_way);
    plane.control.exec(&root, "agent", exec).await.unwrap();
    assert_eq!(results(&plane, "process.exec").await, ["ok", "ok"]);
    let files = std::fs::read_dir(plane.journal()).unwrap();
    let segments = files.filter(|file| {
        let path = file.as_ref().unwrap().path();
        path.extension().is_some_and(|extension| extension == "log")
    });
    assert_eq!(segments.count(), 1, "what was moved is removed");
}

#[tokio::test]
async fn a_torn_journal_loses_only_what_was_torn() {
    let mut plane = plane().await;
    let root = plane.root.clone();
    let before = plane.control.clone();
    let one = before
        .guest(&root, "agent", GuestAction::FileWrite)
        .await
        .unwrap();
    let two = before
        .guest(&root, "agent", GuestAction::FileMove)
        .await
        .unwrap();
    let segment = std::fs::read_dir(plane.journal())
        .unwrap()
        .map(|file| file.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "log"))
        .unwrap();
    let length = std::fs::metadata(&segment).unwrap().len();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&segment)
        .unwrap();
    file.set_len(length - 3).unwrap();
    plane.crash().await;
    assert_eq!(results(&plane, "file.write").await, ["unknown"]);
    assert!(results(&plane, "file.move").await.is_empty());
    drop((one, two));
}

#[tokio::test]
async fn a_call_that_goes_on_is_told_of_before_it_ends() {
    let mut plane = plane().await;
    plane.go();
    let root = plane.root.clone();
    let access = plane
        .control
        .guest(&root, "agent", GuestAction::FileWrite)
        .await
        .unwrap();
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while results(&plane, "file.write").await != ["pending"] {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(access);
    assert_eq!(results(&plane, "file.write").await, ["pending", "not_done"]);
}

#[tokio::test]
async fn nothing_is_asked_of_a_guest_that_cannot_be_recorded() {
    let plane = plane().await;
    plane
        .control
        .exec(&plane.root, "agent", CommandRequest::shell("true"))
        .await
        .unwrap();
    let asked = plane.runner.count(Call::Connect, None);
    // A folder that became a file takes no segment.
    std::fs::remove_dir_all(plane.journal()).unwrap();
    std::fs::write(plane.journal(), "").unwrap();
    let fresh = plane.rebuilt().await;
    let refused = fresh
        .exec(&plane.root, "agent", CommandRequest::shell("true"))
        .await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused:?}");
    assert_eq!(plane.runner.count(Call::Connect, None), asked);
    // What the database alone has to know goes on.
    fresh.delete_sandbox(&plane.root, "agent").await.unwrap();
}

#[tokio::test]
async fn a_flood_of_refused_calls_costs_few_records_and_another_tenant_none() {
    let mut config = quick();
    config.rate_limit = RateLimit {
        per_second: 0.0,
        burst: 0.0,
    };
    config.audit_max = 200;
    let plane = Plane::with(config).await;
    let loud = plane.tenant("loud", None).await;
    let quiet = plane.tenant("quiet", None).await;
    plane.create(&quiet, named("kept")).await.unwrap();
    for _ in 0..5 {
        for n in 0..500 {
            let name = format!("missing-{n}");
            plane
                .control
                .delete_sandbox(&loud, &name)
                .await
                .unwrap_err();
        }
        plane.clock.advance(Duration::from_secs(60));
    }
    plane.create(&loud, named("done")).await.unwrap();
    let of_loud = records(&plane, &loud).await;
    assert!(
        of_loud.len() < 400,
        "{} records of 2,500 refusals",
        of_loud.len()
    );
    let told: u64 = of_loud
        .iter()
        .filter(|record| record.action == "sandbox.delete")
        .map(|record| match &record.detail {
            Some(text) => text.split(' ').nth(1).unwrap().parse::<u64>().unwrap(),
            None => 1,
        })
        .sum();
    assert!(
        (2_000..=2_500).contains(&told),
        "{told} of 2,500 are accounted for"
    );
    let of_quiet = records(&plane, &quiet).await;
    assert!(
        of_quiet
            .iter()
            .any(|record| record.action == "sandbox.create")
    );
}

#[tokio::test]
async fn an_organisation_whose_calls_wait_for_the_database_leaves_the_journal_to_others() {
    let mut plane = plane().await;
    let other = plane.tenant("other", None).await;
    plane.create(&other, named("theirs")).await.unwrap();
    let greedy = plane.root.clone();
    plane.break_audit();
    let (control, mut written) = (plane.control.clone(), 0);
    let refused = loop {
        match control
            .guest(&greedy, "agent", GuestAction::ProcessSignal)
            .await
        {
            Ok(access) => drop(access),
            Err(error) => break error,
        }
        written += 1;
    };
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused:?}");
    // All that it may have when nobody else waits, but for what was recorded of its setting up.
    let most = AUDIT_WAITING.most();
    assert!((most - 8..=most).contains(&written), "{written} of {most}");
    let exec = || control.exec(&other, "theirs", CommandRequest::shell("true"));
    for _ in 0..AUDIT_WAITING.promised {
        exec().await.unwrap();
    }
    // On this host's disk: the next process moves them once the database takes them again.
    plane.sql("DROP TRIGGER broken");
    plane.crash().await;
    let told = records(&plane, &other).await;
    let told = told.iter().filter(|told| told.action == "process.exec");
    assert_eq!(told.count(), AUDIT_WAITING.promised);
}

/// The attack: callers that hang up at every moment of a change.
#[tokio::test]
async fn a_caller_that_goes_away_leaves_no_change_without_its_record() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    let org = plane.tenant("other", None).await.org;
    for sandboxes in 1..20 {
        let change =
            control.change_quota(root, &org, move |quota| Ok(Quota { sandboxes, ..quota }));
        // A little later each time.
        let moment = Duration::from_micros(100 * sandboxes);
        let _ = tokio::time::timeout(moment, change).await;
        // Once it is begun it comes to its end.
        wait(|| async {
            let now = control.organisation(root, Some(&org)).await.unwrap().quota;
            let told = results(&plane, "organisation.quota").await;
            let done = now.sandboxes == sandboxes && told.len() as u64 == sandboxes;
            done.then_some(())
        })
        .await;
    }
}
