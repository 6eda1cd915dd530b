//! Secrets in sandboxes: who may hold one, and what hosts hear.

use cove_control::{CreateSandbox, ErrorCode, ForkRequest, SandboxPatch, SetSecret, Zeroizing};
use cove_model::secret::{SecretBinding, SecretGrant};
use cove_model::{NetworkMode, NetworkPolicy, SandboxSpec};
use cove_runner_api::{RunnerError, SecretUseReport};

use crate::support::{Plane, named, wait};

fn set(name: &str, host: &str) -> SetSecret {
    SetSecret {
        name: name.into(),
        value: Zeroizing::new("sk-canary-0123456789".into()),
        binding: SecretBinding {
            hosts: vec![host.parse().unwrap()],
            usage: "bearer".parse().unwrap(),
            ask: false,
            limits: Vec::new(),
        },
    }
}

fn listed(allow: &[&str]) -> NetworkPolicy {
    NetworkPolicy {
        mode: NetworkMode::Allowlist,
        allow: Some(allow.iter().map(|text| text.parse().unwrap()).collect()),
        ..NetworkPolicy::default()
    }
}

fn holding(name: &str, secret: &str, network: NetworkPolicy) -> SandboxSpec {
    SandboxSpec {
        network,
        secrets: vec![SecretGrant {
            name: secret.into(),
            env: Some("TOKEN".into()),
            file: None,
            exposed: false,
        }],
        ..named(name)
    }
}

#[tokio::test]
async fn a_sandbox_holds_secrets_of_its_organisation_whose_hosts_it_reaches() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    control
        .set_secret(root, set("github", "api.example"))
        .await
        .unwrap();
    let reaches = || listed(&["api.example"]);
    let open = NetworkPolicy {
        mode: NetworkMode::Open,
        ..NetworkPolicy::default()
    };
    let theirs = plane.tenant("others", None).await;
    for (by, spec, said) in [
        (
            root,
            holding("a", "gitlab", reaches()),
            "no secret 'gitlab'",
        ),
        (
            root,
            holding("b", "github", listed(&["b.example"])),
            "api.example",
        ),
        (
            root,
            holding("c", "github", listed(&["api.example:80"])),
            "api.example",
        ),
        (
            root,
            holding("d", "github", NetworkPolicy::default()),
            "api.example",
        ),
        (root, holding("e", "github", open), "api.example"),
        (
            &theirs,
            holding("f", "github", reaches()),
            "no secret 'github'",
        ),
    ] {
        let request = CreateSandbox {
            spec,
            ..CreateSandbox::default()
        };
        let refused = control.create_sandbox(by, request).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidRequest);
        assert!(refused.message.contains(said), "{}", refused.message);
    }
    assert!(plane.all(root).await.is_empty());
    plane
        .create(root, holding("g", "github", reaches()))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_value_is_exposed_only_where_secret_and_sandbox_both_say_so() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    let mut exposed = set("plain", "api.example");
    exposed.binding.usage = "exposed".parse().unwrap();
    let refused = control.set_secret(root, exposed.clone()).await.unwrap_err();
    assert!(refused.message.contains("no hosts"), "{}", refused.message);
    exposed.binding.hosts.clear();
    control.set_secret(root, exposed).await.unwrap();
    control
        .set_secret(root, set("github", "api.example"))
        .await
        .unwrap();
    let with = |name: &str, secret: &str, exposed: bool| {
        let mut spec = holding(name, secret, listed(&["api.example"]));
        spec.secrets[0].exposed = exposed;
        spec
    };
    for (spec, said) in [
        (with("a", "plain", false), "exposed: true"),
        (with("b", "github", true), "not for exposure"),
    ] {
        let refused = plane.create(root, spec).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidRequest);
        assert!(refused.message.contains(said), "{}", refused.message);
    }
    // It needs no network, and every view says it.
    let mut spec = with("c", "plain", true);
    spec.network = NetworkPolicy::default();
    let made = plane.create(root, spec).await.unwrap().sandbox;
    assert!(made.spec.secrets[0].exposed);
    // What was sent to sandboxes by a placeholder is not inside because its use changed later.
    plane
        .create(root, with("d", "github", false))
        .await
        .unwrap();
    let mut changed = set("github", "api.example");
    changed.binding.usage = "exposed".parse().unwrap();
    changed.binding.hosts.clear();
    control.set_secret(root, changed).await.unwrap();
    assert!(
        plane
            .create(root, with("e", "github", false))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_sandbox_that_holds_a_secret_can_always_be_shut_off() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    control
        .set_secret(root, set("github", "api.example"))
        .await
        .unwrap();
    let spec = holding("box", "github", listed(&["api.example", "b.example"]));
    plane.create(root, spec).await.unwrap();
    let narrow = |network| SandboxPatch {
        network: Some(network),
        ..SandboxPatch::default()
    };
    let forked = control.fork_sandbox(root, "box", ForkRequest::default());
    let copy = forked.await.unwrap().remove(0).unwrap();
    assert_eq!(copy.spec.secrets.len(), 1);
    // Without the host that the secret is bound to, and without any.
    for network in [listed(&["b.example"]), NetworkPolicy::default()] {
        let patch = narrow(network.clone());
        let changed = control.update_sandbox(root, "box", patch).await.unwrap();
        assert_eq!(changed.spec.network, network);
    }
    let forked = control.fork_sandbox(root, "box", ForkRequest::default());
    let copy = forked.await.unwrap().remove(0).unwrap();
    assert_eq!(copy.spec.secrets, [], "its hosts are not reached any more");
    let patch = narrow(listed(&["api.example"]));
    control.update_sandbox(root, "box", patch).await.unwrap();
    // Nor does a secret that was removed keep anything from being changed or copied.
    control.remove_secret(root, "github").await.unwrap();
    let patch = narrow(NetworkPolicy::default());
    control.update_sandbox(root, "box", patch).await.unwrap();
    let forked = control.fork_sandbox(root, "box", ForkRequest::default());
    let copy = forked.await.unwrap().remove(0).unwrap();
    assert_eq!(copy.spec.secrets, []);
}

