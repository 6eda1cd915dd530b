//! Secrets: sealed as soon as they are here, and nowhere else.

use cove_control::{ErrorCode, PageRequest, Scope, SetSecret, Zeroizing};
use cove_vault::{About, OpenedKeys};

use crate::support::Plane;

const CANARY: &str = "sk-canary-0123456789";

fn set(name: &str, value: &str, host: &str) -> SetSecret {
    SetSecret {
        name: name.into(),
        value: Zeroizing::new(value.into()),
        binding: cove_model::secret::SecretBinding {
            hosts: vec![host.parse().unwrap()],
            usage: "bearer".parse().unwrap(),
            ask: false,
            limits: Vec::new(),
        },
    }
}

#[tokio::test]
async fn a_value_is_sealed_for_its_binding_and_opens_with_the_hosts_key_alone() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    let request = set("github", CANARY, "api.example");
    assert!(!format!("{request:?}").contains(CANARY));
    let first = control.set_secret(root, request).await.unwrap().done;
    assert_eq!(first.version, 1);
    let second = set("github", "sk-another-0123456789", "api.example");
    let second = control.set_secret(root, second).await.unwrap().done;
    assert_eq!((second.version, &second.id), (2, &first.id));
    let keys = plane.store.secret_keys(&root.org).await.unwrap().unwrap();
    let opened = OpenedKeys::unwrap(&keys, &plane.runner.host_keys().unwrap()).unwrap();
    let about = |version| About {
        org: &root.org,
        name: "github",
        version,
        binding: &first.binding,
    };
    let value = opened.open(&about(1), &first.sealed).unwrap();
    assert_eq!(&value[..], CANARY.as_bytes());
    assert!(opened.open(&about(2), &first.sealed).is_err());
    opened.open(&about(2), &second.sealed).unwrap();
    let page = control
        .list_secrets(root, &PageRequest::default())
        .await
        .unwrap();
    assert!(!format!("{page:?}").contains("sk-"), "{page:?}");
    let records = plane.audit(root).await;
    assert!(!format!("{records:?}").contains("sk-"), "{records:?}");
    let set = ("secret.set".to_owned(), "ok".to_owned());
    assert_eq!(records.iter().filter(|record| **record == set).count(), 2);
}

#[tokio::test]
async fn rotation_wraps_with_the_newest_host_key_and_is_the_operators() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    control
        .set_secret(root, set("github", CANARY, "api.example"))
        .await
        .unwrap();
    plane.runner.forget_secrets();
    assert_eq!(control.rotate_secret_keys(root).await.unwrap(), 1);
    // Hosts have what the new key wraps.
    assert_eq!(plane.runner.known_secrets(&root.org).len(), 1);
    let keys = plane.store.secret_keys(&root.org).await.unwrap().unwrap();
    let host = plane.runner.host_keys().unwrap();
    assert_eq!(keys.wrapped.host_key, host.newest());
    OpenedKeys::unwrap(&keys, &host).unwrap();
}

#[tokio::test]
async fn scopes_and_organisations_are_held_apart() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    control
        .set_secret(root, set("github", CANARY, "api.example"))
        .await
        .unwrap();
    let manager = plane.key_of(&root.org, Scope::Manage).await;
    control
        .list_secrets(&manager, &PageRequest::default())
        .await
        .unwrap();
    let refused = [
        control
            .set_secret(&manager, set("x", CANARY, "api.example"))
            .await
            .map(drop),
        control.remove_secret(&manager, "github").await.map(drop),
        control.rotate_secret_keys(&manager).await.map(drop),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);
    }
    let reader = plane.key_of(&root.org, Scope::Use).await;
    let listed = control.list_secrets(&reader, &PageRequest::default()).await;
    assert_eq!(listed.unwrap_err().code, ErrorCode::Forbidden);
    let other = plane.tenant("others", None).await;
    let page = control
        .list_secrets(&other, &PageRequest::default())
        .await
        .unwrap();
    assert!(page.items.is_empty());
    let gone = control.remove_secret(&other, "github").await.unwrap_err();
    assert_eq!(gone.code, ErrorCode::NotFound);
    assert_eq!(
        control
            .secret_uses(&other, "github")
            .await
            .unwrap_err()
            .code,
        ErrorCode::NotFound
    );
    control.remove_secret(root, "github").await.unwrap();
}
