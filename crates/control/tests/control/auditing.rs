//! Audit records: nobody hears of a success that has none.

use cove_control::{
    AddSshKey, CreateKey, ForkRequest, SandboxPatch, Scope, ShareRequest, SshTokenRequest,
    TakeSnapshot,
};

use crate::support::{Plane, named};

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
