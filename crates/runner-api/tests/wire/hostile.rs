//! What a control side that somebody took over may ask for: it gets no more than its share.

use cove_runner_api::wire::LISTS_MAX;

use super::*;

/// Refusals come with this kind.
const ERROR: u8 = 3;

fn frame(content: &[u8]) -> Vec<u8> {
    let mut frame = (content.len() as u32).to_le_bytes().to_vec();
    frame.push(0);
    frame.extend_from_slice(content);
    frame
}

/// Sends these bytes and nothing more; what came back.
async fn send(served: &Served, bytes: &[u8]) -> Vec<u8> {
    let stream = UnixStream::connect(served.path()).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let bytes = bytes.to_vec();
    // The server may hang up before it has read everything.
    let sending = tokio::spawn(async move {
        let _ = writer.write_all(&bytes).await;
        let _ = writer.shutdown().await;
    });
    let mut answer = Vec::new();
    let _ = timeout(DEADLINE, reader.read_to_end(&mut answer))
        .await
        .unwrap();
    sending.await.unwrap();
    answer
}

#[tokio::test]
async fn ids_that_are_paths_are_none() {
    let served = Served::new(Fake::default());
    for id in [
        "../../etc/passwd",
        "/etc/shadow",
        "sbx_/../x",
        "",
        "sbx_\u{0}",
    ] {
        let id = serde_json::to_string(id).unwrap();
        for call in [
            "get",
            "delete",
            "connect",
            "get_snapshot",
            "export_snapshot",
        ] {
            let text = format!(r#"{{"call":"{call}","id":{id}}}"#);
            let answer = send(&served, &frame(text.as_bytes())).await;
            assert_eq!(answer.get(4), Some(&ERROR), "{call} {id}");
            assert!(String::from_utf8_lossy(&answer).contains("could not be read"));
        }
    }
}

#[tokio::test]
async fn policies_that_do_not_parse_reach_no_engine() {
    let served = Served::new(Fake::default());
    let id = served.create().await;
    let before = served.client().get(&id).await.unwrap();
    for (policy, problem) in [
        (
            r#"{"mode":"allowlist","allow":["exa mple.com"]}"#,
            "entry 'exa mple.com'",
        ),
        (
            r#"{"mode":"allowlist","allow":["a.com","127.0.0.1"]}"#,
            "entry '127.0.0.1'",
        ),
        (
            r#"{"mode":"allowlist","allow":["terminate:a.com"]}"#,
            "entry 'terminate:a.com'",
        ),
        (
            r#"{"mode":"allowlist","allow":[{"name":"a.com","ask":true}]}"#,
            "invalid type",
        ),
        (
            r#"{"mode":"allowlist","allow":["a.com"],"methods":["GET"]}"#,
            "unknown field",
        ),
        (r#"{"mode":"everything"}"#, "unknown variant"),
    ] {
        let create = format!(
            r#"{{"call":"create","request":{{"id":"{}","spec":{{"network":{policy}}}}}}}"#,
            SandboxId::random()
        );
        let change = format!(r#"{{"call":"set_network","id":"{id}","policy":{policy}}}"#);
        for call in [create, change] {
            let answer = send(&served, &frame(call.as_bytes())).await;
            let told = String::from_utf8_lossy(&answer).into_owned();
            assert_eq!(answer.get(4), Some(&ERROR), "{call}: {told}");
            assert!(
                told.contains("invalid") && told.contains(problem),
                "{call}: {told}"
            );
        }
    }
    let after = served.client().list().await.unwrap();
    assert_eq!(after, [before]);
}

#[tokio::test]
async fn lists_nobody_reads_keep_only_lists_out() {
    /// More than sockets hold, and no more than is quickly written.
    const SANDBOXES: usize = 50;
    let served = Served::new(Fake::default());
    for _ in 0..SANDBOXES {
        let mut spec = SandboxSpec::default();
        spec.env.insert("LONG".into(), "x".repeat(100_000));
        let request = CreateRequest {
            id: SandboxId::random(),
            spec,
            from: None,
            owner: None,
        };
        served.fake.create(request).await.unwrap();
    }
    let mut unread = Vec::new();
    for _ in 0..LISTS_MAX {
        let mut stream = UnixStream::connect(served.path()).await.unwrap();
        stream
            .write_all(&frame(br#"{"call":"list"}"#))
            .await
            .unwrap();
        // It is being answered.
        stream.read_u8().await.unwrap();
        unread.push(stream);
    }
    let client = served.client();
    let waiting = tokio::spawn(async move { client.list().await });
    let id = served.create().await;
    served.client().get(&id).await.unwrap();
    assert!(!waiting.is_finished());
    drop(unread.pop());
    let listed = timeout(DEADLINE, waiting).await.unwrap().unwrap().unwrap();
    assert!(listed.len() > SANDBOXES);
}