#[tokio::test]
async fn a_copy_that_a_sandbox_makes_of_itself_holds_no_secrets() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    control
        .set_secret(root, set("github", "api.example"))
        .await
        .unwrap();
    let spec = holding("box", "github", listed(&["api.example"]));
    plane.create(root, spec).await.unwrap();
    let request = ForkRequest {
        by_itself: true,
        ..ForkRequest::default()
    };
    let forked = control.fork_sandbox(root, "box", request).await.unwrap();
    let copy = forked.into_iter().next().unwrap().unwrap();
    assert_eq!(copy.spec.secrets, []);
}

#[tokio::test]
async fn an_organisation_does_not_wait_for_another_ones_change() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    let theirs = plane.tenant("others", None).await;
    control
        .set_secret(&theirs, set("gitlab", "api.example"))
        .await
        .unwrap();
    control
        .set_secret(root, set("github", "api.example"))
        .await
        .unwrap();
    let stuck = plane.runner.hold_secrets(&theirs.org);
    let removing = {
        let (control, theirs) = (control.clone(), theirs.clone());
        tokio::spawn(async move { control.remove_secret(&theirs, "gitlab").await })
    };
    wait(|| async { plane.runner.waits_for_secrets().then_some(()) }).await;
    control.remove_secret(root, "github").await.unwrap();
    assert_eq!(plane.runner.known_secrets(&root.org), []);
    drop(stuck);
    removing.await.unwrap().unwrap();
    assert_eq!(plane.runner.known_secrets(&theirs.org), []);
}

#[tokio::test]
async fn a_host_without_a_network_is_not_told_again() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    plane.runner.refuse_secrets(Some(RunnerError::Unsupported {
        message: "no network".into(),
    }));
    control
        .set_secret(root, set("github", "api.example"))
        .await
        .unwrap();
    assert_eq!(control.hosts_told_again(), 0);
    plane.runner.refuse_secrets(Some(RunnerError::Internal {
        message: "broken".into(),
    }));
    for _ in 0..3 {
        let changed = control.set_secret(root, set("github", "api.example")).await;
        // The caller hears where the change is not in force.
        assert_eq!(changed.unwrap().not_told.len(), 1);
    }
    let removed = control.remove_secret(root, "github").await.unwrap();
    assert_eq!(removed.not_told.len(), 1);
    control
        .set_secret(root, set("github", "api.example"))
        .await
        .unwrap();
    assert_eq!(control.hosts_told_again(), 1, "one task for all changes");
    plane.runner.refuse_secrets(None);
    wait(|| async { (control.hosts_told_again() == 0).then_some(()) }).await;
    let known = plane.runner.known_secrets(&root.org);
    assert_eq!(known[0].version, 1, "of the secret that was set last");
    let removed = control.remove_secret(root, "github").await.unwrap();
    assert_eq!(removed.not_told, []);
}

#[tokio::test]
async fn hosts_hear_of_secrets_before_a_sandbox_holds_them_and_of_every_change() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    let known = || {
        let known = plane.runner.known_secrets(&root.org);
        let of = |secret: &cove_model::secret::SealedSecret| (secret.name.clone(), secret.version);
        // Secrets that were made in the same moment come in any order.
        let mut known: Vec<_> = known.iter().map(of).collect();
        known.sort();
        known
    };
    control
        .set_secret(root, set("github", "api.example"))
        .await
        .unwrap();
    assert_eq!(known(), [("github".to_owned(), 1)]);
    control
        .set_secret(root, set("github", "api.example"))
        .await
        .unwrap();
    control
        .set_secret(root, set("gitlab", "api.example"))
        .await
        .unwrap();
    assert_eq!(
        known(),
        [("github".to_owned(), 2), ("gitlab".to_owned(), 1)]
    );
    control.remove_secret(root, "github").await.unwrap();
    assert_eq!(known(), [("gitlab".to_owned(), 1)]);
    // A runner that begins anew knows nothing, until it is told everything.
    plane.runner.forget_secrets();
    let spec = holding("box", "gitlab", listed(&["api.example"]));
    plane.create(root, spec).await.unwrap();
    assert_eq!(known(), [("gitlab".to_owned(), 1)]);
}

#[tokio::test]
async fn uses_are_counted_and_audited() {
    let mut plane = Plane::new().await;
    let root = plane.root.clone();
    plane
        .control
        .set_secret(&root, set("github", "api.example"))
        .await
        .unwrap();
    let sandbox = plane.sandbox("box").await;
    plane.runner.report_use(SecretUseReport {
        org: root.org.clone(),
        secret: "github".into(),
        sandbox: sandbox.id.clone(),
        count: 3,
        last_used_ms: 1_700_000_000_000,
    });
    plane.go();
    let control = plane.control.clone();
    let uses = wait(|| async {
        let uses = control.secret_uses(&root, "github").await.unwrap();
        (!uses.is_empty()).then_some(uses)
    })
    .await;
    assert_eq!((uses[0].count, &uses[0].sandbox), (3, &sandbox.id));
    let told = ("secret.use".to_owned(), "ok".to_owned());
    wait(|| async { plane.audit(&root).await.contains(&told).then_some(()) }).await;
    plane.halt().await;
}
