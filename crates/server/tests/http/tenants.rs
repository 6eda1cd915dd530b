//! Two organisations, and no way from one to the other.

use cove_api::route::{Access, Operation, ROUTES, Verb};
use cove_api::sandbox::{CreateSandbox, ListSandboxes};
use cove_api::tenancy::{CreateKey, CreateOrg, Scope};
use cove_api::{ErrorCode, PageQuery};
use tokio::time::timeout;

use super::harness::{DEADLINE, Server, refused};
use super::walk::{ask, error_of, filled};

async fn key(server: &Server, org: Option<&str>, scope: Scope) -> String {
    let create = CreateKey {
        name: "a key".into(),
        scopes: vec![scope],
        expires_in_s: None,
        org: org.map(str::to_owned),
        sandbox: None,
    };
    server.client.create_key(&create).await.unwrap().token
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_with_a_good_key_finds_nothing_of_another_organisation() {
    let server = Server::bare().await;
    let mine = server.sandbox("private").await;
    let org = server
        .client
        .create_org(&CreateOrg {
            name: "others".into(),
            quota: None,
        })
        .await
        .unwrap();
    let other = server.client_with(Some(&key(&server, Some(&org.id), Scope::Admin).await));
    for which in [mine.id.as_str(), "private", "sbx_aaaaaaaaaaaaaaaaaaaa"] {
        for route in ROUTES.iter().filter(|route| route.path.contains("{id}")) {
            let mut path = filled(route.path, which);
            if route.path.contains("/files") {
                path.push_str("?path=/etc/passwd");
            }
            let (status, body) = ask(&other, route.verb, &path).await;
            let text = String::from_utf8_lossy(&body).into_owned();
            assert!(
                (400..500).contains(&status),
                "{:?} {path}: {status} {text}",
                route.verb
            );
            // Words differ only in the name that was asked for.
            assert!(!text.contains("root:"), "{text}");
            error_of(&body);
        }
    }
    let (mine_body, made_up) = (
        ask(&other, Verb::Get, &format!("/v1/sandboxes/{}", mine.id)).await,
        ask(&other, Verb::Get, "/v1/sandboxes/sbx_aaaaaaaaaaaaaaaaaaaa").await,
    );
    assert_eq!(mine_body.0, 404);
    assert_eq!(made_up.0, 404);
    let (one, two) = (error_of(&mine_body.1), error_of(&made_up.1));
    assert_eq!(
        one.message.replace(&mine.id, "X"),
        two.message.replace("sbx_aaaaaaaaaaaaaaaaaaaa", "X")
    );
    assert!(
        other
            .list_sandboxes(&ListSandboxes::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    assert!(other.events(None, Some(0)).await.unwrap().items.is_empty());
    let trail = other.audit(&PageQuery::default()).await.unwrap().items;
    assert!(
        trail.iter().all(|record| record.action != "sandbox.create"),
        "{trail:?}"
    );
    // And the owner's is untouched.
    assert_eq!(
        server.client.sandbox("private").await.unwrap().generation,
        mine.generation
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_of_a_tenant_is_no_operator() {
    let server = Server::bare().await;
    let org = server
        .client
        .create_org(&CreateOrg {
            name: "others".into(),
            quota: None,
        })
        .await
        .unwrap();
    let tenant = server.client_with(Some(&key(&server, Some(&org.id), Scope::Admin).await));
    for path in ["/v1/orgs", "/v1/runners", "/metrics"] {
        let (status, body) = ask(&tenant, Verb::Get, path).await;
        assert_eq!(status, 403, "{path}");
        error_of(&body);
    }
    let (status, _) = refused(
        tenant
            .create_org(&CreateOrg {
                name: "mine".into(),
                quota: None,
            })
            .await,
    );
    assert_eq!(status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organisation_is_deleted_by_the_operator_once_it_is_empty_and_its_keys_are_out() {
    let server = Server::bare().await;
    let create = CreateOrg {
        name: "others".into(),
        quota: None,
    };
    let org = server.client.create_org(&create).await.unwrap();
    let tenant = server.client_with(Some(&key(&server, Some(&org.id), Scope::Admin).await));
    let own = CreateSandbox {
        name: Some("last".into()),
        ..CreateSandbox::default()
    };
    tenant.create_sandbox(&own, None).await.unwrap();
    let home = server.client.orgs(&PageQuery::default()).await.unwrap();
    let home = home.items.into_iter().find(|one| one.id != org.id).unwrap();
    // A tenant's admin removes nobody, itself included, and the operator not the home organisation.
    for id in [&org.id, &home.id] {
        assert_eq!(refused(tenant.delete_org(id).await).0, 403);
    }
    assert_eq!(refused(server.client.delete_org(&home.id).await).0, 403);
    let (status, detail) = refused(server.client.delete_org(&org.id).await);
    assert_eq!((status, detail.code), (409, ErrorCode::InUse));
    assert!(detail.message.contains("1 sandbox"), "{}", detail.message);
    tenant.delete_sandbox("last").await.unwrap();

    let mut events = tenant.follow_events(None, None).await.unwrap();
    server.client.delete_org(&org.id).await.unwrap();
    let over = async { while let Ok(Some(_)) = events.next().await {} };
    timeout(DEADLINE, over).await.expect("its streams end");
    let asked = tenant.list_sandboxes(&ListSandboxes::default()).await;
    assert_eq!(refused(asked).0, 401);
    assert_eq!(refused(server.client.delete_org(&org.id).await).0, 404);
    let listed = server.client.orgs(&PageQuery::default()).await.unwrap();
    assert_eq!(listed.items.len(), 1);
    // Its records can still be checked.
    let chains = server.client.audit_chain(&PageQuery::default()).await;
    let chains = chains.unwrap().items;
    let chain = chains.iter().find(|chain| chain.org == org.id).unwrap();
    assert_eq!(chain.broken_at, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_does_what_its_scope_allows_and_no_more() {
    let server = Server::bare().await;
    server.sandbox("shared").await;
    for scope in Scope::ALL {
        let client = server.client_with(Some(&key(&server, None, scope).await));
        for route in ROUTES {
            let Access::Key(needed) = route.access else {
                continue;
            };
            // These end what the next ones need, or never end.
            let skipped = matches!(
                route.operation,
                Operation::DeleteSandbox | Operation::StopSandbox | Operation::StartSandbox
            );
            if skipped {
                continue;
            }
            let mut path = filled(route.path, "shared");
            if route.path.contains("/files") && route.verb == Verb::Get {
                path.push_str("?path=/");
            }
            let (status, body) = ask(&client, route.verb, &path).await;
            let text = String::from_utf8_lossy(&body).into_owned();
            if needed <= scope {
                assert_ne!(status, 403, "{scope:?} {:?} {path}: {text}", route.verb);
            } else {
                // A body that is refused before anybody looks at scopes is refused all the same.
                assert!(
                    (400..500).contains(&status),
                    "{scope:?} {:?} {path}: {text}",
                    route.verb
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_opens_nothing() {
    let server = Server::bare().await;
    let create = CreateKey {
        name: "short".into(),
        scopes: vec![Scope::Read],
        expires_in_s: None,
        org: None,
        sandbox: None,
    };
    let new = server.client.create_key(&create).await.unwrap();
    let client = server.client_with(Some(&new.token));
    client
        .list_sandboxes(&ListSandboxes::default())
        .await
        .unwrap();
    server.client.revoke_key(&new.key.id).await.unwrap();
    assert_eq!(
        refused(client.list_sandboxes(&ListSandboxes::default()).await).0,
        401
    );
}
