//! Connections to ports inside, over the API.

use cove_api::sandbox::CreateSandbox;
use cove_api::tenancy::{CreateKey, CreateOrg, Scope};
use cove_api::{ErrorCode, PageQuery};
use cove_dialect::Kind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::harness::{DEADLINE, Server, refused};
use super::previews::closed_port;

#[tokio::test(flavor = "multi_thread")]
async fn many_connections_go_inside_at_once_and_each_direction_ends_by_itself() {
    const CONNECTIONS: usize = 32;
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let inside = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = inside.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = inside.accept().await {
            tokio::spawn(async move {
                // Answers only once its input ended: half-closing must work.
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.ok();
                all.reverse();
                stream.write_all(&all).await.ok();
            });
        }
    });
    let mut open = Vec::new();
    for number in 0..CONNECTIONS {
        let mut one = server.client.connect_port("box", port).await.unwrap();
        one.write_all(format!("{number}>").as_bytes())
            .await
            .unwrap();
        open.push(one);
    }
    for (number, mut one) in open.into_iter().enumerate() {
        one.shutdown().await.unwrap();
        let mut said = String::new();
        timeout(DEADLINE, one.read_to_string(&mut said))
            .await
            .unwrap()
            .unwrap();
        let expected: String = format!("{number}>").chars().rev().collect();
        assert_eq!(said, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_cannot_be_made_is_refused_before_the_switch() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let (_closed, port) = closed_port();
    let (status, detail) = refused(server.client.connect_port("box", port).await);
    assert_eq!((status, detail.code), (502, ErrorCode::PortClosed));
    let (status, _) = refused(server.client.connect_port("nobody", port).await);
    assert_eq!(status, 404);
    let stranger = server.client_with(None);
    assert_eq!(refused(stranger.connect_port("box", port).await).0, 401);
    let (status, _) = refused(
        server
            .client
            .share_port("box", 0, &Default::default())
            .await,
    );
    assert_eq!(status, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organisation_has_so_many_connections_and_others_have_theirs() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let inside = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = inside.local_addr().unwrap().port();
    let keys = server.client.keys(&PageQuery::default()).await.unwrap();
    let org = keys.items[0].org.parse().unwrap();
    let create = CreateOrg {
        name: "others".into(),
        quota: None,
    };
    let create = CreateKey {
        name: "theirs".into(),
        scopes: vec![Scope::Admin],
        expires_in_s: None,
        org: Some(server.client.create_org(&create).await.unwrap().id),
        sandbox: None,
    };
    let token = server.client.create_key(&create).await.unwrap().token;
    let other = server.client_with(Some(&token));
    let create = CreateSandbox {
        name: Some("theirs".into()),
        ..CreateSandbox::default()
    };
    other.create_sandbox(&create, None).await.unwrap();

    // All places but one are taken, each as by a connection of its own.
    let held: Vec<_> = (1..Kind::Port.max())
        .map(|_| server.streams.enter(&org, Kind::Port).unwrap())
        .collect();
    let last = server.client.connect_port("box", port).await.unwrap();
    let (status, detail) = refused(server.client.connect_port("box", port).await);
    assert_eq!((status, detail.code), (429, ErrorCode::LimitReached));
    let theirs = other.connect_port("theirs", port).await.unwrap();

    // One that ends gives its place back.
    drop((last, theirs));
    for _ in 0..2 {
        let (stream, _) = timeout(DEADLINE, inside.accept()).await.unwrap().unwrap();
        drop(stream);
    }
    let again = timeout(DEADLINE, async {
        loop {
            match server.client.connect_port("box", port).await {
                Ok(stream) => return stream,
                Err(error) => assert_eq!(refused::<()>(Err(error)).1.code, ErrorCode::LimitReached),
            }
            tokio::task::yield_now().await;
        }
    });
    drop((again.await.unwrap(), held));
}
