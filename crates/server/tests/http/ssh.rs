//! Tokens and keys for SSH, as the API hands them out.

use cove_api::PageQuery;
use cove_api::ssh::{AddSshKey, CreateSshToken};
use cove_api::tenancy::{CreateKey, CreateOrg, Scope};

use super::harness::{Server, refused};

const PUBLIC: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl me@here";

fn add(name: &str, public_key: &str) -> AddSshKey {
    AddSshKey {
        name: name.into(),
        public_key: public_key.into(),
        expires_in_s: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_comes_with_all_a_client_needs() {
    let server = Server::bare().await;
    let sandbox = server.sandbox("box").await;
    let create = CreateSshToken {
        expires_s: Some(60),
        login_s: Some(30),
    };
    let access = server.client.ssh_token("box", &create).await.unwrap();
    assert_eq!(access.user, sandbox.id);
    assert!(access.token.starts_with(&format!("{}.", sandbox.id)));
    assert_eq!(
        access.command,
        format!("ssh -p 2222 {}@ssh.example", sandbox.id)
    );
    assert_eq!(access.known_hosts, "[ssh.example]:2222 ssh-ed25519 AAAA");
    let host = server.client.ssh_host().await.unwrap();
    assert_eq!(host.known_hosts, Some(access.known_hosts));
    for expires_s in [0, 30 * 86_400 + 1, u64::MAX] {
        let create = CreateSshToken {
            expires_s: Some(expires_s),
            login_s: None,
        };
        let (status, _) = refused(server.client.ssh_token("box", &create).await);
        assert_eq!(status, 422, "{expires_s}");
    }
    for login_s in [0, 61, u64::MAX] {
        let create = CreateSshToken {
            expires_s: Some(60),
            login_s: Some(login_s),
        };
        let (status, _) = refused(server.client.ssh_token("box", &create).await);
        assert_eq!(status, 422, "{login_s}");
    }
    server.client.revoke_ssh_tokens("box").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn public_keys_belong_to_their_organisation() {
    let server = Server::bare().await;
    let key = server.client.add_ssh_key(&add("laptop", PUBLIC)).await;
    let key = key.unwrap();
    assert!(!key.public_key.contains("me@here"), "{key:?}");
    let (status, _) = refused(server.client.add_ssh_key(&add("again", PUBLIC)).await);
    assert_eq!(status, 409);
    for bad in ["ssh-rsa AAAA", "", "nonsense"] {
        let (status, _) = refused(server.client.add_ssh_key(&add("bad", bad)).await);
        assert_eq!(status, 422, "{bad}");
    }
    let others = CreateOrg {
        name: "others".into(),
        quota: None,
    };
    let org = server.client.create_org(&others);
    let create = CreateKey {
        name: "theirs".into(),
        scopes: vec![Scope::Admin],
        expires_in_s: None,
        org: Some(org.await.unwrap().id),
        sandbox: None,
    };
    let token = server.client.create_key(&create).await.unwrap().token;
    let other = server.client_with(Some(&token));
    let page = PageQuery::default();
    assert!(other.ssh_keys(&page).await.unwrap().items.is_empty());
    let (status, _) = refused(other.remove_ssh_key(&key.id).await);
    assert_eq!(status, 404);
    assert_eq!(server.client.ssh_keys(&page).await.unwrap().items.len(), 1);
    server.client.remove_ssh_key(&key.id).await.unwrap();
    assert!(
        server
            .client
            .ssh_keys(&page)
            .await
            .unwrap()
            .items
            .is_empty()
    );
}
