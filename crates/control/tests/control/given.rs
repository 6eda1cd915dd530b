//! Secrets in sandboxes: who may hold one, and what hosts hear.

use cove_control::{CreateSandbox, ErrorCode, SandboxPatch, SetSecret, Zeroizing};
use cove_model::secret::{SecretBinding, SecretGrant};
use cove_model::{NetworkMode, NetworkPolicy, SandboxSpec};
use cove_runner_api::SecretUseReport;

use crate::support::{Plane, named, wait};

fn set(name: &str, host: &str) -> SetSecret {
    SetSecret {
        name: name.into(),
        value: Zeroizing::new("sk-canary-0123456789".into()),
        binding: SecretBinding {
            hosts: vec![host.parse().unwrap()],
            usage: "bearer".parse().unwrap(),
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
    // Nor can a later policy close what a secret is bound to.
    let patch = SandboxPatch {
        network: Some(listed(&["b.example"])),
        ..SandboxPatch::default()
    };
    let refused = control.update_sandbox(root, "g", patch).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn hosts_hear_of_secrets_before_a_sandbox_holds_them_and_of_every_change() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    let known = || {
        let known = plane.runner.known_secrets(&root.org);
        let of = |secret: &cove_model::secret::SealedSecret| (secret.name.clone(), secret.version);
        known.iter().map(of).collect::<Vec<_>>()
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
