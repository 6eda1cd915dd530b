//! The wire to PostgreSQL, against a server that lets nobody in without TLS.

use cove_store::StoreError;

use crate::cluster::{Cluster, Identity};
use crate::rows::try_open;

struct Certificate {
    pem: String,
    key: String,
}

fn certificate(name: &str) -> Certificate {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    Certificate {
        pem: made.cert.pem(),
        key: made.signing_key.serialize_pem(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_says_how_far_the_server_is_trusted() {
    let own = certificate("localhost");
    let cluster = Cluster::start_with(Some(Identity {
        certificate: &own.pem,
        key: &own.key,
    }));
    cluster.database("books").await;
    let port = cluster.port();
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = |name: &str, pem: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    };
    let right = file("right.pem", &own.pem);
    let wrong = file("wrong.pem", &certificate("localhost").pem);
    let address = |host: &str, query: &str| {
        format!("postgres://postgres@{host}:{port}/books?hostaddr=127.0.0.1&{query}")
    };
    for query in [
        "sslmode=prefer".to_owned(),
        String::new(),
        "sslmode=require".to_owned(),
        format!("sslmode=verify-full&sslrootcert={right}"),
        format!(
            "sslmode=verify-full&sslrootcert={}",
            right.replace('/', "%2F")
        ),
    ] {
        let store = try_open(&address("localhost", &query)).await;
        let store = store.unwrap_or_else(|error| panic!("{query}: {error}"));
        store.put_setting("a", &query).await.unwrap();
        assert_eq!(store.setting("a").await.unwrap(), Some(query));
    }
    for (host, query) in [
        // The server wants TLS.
        ("localhost", "sslmode=disable".to_owned()),
        // Somebody else's certificate.
        (
            "localhost",
            format!("sslmode=verify-full&sslrootcert={wrong}"),
        ),
        // The right certificate, for another name.
        (
            "db.example",
            format!("sslmode=verify-full&sslrootcert={right}"),
        ),
    ] {
        let refused = try_open(&address(host, &query)).await.err();
        assert!(
            matches!(refused, Some(StoreError::Refused(_))),
            "{host} {query}: {refused:?}"
        );
    }
}

/// Somebody in between who says that there is no TLS gets nothing.
#[tokio::test]
async fn a_server_that_denies_tls_is_not_believed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 8];
        stream.read_exact(&mut request).await.unwrap();
        stream.write_all(b"N").await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        rest
    });
    let address = format!("postgres://user:password@127.0.0.1:{port}/x?sslmode=require");
    let refused = cove_store::open(&address).await.err();
    assert!(
        matches!(refused, Some(StoreError::Refused(_))),
        "{refused:?}"
    );
    assert!(
        heard.await.unwrap().is_empty(),
        "nothing was said in the open"
    );
}
